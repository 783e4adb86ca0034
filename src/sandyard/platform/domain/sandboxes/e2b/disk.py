"""The disk of the engine's machine. Only Sandyard's own engine reports it."""

from __future__ import annotations

from sandyard.kit.errors import UnsupportedError
from sandyard.platform.domain.sandboxes.e2b.own_routes import EngineAnswer, request_own_route
from sandyard.platform.domain.sandboxes.e2b.transport import EngineTransport

MEASURE_SECONDS = 300.0
FREE_SECONDS = 900.0


class DiskNotAvailableError(UnsupportedError):
    """The engine does not report what takes its disk: it is not Sandyard's, or an older version."""

    code = "disk_not_available"


class EngineDiskEntry(EngineAnswer):
    """Disk use of one kind of data. In the result of `free`, `removable` is what was removed."""

    kind: str
    bytes: int
    count: int | None
    oldest_at: float | None
    removable: int
    removable_bytes: int


class EngineDiskState(EngineAnswer):
    entries: list[EngineDiskEntry]
    free: int
    total: int
    path: str


class EngineDisk:
    """The disk of the engine. Both methods raise DiskNotAvailableError if the endpoint does not report it."""

    def __init__(self, transport: EngineTransport) -> None:
        self._transport = transport

    async def read(self) -> EngineDiskState:
        """Return the disk use. May take a minute."""
        return await self._request("GET", "/disk", MEASURE_SECONDS)

    async def free(self) -> EngineDiskState:
        """Remove what the engine's retention rules allow, and return what was removed."""
        return await self._request("POST", "/disk/free", FREE_SECONDS)

    async def _request(self, method: str, path: str, timeout_s: float) -> EngineDiskState:
        unsupported = DiskNotAvailableError()
        return await request_own_route(
            self._transport,
            EngineDiskState,
            method,
            path,
            missing=unsupported,
            unsupported=unsupported,
            timeout_s=timeout_s,
        )
