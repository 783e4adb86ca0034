"""HTTP clients for servers whose addresses users have set: model providers and MCP servers."""

from __future__ import annotations

import httpx

from sandyard.kit.destinations import Destinations
from sandyard.kit.http_clients import GuardedTransport, open_shared_client
from sandyard.platform.domain.models import addresses

CONNECT_S, WRITE_S = 15.0, 120.0


class ServerClients:
    """HTTP clients that all projects share.

    An address that was not set by an administrator is checked at every connection, and the connection goes to the checked address.
    Redirects are never followed and cookies never stored, because the clients are shared.
    """

    def __init__(self, destinations: Destinations, *, timeout_s: float) -> None:
        timeout = httpx.Timeout(timeout_s, connect=CONNECT_S, write=WRITE_S, pool=None)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=50)
        trust = httpx.create_ssl_context()  # shared, because loading the machine's CA certificates is slow
        self._remote, self._local = (
            open_shared_client(timeout=timeout, limits=limits, verify=trust, trust_env=trust_env)
            for trust_env in (True, False)
        )
        guard = GuardedTransport(destinations, trust=trust, reuse=False)
        self._guarded = open_shared_client(timeout=timeout, transport=guard)

    def get_client(self, url: str, *, named_by_admin: bool) -> httpx.AsyncClient:
        if not named_by_admin:
            return self._guarded
        return self._local if addresses.is_local(url) else self._remote

    async def close(self) -> None:
        for client in (self._remote, self._local, self._guarded):
            await client.aclose()
