"""How a route gets at the domain: `Users = Annotated[users.Users, part("users")]`."""

from __future__ import annotations

from typing import Any

from fastapi import Depends
from starlette.requests import HTTPConnection


def part(name: str) -> Any:
    """The service of that name in `app.state.services`, for routes and WebSockets alike. Async, like all dependencies here:
    FastAPI sends the others through a thread."""

    async def provide(connection: HTTPConnection) -> Any:
        return getattr(connection.app.state.services, name)

    return Depends(provide)
