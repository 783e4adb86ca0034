"""Who may run sudo on a kernel without set-user-id programs."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandyard.engine.guest.elevation import may_become_root
from sandyard.engine.guest.users import User

GROUPS = {27: "sudo", 1000: "user"}
ROOT = User("root", 0, 0, "/root", "/bin/sh", (0,))
USER = User("user", 1000, 1000, "/home/user", "/bin/sh", (1000, 27))


def is_allowed(etc: Path, user: User) -> bool:
    return may_become_root(user, lambda number: GROUPS.get(number, str(number)), str(etc))


@pytest.mark.parametrize(
    "line",
    [
        "user ALL=(ALL:ALL) NOPASSWD: ALL",
        "user\tALL=(ALL) NOPASSWD:ALL",
        "%sudo ALL = (ALL : ALL) NOPASSWD : ALL",
        "ALL ALL=(ALL) NOPASSWD: ALL",
    ],
)
def test_users_who_may_do_everything_without_a_password_are_allowed(tmp_path: Path, line: str) -> None:
    (tmp_path / "sudoers").write_text(f"root ALL=(ALL) ALL\n  {line}  \n")
    assert is_allowed(tmp_path, USER)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "# user ALL=(ALL:ALL) NOPASSWD: ALL",
        "user ALL=(ALL:ALL) ALL",
        "user ALL=(ALL:ALL) NOPASSWD: /bin/ls",
        "user ALL=(ALL:ALL) NOPASSWD: ALL, !/bin/sh",
        "user ALL=(www) NOPASSWD: ALL",
        "user elsewhere=(ALL) NOPASSWD: ALL",
        "other ALL=(ALL) NOPASSWD: ALL",
        "%wheel ALL=(ALL) NOPASSWD: ALL",
    ],
)
def test_others_are_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / "sudoers").write_text(f"{line}\n")
    assert not is_allowed(tmp_path, USER)
    assert is_allowed(tmp_path, ROOT)


def test_files_that_sudo_ignores_are_ignored(tmp_path: Path) -> None:
    folder = tmp_path / "sudoers.d"
    folder.mkdir()
    for name in ("user.bak", "user~"):
        (folder / name).write_text("user ALL=(ALL) NOPASSWD: ALL\n")
    assert not is_allowed(tmp_path, USER)
    (folder / "user").write_text("user ALL=(ALL) NOPASSWD: ALL\n")
    assert is_allowed(tmp_path, USER)
