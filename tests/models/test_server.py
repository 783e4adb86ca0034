"""The official SDKs understand the scripted model server, and therefore agents that use them do."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.later import Later
from tests.models import Cut, Edit, Fail, Hang, ModelServer, Say, Shell, Step, Usage, Write

if TYPE_CHECKING:
    import anthropic
    import openai
else:
    anthropic, openai = Later("anthropic"), Later("openai")

COMMAND = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
QUESTION = "please mend the login"
TEXT = "I have looked at it."
MESSAGES: Any = [{"role": "user", "content": QUESTION}]


@pytest.fixture
def models() -> Iterator[ModelServer]:
    with ModelServer(keys=["sk-real"]) as server:
        yield server


@pytest.fixture
def gpt(models: ModelServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{models.url}/v1", api_key="sk-real", max_retries=0) as client:
        yield client


@pytest.fixture
def claude(models: ModelServer) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=models.url, api_key="sk-real", max_retries=0) as client:
        yield client


def add_script(models: ModelServer, *steps: Step) -> None:
    models.script("mend the login", steps, plain=True)


CHAT_TOOL: Any = {"type": "function", "function": {"name": "bash", "parameters": COMMAND}}


@pytest.mark.parametrize("stream", [False, True])
def test_chat_completions_return_tool_calls_text_and_usage(
    models: ModelServer, gpt: openai.OpenAI, stream: bool
) -> None:
    add_script(models, Shell("make test", say="First the tests."), Say(TEXT, usage=Usage(70, 7, cached=30)))

    def ask() -> Any:
        if not stream:
            return gpt.chat.completions.create(model="scripted", messages=MESSAGES, tools=[CHAT_TOOL])
        with gpt.chat.completions.stream(model="scripted", messages=MESSAGES, tools=[CHAT_TOOL]) as events:
            return events.get_final_completion()

    choice = ask().choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "First the tests."
    assert choice.message.tool_calls[0].function.name == "bash"
    assert json.loads(choice.message.tool_calls[0].function.arguments) == {"command": "make test"}
    answer = ask()
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == (TEXT, "stop")
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (70, 7, 77)
    assert answer.usage.prompt_tokens_details.cached_tokens == 30


RESPONSE_TOOLS: Any = [
    {"type": "function", "name": "shell_command", "parameters": COMMAND, "strict": False},
    {"type": "custom", "name": "apply_patch", "format": {"type": "text"}},
]


@pytest.mark.parametrize("stream", [False, True])
def test_responses_return_tool_calls_text_and_usage(models: ModelServer, gpt: openai.OpenAI, stream: bool) -> None:
    add_script(
        models, Shell("make test", say="First."), Write("a.txt", "one\ntwo\n"), Say(TEXT, usage=Usage(70, 7, 30))
    )

    def ask() -> Any:
        if not stream:
            return gpt.responses.create(model="gpt-5.5", input=QUESTION, tools=RESPONSE_TOOLS)
        with gpt.responses.stream(model="gpt-5.5", input=QUESTION, tools=RESPONSE_TOOLS) as events:
            return events.get_final_response()

    message, call = ask().output
    assert message.content[0].text == "First."
    assert (call.type, call.name, json.loads(call.arguments)) == (
        "function_call",
        "shell_command",
        {"command": "make test"},
    )
    (patch,) = ask().output
    assert (patch.type, patch.name) == ("custom_tool_call", "apply_patch")
    assert patch.input == "*** Begin Patch\n*** Add File: a.txt\n+one\n+two\n*** End Patch\n"
    answer = ask()
    assert answer.output_text == TEXT
    assert (answer.usage.input_tokens, answer.usage.output_tokens, answer.usage.total_tokens) == (70, 7, 77)
    assert answer.usage.input_tokens_details.cached_tokens == 30


EDIT = {
    "type": "object",
    "properties": {name: {"type": "string"} for name in ("file_path", "old_string", "new_string", "why")},
    "required": ["file_path", "old_string", "new_string", "why"],
}
CLAUDE_TOOLS: Any = [{"name": "Bash", "input_schema": COMMAND}, {"name": "Edit", "input_schema": EDIT}]


@pytest.mark.parametrize("stream", [False, True])
def test_messages_return_tool_calls_text_and_usage(
    models: ModelServer, claude: anthropic.Anthropic, stream: bool
) -> None:
    add_script(models, Shell("make test", say="First."), Edit("/a", "x", "y"), Say(TEXT, usage=Usage(70, 7, cached=30)))

    def ask() -> Any:
        options: dict[str, Any] = {"model": "m", "max_tokens": 100, "messages": MESSAGES, "tools": CLAUDE_TOOLS}
        if not stream:
            return claude.messages.create(**options)
        with claude.messages.stream(**options) as events:
            return events.get_final_message()

    first = ask()
    assert first.stop_reason == "tool_use"
    assert first.content[0].text == "First."
    assert (first.content[1].name, first.content[1].input) == ("Bash", {"command": "make test"})
    edit = ask().content[0].input
    assert {"file_path": "/a", "old_string": "x", "new_string": "y"}.items() <= edit.items()
    assert "why" in edit, "other required arguments are filled in"
    answer = ask()
    assert (answer.content[0].text, answer.stop_reason) == (TEXT, "end_turn")
    assert (answer.usage.input_tokens, answer.usage.cache_read_input_tokens, answer.usage.output_tokens) == (40, 30, 7)
    assert claude.messages.count_tokens(model="m", messages=MESSAGES).input_tokens == 100


def test_generate_content_returns_tool_calls_text_and_usage(models: ModelServer) -> None:
    """No SDK for this API is installed: checks the fields that @google/genai reads."""
    add_script(models, Shell("make test"), Say(TEXT, usage=Usage(70, 7)))
    declared = [{"functionDeclarations": [{"name": "run_shell_command", "parametersJsonSchema": COMMAND}]}]
    body = {"contents": [{"role": "user", "parts": [{"text": QUESTION}]}], "tools": declared}
    path = f"{models.url}/v1beta/models/gemini-3.1-pro-preview"
    key = {"x-goog-api-key": "sk-real"}
    whole = httpx.post(f"{path}:generateContent", json=body, headers=key).json()
    assert whole["candidates"][0]["content"]["parts"] == [
        {"functionCall": {"name": "run_shell_command", "args": {"command": "make test"}}}
    ]
    lines = httpx.post(f"{path}:streamGenerateContent?alt=sse", json=body, headers=key).text.split("\n\n")
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines if line]
    assert "".join(chunk["candidates"][0]["content"]["parts"][0]["text"] for chunk in chunks) == TEXT
    assert chunks[-1]["candidates"][0]["finishReason"] == "STOP"
    assert chunks[-1]["usageMetadata"]["totalTokenCount"] == 77


def test_models_are_listed(models: ModelServer, gpt: openai.OpenAI, claude: anthropic.Anthropic) -> None:
    assert "scripted" in [model.id for model in gpt.models.list()]
    assert "scripted" in [model.id for model in claude.models.list()]


def test_a_wrong_key_is_refused_and_recorded(models: ModelServer) -> None:
    gpt = openai.OpenAI(base_url=f"{models.url}/v1", api_key="sk-wrong", max_retries=0)
    claude = anthropic.Anthropic(base_url=models.url, api_key="sk-wrong", max_retries=0)
    with gpt, pytest.raises(openai.AuthenticationError):
        gpt.chat.completions.create(model="scripted", messages=MESSAGES)
    with claude, pytest.raises(anthropic.AuthenticationError):
        claude.messages.create(model="m", max_tokens=1, messages=MESSAGES)
    assert [call.key for call in models.calls] == ["sk-wrong", "sk-wrong"]


def test_failures_raise_the_exceptions_of_the_sdks(
    models: ModelServer, gpt: openai.OpenAI, claude: anthropic.Anthropic
) -> None:
    add_script(models, Fail(500), Fail(429, retry_after_s=3), Fail(529), Cut(), Fail(503, times=None))
    with pytest.raises(openai.InternalServerError, match="had an error"):
        gpt.chat.completions.create(model="scripted", messages=MESSAGES)
    with pytest.raises(openai.RateLimitError) as limited:
        gpt.responses.create(model="scripted", input=QUESTION)
    assert limited.value.response.headers["retry-after"] == "3"
    with pytest.raises(anthropic.APIStatusError) as overloaded:
        claude.messages.create(model="m", max_tokens=1, messages=MESSAGES)
    assert overloaded.value.status_code == 529
    with pytest.raises(openai.APIConnectionError):
        list(gpt.chat.completions.create(model="scripted", messages=MESSAGES, stream=True))
    for _ in range(3):
        with pytest.raises(openai.InternalServerError):
            gpt.chat.completions.create(model="scripted", messages=MESSAGES)


def test_a_client_can_leave_a_hanging_model(models: ModelServer, gpt: openai.OpenAI) -> None:
    add_script(models, Hang("So far"), Say(TEXT))
    received = ""
    with gpt.chat.completions.create(model="scripted", messages=MESSAGES, stream=True) as stream:
        for chunk in stream:
            received += chunk.choices[0].delta.content or ""
            if received == "So far":
                break
    models.wait_for(lambda models: models.list_requests()[0].disconnected)
    assert gpt.chat.completions.create(model="scripted", messages=MESSAGES).choices[0].message.content == TEXT


def test_a_slow_answer_is_streamed_in_pieces(models: ModelServer, gpt: openai.OpenAI) -> None:
    add_script(models, Say("one two three", pause_s=0.05))
    started = time.monotonic()
    stream = gpt.chat.completions.create(model="scripted", messages=MESSAGES, stream=True)
    pieces = [chunk.choices[0].delta.content for chunk in stream if chunk.choices and chunk.choices[0].delta.content]
    assert pieces == ["one", " two", " three"]
    assert time.monotonic() - started > 0.15


def test_scripts_are_separate_and_requests_without_tools_use_no_step(models: ModelServer, gpt: openai.OpenAI) -> None:
    one = models.script("the login", [Say("The login.")])
    models.script("the logout", [Say("The logout.")])

    def ask(text: str, **more: Any) -> str:
        answer = gpt.chat.completions.create(model="scripted", messages=[{"role": "user", "content": text}], **more)
        return str(answer.choices[0].message.content)

    tools = [CHAT_TOOL]
    assert ask("a title for: mend the login") == "Scripted work"
    assert not one.is_over
    assert ask("mend the logout", tools=tools) == "The logout."
    assert ask("mend the login", tools=tools) == "The login."
    assert one.is_over
    assert ask("mend the login", tools=tools) == "The script has ended."
    assert len(models.list_requests("the login")) == 2
    wanted = {
        "type": "json_schema",
        "json_schema": {"name": "next", "schema": {"type": "object", "properties": {"who": {"enum": ["user"]}}}},
    }
    assert ask("who is next", response_format=wanted) == '{"who": "user"}'


def test_a_step_without_a_matching_tool_is_reported(models: ModelServer, gpt: openai.OpenAI) -> None:
    add_script(models, Shell("make test"))
    answer = gpt.chat.completions.create(model="scripted", messages=MESSAGES)
    assert "I cannot do this" in (answer.choices[0].message.content or "")
    assert "no shell" in models.refused[0]
