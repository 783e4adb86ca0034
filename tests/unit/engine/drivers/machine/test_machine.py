from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from sandyard.engine.drivers.machine.machine import DriverOptions, Machine


def test_a_network_that_does_not_work_is_reported_with_its_own_reason(tmp_path: Path) -> None:
    unused: Any = None
    machine: Any = Machine(DriverOptions(tmp_path, rootless=False), unused)
    machine.store = SimpleNamespace(missing={}, live_copy="copy", limits=frozenset())
    machine.cgroups = SimpleNamespace(can_freeze=True, limits=frozenset())
    assert "no network was configured" in machine.get_capabilities().missing["egress"]
    machine.network = SimpleNamespace(missing={"network": "no network namespaces: Operation not permitted"})
    machine.disable_network()
    assert machine.get_capabilities().missing["egress"] == "no network namespaces: Operation not permitted"
