from __future__ import annotations

import ipaddress
from collections.abc import AsyncIterator

import pytest

from sandyard.kit.destinations import Destinations
from sandyard.kit.dns_lookup import Address
from sandyard.platform.domain.mcp_servers.clients import McpClients
from sandyard.platform.domain.mcp_servers.service import McpServers
from tests.unit.platform.domain.models.conftest import upstream
from tests.unit.platform.world import World

__all__ = ["upstream"]


@pytest.fixture
async def servers(world: World) -> AsyncIterator[McpServers]:
    connections = McpClients(Destinations(), timeout_s=5)
    made = McpServers(world.database, world.projects, world.vault, world.clock, connections)
    yield made
    await made.close()


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The addresses that host names resolve to for the platform."""
    known = {"mcp.example.org": "93.184.215.14", "inside.example.org": "10.1.2.3"}

    async def found(host: str) -> list[Address]:
        if host not in known:
            raise OSError("unknown")
        return [ipaddress.ip_address(known[host])]

    monkeypatch.setattr("sandyard.kit.dns_lookup.query_name_servers", found)
    for proxy in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(proxy, raising=False)
        monkeypatch.delenv(proxy.upper(), raising=False)
    return known
