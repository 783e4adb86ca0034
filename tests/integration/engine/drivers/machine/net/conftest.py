from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from sandyard.engine.drivers.machine.net import Network, NetworkSettings
from tests.integration.engine.drivers.machine.net.topology import Topology


@pytest.fixture
def topology(tmp_path: Path) -> Iterator[Topology]:
    """A topology of network namespaces. Needs root."""
    if os.geteuid() != 0:
        pytest.skip("needs root for network namespaces")
    made = Topology(tmp_path)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
async def network(topology: Topology) -> AsyncIterator[Network]:
    """An open network with the default settings, a small pool, and the topology's name server."""
    made = Network("test", topology.state / "net", NetworkSettings(pool=2, resolv_conf=topology.resolv_conf))
    await made.open(())
    assert dict(made.missing) == {}
    try:
        yield made
    finally:
        await made.close(remove=True)
