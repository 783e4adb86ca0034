"""The user that the platform runs as, and what its process may do."""

from __future__ import annotations

import json
import os
import pwd
import socket
import subprocess
from pathlib import Path

import pytest

from sandyard.cli.errors import CommandError
from sandyard.cli.up import account, stepdown
from sandyard.cli.up.data_directory import DataDirectory
from sandyard.kit.python import make_bare_python_command, make_python_command

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="switches to another user")
NOBODY = pwd.getpwnam("nobody")
LOOK = """
import json, os, sys
def attempt(action):
    try:
        return action()
    except OSError as error:
        return error.strerror
status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
print(json.dumps({
    "ids": [os.getresuid(), os.getresgid(), os.getgroups()],
    "capabilities": [status[name].strip() for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")],
    "alone": status["NoNewPrivs"].strip(),
    "writable": attempt(lambda: open(sys.argv[1] + "/new", "w").close()),
    "readable": attempt(lambda: open(sys.argv[2] + "/code").read()),
    "written": attempt(lambda: open(sys.argv[2] + "/code", "w")),
    "secret": attempt(lambda: open(sys.argv[3]).read()),
}))
"""


def run_stepdown(order: dict[str, object], *words: str) -> subprocess.CompletedProcess[str]:
    command = make_bare_python_command(
        stepdown.__file__, json.dumps({"uid": NOBODY.pw_uid, "gid": NOBODY.pw_gid, **order})
    )
    return subprocess.run([*command, *words], capture_output=True, text=True, check=False, cwd="/", timeout=60)


@needs_root
def test_code_and_data_in_a_closed_directory_are_accessible(tmp_path: Path) -> None:
    """Like a checkout in /root: the directory above is closed, and stays closed for everything else in it."""
    closed = tmp_path / "closed"
    code, data = closed / "code", closed / "deep" / "data"
    for folder in (code, data):
        folder.mkdir(parents=True)
    (code / "code").write_text("code")
    secret = closed / "secret"
    secret.write_text("secret")
    secret.chmod(0o644)
    for folder in (data.parent, closed):
        folder.chmod(0o700)
    os.chown(data, NOBODY.pw_uid, NOBODY.pw_gid)
    shown = {str(code): False, str(data): True}
    shown |= dict.fromkeys(account.list_code_folders(), False)
    python = make_bare_python_command("-c", LOOK, str(data), str(code), str(secret))
    done = run_stepdown({"shown": shown}, *python)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "ids": [[NOBODY.pw_uid] * 3, [NOBODY.pw_gid] * 3, []],
        "capabilities": ["0" * 16] * 5,
        "alone": "1",
        "writable": None,
        "readable": "code",
        "written": "Read-only file system",
        "secret": "No such file or directory",
    }
    assert (data / "new").stat().st_uid == NOBODY.pw_uid
    assert sorted(path.name for path in closed.iterdir()) == ["code", "deep", "secret"], (
        "the mounts are not visible outside"
    )


@needs_root
def test_programs_and_code_without_permission_are_reported(tmp_path: Path) -> None:
    done = run_stepdown({"shown": {}}, "/root/none")
    assert (done.returncode, "Could not start /root/none as user" in done.stderr) == (126, True), done.stderr
    (tmp_path / "code").mkdir(mode=0o700)
    done = run_stepdown({"shown": {str(tmp_path / "code"): False}}, "true")
    assert (done.returncode, f"go+rX`: {tmp_path}/code" in done.stderr) == (126, True), done.stderr


@needs_root
def test_a_privileged_port_is_bound_before_the_user_changes(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    environment = {"SANDYARD_HOST": "127.0.0.1", "SANDYARD_PORT": "80"}
    command = account.make_stepdown_command(NOBODY, ["true"], environment, tmp_path)
    assert json.loads(command[4])["listen"] == ["127.0.0.1", 80]
    environment["SANDYARD_PORT"] = "8700"
    assert "listen" not in json.loads(account.make_stepdown_command(NOBODY, ["true"], environment, tmp_path)[4])
    look = "from sandyard.kit.listen import take_inherited_socket as take; print(take().getsockname()[1], take())"
    shown = dict.fromkeys(account.list_code_folders(), False)
    python = [*make_python_command("x")[:2], "-c", look]
    done = run_stepdown({"listen": ["127.0.0.1", port], "shown": shown}, *python)
    assert done.stdout.split() == [str(port), "None"], done.stderr


def test_the_user_is_chosen_by_option_and_privileges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert account.choose_account(None) is None
    with pytest.raises(CommandError, match="only root"):
        account.choose_account("nobody")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert account.choose_account("root") is None
    assert account.choose_account("nobody") == NOBODY
    with pytest.raises(CommandError, match="no-such-user"):
        account.choose_account("no-such-user")


def test_a_missing_user_is_created(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(account, "USER_NAME", "no-such-user")
    program = tmp_path / "useradd"
    program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\necho "cannot lock /etc/passwd" >&2\nexit 1\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(CommandError, match=r"cannot lock /etc/passwd.*--platform-user root"):
        account.choose_account(None)
    assert (tmp_path / "asked").read_text().startswith("--system --user-group --no-create-home")


@needs_root
def test_files_of_root_are_given_to_the_user_once(tmp_path: Path) -> None:
    state = DataDirectory(tmp_path / "data")
    (state.platform / "git").mkdir(parents=True)
    (state.platform / "git" / "config").write_text("")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("")
    (state.platform / "link").symlink_to(elsewhere)
    (state.platform / "folder").symlink_to(tmp_path)
    other = tmp_path / "another's"
    other.write_text("")
    os.chown(other, 1, 1)
    (state.platform / "hard").hardlink_to(other)
    state.give_platform_to(NOBODY)
    given = [state.platform, state.platform / "git", state.platform / "git" / "config", state.platform / "link"]
    assert {path.lstat().st_uid for path in given} == {NOBODY.pw_uid}
    assert (elsewhere.stat().st_uid, tmp_path.stat().st_uid, other.stat().st_uid) == (0, 0, 1)
    (state.platform / "later").write_text("")
    state.give_platform_to(NOBODY)
    assert (state.platform / "later").stat().st_uid == 0, (
        "the directory belongs to the user already and is not walked again"
    )
    state.take_platform_back()
    state.give_platform_to(NOBODY)
    assert (state.platform / "later").stat().st_uid == NOBODY.pw_uid, (
        "after root has used the directory, it is walked again"
    )
    assert state.platform.stat().st_uid == NOBODY.pw_uid
