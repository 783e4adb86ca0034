"""Connections from the platform to MCP servers at URLs."""

from __future__ import annotations

from urllib.parse import SplitResult

import httpx

from sandyard.kit.destinations import Destinations, is_proxied
from sandyard.platform.db.models import McpServer
from sandyard.platform.domain.models.clients import ServerClients


class McpClients:
    """HTTP clients for MCP servers, and the check of a new address."""

    def __init__(self, destinations: Destinations, *, timeout_s: float) -> None:
        self._destinations = destinations
        self._clients = ServerClients(destinations, timeout_s=timeout_s)

    async def check(self, url: SplitResult) -> None:
        """Raise PrivateAddressError if connections to this URL are not allowed, and OSError if its host has no address.

        Behind a proxy, which resolves names itself, names are not resolved here.
        """
        host = url.hostname or ""
        self._destinations.check_name(host)
        if not is_proxied(url.scheme, host):
            await self._destinations.resolve(host)

    def get_client(self, row: McpServer) -> httpx.AsyncClient:
        return self._clients.get_client(row.url or "", named_by_admin=row.named_by_admin)

    async def close(self) -> None:
        await self._clients.close()
