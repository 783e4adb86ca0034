"""What requests have a provider do besides answering, in each of the protocols."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from sandyard.platform.domain.agents.model import ModelApi
from sandyard.platform.domain.models.hosted import hosted_tools, refused_tools
from sandyard.platform.domain.projects.model import AgentSettings

ANTHROPIC, OPENAI, CHAT, GEMINI = ModelApi.ANTHROPIC, ModelApi.OPENAI, ModelApi.OPENAI_CHAT, ModelApi.GEMINI
PAGE = "https://evil.example/?stolen=1"


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
        (GEMINI, {"tools": [{"googleSearch": {}}, {"functionDeclarations": []}]}, ["google_search"]),
        (GEMINI, {"tools": [{"google_search": {}}, {"urlContext": {}}]}, ["google_search", "url_context"]),
        (GEMINI, {"tools": {"codeExecution": {}}}, ["code_execution"]),
        (GEMINI, {"contents": [{"parts": [{"fileData": {"fileUri": PAGE}}]}]}, ["remote_files"]),
    ],
)  # fmt: skip
def test_what_the_provider_does(api: ModelApi, body: dict[str, Any], used: list[str]) -> None:
    assert hosted_tools(api, body, body.get("model")) == used


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
    ],
)
def test_what_the_agent_does_itself(api: ModelApi, body: dict[str, Any]) -> None:
    assert hosted_tools(api, body, None) == []


def test_what_a_project_allows() -> None:
    allowed = AgentSettings(hosted_tools=["web_search", "ours/mcp"]).hosted_tools
    assert refused_tools(["web_search", "mcp", "file_search"], "ours", allowed) == ["file_search"]
    assert refused_tools(["web_search", "mcp"], "theirs", allowed) == ["mcp"]
    assert refused_tools(["web_search"], "ours", AgentSettings().hosted_tools) == ["web_search"]
    with pytest.raises(ValidationError):
        AgentSettings(hosted_tools=["web search"])
