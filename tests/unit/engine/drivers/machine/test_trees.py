"""Directory trees written by sandboxes: copying keeps everything overlay needs, removing never leaves the tree."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from sandyard.engine.drivers.machine.store import trees


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    (root / "folder/inner").mkdir(parents=True)
    (root / "folder").chmod(0o2750)
    (root / "folder/file").write_text("content")
    (root / "folder/file").chmod(0o4711)
    os.link(root / "folder/file", root / "folder/inner/again")
    (root / "link").symlink_to("/etc/passwd")
    os.mkfifo(root / "pipe")
    with (root / "sparse").open("wb") as file:
        file.seek(4 << 20)
        file.write(b"end")
    os.utime(root / "folder", ns=(1, 2_000_000_000))
    return root


def test_a_copy_keeps_content_modes_links_and_attributes(tree: Path, tmp_path: Path) -> None:
    os.setxattr(tree / "folder/file", "user.overlay.origin", b"x")
    trees.copy_tree(str(tree), str(tmp_path / "copy"))
    copy = tmp_path / "copy"
    assert (copy / "folder/file").read_text() == "content"
    assert stat.S_IMODE((copy / "folder/file").stat().st_mode) == 0o4711
    assert stat.S_IMODE((copy / "folder").stat().st_mode) == 0o2750
    assert (copy / "folder/file").stat().st_ino == (copy / "folder/inner/again").stat().st_ino
    assert (copy / "folder/file").stat().st_ino != (tree / "folder/file").stat().st_ino
    assert os.getxattr(copy / "folder/file", "user.overlay.origin") == b"x"
    assert (copy / "link").readlink() == Path("/etc/passwd")
    assert stat.S_ISFIFO((copy / "pipe").lstat().st_mode)
    assert (copy / "folder").stat().st_mtime_ns == 2_000_000_000
    sparse = (copy / "sparse").stat()
    assert sparse.st_size == (4 << 20) + 3
    assert sparse.st_blocks * 512 < 1 << 20


@pytest.mark.skipif(os.geteuid() != 0, reason="owners and whiteouts need root")
def test_a_copy_keeps_owners_and_whiteouts(tree: Path, tmp_path: Path) -> None:
    os.chown(tree / "folder/file", 1234, 5678)
    os.mknod(tree / "gone", stat.S_IFCHR | 0o600, os.makedev(0, 0))
    os.setxattr(tree / "folder", "trusted.overlay.opaque", b"y")
    trees.copy_tree(str(tree), str(tmp_path / "copy"))
    copy = tmp_path / "copy"
    owner = (copy / "folder/file").stat()
    assert (owner.st_uid, owner.st_gid) == (1234, 5678)
    whiteout = (copy / "gone").lstat()
    assert stat.S_ISCHR(whiteout.st_mode)
    assert whiteout.st_rdev == 0
    assert os.getxattr(copy / "folder", "trusted.overlay.opaque") == b"y"


def test_a_copy_never_overwrites(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    with pytest.raises(FileExistsError):
        trees.copy_tree(str(tree), str(tmp_path / "copy"))


def test_removing_a_tree_follows_no_symbolic_link(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").touch()
    root = tmp_path / "root"
    (root / "deep/er").mkdir(parents=True)
    (root / "deep/link").symlink_to(outside)
    (root / "closed").mkdir(mode=0)
    trees.remove_tree(str(root))
    assert not root.exists()
    assert (outside / "precious").exists()
    trees.remove_tree(str(root))
    (tmp_path / "alias").symlink_to(outside)
    trees.remove_tree(str(tmp_path / "alias"))
    assert (outside / "precious").exists()


def test_remove_tree_also_removes_a_single_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    trees.remove_tree(str(tmp_path / "file"))
    assert not (tmp_path / "file").exists()


def create_nested_directories(root: Path, depth: int) -> None:
    """Nest directories deeper than a path can express."""
    root.mkdir()
    fd = os.open(root, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("nested", dir_fd=fd)
        child = os.open("nested", os.O_RDONLY, dir_fd=fd)
        os.close(os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=child))
        os.close(fd)
        fd = child
    os.close(fd)


def test_trees_deeper_than_the_recursion_limit_are_copied_and_removed(tmp_path: Path) -> None:
    create_nested_directories(tmp_path / "deep", 1500)
    trees.copy_tree(str(tmp_path / "deep"), str(tmp_path / "copy"))
    assert trees.measure_disk_usage(str(tmp_path / "copy")) == trees.measure_disk_usage(str(tmp_path / "deep")) > 0
    for name in ("deep", "copy"):
        trees.remove_tree(str(tmp_path / name))
        assert not (tmp_path / name).exists()
