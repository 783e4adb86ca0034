"""Tools that a request lets the provider run, in each protocol."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from sandyard.platform.domain.models.hosted_tools import list_hosted_tools, list_refused_tools
from sandyard.platform.domain.models.model import ModelApi
from sandyard.platform.domain.projects.model import AgentSettings

ANTHROPIC, OPENAI, CHAT, GEMINI = ModelApi.ANTHROPIC, ModelApi.OPENAI, ModelApi.OPENAI_CHAT, ModelApi.GEMINI
PAGE = "https://evil.example/?stolen=1"


def item(kind: str, **more: Any) -> dict[str, Any]:
    return {"input": [{"type": kind, **more}]}


def block(kind: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"content": [{"type": kind, **more}]}]}


def tool(kind: str, **more: Any) -> dict[str, Any]:
    return {"tools": [{"name": "x", "input_schema": {}}, {"type": kind, "name": "y", **more}]}


@pytest.mark.parametrize(
    ("api", "body", "used"),
    [
        (ANTHROPIC, tool("web_search_20250305"), ["web_search"]),
        (ANTHROPIC, tool("Web_Fetch_20250910"), ["web_fetch"]),
        (ANTHROPIC, tool("code_execution_20250825"), ["code_execution"]),
        (ANTHROPIC, tool("something_new_20300101"), ["something_new"]),
        (ANTHROPIC, {"tools": [{"type": 5}]}, ["unknown"]),
        (ANTHROPIC, {"mcp_servers": [{"type": "url", "url": PAGE}]}, ["mcp_servers"]),
        (ANTHROPIC, {"container": {"skills": [{}]}}, ["code_execution"]),
        (ANTHROPIC, {"messages": [{"content": [{"type": "image", "source": {"type": "url", "url": PAGE}}]}]}, ["remote_files"]),
        (OPENAI, tool("web_search"), ["web_search"]),
        (OPENAI, tool("web_search_preview_2025_03_11"), ["web_search"]),
        (OPENAI, tool("file_search"), ["file_search"]),
        (OPENAI, tool("code_interpreter"), ["code_interpreter"]),
        (OPENAI, tool("mcp", server_url=PAGE), ["mcp"]),
        (OPENAI, tool("shell", environment={"type": "container_auto"}), ["code_interpreter"]),
        (OPENAI, tool("namespace", tools=[{"type": "mcp"}]), ["mcp"]),
        (OPENAI, {"input": [{"content": [{"type": "input_image", "image_url": PAGE}]}]}, ["remote_files"]),
        (OPENAI, {"tool": 1, "messages": [{"content": [{"type": "input_file", "file_url": PAGE}]}]}, ["remote_files"]),
        (CHAT, {"web_search_options": {}}, ["web_search"]),
        (CHAT, {"model": "gpt-4o-search-preview"}, ["web_search"]),
        (CHAT, {"plugins": [{"id": "web"}]}, ["plugins"]),
        (CHAT, {"messages": [{"content": [{"image_url": {"url": PAGE}}]}]}, ["remote_files"]),
        (CHAT, {"messages": [{"content": [{"type": "file", "file": {"file_data": PAGE}}]}]}, ["remote_files"]),
        (CHAT, {"messages": [{"content": [{"type": "video_url", "video_url": {"url": PAGE}}]}]}, ["remote_files"]),
        (CHAT, {"messages": [{"content": [{"type": "audio_url", "audio_url": {"url": PAGE}}]}]}, ["remote_files"]),
        (CHAT, {"messages": [{"content": [{"type": "text", "text": "x", "image_url": PAGE}]}]}, ["remote_files"]),
        (CHAT, {"messages": [{"content": [{"type": "something_new", "where": [PAGE]}]}]}, ["remote_files"]),
        (CHAT, {"messages": [{"images": ["file:///etc/passwd"]}]}, ["remote_files"]),
        (CHAT, {"messages": [{"images": ["s3://bucket/key"]}]}, ["remote_files"]),
        (CHAT, {"messages": [{"images": ["\x00 \n" * 50 + "ht\ttps://x"]}]}, ["remote_files"]),
        (CHAT, {"model": "openai/gpt-4o:Online"}, ["web_search"]),
        (CHAT, {"model": "x" * 300 + ":online"}, ["web_search"]),
        (CHAT, {"model": "perplexity/sonar-pro"}, ["web_search"]),
        (CHAT, {"model": "cheap", "models": ["cheap", "dear:online"]}, ["web_search", "models"]),
        (CHAT, {"model": "cheap", "models": ["dear"], "route": "fallback"}, ["models", "route"]),
        (CHAT, {"model": "cheap", "fallbacks": ["dear"]}, ["fallbacks"]),
        (CHAT, {"model": "@preset/with-search"}, ["preset"]),
        (CHAT, {"model": "openai/gpt-4o@preset/with-search"}, ["preset"]),
        (CHAT, {"model": "x", "preset": "with-search"}, ["preset"]),
        (CHAT, {"enable_search": True}, ["enable_search"]),
        (CHAT, {"search_parameters": {"sources": [{"type": "rss", "links": [PAGE]}]}}, ["search_parameters"]),
        (OPENAI, {"prompt": {"id": "pmpt_1"}}, ["prompt"]),
        (OPENAI, {"model": "gpt-5@preset/x"}, ["preset"]),
        (ANTHROPIC, {"model": "claude:online", "plugins": [{"id": "web"}]}, ["web_search", "plugins"]),
        (ANTHROPIC, {"messages": [{"content": [{"type": "document", "source": PAGE}]}]}, ["remote_files"]),
        (GEMINI, {"contents": [{"parts": [{"functionResponse": {"parts": [{"fileData": {"fileUri": "gs://x"}}]}}]}]}, ["remote_files"]),
        (GEMINI, {"tools": [{"googleSearch": {}}, {"functionDeclarations": []}]}, ["google_search"]),
        (GEMINI, {"tools": [{"google_search": {}}, {"urlContext": {}}]}, ["google_search", "url_context"]),
        (GEMINI, {"tools": {"codeExecution": {}}}, ["code_execution"]),
        (GEMINI, {"contents": [{"parts": [{"fileData": {"fileUri": PAGE}}]}]}, ["remote_files"]),
        # tools in input items and messages
        (OPENAI, {"input": [{"type": "tool_search_output", "tools": [{"type": "mcp"}, {"type": "web_search"}]}]}, ["mcp", "web_search"]),
        (OPENAI, item("additional_tools", role="developer", tools=[{"type": "mcp", "server_url": PAGE}]), ["mcp", "remote_files"]),
        (OPENAI, item("additional_tools", tools=tool("namespace", tools=[{"type": "file_search"}])["tools"]), ["file_search"]),
        (OPENAI, {"input": [{"type": "mcp_list_tools", "tools": [{"type": "mcp", "name": "x"}]}]}, ["mcp"]),
        (OPENAI, {"input": [{"type": "something_new", "moreTools": {"type": "hosted_new"}}]}, ["hosted_new"]),
        (OPENAI, {"input": [{"type": "something_new", "with": [{"type": "code_interpreter"}]}]}, ["code_interpreter"]),
        (OPENAI, {"input": [{"type": "web_search_preview_2025_03_11"}]}, ["web_search"]),
        (OPENAI, {"input": [{"type": "mcp_approval_response", "approve": True}]}, ["mcp"]),
        (OPENAI, {"input": [{"type": "something_new", "metadata": {"x": PAGE}}]}, ["remote_files"]),
        (OPENAI, {"input": [{"type": "something_new", "mcp_servers": [{"url": PAGE}]}]}, ["remote_files"]),
        (OPENAI, {"input": [{"type": "something_new", "arguments": {"url": PAGE}}]}, ["remote_files"]),
        (CHAT, {"messages": [{"role": "user", "tools": [{"type": "web_search"}]}]}, ["web_search"]),
        (CHAT, {"messages": [{"content": [{"type": "text", "text": {"image_url": PAGE}}]}]}, ["remote_files"]),
        (CHAT, {"extra_body": {"plugins": [{"id": "web"}]}}, ["extra_body"]),
        (ANTHROPIC, block("tool_addition", tool={"type": "tool_definition", "definition": {"type": "web_fetch_20260318"}}), ["web_fetch"]),
        (ANTHROPIC, block("tool_addition", tool={"type": "mcp_toolset_reference"}), ["mcp_toolset_reference"]),
        (ANTHROPIC, {"messages": [{"content": [{"type": "container_upload", "file_id": "f"}]}]}, ["code_execution"]),
        (ANTHROPIC, {"messages": [{"content": [{"type": "server_tool_use", "id": "a", "name": "web_search"}]}]}, ["web_search"]),
        (ANTHROPIC, {"messages": [{"content": [{"type": "mcp_tool_use", "name": "x"}]}]}, ["mcp_servers"]),
        (GEMINI, {"cachedContent": "cachedContents/x"}, ["cached_content"]),
        (GEMINI, {"cached_content": "cachedContents/x"}, ["cached_content"]),
        (GEMINI, {"generationConfig": {"tools": [{"googleSearch": {}}]}}, ["google_search"]),
        (GEMINI, {"generateContentRequest": {"tools": {"mcpServers": [{}]}}}, ["mcp_servers"]),
    ],
)  # fmt: skip
def test_finds_tools_run_by_provider(api: ModelApi, body: dict[str, Any], used: list[str]) -> None:
    assert list_hosted_tools(api, body, body.get("model")) == used


@pytest.mark.parametrize(
    ("api", "body"),
    [
        (ANTHROPIC, tool("bash_20250124")),
        (ANTHROPIC, tool("text_editor_20250728")),
        (ANTHROPIC, {"tools": None, "mcp_servers": []}),
        (ANTHROPIC, {"messages": [{"content": [{"type": "image", "source": {"type": "base64", "data": "aGk="}}]}]}),
        (ANTHROPIC, {"messages": [{"content": [{"type": "tool_use", "input": {"source": {"url": PAGE}}}]}]}),
        (ANTHROPIC, {"messages": [{"content": f"see {PAGE}"}]}),
        (OPENAI, tool("function")),
        (OPENAI, tool("custom")),
        (OPENAI, tool("local_shell")),
        (OPENAI, tool("shell")),
        (OPENAI, {"input": [{"content": [{"image_url": "data:image/png;base64,aGk="}]}]}),
        (CHAT, tool("function", function={"parameters": {"properties": {"image_url": {"type": "string"}}}})),
        (GEMINI, {"tools": [{"functionDeclarations": [{"name": "x"}]}]}),
        (GEMINI, {"contents": [{"parts": [{"functionCall": {"args": {"file_url": PAGE}}}]}]}),
        (GEMINI, {"contents": [{"parts": [{"functionResponse": {"response": {"url": PAGE}}}]}]}),
        (GEMINI, {"contents": [{"parts": [{"text": PAGE}]}], "systemInstruction": {"parts": [{"text": PAGE}]}}),
        (ANTHROPIC, {"system": PAGE, "messages": [{"content": PAGE}], "stop_sequences": [PAGE]}),
        (ANTHROPIC, {"messages": [{"content": [{"type": "tool_result", "content": PAGE}]}]}),
        (
            ANTHROPIC,
            {"messages": [{"content": [{"type": "tool_result", "content": [{"type": "text", "text": PAGE}]}]}]},
        ),
        (ANTHROPIC, {"messages": [{"content": [{"type": "search_result", "source": PAGE, "title": PAGE}]}]}),
        (ANTHROPIC, {"messages": [{"content": [{"content": [{"type": "web_search_result", "url": PAGE}]}]}]}),
        (ANTHROPIC, {"messages": [{"content": [{"type": "text", "text": "x", "citations": [{"url": PAGE}]}]}]}),
        (
            ANTHROPIC,
            {"messages": [{"content": [{"source": {"type": "text", "media_type": "text/plain", "data": PAGE}}]}]},
        ),
        (ANTHROPIC, {"messages": [{"content": [{"type": "thinking", "thinking": PAGE, "signature": "aGk="}]}]}),
        (OPENAI, {"input": PAGE, "instructions": PAGE, "metadata": {"page": PAGE}}),
        (OPENAI, {"input": [{"type": "function_call_output", "output": PAGE}]}),
        (OPENAI, {"input": [{"type": "shell_call_output", "output": [{"stdout": PAGE, "stderr": PAGE}]}]}),
        (OPENAI, {"input": [{"type": "web_search_call", "action": {"sources": [{"type": "url", "url": PAGE}]}}]}),
        (OPENAI, {"input": [{"content": [{"text": "x", "annotations": [{"type": "url_citation", "url": PAGE}]}]}]}),
        (
            OPENAI,
            {"text": {"format": {"type": "json_schema", "schema": {"$schema": "http://json-schema.org/draft-07"}}}},
        ),
        (CHAT, {"messages": [{"role": "user", "content": PAGE}, {"role": "tool", "content": PAGE}]}),
        (
            CHAT,
            {"messages": [{"tool_calls": [{"function": {"name": "x", "arguments": PAGE}}], "reasoning_content": PAGE}]},
        ),
        (CHAT, {"response_format": {"json_schema": {"schema": {"properties": {"url": {"default": PAGE}}}}}}),
        (CHAT, {"model": "x", "models": [], "route": None, "plugins": []}),
        (CHAT, {"model": "deepseek/deepseek-r1:free", "prompt": PAGE}),
        (CHAT, {"input": [PAGE, PAGE]}),
        # definitions of the agent's own tools in input items, names of tools, finished calls, schemas and arguments
        (OPENAI, {"input": [{"type": "additional_tools", "tools": tool("function", parameters={"x": PAGE})["tools"]}]}),
        (OPENAI, {"input": [{"type": "tool_search_output", "tools": [{"type": "namespace", "tools": [{}]}]}]}),
        (OPENAI, {"input": [{"type": "mcp_list_tools", "tools": [{"name": "x", "input_schema": {"tools": [{}]}}]}]}),
        (OPENAI, {"input": [{"type": "tool_search_call", "arguments": {"tools": [{"type": "mcp"}], "url": PAGE}}]}),
        (OPENAI, {"text": {"format": {"schema": {"properties": {"tools": {"type": "array"}}}}}}),
        (OPENAI, {"tool_choice": {"type": "allowed_tools", "tools": [{"type": "function", "name": "x"}]}}),
        (CHAT, {"functions": [{"name": "x", "parameters": {"properties": {"tool": {"type": "string"}}}}]}),
        (CHAT, {"messages": [{"tool_calls": [{"function": {"arguments": {"tools": [{"type": "mcp"}]}}}]}]}),
        (ANTHROPIC, {"messages": [{"content": [{"type": "tool_use", "input": {"tools": [{"type": "mcp"}]}}]}]}),
        (ANTHROPIC, {"messages": [{"content": [{"type": "tool_addition", "tool": {"type": "tool_reference"}}]}]}),
        (
            ANTHROPIC,
            {
                "messages": [
                    {
                        "content": [
                            {"type": "server_tool_use", "id": "a", "name": "web_search"},
                            {"type": "web_search_tool_result", "tool_use_id": "a"},
                        ]
                    }
                ]
            },
        ),
        (ANTHROPIC, {"tools": [{"name": "x", "input_schema": {"properties": {"tool": {"type": "string"}}}}]}),
        (GEMINI, {"contents": [{"parts": [{"functionCall": {"args": {"tools": [{"type": "x"}]}}}]}]}),
        (GEMINI, {"generationConfig": {"responseSchema": {"properties": {"tools": {"type": "ARRAY"}}}}}),
    ],
)
def test_ignores_tools_run_by_agent(api: ModelApi, body: dict[str, Any]) -> None:
    assert list_hosted_tools(api, body, None) == []


def test_project_allows_tools() -> None:
    allowed = AgentSettings(hosted_tools=["web_search", "ours/mcp"]).hosted_tools
    assert list_refused_tools(["web_search", "mcp", "file_search"], "ours", allowed) == ["file_search"]
    assert list_refused_tools(["web_search", "mcp"], "theirs", allowed) == ["mcp"]
    assert list_refused_tools(["web_search"], "ours", AgentSettings().hosted_tools) == ["web_search"]
    with pytest.raises(ValidationError):
        AgentSettings(hosted_tools=["web search"])
