"""Count the tokens of a response while it is streamed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from sandyard.kit.bounded_json import count_values
from sandyard.kit.event_stream import EventStream
from sandyard.kit.pacing import take_turn
from sandyard.platform.domain.models.model import MAX_TOKENS, ModelApi, Tokens

MAX_BYTES = 8 << 20
"""Maximum size of a response or of one event of a stream. Larger ones are passed on without being parsed."""
BYTES_PER_TOKEN = 4
STREAM_BYTES_PER_TOKEN = 256
"""Bytes of a stream per token, in which every piece of text is wrapped in an event."""
_EVENT_MARKER = b"data:"
_USAGE_MARKER = re.compile(rb'"usage(?:Metadata)?"\s*+:\s*+\{')  # not null, which many providers send in every event
_EVENT_VALUES, _STREAM_VALUES, _BODY_VALUES = 20_000, 1_000_000, 100_000
"""Maximum number of JSON values in one event, in all parsed events of a stream, and in a response in one piece.

Parsing blocks everything else. The tokens of a response with more values are estimated.
"""


class TokenCounter:
    """Counts tokens. Fed with a response's bytes as they arrive; holds at most one event of a stream."""

    def __init__(self, kind: ModelApi, content_type: str) -> None:
        self._kind = kind
        self._events = content_type.strip().lower().startswith("text/event-stream")
        self.stream = EventStream(_USAGE_MARKER, largest=MAX_BYTES)
        self._body = bytearray()  # a response in one piece
        self._is_too_large = False
        self._found: dict[str, int] = {}
        self._values = 0  # JSON values in parsed events
        self._received = 0  # bytes
        self._event_count = 0
        self._last_bytes = b""  # may be the beginning of an event marker
        self.reported = False
        """Whether the provider has reported the output tokens. Anthropic's first event is ignored, because it is sent before the output."""

    @property
    def minimum(self) -> int:
        """Minimum number of tokens of the response so far, if none are reported: one per event and by size, or one per four bytes."""
        if self._events:
            return min(max(self._event_count, self._received // STREAM_BYTES_PER_TOKEN), MAX_TOKENS)
        return min(self._received // BYTES_PER_TOKEN, MAX_TOKENS)

    async def feed(self, chunk: bytes) -> None:
        self._received += len(chunk)
        if self._events:
            self._count_events(chunk)
            for data in self.stream.feed(chunk):
                await take_turn()
                self._parse(data)
            return
        if not self._is_too_large:
            self._body += chunk
        if len(self._body) > MAX_BYTES:
            self._body.clear()
            self._is_too_large = True

    def _count_events(self, chunk: bytes) -> None:
        """Count the events, including one whose marker is split between chunks."""
        overlap = len(_EVENT_MARKER) - 1
        self._event_count += (self._last_bytes + chunk[:overlap]).count(_EVENT_MARKER) + chunk.count(_EVENT_MARKER)
        self._last_bytes = (self._last_bytes + chunk[-overlap:])[-overlap:]

    def get_result(self) -> Tokens:
        """Return all that is known at the end, or where it broke off."""
        if self._events:
            for data in self.stream.finish():
                self._parse(data)
        elif not self._is_too_large:
            self._parse(bytes(self._body))
        self._body.clear()
        found = self._found
        read, written = found.get("cache_read"), found.get("cache_write")
        input_tokens = found.get("input")
        if self._kind is ModelApi.ANTHROPIC and input_tokens is not None:
            input_tokens = min(input_tokens + (read or 0) + (written or 0), MAX_TOKENS)  # reported separately there
        return Tokens(input_tokens, found.get("output"), read, written)

    def _parse(self, data: bytes) -> None:
        if not _USAGE_MARKER.search(data):
            return
        try:
            limit = min(_EVENT_VALUES, _STREAM_VALUES - self._values) if self._events else _BODY_VALUES
            self._values += count_values(data, limit)
            parsed = json.loads(data)
        except (ValueError, RecursionError):
            return
        for document in parsed if isinstance(parsed, list) else [parsed]:
            for usage in _find_usages(document):
                counts = {name: count for name, count in _parse_counts(usage).items() if count is not None}
                self._found |= counts
                self.reported |= "output" in counts and document.get("type") != "message_start"


def _find_usages(document: Any) -> Iterator[dict[str, Any]]:
    """Yield usage objects wherever the protocols put them: at the top, in Anthropic's `message`, in OpenAI's `response`."""
    if not isinstance(document, dict):
        return
    for part in (document.get("message"), document.get("response"), document):
        for name in ("usage", "usageMetadata"):
            if isinstance(part, dict) and isinstance(part.get(name), dict):
                yield part[name]


def _parse_counts(usage: dict[str, Any]) -> dict[str, int | None]:
    if "promptTokenCount" in usage or "candidatesTokenCount" in usage or "totalTokenCount" in usage:
        return {
            "input": _add_up(usage, "promptTokenCount", "toolUsePromptTokenCount"),
            "output": _add_up(usage, "candidatesTokenCount", "thoughtsTokenCount"),
            "cache_read": _parse_number(usage.get("cachedContentTokenCount")),
        }
    if "prompt_tokens" in usage or "completion_tokens" in usage:
        details = usage.get("prompt_tokens_details")
        return {
            "input": _parse_number(usage.get("prompt_tokens")),
            "output": _parse_number(usage.get("completion_tokens")),
            "cache_read": _parse_number(details.get("cached_tokens")) if isinstance(details, dict) else None,
        }
    details = usage.get("input_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else usage.get("cache_read_input_tokens")
    return {
        "input": _parse_number(usage.get("input_tokens")),
        "output": _parse_number(usage.get("output_tokens")),
        "cache_read": _parse_number(cached),
        "cache_write": _parse_number(usage.get("cache_creation_input_tokens")),
    }


def _add_up(usage: dict[str, Any], *names: str) -> int | None:
    counts = [count for name in names if (count := _parse_number(usage.get(name))) is not None]
    return min(sum(counts), MAX_TOKENS) if counts else None


def _parse_number(value: Any) -> int | None:
    """Return a valid count, at most MAX_TOKENS, or None."""
    return min(value, MAX_TOKENS) if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
