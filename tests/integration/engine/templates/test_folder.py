from __future__ import annotations

import multiprocessing
import os
import signal
import stat
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from sandyard.engine.templates.folder import ROOTFS, TemplateFolder, require_space
from sandyard.kit.errors import BusyError, NoSpaceError

spawn = multiprocessing.get_context("spawn")


def publish(folder: TemplateFolder, digest: str, content: str = "x") -> None:
    with folder.open_build_directory("base") as work:
        (work / ROOTFS).mkdir()
        (work / ROOTFS / "file").write_text(content)
        folder.publish(work, folder.make_version("base", digest, "a test", {"size": "1"}))


def build_and_wait(directory: Path, ready: Connection) -> None:
    with TemplateFolder(directory).open_build_directory("base") as work:
        (work / "half").write_text("half")
        ready.send(work.name)
        signal.pause()


def test_a_published_version_is_found_by_another_reader(folder: TemplateFolder) -> None:
    publish(folder, "aa")
    found = TemplateFolder(folder.directory).find("base", "aa")
    assert found is not None
    assert (found.rootfs / "file").read_text() == "x"
    assert (found.description, found.details) == ("a test", {"size": "1"})
    assert folder.find("base", "bb") is None


def test_the_folder_is_private(folder: TemplateFolder) -> None:
    publish(folder, "aa")
    assert stat.S_IMODE(folder.directory.stat().st_mode) == 0o700


def test_a_rebuild_of_a_recipe_adds_a_version_and_keeps_the_old_one(folder: TemplateFolder) -> None:
    publish(folder, "aa", "old")
    publish(folder, "aa", "new")
    newest, oldest = folder.list_versions("base")
    assert (newest.rootfs / "file").read_text() == "new"
    assert (oldest.rootfs / "file").read_text() == "old"
    assert newest.digest == oldest.digest == "aa"
    assert folder.find("base", "aa") == newest


def test_a_failed_build_leaves_nothing_behind(folder: TemplateFolder) -> None:
    with pytest.raises(RuntimeError), folder.open_build_directory("base") as work:
        (work / "half").write_text("half")
        raise RuntimeError
    assert not folder.list_versions("base")
    assert not list((folder.directory / "base").iterdir())


def test_a_killed_build_frees_the_lock_and_the_next_build_removes_its_leftovers(folder: TemplateFolder) -> None:
    parent_end, child_end = spawn.Pipe()
    child = spawn.Process(target=build_and_wait, args=(folder.directory, child_end))
    child.start()
    leftover = folder.directory / "base" / parent_end.recv()
    with pytest.raises(BusyError), folder.open_build_directory("base", wait=False):
        pass
    assert child.pid
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    assert leftover.exists(), "the killed build must leave a partial template"
    assert not folder.list_versions("base")
    with folder.open_build_directory("base", wait=False):
        assert not leftover.exists()


def test_directories_without_a_valid_manifest_are_ignored(folder: TemplateFolder) -> None:
    publish(folder, "aa")
    for name, text in (("bb", ""), ("cc", "{}"), ("dd", "not json")):
        (folder.directory / "base" / name).mkdir()
        (folder.directory / "base" / name / "manifest.json").write_text(text)
    (folder.directory / "base" / "ee").mkdir()
    assert [version.version for version in folder.list_versions("base")] == ["aa"]


def test_too_little_space_is_reported_with_both_sizes(tmp_path: Path) -> None:
    require_space(tmp_path, 1, "nothing")
    with pytest.raises(NoSpaceError, match=r"A test needs \d+ MiB in .*; \d+ MiB are free"):
        require_space(tmp_path, 1 << 60, "A test")
