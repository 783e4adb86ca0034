"""Bodies of agents' requests: ambiguous ones and expensive options are refused, and streams report their usage."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sandyard.platform.domain.models.apis import ModelRequest
from sandyard.platform.domain.models.model import ModelApi
from sandyard.platform.domain.models.request_body import InvalidBodyError, parse_body

CHAT = ModelRequest("/v1/chat/completions", "", counted=True)
RESPONSES = ModelRequest("/v1/responses", "", counted=True)


def send(body: Any, target: ModelRequest = CHAT, kind: ModelApi = ModelApi.OPENAI) -> dict[str, Any]:
    """Return the body that the provider gets."""
    return dict(json.loads(parse_body(json.dumps(body).encode(), target, kind).body))


@pytest.mark.parametrize("body", [b"", b"[]", b"no", b'{"model": "a", "model": "b"}', b'{"x": {"a": 1, "a": 2}}'])
def test_rejects_bodies_that_are_not_objects_with_unique_keys(body: bytes) -> None:
    with pytest.raises(InvalidBodyError, match="duplicate keys"):
        parse_body(body, CHAT, ModelApi.OPENAI)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"model": "tiny", "MODEL": "expensive"}, "differ only in case"),
        ({"Unknown": 1, "unknown": 1}, "differ only in case"),
        ({"MODEL": "expensive"}, "must be spelled 'model'"),
        ({"Stream": True}, "must be spelled 'stream'"),
        ({"\u017ftream": True}, "must be spelled 'stream'"),
        ({"Tools": []}, "must be spelled 'tools'"),
        ({"Service_Tier": "priority"}, "must be spelled 'service_tier'"),
        ({"stream_options": {"Include_Usage": False}}, "must be spelled 'include_usage'"),
        ({"tools": [{"type": "function", "Type": "mcp"}]}, "must be spelled 'type'"),
        ({"input": [{"tools": [{"Server_URL": "x"}]}]}, "must be spelled 'server_url'"),
        ({"input": [{"Type": "additional_tools"}]}, "must be spelled 'type'"),
    ],
)
def test_refuses_names_in_other_case(body: dict[str, Any], message: str) -> None:
    """Some servers ignore case, and would use the field that was not checked."""
    with pytest.raises(InvalidBodyError, match=message) as error:
        send(body)
    assert error.value.status == 400


def test_names_in_schemas_and_arguments_are_free() -> None:
    schema = {"properties": {"Type": {}, "type": {}, "Tools": {}}, "Type": "x"}
    tool = {"type": "function", "function": {"name": "x", "parameters": schema}}
    call = {"type": "tool_search_call", "arguments": {"Type": 1, "tools": [{"Name": 1}]}}
    body = {"model": "m", "tools": [tool], "input": [call], "metadata": {"Type": "x"}, "topP": 1}
    assert send(body, RESPONSES) == body
    gemini = {"contents": [{"parts": [{"functionResponse": {"response": {"Type": 1}}}]}], "systemInstruction": {}}
    target = ModelRequest("/v1beta/models/g:generateContent", "", counted=True)
    assert send(gemini, target, ModelApi.GEMINI) == gemini


@pytest.mark.parametrize("stream", ["true", 1, [True], {}])
def test_refuses_unclear_stream(stream: object) -> None:
    with pytest.raises(InvalidBodyError, match="'stream'"):
        send({"stream": stream})


@pytest.mark.parametrize("options", [None, {}, "x", *({"include_usage": value} for value in (False, None, "false", 1))])
def test_streams_report_usage(options: object) -> None:
    sent = send({"stream": True, "stream_options": options})
    assert sent["stream_options"] == {"include_usage": True}


def test_keeps_other_stream_options() -> None:
    sent = send({"stream": True, "stream_options": {"include_obfuscation": False}})
    assert sent["stream_options"] == {"include_obfuscation": False, "include_usage": True}
    assert send({"stream": None, "background": True}) == {"stream": None}


@pytest.mark.parametrize(
    ("kind", "option"),
    [
        (ModelApi.OPENAI, {"service_tier": "priority"}),
        (ModelApi.OPENAI, {"service_tier": "fast"}),
        (ModelApi.OPENAI, {"service_tier": ["priority"]}),
        (ModelApi.GEMINI, {"serviceTier": "PRIORITY"}),
        (ModelApi.GEMINI, {"service_tier": "priority"}),
        (ModelApi.ANTHROPIC, {"speed": "fast"}),
    ],
)
def test_refuses_options_that_change_price(kind: ModelApi, option: dict[str, Any]) -> None:
    with pytest.raises(InvalidBodyError, match="price") as error:
        send(option, kind=kind)
    assert (error.value.status, error.value.code) == (403, "price_option_refused")


@pytest.mark.parametrize(
    "option",
    [{"service_tier": tier} for tier in ("auto", "default", "flex", "standard_only", None)] + [{"speed": "standard"}],
)
def test_allows_ordinary_prices(option: dict[str, Any]) -> None:
    assert send(option) == option
