from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sandyard.engine.contract import Limits
from sandyard.engine.drivers.gvisor import control
from sandyard.engine.drivers.gvisor.checkpoints import Checkpoints
from sandyard.engine.drivers.machine.record import Life, Record
from sandyard.kit.errors import SandyardError, UnreachableError, UnsupportedError


class Cgroups:
    can_freeze = True
    frozen = True

    def is_frozen(self, sandbox: str) -> bool:
        return self.frozen

    def thaw(self, sandbox: str) -> None:
        self.frozen = False

    async def freeze(self, sandbox: str) -> None:
        self.frozen = True


class Sandbox:
    """A frozen gVisor sandbox whose runsc always succeeds. `fail_at` is what fails: a control call or "flush"."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, fail_at: tuple[str, ...]) -> None:
        self.cgroups = Cgroups()
        self.control_calls: list[str] = []
        self._fail_at = fail_at
        machine: Any = SimpleNamespace(
            cgroups=self.cgroups, store=self, options=SimpleNamespace(data_dir=folder), run_dir=folder / "run"
        )
        self.paused_mark = folder / "run" / "one" / "paused"
        self.paused_mark.parent.mkdir(parents=True)
        processes: Any = SimpleNamespace(get_control_path=lambda sandbox: "", is_responding=self._is_responding)
        self.checkpoints = Checkpoints(machine, SimpleNamespace(), processes)  # type: ignore[arg-type]
        self.record = Record("one", "gvisor", (), Limits(), life=Life(1, 1, 1))
        monkeypatch.setattr(control, "call", self._call)
        monkeypatch.setattr(self.checkpoints, "_run_checkpoint", self._run_checkpoint)

    async def _call(self, path: str, method: str) -> None:
        self.control_calls.append(method)
        if f"{method} refused" in self._fail_at:
            raise control.ControlError("no")
        if method in self._fail_at:
            raise UnreachableError("The sandbox does not respond.")

    async def _is_responding(self, sandbox: str) -> bool:
        return False

    async def _run_checkpoint(self, sandbox: str, folder: Path, *_: object) -> None:
        (folder / "checkpoint.img").touch()

    async def flush(self) -> None:
        if "flush" in self._fail_at:
            raise OSError(5, "Input/output error")

    async def end(self, record: Record, reason: str) -> None:
        record.ended.set_result(reason)


async def test_a_suspended_sandbox_has_ended_and_its_memory_is_valid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = Sandbox(tmp_path, monkeypatch, ())
    await sandbox.checkpoints.suspend(sandbox.record, sandbox.end)
    assert sandbox.control_calls == ["Pause"] and sandbox.checkpoints.has("one")


@pytest.mark.parametrize(
    ("fail_at", "control_calls"),
    [
        (("Pause",), ["Pause"]),
        (("Pause refused",), ["Pause"]),
        (("flush",), ["Pause", "Resume"]),
        (("flush", "Resume"), ["Pause", "Resume"]),
    ],
)
async def test_a_failed_suspend_leaves_a_frozen_sandbox_that_can_be_thawed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fail_at: tuple[str, ...], control_calls: list[str]
) -> None:
    sandbox = Sandbox(tmp_path, monkeypatch, fail_at)
    with pytest.raises(SandyardError):
        await sandbox.checkpoints.suspend(sandbox.record, sandbox.end)
    assert sandbox.control_calls == control_calls
    assert sandbox.cgroups.frozen and sandbox.record.alive and not sandbox.checkpoints.has_any
    may_be_paused = "Pause" in fail_at or "Resume" in fail_at
    assert sandbox.paused_mark.exists() == may_be_paused, "this engine or the next lets its processes continue"
    if may_be_paused:
        sandbox.control_calls.clear()
        await sandbox.checkpoints.continue_processes([sandbox.record])
        assert sandbox.control_calls == ["Resume"] and not sandbox.paused_mark.exists()


async def test_the_memory_of_a_sandbox_with_containers_stays_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = Sandbox(tmp_path, monkeypatch, ())
    sandbox.record.containers = True
    with pytest.raises(UnsupportedError, match="networks of containers"):
        await sandbox.checkpoints.suspend(sandbox.record, sandbox.end)
    with pytest.raises(UnsupportedError, match="networks of containers"):
        async with sandbox.checkpoints.copy_memory(sandbox.record, sandbox.flush):
            pass
    assert sandbox.control_calls == [] and sandbox.record.alive
