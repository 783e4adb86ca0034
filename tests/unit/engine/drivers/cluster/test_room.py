"""The room on the hosts of a cluster."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sandyard.engine.contract import Handle, Room
from sandyard.engine.drivers.cluster.driver import ClusterDriver, ClusterOptions
from sandyard.engine.drivers.cluster.model import DRIVER_NAME, HostRecord, HostRoom, HostState
from sandyard.engine.drivers.cluster.placement import Reserves
from sandyard.kit.errors import NotFoundError


def test_the_room_of_a_sandbox_is_that_of_its_own_host() -> None:
    here, there = Room(4 << 30, 1 << 30, "/data"), HostRoom(None, 8 << 30, None, 9 << 40, 4, 0.5)
    anything: Any = SimpleNamespace()
    driver = ClusterDriver(
        SimpleNamespace(get_room=lambda: here),  # type: ignore[arg-type]
        anything,
        anything,
        ClusterOptions(1, Reserves(0, 0)),
        origins=anything,
    )
    record = HostRecord("host-1", "worker", "10.0.0.2", 3011)
    link: Any = SimpleNamespace(record=record, state=HostState.READY, room=there)
    driver._links[record.id] = link

    def at(host: str) -> Handle:
        return Handle("s1", DRIVER_NAME, {"host": host, "driver": "namespace", "data": {}})

    assert driver.get_room() == driver.get_room(at("host-1")) == Room(8 << 30, 9 << 40, "the host worker")
    assert driver.get_room(Handle("s2", "namespace")) == here
    with pytest.raises(NotFoundError):
        driver.get_room(at("host-2"))
    link.room = None
    assert driver.get_room(at("host-1")).disk_free is None
