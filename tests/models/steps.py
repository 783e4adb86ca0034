"""What a scripted model does, one step for each answer that it is asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Usage:
    """Tokens, as the server reports them."""

    input: int = 100
    output: int = 20
    cached: int = 0
    """Of the input, read from a cache."""


@dataclass(frozen=True, kw_only=True)
class Step:
    usage: Usage = field(default_factory=Usage)
    pause_s: float = 0.0
    """Between two pieces of a stream; before the answer, when it is not streamed."""


@dataclass(frozen=True)
class Say(Step):
    """Plain text, which ends the turn of most agents."""

    text: str


@dataclass(frozen=True, kw_only=True)
class Act(Step):
    """A tool is called, whatever the agent calls it; `say` goes before."""

    say: str | None = None


@dataclass(frozen=True)
class Shell(Act):
    command: str


@dataclass(frozen=True)
class Write(Act):
    """A whole file; agents want its absolute path."""

    path: str
    text: str


@dataclass(frozen=True)
class Edit(Act):
    """The one place where `old` stands becomes `new`."""

    path: str
    old: str
    new: str


@dataclass(frozen=True)
class Read(Act):
    path: str


@dataclass(frozen=True)
class Use(Act):
    """A tool by its own name, also one that was not offered."""

    tool: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class UseMcp(Act):
    """A tool of an MCP server, by whatever name the agent offers it."""

    server: str
    tool: str
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Fail(Step):
    """An error in the API's own shape. `times`: how many answers in a row; None: all from here on."""

    status: int = 500
    message: str = "The server had an error."
    times: int | None = 1
    retry_after_s: int | None = None


@dataclass(frozen=True)
class Cut(Step):
    """The connection breaks in the middle of this text."""

    text: str = "I was about to say that"
    times: int | None = 1


@dataclass(frozen=True)
class Hang(Step):
    """Nothing more comes, until the caller goes away. `text`: what comes before, if it is streamed."""

    text: str | None = None
