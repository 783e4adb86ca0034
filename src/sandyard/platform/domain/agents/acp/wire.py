"""Encode and decode the Agent Client Protocol as lines of JSON-RPC. Incoming lines are not trusted.

Outgoing lines are ASCII, so that an offset in the input file is the same in characters and in bytes.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

from sandyard.kit.bounded_json import count_values, is_deeper_than
from sandyard.kit.text import make_json_storable, make_storable

MAX_LINE_BYTES = 8 << 20
"""Maximum bytes of a line. Longer lines are skipped, because parsing them would block everybody."""
MAX_SKIPPED_BYTES = 64 << 20
"""Maximum bytes of a skipped line. An agent that sends more is ended."""
MAX_VALUES = 100_000
"""Maximum JSON values in a line: each costs much more memory and time than bytes."""
INVALID_REQUEST, METHOD_NOT_FOUND, TOO_MANY = -32600, -32601, -32000
UPDATE, CANCEL_REQUEST = "session/update", "$/cancel_request"
MAX_DEPTH = 100
"""Maximum nesting of a message, which is stored and has to be shown."""
MAX_ERROR_LENGTH = 4000
MAX_KEY_LENGTH = 200


@dataclass(frozen=True, slots=True)
class Response:
    """The result of one of our requests."""

    id: int
    result: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ErrorResponse:
    """The error of one of our requests."""

    id: int
    code: int
    message: str


@dataclass(frozen=True, slots=True)
class Request:
    """A request from the agent. `key` is its id as JSON, as it has to be returned."""

    key: str
    method: str
    params: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Notification:
    method: str
    params: dict[str, Any]


Incoming = Response | ErrorResponse | Request | Notification


def parse_line(line: bytes) -> Incoming | None:
    """Parse a line. Returns None if it is not a message, such as a shell's output or a partial line. Never raises."""
    message = _parse_object(line.strip())
    if message is None:
        return None
    method, key = message.get("method"), message.get("id")
    if isinstance(method, str):
        return _parse_call(method, message)
    if isinstance(key, bool) or not isinstance(key, int):
        return None
    if "error" in message:
        return _parse_error(key, message["error"])
    result = message.get("result")
    return Response(key, result if isinstance(result, dict) else {})


def _parse_object(line: bytes) -> dict[str, Any] | None:
    if not line.startswith(b"{"):
        return None
    try:
        count_values(line, MAX_VALUES)
        message = json.loads(
            line.decode("utf-8", "replace"), parse_constant=_reject_constant, parse_float=_parse_finite_float
        )
        if line.count(b"[") + line.count(b"{") > MAX_DEPTH and is_deeper_than(message, MAX_DEPTH):
            return None
        if b"\\u" in line:  # only an escape can produce a character that cannot be stored
            message = make_json_storable(message)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) else None


def _parse_call(method: str, message: dict[str, Any]) -> Request | Notification | None:
    given = message.get("params")
    params = given if isinstance(given, dict) else {}
    if "id" not in message:
        return Notification(method, params)
    written = encode_key(message["id"])
    return Request(written, method, params) if 0 < len(written) <= MAX_KEY_LENGTH else None


def _parse_error(key: int, error: Any) -> ErrorResponse:
    if not isinstance(error, dict):
        return ErrorResponse(key, 0, _to_text(error))
    code = error.get("code")
    message, data = _to_text(error.get("message")), error.get("data")
    if data is not None and data != message:  # many agents put the real reason there
        reason = data.get("message") or data.get("details") or data if isinstance(data, dict) else data
        message = f"{message}: {_to_text(reason)}" if message else _to_text(reason)
    number = code if isinstance(code, int) and not isinstance(code, bool) else 0
    return ErrorResponse(key, number, message[:MAX_ERROR_LENGTH] or "The agent gave no reason.")


def _to_text(value: Any) -> str:
    if value is None:
        return ""
    return make_storable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))[:MAX_ERROR_LENGTH]


def _reject_constant(word: str) -> Any:
    raise ValueError(word)


def _parse_finite_float(digits: str) -> float | None:
    number = float(digits)
    return number if math.isfinite(number) else None


def encode_key(value: Any) -> str:
    """Return an id in the form of `Request.key`, empty if it is not valid."""
    return json.dumps(value) if isinstance(value, int | str | None) and not isinstance(value, bool) else ""


def _encode_line(body: dict[str, Any]) -> str:
    return json.dumps({"jsonrpc": "2.0", **body}, separators=(",", ":")) + "\n"


def encode_request(number: int, method: str, params: dict[str, Any]) -> str:
    return _encode_line({"id": number, "method": method, "params": params})


def encode_notification(method: str, params: dict[str, Any]) -> str:
    return _encode_line({"method": method, "params": params})


def encode_response(key: str, result: dict[str, Any]) -> str:
    """Encode the response to the agent's request with this key."""
    return _encode_line({"id": json.loads(key), "result": result})


def encode_error(key: str, code: int, message: str) -> str:
    return _encode_line({"id": json.loads(key), "error": {"code": code, "message": message}})


class LineSplitter:
    """Split a stream into lines.

    `consumed` is the end of the last complete line. What follows it has to be read again after a crash.
    """

    def __init__(self, consumed: int) -> None:
        self.consumed = consumed
        self._buffer = bytearray()
        self._dropped = 0
        self._searched = 0

    @property
    def skipped(self) -> int:
        """Bytes dropped of the current line because it is too long."""
        return self._dropped

    @property
    def seen(self) -> int:
        """The offset up to which the stream has been read."""
        return self.consumed + self._dropped + len(self._buffer)

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """Add data and return the lines that are now complete, each with its end offset. Lines that are too long are
        left out."""
        self._buffer += data
        found = []
        begin = 0
        while (end := self._buffer.find(b"\n", max(begin, self._searched))) >= 0:
            whole = not self._dropped and end - begin <= MAX_LINE_BYTES
            self.consumed += self._dropped + end + 1 - begin
            self._dropped = 0
            if whole:
                found.append((self.consumed, bytes(self._buffer[begin:end])))
            begin = end + 1
        del self._buffer[:begin]
        self._searched = len(self._buffer)
        if len(self._buffer) > MAX_LINE_BYTES:
            self._dropped += len(self._buffer)
            self._buffer.clear()
            self._searched = 0
        return found
