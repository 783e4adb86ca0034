"""The closed set of ways an operation can fail, each with a code a program reads and a sentence a person reads.

A docstring is the error's default sentence. Each transport maps `status` and `code` once; nobody else does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar


class SandyardError(Exception):
    """Something went wrong."""

    code: ClassVar[str] = "internal"
    status: ClassVar[int] = 500

    def __init__(self, message: str | None = None) -> None:
        self.message = message or " ".join((type(self).__doc__ or "").split())
        super().__init__(self.message)

    @property
    def extra(self) -> Mapping[str, object]:
        """What a program may want to know besides the code, by the names it has on the wire: JSON, and nothing secret."""
        return {}


class InvalidInputError(SandyardError):
    """The request is not valid."""

    code, status = "invalid_argument", 400


class UnauthenticatedError(SandyardError):
    """The key or token is missing or not valid."""

    code, status = "unauthenticated", 401


class ForbiddenError(SandyardError):
    """This is not allowed with that key."""

    code, status = "forbidden", 403


class NotFoundError(SandyardError):
    """There is no such thing."""

    code, status = "not_found", 404


class ConflictError(SandyardError):
    """It is not in a state in which this can be done."""

    code, status = "conflict", 409


class FullError(SandyardError):
    """The machine is full."""

    code, status = "resource_exhausted", 429


class BusyError(SandyardError):
    """The engine is busy; try again."""

    code, status = "busy", 503


class UnreachableError(SandyardError):
    """The sandbox does not answer."""

    code, status = "unreachable", 502


class NoSpaceError(SandyardError):
    """There is no space left on the disk."""

    code, status = "no_space", 507


class UnsupportedError(SandyardError):
    """This engine cannot do that."""

    code, status = "unsupported", 501
