"""A host that has left its engine removes its data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sandyard.engine.drivers.fake.driver import FakeDriver
from sandyard.engine.hosting import server
from sandyard.engine.settings import EngineSettings
from sandyard.kit.errors import ConflictError


def test_a_host_that_has_left_keeps_no_sandboxes_and_no_owner(tmp_path: Path) -> None:
    files = FakeDriver(tmp_path, {}).files
    files.create_folders()
    for folder in (files.sandboxes / "s1", files.snapshots / "p1"):
        folder.mkdir()
    machine = EngineSettings(driver="fake", data_dir=tmp_path)
    server.remove_all_sandboxes(machine)
    assert (files.sandboxes / "s1").exists(), "no engine has used the folder, so it may be something else"

    (tmp_path / "owner.json").write_text(json.dumps({"epoch": 7, "engine": "e1"}))
    server.remove_all_sandboxes(machine)
    assert [*files.sandboxes.iterdir(), *files.snapshots.iterdir()] == []
    assert not server.was_used(tmp_path), "an engine with a lower epoch can use it"


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    with server.lock_data_dir(tmp_path), pytest.raises(ConflictError, match="in use"), server.lock_data_dir(tmp_path):
        pass
    with server.lock_data_dir(tmp_path):
        pass
