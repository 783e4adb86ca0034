"""The closed set of errors an operation can raise. Each has a code for programs and a message for people.

An error's docstring is its default message. Each transport maps `status` and `code` in one place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, TypeVar

E = TypeVar("E", bound=BaseException)


class SandyardError(Exception):
    """Something went wrong."""

    code: ClassVar[str] = "internal"
    status: ClassVar[int] = 500

    def __init__(self, message: str | None = None) -> None:
        self.message = message or " ".join((type(self).__doc__ or "").split())
        super().__init__(self.message)

    @property
    def extra(self) -> Mapping[str, object]:
        """Return additional JSON fields for programs, by their names on the wire. Must not contain secrets."""
        return {}


class InvalidInputError(SandyardError):
    """The request is not valid."""

    code, status = "invalid_argument", 400


class UnauthenticatedError(SandyardError):
    """The key or token is missing or not valid."""

    code, status = "unauthenticated", 401


class ForbiddenError(SandyardError):
    """Not allowed with this key."""

    code, status = "forbidden", 403


class NotFoundError(SandyardError):
    """Not found."""

    code, status = "not_found", 404


class ConflictError(SandyardError):
    """Not possible in the current state."""

    code, status = "conflict", 409


class FullError(SandyardError):
    """The machine is full."""

    code, status = "resource_exhausted", 429


class BusyError(SandyardError):
    """The engine is busy; try again."""

    code, status = "busy", 503


class UnreachableError(SandyardError):
    """The sandbox is not responding."""

    code, status = "unreachable", 502


class NoSpaceError(SandyardError):
    """There is no space left on the disk."""

    code, status = "no_space", 507


class UnsupportedError(SandyardError):
    """This engine does not support that."""

    code, status = "unsupported", 501


def drop_traceback(error: E) -> E:
    """Return the error without its traceback, cause and context. For errors that are kept: frames keep their variables alive, and an
    object that keeps an error from its own method is only freed by a full garbage collection."""
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)
