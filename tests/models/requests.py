"""Types common to all APIs: the request to a model, its answer, and the record of it for tests."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tests.models.steps import Usage
from tests.models.tools import Tool, ToolCall


@dataclass(frozen=True)
class ModelRequest:
    """One request for an answer. `schema`: the answer must be JSON of this schema. `texts`: the user's messages, oldest first."""

    model: str
    stream: bool
    texts: Sequence[str]
    tools: Sequence[Tool] = ()
    results: Sequence[str] = ()
    """Results of tools, oldest first."""
    schema: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Answer:
    text: str | None
    call: ToolCall | None
    usage: Usage

    @property
    def pieces(self) -> list[str]:
        """The text as it is streamed, word by word."""
        words = (self.text or "").split(" ")
        return [word if number == 0 else f" {word}" for number, word in enumerate(words)] if self.text else []


@dataclass
class Call:
    """One HTTP request as it arrived. `conversation` is None for requests outside of conversations: titles, lists, counts."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: Any
    api: str | None = None
    request: ModelRequest | None = None
    conversation: str | None = None
    status: int | None = None
    at: float = field(default_factory=time.monotonic)
    disconnected: bool = False
    """The caller disconnected before the end of the answer."""

    @property
    def key(self) -> str | None:
        """The key, at the place where the API expects it."""
        bearer = self.headers.get("authorization", "")
        if bearer.lower().startswith("bearer "):
            return bearer[7:]
        return self.headers.get("x-api-key") or self.headers.get("x-goog-api-key") or self.query.get("key")


class Api(Protocol):
    """The format of one API. Frames are complete server-sent events."""

    name: str

    def parse_request(self, call: Call) -> ModelRequest: ...
    def make_response(self, request: ModelRequest, answer: Answer) -> dict[str, Any]: ...
    def make_frames(self, request: ModelRequest, answer: Answer) -> Iterator[bytes]: ...
    def make_error(self, status: int, message: str) -> dict[str, Any]: ...


def get_text(content: Any) -> str:
    """Return the text of a message in any API: a string, or parts of which some contain text."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(filter(None, (get_text(part) for part in content)))
    if isinstance(content, Mapping):
        return get_text(content.get("text") or content.get("content") or content.get("output") or "")
    return ""
