"""Translate kernel messages into the events that E2B's clients expect."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

from sandyard.engine.interpreter.messages import Message

Event = dict[str, Any]

FIELDS = {  # fields of a result, by MIME type
    "text/plain": "text",
    "text/html": "html",
    "text/markdown": "markdown",
    "image/svg+xml": "svg",
    "image/png": "png",
    "image/jpeg": "jpeg",
    "application/pdf": "pdf",
    "text/latex": "latex",
    "application/json": "json",
    "application/javascript": "javascript",
    "e2b/data": "data",
    "e2b/chart": "chart",
}
_RESULTS = {  # kinds of messages with a result, and whether it is the main one
    "execute_result": True,
    "display_data": False,
    "update_display_data": False,
}
END: Event = {"type": "end_of_execution"}
KEEPALIVE: Event = {"type": "keepalive"}


def make_event(message: Message) -> Event | None:
    """Return the event, or None for messages that are not passed on: status, `clear_output`, comms."""
    content = message.content
    if message.kind in _RESULTS:
        return make_result(content.get("data") or {}, is_main=_RESULTS[message.kind])
    if message.kind == "stream" and content.get("name") in ("stdout", "stderr"):
        return {"type": content["name"], "text": str(content.get("text", "")), "timestamp": time.time_ns()}
    if message.kind == "error":
        return parse_error(content)
    if message.kind == "execute_input":
        return {"type": "number_of_executions", "execution_count": content.get("execution_count")}
    return None


def parse_error(content: Mapping[str, Any]) -> Event:
    """Return the event for an `error` message or for a reply with an error."""
    lines = content.get("traceback") or []
    traceback = "\n".join(map(str, lines)) if isinstance(lines, list) else str(lines)
    return make_error(str(content.get("ename", "")), str(content.get("evalue", "")), traceback)


def make_error(name: str, value: str, traceback: str = "") -> Event:
    """Return the event for a failed execution."""
    return {"type": "error", "name": name, "value": value, "traceback": traceback}


def make_result(data: Mapping[str, Any], *, is_main: bool) -> Event:
    """Return the event for a result with its formats by MIME type."""
    event: Event = {"type": "result", "is_main_result": is_main}
    extra = {}
    for mime, item in data.items():
        value = _to_json(item)
        field = FIELDS.get(mime)
        if field is None:
            extra[mime] = value
        elif value is not None:
            event[field] = _strip_quotes(value) if field == "text" and isinstance(value, str) else value
    if extra:
        event["extra"] = extra
    return event


def _strip_quotes(text: str) -> str:
    """Return the value of a quoted string, because the text of a string result is the string itself."""
    return text[1:-1] if len(text) > 1 and text[0] in "'\"" and text[-1] == text[0] else text


def _to_json(value: Any) -> Any:
    """Return the value in JSON's types; NaN and infinity become null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _to_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_to_json(item) for item in value]
    return value
