"""The keys with which Sandyard's own engine encrypts the secrets of its clients."""

from __future__ import annotations

from sandyard.kit.errors import UnsupportedError
from sandyard.platform.domain.sandboxes.e2b.own_routes import EngineAnswer, request_own_route
from sandyard.platform.domain.sandboxes.e2b.transport import EngineTransport


class KeysNotAvailableError(UnsupportedError):
    """The engine does not say which keys it has: it is not Sandyard's, or an older version."""

    code = "keys_not_available"


class EngineKey(EngineAnswer):
    id: str
    values: int


class EngineKeyState(EngineAnswer):
    keys: list[EngineKey]
    unknown: int
    changed_at: float


class EngineKeys:
    """Both methods raise KeysNotAvailableError if the endpoint has no such keys."""

    def __init__(self, transport: EngineTransport) -> None:
        self._transport = transport

    async def describe(self) -> EngineKeyState:
        return await self._request("GET", "/encryption-keys")

    async def rotate(self) -> EngineKeyState:
        """Create a key and encrypt all secrets of clients with it."""
        return await self._request("POST", "/encryption-keys/rotate")

    async def _request(self, method: str, path: str) -> EngineKeyState:
        unsupported = KeysNotAvailableError()
        return await request_own_route(
            self._transport, EngineKeyState, method, path, missing=unsupported, unsupported=unsupported
        )
