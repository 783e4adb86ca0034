"""The steps of a scripted model, one for each answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Usage:
    """Tokens, as the server reports them."""

    input: int = 100
    output: int = 20
    cached: int = 0
    """The part of the input that was read from a cache."""


@dataclass(frozen=True, kw_only=True)
class Step:
    usage: Usage = field(default_factory=Usage)
    pause_s: float = 0.0
    """Pause between two pieces of a stream, or before an answer that is not streamed."""


@dataclass(frozen=True)
class Say(Step):
    """Plain text, which ends the turn of most agents."""

    text: str


@dataclass(frozen=True, kw_only=True)
class Act(Step):
    """Call a tool, whatever its name is in the agent. `say` is sent before it."""

    say: str | None = None


@dataclass(frozen=True)
class Shell(Act):
    command: str


@dataclass(frozen=True)
class Write(Act):
    """Write a whole file. Agents need its absolute path."""

    path: str
    text: str


@dataclass(frozen=True)
class Edit(Act):
    """Replace the only occurrence of `old` by `new`."""

    path: str
    old: str
    new: str


@dataclass(frozen=True)
class Read(Act):
    path: str


@dataclass(frozen=True)
class Use(Act):
    """Call a tool by its exact name, even if it was not offered."""

    tool: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class UseMcp(Act):
    """Call a tool of an MCP server, under the name that the agent offers."""

    server: str
    tool: str
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Fail(Step):
    """An error in the format of the API. `times`: the number of answers in a row; None: all from here on."""

    status: int = 500
    message: str = "The server had an error."
    times: int | None = 1
    retry_after_s: int | None = None


@dataclass(frozen=True)
class Cut(Step):
    """The connection breaks within this text."""

    text: str = "I was about to say that"
    times: int | None = 1


@dataclass(frozen=True)
class Hang(Step):
    """Send nothing more until the caller disconnects. `text`: sent before, if the answer is streamed."""

    text: str | None = None
