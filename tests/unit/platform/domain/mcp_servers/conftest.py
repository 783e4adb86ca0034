from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from sandyard.kit.destinations import Destinations
from sandyard.platform.domain.mcp_servers.connections import Connections
from sandyard.platform.domain.mcp_servers.service import McpServers
from tests.unit.platform.domain.models.conftest import upstream
from tests.unit.platform.world import World

__all__ = ["upstream"]


@pytest.fixture
async def servers(world: World) -> AsyncIterator[McpServers]:
    connections = Connections(Destinations(), timeout_s=5)
    made = McpServers(world.database, world.projects, world.vault, world.clock, connections)
    yield made
    await made.close()


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What hosts are where, for the platform."""
    known = {"mcp.example.org": "93.184.215.14", "inside.example.org": "10.1.2.3"}

    def found(host: str | bytes, *_: Any, **__: Any) -> list[Any]:
        name = host.decode() if isinstance(host, bytes) else host
        if name not in known and not name.replace(".", "").isdigit():
            raise socket.gaierror
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (known.get(name, name), 443))]

    monkeypatch.setattr(socket, "getaddrinfo", found)
    for proxy in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(proxy, raising=False)
        monkeypatch.delenv(proxy.upper(), raising=False)
    return known
