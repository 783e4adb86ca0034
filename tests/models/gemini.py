"""The generateContent API of Gemini, as far as Gemini CLI uses it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.models.requests import Answer, Call, ModelRequest, get_text
from tests.models.tools import Tool

ERRORS = {400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 429: "RESOURCE_EXHAUSTED"}


class GenerateContent:
    name = "gemini"

    def parse_request(self, call: Call) -> ModelRequest:
        body = call.body
        model, _, verb = call.path.rpartition("/")[2].partition(":")
        contents = body.get("contents") or []
        parts = [part for content in contents for part in content.get("parts") or []]
        declared = [tool for group in body.get("tools") or [] for tool in group.get("functionDeclarations") or []]
        config = body.get("generationConfig") or {}
        results = [part["functionResponse"] for part in parts if "functionResponse" in part]
        return ModelRequest(
            model=model,
            stream=verb == "streamGenerateContent",
            texts=[get_text(content.get("parts")) for content in contents if content.get("role") == "user"],
            tools=[
                Tool(tool["name"], tool.get("parametersJsonSchema") or tool.get("parameters") or {})
                for tool in declared
            ],
            results=[json.dumps(result.get("response")) for result in results],
            schema=config.get("responseJsonSchema") or config.get("responseSchema"),
        )

    def make_response(self, request: ModelRequest, answer: Answer) -> dict[str, Any]:
        parts: list[dict[str, Any]] = [{"text": answer.text}] if answer.text else []
        return self._chunk(request, answer, parts + self._call(answer), last=True)

    def make_frames(self, request: ModelRequest, answer: Answer) -> Iterator[bytes]:
        for piece in answer.pieces:
            yield _data(self._chunk(request, answer, [{"text": piece}], last=False))
        yield _data(self._chunk(request, answer, self._call(answer) or [{"text": ""}], last=True))

    def make_error(self, status: int, message: str) -> dict[str, Any]:
        return {"error": {"code": status, "message": message, "status": ERRORS.get(status, "INTERNAL")}}

    def _call(self, answer: Answer) -> list[dict[str, Any]]:
        if answer.call is None:
            return []
        return [{"functionCall": {"name": answer.call.name, "args": dict(answer.call.arguments)}}]

    def _chunk(
        self, request: ModelRequest, answer: Answer, parts: list[dict[str, Any]], *, last: bool
    ) -> dict[str, Any]:
        usage = answer.usage
        candidate: dict[str, Any] = {"content": {"role": "model", "parts": parts}, "index": 0}
        if last:
            candidate["finishReason"] = "STOP"
        return {
            "candidates": [candidate],
            "usageMetadata": {
                "promptTokenCount": usage.input,
                "candidatesTokenCount": usage.output,
                "totalTokenCount": usage.input + usage.output,
                "cachedContentTokenCount": usage.cached,
            },
            "modelVersion": request.model,
        }


def _data(event: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(event)}\n\n".encode()
