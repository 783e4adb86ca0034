"""The ways a forge can refuse, each with what a person can do about it. None of them ever holds a token."""

from __future__ import annotations

from datetime import datetime

from sandyard.kit.errors import SandyardError


class ForgeError(SandyardError):
    """The forge could not do this."""

    code, status = "forge_failed", 409


class ForgeUnsupportedError(ForgeError):
    """This forge cannot do that."""

    code = "forge_unsupported"


class ForgeUnauthorizedError(ForgeError):
    """The forge does not accept the project's credential: it is missing, expired or revoked. Give the project a new one."""

    code = "forge_unauthorized"


class ForgeForbiddenError(ForgeError):
    """The project's credential may not do this on the forge."""

    code = "forge_forbidden"


class ForgeNotFoundError(ForgeError):
    """The forge has no such thing, or the project's credential may not see it."""

    code = "forge_not_found"


class ForgeRefusedError(ForgeError):
    """The forge refuses this in the state things are in."""

    code = "forge_refused"


class ForgeInvalidError(ForgeError):
    """The forge does not accept these values."""

    code, status = "forge_invalid", 422


class ForgeUnreachableError(ForgeError):
    """The forge does not answer, or answers with a fault of its own. Nothing was lost; try again."""

    code, status = "forge_unreachable", 502


class ForgeRateLimitedError(ForgeError):
    """The forge takes no more requests with this credential until `until`."""

    code, status = "forge_rate_limited", 503

    def __init__(self, message: str | None = None, *, until: datetime | None = None, retry_after: float = 60.0) -> None:
        super().__init__(message)
        self.until = until
        self.retry_after = retry_after
