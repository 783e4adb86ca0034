"""The data directory of `sandyard up`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sandyard.cli.errors import CommandError
from sandyard.cli.up import data_directory
from sandyard.cli.up.data_directory import DataDirectory
from sandyard.kit.errors import ConflictError


def test_the_key_is_created_once_and_private(tmp_path: Path) -> None:
    state = DataDirectory(tmp_path / "data")
    state.acquire_lock()
    key = state.get_engine_key()
    file = tmp_path / "data" / "engine.key"
    assert key.reveal().startswith("e2b_")
    assert file.stat().st_mode & 0o777 == 0o600
    file.chmod(0o644)
    assert state.get_engine_key() == key
    assert file.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "data").stat().st_mode & 0o777 == 0o700
    os.close(state.lock_fd)


def test_a_data_directory_is_used_by_one_process_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = DataDirectory(tmp_path), DataDirectory(tmp_path)
    first.acquire_lock()
    monkeypatch.setattr(data_directory, "is_supervisor_running", lambda holder: holder == str(os.getpid()))
    with pytest.raises(ConflictError, match=str(os.getpid())):
        second.acquire_lock()
    os.close(first.lock_fd)
    second.acquire_lock()
    os.close(second.lock_fd)


def test_waiting_for_orphaned_processes_times_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = DataDirectory(tmp_path)
    first.acquire_lock()
    monkeypatch.setattr(data_directory, "ORPHAN_SECONDS", 0.2)
    with pytest.raises(ConflictError):
        DataDirectory(tmp_path).acquire_lock()
    os.close(first.lock_fd)


def test_an_unusable_path_is_reported() -> None:
    with pytest.raises(CommandError, match="/proc/nothing"):
        DataDirectory(Path("/proc/nothing")).acquire_lock()
