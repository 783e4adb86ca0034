"""Errors of this package that callers need to distinguish by type."""

from __future__ import annotations

from sandyard.kit.errors import BusyError, NotFoundError, UnreachableError


class SandboxUnreachableError(UnreachableError):
    """The sandbox was not found"""


class PortClosedError(UnreachableError):
    """The sandbox is running but port is not open"""


class StuckError(BusyError):
    """The driver did not answer in time."""


def make_not_found_error(sandbox_id: str) -> NotFoundError:
    return NotFoundError(f"Sandbox {sandbox_id!r} doesn't exist or you don't have access to it")
