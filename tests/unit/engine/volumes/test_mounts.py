from __future__ import annotations

import pytest

from sandyard.engine.volumes.model import Volume
from sandyard.engine.volumes.mounts import MAX_MOUNTS, find_problem, resolve
from sandyard.kit.errors import InvalidInputError
from sandyard.kit.secret import Secret

DATA = Volume("v1", "data", Secret("t"), 1, 0.0)


def find(name: str) -> Volume | None:
    return DATA if name == "data" else None


def test_volume_names_are_resolved_to_ids() -> None:
    assert resolve([("data", "/mnt/data"), ("data", "/mnt/data2")], find) == (
        {"name": "data", "path": "/mnt/data", "id": "v1"},
        {"name": "data", "path": "/mnt/data2", "id": "v1"},
    )
    assert resolve([], find) == ()


@pytest.mark.parametrize("path", ["/mnt", "/home/user/my data", "/mnt/ünïcode", "/processes", "/device", "/a/b/c"])
def test_valid_mount_paths_are_accepted(path: str) -> None:
    assert find_problem(path) is None


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("", "absolute"),
        ("mnt", "absolute"),
        ("./mnt", "absolute"),
        ("/", "reserved"),
        ("/proc", "reserved"),
        ("/proc/1/root", "reserved"),
        ("/sys/fs", "reserved"),
        ("/dev/shm", "reserved"),
        ("/mnt/..", "must not contain"),
        ("/mnt/../proc", "must not contain"),
        ("/mnt/./x", "must not contain"),
        ("//mnt", "must not contain"),
        ("/mnt//x", "must not contain"),
        ("/mnt/", "must not contain"),
        ("/mnt\n", "control"),
        ("/mnt\0", "control"),
        ("/mnt]:x", "control"),
        ("/" + "x" * 255, "longer"),
    ],
)
def test_invalid_mount_paths_are_rejected(path: str, reason: str) -> None:
    assert reason in (find_problem(path) or "")


def test_mount_paths_must_not_repeat_or_nest() -> None:
    assert "twice" in (find_problem("/a", ["/a"]) or "")
    assert "nested" in (find_problem("/a/b", ["/a"]) or "")
    assert "nested" in (find_problem("/a", ["/a/b"]) or "")
    assert find_problem("/ab", ["/a"]) is None


def test_all_invalid_mounts_are_reported_together() -> None:
    with pytest.raises(InvalidInputError) as raised:
        resolve([("none", "/a"), ("data", "/b"), ("data", "c"), ("data", "/b/c")], find)
    assert raised.value.message.splitlines()[:2] == ["invalid mounts:", "\t- volume mount #0: volume 'none' not found"]
    assert [f"#{number}" in raised.value.message for number in range(4)] == [True, False, True, True]
    with pytest.raises(InvalidInputError, match="at most"):
        resolve([("data", f"/d{number}") for number in range(MAX_MOUNTS + 1)], find)
