"""Realistic JSON of agents, models and forges is accepted: long texts with few values."""

from __future__ import annotations

import json

from sandyard.platform.domain.forge.github_connection import CachedResponse, parse_response
from sandyard.platform.domain.models.apis import ModelRequest
from sandyard.platform.domain.models.model import ModelApi, Tokens
from sandyard.platform.domain.models.request_body import ParsedBody, parse_body
from sandyard.platform.domain.models.token_counter import TokenCounter

CODE = 'values = [{"a": 1, "b": [2, 3]}, {"c": "\\""}]\n' * 30_000  # 210,000 commas and brackets


def test_accepts_request_with_long_context() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * (1 << 20)}}
    long = [{"role": "user", "content": [{"type": "text", "text": CODE}, image]}]
    short = [{"role": "assistant", "content": [{"type": "text", "text": "Yes."}]}] * 5_000
    body = json.dumps({"model": "m", "messages": [*long, *short]}).encode()
    assert parse_body(body, ModelRequest("/v1/chat/completions", "", counted=True), ModelApi.OPENAI_CHAT) == ParsedBody(
        "m", body, []
    )


async def test_accepts_event_that_repeats_whole_answer() -> None:
    tools = [{"type": "function", "name": f"t{number}", "parameters": {"type": "object"}} for number in range(500)]
    response = {"output": [{"text": CODE}], "tools": tools, "usage": {"input_tokens": 5, "output_tokens": 6}}
    counter = TokenCounter(ModelApi.OPENAI, "text/event-stream")
    await counter.feed(b"data: " + json.dumps({"type": "response.completed", "response": response}).encode() + b"\n\n")
    assert counter.get_result() == Tokens(5, 6)


def test_accepts_page_of_pull_requests() -> None:
    repository = {f"{number}_url": "https://api.github.com/repos/acme/site" for number in range(110)}
    pull = {"body": CODE[:5_000], "head": {"repo": repository}, "base": {"repo": repository}, **repository}
    page = [pull] * 100
    assert parse_response(CachedResponse("", json.dumps(page).encode(), "")).json == page
