"""How a command fails: one sentence for a person, one exit code for a script.

0 it worked · 1 it did not · 2 wrong usage (click's own) · 3 there is no such thing · 4 not allowed, or not logged in ·
5 the server or its engine does not answer. `sandyard sandbox exec` ends with the command's own code, 124 on timeout.
"""

from __future__ import annotations

from collections.abc import Mapping

from sandyard.kit.errors import SandyardError

FAILED, NOT_FOUND, NOT_ALLOWED, UNREACHABLE = 1, 3, 4, 5

BY_STATUS = {
    401: NOT_ALLOWED,
    403: NOT_ALLOWED,
    404: NOT_FOUND,
    410: NOT_FOUND,
    502: UNREACHABLE,
    503: UNREACHABLE,
    504: UNREACHABLE,
}


class CommandError(SandyardError):
    """The command did not work."""

    exit_code = FAILED


class NotLoggedInError(CommandError):
    """Nobody is logged in here: `sandyard login` does that."""

    exit_code = NOT_ALLOWED


class NoAnswerError(CommandError):
    """The server does not answer."""

    exit_code = UNREACHABLE


class LocalNotFoundError(CommandError):
    """There is no such file here."""

    exit_code = NOT_FOUND


class ApiError(CommandError):
    """The server refused. `details`: what its answer says besides, for those who know what to do with it."""

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
        self.exit_code = BY_STATUS.get(http_status, FAILED)

    @property
    def passing(self) -> bool:
        """Another try may well succeed."""
        return self.http_status in {429, 500, 502, 503, 504}
