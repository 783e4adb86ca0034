"""The messages API of Anthropic."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

from tests.models.requests import Answer, Call, ModelRequest, get_text
from tests.models.tools import Tool

_numbers = itertools.count(1)
ERRORS = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
    529: "overloaded_error",
}


class Messages:
    name = "anthropic"

    def parse_request(self, call: Call) -> ModelRequest:
        body = call.body
        parts = [
            part for message in body["messages"] if isinstance(message["content"], list) for part in message["content"]
        ]
        own = [tool for tool in body.get("tools") or [] if "input_schema" in tool]
        wanted = (body.get("output_config") or {}).get("format") or body.get("output_format") or {}
        return ModelRequest(
            model=body["model"],
            stream=bool(body.get("stream")),
            texts=[get_text(message["content"]) for message in body["messages"] if message["role"] == "user"],
            tools=[Tool(tool["name"], tool["input_schema"]) for tool in own],
            results=[get_text(part.get("content")) for part in parts if part.get("type") == "tool_result"],
            schema=wanted.get("schema"),
        )

    def make_response(self, request: ModelRequest, answer: Answer) -> dict[str, Any]:
        return {
            **self._message(request, list(self._blocks(answer)), self._reason(answer)),
            "usage": _make_usage(answer),
        }

    def make_frames(self, request: ModelRequest, answer: Answer) -> Iterator[bytes]:
        started = {**self._message(request, [], None), "usage": {**_make_usage(answer), "output_tokens": 1}}
        yield _event("message_start", message=started)
        for index, block in enumerate(self._blocks(answer)):
            text = block["type"] == "text"
            yield _event(
                "content_block_start", index=index, content_block={**block, **({"text": ""} if text else {"input": {}})}
            )
            if index == 0:
                yield _event("ping")
            if text:
                deltas = [{"type": "text_delta", "text": piece} for piece in answer.pieces]
            else:
                whole = json.dumps(block["input"])
                halves = (whole[: len(whole) // 2], whole[len(whole) // 2 :])
                deltas = [{"type": "input_json_delta", "partial_json": half} for half in ("", *halves)]
            for delta in deltas:
                yield _event("content_block_delta", index=index, delta=delta)
            yield _event("content_block_stop", index=index)
        ended = {"stop_reason": self._reason(answer), "stop_sequence": None}
        yield _event("message_delta", delta=ended, usage={"output_tokens": answer.usage.output})
        yield _event("message_stop")

    def make_error(self, status: int, message: str) -> dict[str, Any]:
        return {"type": "error", "error": {"type": ERRORS.get(status, "api_error"), "message": message}}

    def _message(self, request: ModelRequest, content: list[dict[str, Any]], reason: str | None) -> dict[str, Any]:
        head = {"id": f"msg_{next(_numbers)}", "type": "message", "role": "assistant", "model": request.model}
        return {**head, "content": content, "stop_reason": reason, "stop_sequence": None}

    def _reason(self, answer: Answer) -> str:
        return "tool_use" if answer.call else "end_turn"

    def _blocks(self, answer: Answer) -> Iterator[dict[str, Any]]:
        if answer.text:
            yield {"type": "text", "text": answer.text}
        if call := answer.call:
            yield {
                "type": "tool_use",
                "id": f"toolu_{next(_numbers)}",
                "name": call.name,
                "input": dict(call.arguments),
            }


def _make_usage(answer: Answer) -> dict[str, int]:
    """In this API, tokens read from a cache are not part of the input."""
    usage = answer.usage
    return {
        "input_tokens": usage.input - usage.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.output,
    }


def _event(type: str, **more: Any) -> bytes:
    return f"event: {type}\ndata: {json.dumps({'type': type, **more})}\n\n".encode()
