"""Inject domain services into routes: `Users = Annotated[users.Users, inject("users")]`."""

from __future__ import annotations

from typing import Any

from fastapi import Depends
from starlette.requests import HTTPConnection


def inject(name: str) -> Any:
    """Return a dependency on the service of that name in `app.state.services`, for routes and WebSockets.

    It is async like all dependencies here, because FastAPI runs others in a thread.
    """

    async def provide(connection: HTTPConnection) -> Any:
        return getattr(connection.app.state.services, name)

    return Depends(provide)
