"""A call of the GitHub API and its answer, as the parts of the facade exchange them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from tests.forge.repositories import Repository
from tests.forge.tokens import Token

DOCS = "https://docs.github.com/rest"


@dataclass(frozen=True)
class Call:
    """One call of the API, with the status of its answer."""

    method: str
    path: str
    status: int | None
    """None: the connection was cut."""
    login: str | None


@dataclass
class Request:
    method: str
    path: str
    """Without /api/v3, with the query."""
    body: Any
    token: Token | None
    headers: dict[str, str]
    slug: str | None = None
    rest: str = ""
    """The part of the path after the repository."""
    repository: Repository | None = None


@dataclass
class Answer:
    status: int
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def data(self) -> bytes:
        if self.body is None:
            return b""
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


def refusal(status: int, message: str, **more: Any) -> Answer:
    return Answer(status, {"message": message, **more, "documentation_url": DOCS, "status": str(status)})
