"""The data directory of `sandyard up`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sandyard.cli.errors import CommandError
from sandyard.cli.up import state as state_module
from sandyard.cli.up.state import State
from sandyard.kit.errors import ConflictError


def test_the_key_is_created_once_and_private(tmp_path: Path) -> None:
    state = State(tmp_path / "data")
    state.take()
    key = state.key()
    file = tmp_path / "data" / "engine.key"
    assert key.reveal().startswith("e2b_")
    assert file.stat().st_mode & 0o777 == 0o600
    file.chmod(0o644)
    assert state.key() == key
    assert file.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "data").stat().st_mode & 0o777 == 0o700
    os.close(state.lock)


def test_a_data_directory_is_used_by_one_process_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = State(tmp_path), State(tmp_path)
    first.take()
    monkeypatch.setattr(state_module, "_alive", lambda holder: holder == str(os.getpid()))
    with pytest.raises(ConflictError, match=str(os.getpid())):
        second.take()
    os.close(first.lock)
    second.take()
    os.close(second.lock)


def test_waiting_for_orphaned_processes_times_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = State(tmp_path)
    first.take()
    monkeypatch.setattr(state_module, "ORPHAN_SECONDS", 0.2)
    with pytest.raises(ConflictError):
        State(tmp_path).take()
    os.close(first.lock)


def test_an_unusable_path_is_reported() -> None:
    with pytest.raises(CommandError, match="/proc/nothing"):
        State(Path("/proc/nothing")).take()
