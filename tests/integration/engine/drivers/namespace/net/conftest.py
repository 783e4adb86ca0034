from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from sandyard.engine.drivers.namespace.net import Network, NetworkSettings
from tests.integration.engine.drivers.namespace.net.world import World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A world to be root in."""
    if os.geteuid() != 0:
        pytest.skip("needs root for network namespaces")
    made = World(tmp_path)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
async def network(world: World) -> AsyncIterator[Network]:
    """An open network with the default settings, a small pool, and the world's name server."""
    made = Network("test", world.state / "net", NetworkSettings(pool=2, resolv_conf=world.resolv_conf))
    await made.open(())
    assert dict(made.missing) == {}
    try:
        yield made
    finally:
        await made.close(remove=True)
