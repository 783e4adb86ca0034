"""The two APIs of OpenAI: chat completions and responses."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from typing import Any

from tests.models.requests import Answer, Call, ModelRequest, get_text
from tests.models.tools import Tool

_numbers = itertools.count(1)


def _make_error(status: int, message: str) -> dict[str, Any]:
    kind = {400: "invalid_request_error", 401: "authentication_error", 429: "rate_limit_error"}.get(
        status, "server_error"
    )
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}


def _format_event(event: dict[str, Any]) -> bytes:
    name = f"event: {event['type']}\n" if "type" in event else ""
    return f"{name}data: {json.dumps(event)}\n\n".encode()


class Chat:
    name = "openai_chat"

    def parse_request(self, call: Call) -> ModelRequest:
        body = call.body
        functions = [tool["function"] for tool in body.get("tools") or [] if tool.get("type") == "function"]
        wanted = (body.get("response_format") or {}).get("json_schema") or {}
        return ModelRequest(
            model=body["model"],
            stream=bool(body.get("stream")),
            texts=[get_text(message.get("content")) for message in body["messages"] if message["role"] == "user"],
            tools=[Tool(function["name"], function.get("parameters") or {}) for function in functions],
            results=[get_text(message.get("content")) for message in body["messages"] if message["role"] == "tool"],
            schema=wanted.get("schema"),
        )

    def make_response(self, request: ModelRequest, answer: Answer) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": answer.text, "refusal": None}
        if answer.call:
            message["tool_calls"] = [self._make_call(answer)]
        choice = {"index": 0, "message": message, "finish_reason": self._get_finish_reason(answer), "logprobs": None}
        return {
            **self._make_head(request),
            "object": "chat.completion",
            "choices": [choice],
            "usage": self._make_usage(answer),
        }

    def make_frames(self, request: ModelRequest, answer: Answer) -> Iterator[bytes]:
        head = {**self._make_head(request), "object": "chat.completion.chunk"}

        def chunk(delta: dict[str, Any], reason: str | None = None) -> bytes:
            return _format_event({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]})

        yield chunk({"role": "assistant", "content": ""})
        for piece in answer.pieces:
            yield chunk({"content": piece})
        if answer.call:
            call = {"index": 0, **self._make_call(answer)}
            arguments, call["function"] = call["function"]["arguments"], {**call["function"], "arguments": ""}
            yield chunk({"tool_calls": [call]})
            middle = len(arguments) // 2
            for half in (arguments[:middle], arguments[middle:]):
                yield chunk({"tool_calls": [{"index": 0, "function": {"arguments": half}}]})
        yield chunk({}, self._get_finish_reason(answer))
        yield _format_event({**head, "choices": [], "usage": self._make_usage(answer)})
        yield b"data: [DONE]\n\n"

    make_error = staticmethod(_make_error)

    def _make_head(self, request: ModelRequest) -> dict[str, Any]:
        return {"id": f"chatcmpl-{next(_numbers)}", "created": int(time.time()), "model": request.model}

    def _get_finish_reason(self, answer: Answer) -> str:
        return "tool_calls" if answer.call else "stop"

    def _make_call(self, answer: Answer) -> dict[str, Any]:
        assert answer.call
        function = {"name": answer.call.name, "arguments": json.dumps(answer.call.arguments)}
        return {"id": f"call_{next(_numbers)}", "type": "function", "function": function}

    def _make_usage(self, answer: Answer) -> dict[str, Any]:
        usage = answer.usage
        return {
            "prompt_tokens": usage.input,
            "completion_tokens": usage.output,
            "total_tokens": usage.input + usage.output,
            "prompt_tokens_details": {"cached_tokens": usage.cached},
        }


class Responses:
    name = "openai"

    def parse_request(self, call: Call) -> ModelRequest:
        body = call.body
        items = body.get("input") or []
        items = [{"type": "message", "role": "user", "content": items}] if isinstance(items, str) else items
        outputs = [item for item in items if str(item.get("type")).endswith("call_output")]
        return ModelRequest(
            model=body["model"],
            stream=bool(body.get("stream")),
            texts=[get_text(item) for item in items if item.get("role") == "user"],
            tools=list(self._parse_tools(body.get("tools") or [])),
            results=[get_text(item.get("output")) for item in outputs],
            schema=((body.get("text") or {}).get("format") or {}).get("schema"),
        )

    def _parse_tools(self, tools: list[dict[str, Any]]) -> Iterator[Tool]:
        for tool in tools:
            if tool.get("type") == "function":
                yield Tool(tool["name"], tool.get("parameters") or {})
            elif tool.get("type") == "namespace":
                for item in tool["tools"]:
                    yield Tool(item["name"], item.get("parameters") or {}, namespace=tool["name"])
            elif tool.get("type") == "custom":
                yield Tool(tool["name"], {}, freeform=True)

    def make_response(self, request: ModelRequest, answer: Answer) -> dict[str, Any]:
        return self._make_body(request, answer, f"resp_{next(_numbers)}", list(self._make_items(answer)))

    def make_frames(self, request: ModelRequest, answer: Answer) -> Iterator[bytes]:
        numbers = itertools.count()
        id = f"resp_{next(_numbers)}"

        def frame(type: str, **more: Any) -> bytes:
            return _format_event({"type": type, "sequence_number": next(numbers), **more})

        begun = {**self._make_body(request, answer, id, []), "status": "in_progress", "usage": None}
        yield frame("response.created", response=begun)
        yield frame("response.in_progress", response=begun)
        items = list(self._make_items(answer))
        for index, item in enumerate(items):
            at = {"output_index": index, "item_id": item["id"]}
            empty: dict[str, Any] = {"content": []} if item["type"] == "message" else {_get_argument_name(item): ""}
            begun_item = {**item, "status": "in_progress", **empty}
            yield frame("response.output_item.added", output_index=index, item=begun_item)
            if item["type"] == "message":
                part = item["content"][0]
                at["content_index"] = 0
                yield frame("response.content_part.added", **at, part={**part, "text": ""})
                for piece in answer.pieces:
                    yield frame("response.output_text.delta", **at, delta=piece, logprobs=[])
                yield frame("response.output_text.done", **at, text=part["text"], logprobs=[])
                yield frame("response.content_part.done", **at, part=part)
            else:
                name = _get_argument_name(item)
                event = "function_call_arguments" if name == "arguments" else "custom_tool_call_input"
                yield frame(f"response.{event}.delta", **at, delta=item[name])
                done = {name: item[name]} | ({"name": item["name"]} if name == "arguments" else {})
                yield frame(f"response.{event}.done", **at, **done)
            yield frame("response.output_item.done", output_index=index, item=item)
        yield frame("response.completed", response=self._make_body(request, answer, id, items))

    make_error = staticmethod(_make_error)

    def _make_items(self, answer: Answer) -> Iterator[dict[str, Any]]:
        if answer.text:
            part = {"type": "output_text", "text": answer.text, "annotations": [], "logprobs": []}
            message = {"id": f"msg_{next(_numbers)}", "type": "message", "role": "assistant", "content": [part]}
            yield {**message, "status": "completed"}
        if call := answer.call:
            number = next(_numbers)
            head = {"call_id": f"call_{number}", "name": call.name, "status": "completed"}
            head |= {"namespace": call.namespace} if call.namespace else {}
            if call.text is not None:
                yield {"id": f"ctc_{number}", "type": "custom_tool_call", "input": call.text, **head}
            else:
                arguments = json.dumps(call.arguments)
                yield {"id": f"fc_{number}", "type": "function_call", "arguments": arguments, **head}

    def _make_body(
        self, request: ModelRequest, answer: Answer, id: str, output: list[dict[str, Any]]
    ) -> dict[str, Any]:
        usage = answer.usage
        return {
            "id": id,
            "object": "response",
            "created_at": int(time.time()),
            "status": "completed",
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": {},
            "model": request.model,
            "output": output,
            "parallel_tool_calls": False,
            "temperature": 1.0,
            "tool_choice": "auto",
            "tools": [],
            "top_p": 1.0,
            "usage": {
                "input_tokens": usage.input,
                "input_tokens_details": {"cached_tokens": usage.cached},
                "output_tokens": usage.output,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": usage.input + usage.output,
            },
        }


def _get_argument_name(item: dict[str, Any]) -> str:
    return "input" if item["type"] == "custom_tool_call" else "arguments"
