from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from sandyard.engine.contract import Limits
from sandyard.engine.drivers.machine import fuse, pause
from sandyard.engine.drivers.machine.record import Life, Record
from sandyard.kit.errors import BusyError, ConflictError, SandyardError


@pytest.mark.parametrize(
    ("failure", "expected"), [(TimeoutError(), BusyError), (FileNotFoundError(2, "no group"), ConflictError)]
)
async def test_a_sandbox_that_cannot_be_frozen_is_not_marked_as_frozen(
    failure: OSError, expected: type[SandyardError]
) -> None:
    async def freeze(_: str) -> None:
        raise failure

    machine: Any = SimpleNamespace(cgroups=SimpleNamespace(can_freeze=True, freeze=freeze))
    record = Record("one", "namespace", (), Limits(), life=Life(10, 20, 30))
    with pytest.raises(expected):
        await pause.freeze(machine, record)
    assert not record.frozen


async def test_file_servers_that_prevent_a_pause_are_aborted_after_some_attempts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attempts: list[str] = []
    aborted: list[range] = []

    async def freeze(name: str) -> None:
        attempts.append(name)
        if not aborted:
            await asyncio.Event().wait()

    def abort(owners: range) -> int:
        aborted.append(owners)
        return 1

    monkeypatch.setattr(pause, "_FUSE_ATTEMPT_S", 0.001)
    monkeypatch.setattr(pause, "_FUSE_PAUSE_S", 0)
    monkeypatch.setattr(fuse, "list_connections", lambda owners: ["12"] if 3_000_000 in owners else [])
    monkeypatch.setattr(fuse, "abort_connections", abort)
    machine: Any = SimpleNamespace(
        cgroups=SimpleNamespace(can_freeze=True, freeze=freeze),
        instance=SimpleNamespace(get_uids=lambda slot: range(slot * 100_000, (slot + 1) * 100_000)),
    )
    record = Record("one", "namespace", (), Limits(), containers=True, life=Life(10, 20, 30))
    await pause.freeze(machine, record)
    assert record.frozen
    assert aborted == [range(3_000_000, 3_100_000)]
    assert len(attempts) == 4
