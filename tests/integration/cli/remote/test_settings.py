"""What OpenSSH is told, and what is written where."""

from __future__ import annotations

import stat
import subprocess
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from sandyard.cli.errors import CommandError
from sandyard.cli.main import cli
from sandyard.cli.remote import settings
from tests.unit.cli.server import Reply, Server

HOST = "ses_00mwhnkz2f0a9s8d7f6g.sandyard"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def understood(file: Path, host: str) -> dict[str, str]:
    """What OpenSSH makes of it."""
    done = subprocess.run(["ssh", "-G", "-F", str(file), host], capture_output=True, text=True, check=True)
    return dict(line.split(" ", 1) for line in done.stdout.splitlines())


def test_openssh_understands_it(home: Path, nobody: Path) -> None:
    (home / ".ssh").mkdir()
    (home / ".ssh/config").write_text("Host *\n  User root\n  ForwardAgent yes\n  StrictHostKeyChecking no\n")
    said = CliRunner().invoke(cli, ["ssh-config", "--write"])
    assert said.exit_code == 0, said.output
    assert "Not logged in yet" in said.output
    ours = understood(home / ".ssh/config", HOST)
    folder = nobody / "sandyard/ssh"
    assert ours["user"] == "user"
    assert ours["proxycommand"].endswith((f" ssh --stdio '{HOST}'", " ssh --stdio '%n'"))
    assert f"XDG_CONFIG_HOME={nobody}" in ours["proxycommand"], "whoever starts it finds the same login"
    assert ours["identityfile"] == str(folder / "id_ed25519")
    assert ours["userknownhostsfile"] in (str(folder / "known_hosts" / HOST), str(folder / "known_hosts/%n"))
    assert (ours["stricthostkeychecking"], ours["forwardagent"], ours["identitiesonly"]) == ("true", "no", "yes")
    theirs = understood(home / ".ssh/config", "example.com")
    assert (theirs["user"], theirs["forwardagent"]) == ("root", "yes"), "other hosts are as they were"
    assert "proxycommand" not in theirs


def test_a_name_that_would_leave_its_quotes_is_no_host_of_ours(nobody: Path) -> None:
    """The address of a submodule is a stranger's to choose, and OpenSSH before 9.6 passes any name to the shell."""
    assert 'Host *.sandyard "!*\'*"\n' in settings.settings()
    assert "ssh --stdio '%n'\n" in settings.settings()


def test_writing_is_idempotent_and_keeps_what_was_there(home: Path, nobody: Path) -> None:
    real = home / "dotfiles"
    real.write_text("Host a\n  User b\n")
    (home / ".ssh").mkdir()
    (home / ".ssh/config").symlink_to(real)
    path = settings.write_settings()
    assert settings.add_include(path)[1] is True
    once, key = real.read_text(), settings.ensure_key()
    assert once == f'Include "{path}"\n\nHost a\n  User b\n'
    assert settings.add_include(settings.write_settings())[1] is False
    assert (real.read_text(), settings.ensure_key()) == (once, key)
    assert (home / ".ssh/config").is_symlink()
    for private in (path, nobody / "sandyard/ssh/id_ed25519"):
        assert stat.S_IMODE(private.stat().st_mode) == 0o600
    assert stat.S_IMODE((nobody / "sandyard/ssh").stat().st_mode) == 0o700


def test_without_a_file_there_is_one_afterwards(home: Path) -> None:
    file, added = settings.add_include(settings.write_settings())
    assert added
    assert file.read_text().count("\n") == 1
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_all_who_need_a_key_at_once_get_the_same(nobody: Path) -> None:
    keys: list[str] = []
    threads = [threading.Thread(target=lambda: keys.append(settings.ensure_key())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(keys) == 4
    assert len(set(keys)) == 1
    assert keys[0].startswith("ssh-ed25519 ")


def test_the_key_of_a_host_is_the_newest_that_was_told(nobody: Path) -> None:
    for key in ("ssh-ed25519 AAAA", "ssh-ed25519 BBBB"):
        settings.add_known_host(HOST, key)
    assert (nobody / "sandyard/ssh/known_hosts" / HOST).read_text() == f"{HOST} ssh-ed25519 BBBB\n"


def test_names() -> None:
    assert (
        settings.get_host_name(HOST)
        == settings.get_host_name(HOST.removesuffix(".sandyard"))
        == "ses_00mwhnkz2f0a9s8d7f6g"
    )
    for wrong in ("", "..", "-oProxyCommand=x", "a/b.sandyard", "a b", "example.com"):
        with pytest.raises(CommandError):
            settings.get_host_name(wrong)


def test_printing_writes_nothing(home: Path, nobody: Path) -> None:
    said = CliRunner().invoke(cli, ["ssh-config"])
    assert said.output == settings.settings()
    assert not (home / ".ssh").exists()
    assert not nobody.exists()


def test_without_openssh(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(home))
    said = CliRunner().invoke(cli, ["ssh", "ses_1"])
    assert said.exit_code == 1
    assert "openssh-client" in said.output


def test_what_the_server_refuses_is_said(server: Server, home: Path) -> None:
    server.on("GET", "/sessions/ses_1", Reply(200, {"id": "ses_1", "sandboxId": None}))
    said = CliRunner().invoke(cli, ["ssh", "--stdio", "ses_1.sandyard"], input=b"")
    assert said.exit_code == 3
    assert "sandyard session provision ses_1" in said.output
