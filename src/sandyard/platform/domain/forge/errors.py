"""Errors of a forge. None of them ever contains a token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime

from sandyard.kit.errors import ConflictError, SandyardError
from sandyard.platform.domain.forge.model import Finding


class ForgeError(SandyardError):
    """The forge could not complete the request."""

    code, status = "forge_failed", 409


class ForgeUnsupportedError(ForgeError):
    """This forge does not support the operation."""

    code = "forge_unsupported"


class ForgeUnauthorizedError(ForgeError):
    """The forge rejected the credential: it is missing, expired or revoked. Enter a new one."""

    code = "forge_unauthorized"


class ForgeForbiddenError(ForgeError):
    """The credential has no permission for this operation on the forge. Extend its permissions, or enter another one."""

    code = "forge_forbidden"


class ForgeNotFoundError(ForgeError):
    """The forge has no such object, or the credential may not see it."""

    code = "forge_not_found"


class ForgeRefusedError(ForgeError):
    """The forge rejected the operation in the current state."""

    code = "forge_refused"


class ForgeInvalidError(ForgeError):
    """The forge rejected these values."""

    code, status = "forge_invalid", 422


class ForgeUnreachableError(ForgeError):
    """The forge did not respond, or failed internally. Nothing was lost; try again."""

    code, status = "forge_unreachable", 502


class ForgeRateLimitedError(ForgeError):
    """The forge is rate-limiting this credential."""

    code, status = "forge_rate_limited", 503

    def __init__(self, message: str | None = None, *, until: datetime | None = None, retry_after: float = 60.0) -> None:
        super().__init__(message)
        self.until = until
        self.retry_after = retry_after


class ConnectionTestFailedError(ConflictError):
    """The connection test failed, and nothing was saved. `findings` lists what was tested."""

    code = "connection_test_failed"

    def __init__(self, findings: Sequence[Finding]) -> None:
        failures = " ".join(finding.detail for finding in findings if not finding.ok)
        super().__init__(f"The connection test failed, and nothing was saved. {failures}")
        self.findings = tuple(findings)

    @property
    def extra(self) -> Mapping[str, object]:
        return {"findings": [asdict(finding) for finding in self.findings]}
