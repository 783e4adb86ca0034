"""The address of clients behind reverse proxies.

Without it, all clients of a proxy would count as one for the limits on signing in, and one of them could lock out all others.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from starlette.types import ASGIApp, Receive, Scope, Send

_HEADER = b"x-forwarded-for"


class ClientAddressMiddleware:
    """Replaces the address of a trusted proxy by the last address in X-Forwarded-For that is not a trusted proxy's.

    Addresses before it come from the client, which may write anything. The header is not removed: `metrics` uses it to recognize
    requests that did not begin on this machine.
    """

    def __init__(self, app: ASGIApp, *, proxies: Sequence[str]) -> None:
        self._app = app
        self._proxies = [ipaddress.ip_network(proxy, strict=False) for proxy in proxies]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        client = scope.get("client")
        if self._proxies and client and self._is_proxy(client[0]):
            scope["client"] = (self._find_client(scope) or client[0], 0)
        await self._app(scope, receive, send)

    def _find_client(self, scope: Scope) -> str | None:
        """Return the client's address, or None if the proxy has not given a valid one."""
        values = [value.decode("latin-1") for name, value in scope["headers"] if name == _HEADER]
        for part in reversed(",".join(values).split(",")):
            try:
                address = str(ipaddress.ip_address(part.strip()))
            except ValueError:
                return None
            if not self._is_proxy(address):
                return address
        return None

    def _is_proxy(self, host: str) -> bool:
        try:
            address = ipaddress.ip_address(host.partition("%")[0])
        except ValueError:  # a Unix socket
            return False
        if isinstance(address, ipaddress.IPv6Address):
            address = address.ipv4_mapped or address
        return any(address in network for network in self._proxies)
