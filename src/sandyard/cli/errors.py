"""Errors of commands: one sentence for people and one exit code for scripts.

0 success · 1 failure · 2 wrong usage (click's own) · 3 not found · 4 not allowed, or not logged in ·
5 the server or its engine does not respond. `sandyard sandbox exec` exits with the command's own code, or 124 on timeout.
"""

from __future__ import annotations

from collections.abc import Mapping

from sandyard.kit.errors import SandyardError

FAILED, NOT_FOUND, NOT_ALLOWED, UNREACHABLE = 1, 3, 4, 5

EXIT_CODES = {
    401: NOT_ALLOWED,
    403: NOT_ALLOWED,
    404: NOT_FOUND,
    410: NOT_FOUND,
    502: UNREACHABLE,
    503: UNREACHABLE,
    504: UNREACHABLE,
}


class CommandError(SandyardError):
    """The command failed."""

    exit_code = FAILED


class NotLoggedInError(CommandError):
    """Not logged in. Run `sandyard login`."""

    exit_code = NOT_ALLOWED


class NoResponseError(CommandError):
    """The server is not responding."""

    exit_code = UNREACHABLE


class NotSandyardError(NoResponseError):
    """The server is not a Sandyard server."""


class PathNotFoundError(CommandError):
    """No such file."""

    exit_code = NOT_FOUND


class ApiError(CommandError):
    """The server returned an error. `details` holds the other fields of its response."""

    def __init__(
        self,
        message: str,
        http_status: int,
        problem_code: str | None = None,
        details: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(message)
        self.http_status = http_status
        self.problem_code = problem_code
        self.details = details or {}
        self.exit_code = EXIT_CODES.get(http_status, FAILED)

    @property
    def is_transient(self) -> bool:
        """Whether a retry may succeed."""
        return self.http_status in {429, 500, 502, 503, 504}
