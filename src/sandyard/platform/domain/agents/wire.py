"""The Agent Client Protocol as lines of JSON-RPC: what comes is taken apart without trust, what goes is numbered by the caller.

Lines are ASCII, so that a place in the journal of what was said is the same counted in letters and in bytes.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

from sandyard.kit.bounded_json import count_values
from sandyard.kit.text import storable, storable_json

LONGEST = 8 << 20
"""Of a line. What is longer is skipped: to read it would keep everybody waiting."""
MOST = 64 << 20
"""Of a line that is skipped: who goes on beyond that is ended."""
VALUES = 100_000
"""Of a line: each of them costs much more memory and time than room in the line."""
METHOD_NOT_FOUND, INVALID_PARAMS, CANCELLED = -32601, -32602, -32800
MAX_WORDS = 4000
LONGEST_KEY = 200


@dataclass(frozen=True, slots=True)
class Answer:
    """To a request of ours."""

    id: int
    result: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error in the place of an answer."""

    id: int
    code: int
    message: str


@dataclass(frozen=True, slots=True)
class Request:
    """Of the agent's own. `key` is its id as JSON, as it has to be given back."""

    key: str
    method: str
    params: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Notice:
    method: str
    params: dict[str, Any]


Incoming = Answer | Refusal | Request | Notice


def parse(line: bytes) -> Incoming | None:
    """None for what is no message: a line of a login shell, half of one, or nonsense. Never raises."""
    told = _object(line.strip())
    if told is None:
        return None
    method, key = told.get("method"), told.get("id")
    if isinstance(method, str):
        return _spoken(method, told)
    if isinstance(key, bool) or not isinstance(key, int):
        return None
    if "error" in told:
        return _refusal(key, told["error"])
    result = told.get("result")
    return Answer(key, result if isinstance(result, dict) else {})


def _object(line: bytes) -> dict[str, Any] | None:
    if not line.startswith(b"{"):
        return None
    try:
        count_values(line, VALUES)
        told = json.loads(line.decode("utf-8", "replace"), parse_constant=_refuse, parse_float=_finite)
        if b"\\u" in line:  # no other way leads to a letter that cannot be kept
            told = storable_json(told)
    except (ValueError, RecursionError):
        return None
    return told if isinstance(told, dict) else None


def _spoken(method: str, told: dict[str, Any]) -> Request | Notice | None:
    given = told.get("params")
    params = given if isinstance(given, dict) else {}
    if "id" not in told:
        return Notice(method, params)
    written = key_of(told["id"])
    return Request(written, method, params) if 0 < len(written) <= LONGEST_KEY else None


def _refusal(key: int, error: Any) -> Refusal:
    if not isinstance(error, dict):
        return Refusal(key, 0, _words(error))
    code = error.get("code")
    message, data = _words(error.get("message")), error.get("data")
    if data is not None and data != message:  # many agents have the real reason there
        reason = data.get("message") or data.get("details") or data if isinstance(data, dict) else data
        message = f"{message}: {_words(reason)}" if message else _words(reason)
    number = code if isinstance(code, int) and not isinstance(code, bool) else 0
    return Refusal(key, number, message[:MAX_WORDS] or "The agent gave no reason.")


def _words(value: Any) -> str:
    if value is None:
        return ""
    return storable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))[:MAX_WORDS]


def _refuse(word: str) -> Any:
    raise ValueError(word)


def _finite(digits: str) -> float | None:
    number = float(digits)
    return number if math.isfinite(number) else None


def key_of(value: Any) -> str:
    """An id as a request has it."""
    return json.dumps(value) if isinstance(value, int | str | None) and not isinstance(value, bool) else ""


def _line(body: dict[str, Any]) -> str:
    return json.dumps({"jsonrpc": "2.0", **body}, separators=(",", ":")) + "\n"


def request(number: int, method: str, params: dict[str, Any]) -> str:
    return _line({"id": number, "method": method, "params": params})


def notice(method: str, params: dict[str, Any]) -> str:
    return _line({"method": method, "params": params})


def answer(key: str, result: dict[str, Any]) -> str:
    """To a request of the agent's; `key` as it came."""
    return _line({"id": json.loads(key), "result": result})


def refuse(key: str, code: int, message: str) -> str:
    return _line({"id": json.loads(key), "error": {"code": code, "message": message}})


class Lines:
    """Cuts a stream into lines. `consumed` is where the last whole line ended: what is behind it has to be read again by whoever
    takes this up after a crash."""

    def __init__(self, consumed: int) -> None:
        self.consumed = consumed
        self._rest = bytearray()
        self._dropped = 0
        self._searched = 0

    @property
    def skipped(self) -> int:
        """Bytes of the line under way that were let go, because it is too long."""
        return self._dropped

    @property
    def seen(self) -> int:
        """How far the stream was read."""
        return self.consumed + self._dropped + len(self._rest)

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """The lines that are whole by now, each with the place where it ends; a line that is too long is left out."""
        self._rest += data
        found = []
        begin = 0
        while (end := self._rest.find(b"\n", max(begin, self._searched))) >= 0:
            whole = not self._dropped and end - begin <= LONGEST
            self.consumed += self._dropped + end + 1 - begin
            self._dropped = 0
            if whole:
                found.append((self.consumed, bytes(self._rest[begin:end])))
            begin = end + 1
        del self._rest[:begin]
        self._searched = len(self._rest)
        if len(self._rest) > LONGEST:
            self._dropped += len(self._rest)
            self._rest.clear()
            self._searched = 0
        return found
