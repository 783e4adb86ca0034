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


def test_what_is_published_is_found_again_by_another_reader(folder: TemplateFolder) -> None:
    publish(folder, "aa")
    found = TemplateFolder(folder.directory).find("base", "aa")
    assert found is not None
    assert (found.rootfs / "file").read_text() == "x"
    assert (found.description, found.details) == ("a test", {"size": "1"})
    assert folder.find("base", "bb") is None


def test_nobody_else_may_enter_the_folder(folder: TemplateFolder) -> None:
    publish(folder, "aa")
    assert stat.S_IMODE(folder.directory.stat().st_mode) == 0o700


def test_a_rebuild_of_the_same_recipe_is_a_later_version_and_the_old_one_stays(folder: TemplateFolder) -> None:
    publish(folder, "aa", "old")
    publish(folder, "aa", "new")
    newest, oldest = folder.list_versions("base")
    assert (newest.rootfs / "file").read_text() == "new"
    assert (oldest.rootfs / "file").read_text() == "old"
    assert newest.digest == oldest.digest == "aa"
    assert folder.find("base", "aa") == newest


def test_a_build_that_fails_leaves_nothing(folder: TemplateFolder) -> None:
    with pytest.raises(RuntimeError), folder.open_build_directory("base") as work:
        (work / "half").write_text("half")
        raise RuntimeError
    assert not folder.list_versions("base")
    assert not list((folder.directory / "base").iterdir())


def test_a_killed_builder_frees_the_lock_and_its_leftovers_go_with_the_next_build(folder: TemplateFolder) -> None:
    ours, theirs = spawn.Pipe()
    child = spawn.Process(target=build_and_wait, args=(folder.directory, theirs))
    child.start()
    leftover = folder.directory / "base" / ours.recv()
    with pytest.raises(BusyError), folder.open_build_directory("base", wait=False):
        pass
    assert child.pid
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    assert leftover.exists(), "the test must see a half-made template"
    assert not folder.list_versions("base")
    with folder.open_build_directory("base", wait=False):
        assert not leftover.exists()


def test_a_directory_without_a_whole_manifest_is_no_template(folder: TemplateFolder) -> None:
    publish(folder, "aa")
    for name, text in (("bb", ""), ("cc", "{}"), ("dd", "not json")):
        (folder.directory / "base" / name).mkdir()
        (folder.directory / "base" / name / "manifest.json").write_text(text)
    (folder.directory / "base" / "ee").mkdir()
    assert [version.version for version in folder.list_versions("base")] == ["aa"]


def test_missing_space_is_said_with_both_figures(tmp_path: Path) -> None:
    require_space(tmp_path, 1, "nothing")
    with pytest.raises(NoSpaceError, match=r"A test needs \d+ MiB in .*; \d+ MiB are free"):
        require_space(tmp_path, 1 << 60, "A test")
