from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from sandyard.engine.contract import Handle, Limits
from sandyard.engine.drivers.machine.driver import MachineDriver
from sandyard.engine.drivers.machine.machine import DriverOptions
from sandyard.engine.drivers.machine.record import Life, Record, parse_handle
from sandyard.engine.drivers.namespace.runtime import NamespaceRuntime
from sandyard.kit.errors import InvalidInputError


async def test_a_record_can_be_restored_from_its_handle() -> None:
    record = Record("one", "namespace", ("/a", "/b"), Limits(memory_mb=64), containers=True)
    record.life = Life(10, 20, 30)
    handle = Handle(**json.loads(json.dumps(asdict(record.make_handle()))))
    assert parse_handle(handle) == (("/a", "/b"), Limits(memory_mb=64), Life(10, 20, 30))


async def test_a_handle_has_no_life_data_after_the_process_ends_or_the_machine_reboots() -> None:
    record = Record("one", "namespace", (), Limits())
    record.life = Life(10, 20, 30)
    data = json.loads(json.dumps(dict(record.make_handle().data)))
    data["life"]["boot"] = "another"
    assert parse_handle(Handle("one", "namespace", data))[2] is None
    record.ended.set_result("gone")
    assert "life" not in record.make_handle().data


@pytest.mark.parametrize(
    "data", [{}, {"layers": []}, {"layers": [], "limits": {"memory": 1}}, {"layers": 3, "limits": {}}]
)
def test_an_incomplete_handle_is_rejected(data: dict[str, object]) -> None:
    with pytest.raises(InvalidInputError):
        parse_handle(Handle("one", "namespace", data))


async def test_a_handle_of_another_driver_is_rejected(tmp_path: Path) -> None:
    namespaces = NamespaceRuntime()
    driver = MachineDriver(DriverOptions(tmp_path), [namespaces], namespaces)
    with pytest.raises(InvalidInputError, match="fake"):
        await driver.open([Handle("one", "fake", {})], [])
