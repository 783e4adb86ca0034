"""Connections from the platform to MCP servers at URLs."""

from __future__ import annotations

from urllib.parse import SplitResult

import httpx

from sandyard.kit.destinations import Destinations, is_proxied
from sandyard.kit.guarded_http import GuardedTransport
from sandyard.kit.shared_http import open_shared_client
from sandyard.platform.db.models import McpServer
from sandyard.platform.domain.models import addresses
from sandyard.platform.domain.models.gateway import CONNECT_S, WRITE_S


class Connections:
    """HTTP clients for MCP servers.

    An address that was not set by an administrator is checked at every connection, and the connection goes to the checked address. Redirects
    are never followed and cookies never stored, because all projects share these clients.
    """

    def __init__(self, destinations: Destinations, *, timeout_s: float) -> None:
        self._destinations = destinations
        timeout = httpx.Timeout(timeout_s, connect=CONNECT_S, write=WRITE_S, pool=None)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=50)
        trust = httpx.create_ssl_context()
        self._far, self._near = (
            open_shared_client(timeout=timeout, limits=limits, verify=trust, trust_env=trust_env)
            for trust_env in (True, False)
        )
        guard = GuardedTransport(destinations, trust=trust, reuse=False)
        self._guarded = open_shared_client(timeout=timeout, transport=guard)

    async def check(self, url: SplitResult) -> None:
        """Raise PrivateAddressError if connections to this URL are not allowed, and OSError if its host has no address.

        Behind a proxy, which resolves names itself, names are not resolved here.
        """
        host = url.hostname or ""
        self._destinations.check_name(host)
        if not is_proxied(url.scheme, host):
            await self._destinations.resolve(host)

    def client_for(self, row: McpServer) -> httpx.AsyncClient:
        if not row.named_by_admin:
            return self._guarded
        return self._near if addresses.is_local(row.url or "") else self._far

    async def close(self) -> None:
        for client in (self._far, self._near, self._guarded):
            await client.aclose()
