"""The configuration for OpenSSH, and the files that are written."""

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


def read_ssh_options(file: Path, host: str) -> dict[str, str]:
    """Return the options that OpenSSH uses for the host."""
    done = subprocess.run(["ssh", "-G", "-F", str(file), host], capture_output=True, text=True, check=True)
    return dict(line.split(" ", 1) for line in done.stdout.splitlines())


def test_openssh_accepts_the_written_configuration(home: Path, config_dir: Path) -> None:
    (home / ".ssh").mkdir()
    (home / ".ssh/config").write_text("Host *\n  User root\n  ForwardAgent yes\n  StrictHostKeyChecking no\n")
    result = CliRunner().invoke(cli, ["ssh-config", "--write"])
    assert result.exit_code == 0, result.output
    assert "Not logged in yet" in result.output
    ours = read_ssh_options(home / ".ssh/config", HOST)
    folder = config_dir / "sandyard/ssh"
    assert ours["user"] == "user"
    assert ours["proxycommand"].endswith((f" ssh --stdio '{HOST}'", " ssh --stdio '%n'"))
    assert f"XDG_CONFIG_HOME={config_dir}" in ours["proxycommand"], "the proxy command uses the same login"
    assert ours["identityfile"] == str(folder / "id_ed25519")
    assert ours["userknownhostsfile"] in (str(folder / "known_hosts" / HOST), str(folder / "known_hosts/%n"))
    assert (ours["stricthostkeychecking"], ours["forwardagent"], ours["identitiesonly"]) == ("true", "no", "yes")
    others = read_ssh_options(home / ".ssh/config", "example.com")
    assert (others["user"], others["forwardagent"]) == ("root", "yes"), "other hosts are unchanged"
    assert "proxycommand" not in others


def test_host_names_with_quotes_are_not_matched(config_dir: Path) -> None:
    """An attacker may choose the URL of a submodule, and OpenSSH before 9.6 passes any host name to the shell."""
    assert 'Host *.sandyard "!*\'*"\n' in settings.format_settings()
    assert "ssh --stdio '%n'\n" in settings.format_settings()


def test_writing_is_idempotent_and_keeps_other_entries(home: Path, config_dir: Path) -> None:
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
    for private in (path, config_dir / "sandyard/ssh/id_ed25519"):
        assert stat.S_IMODE(private.stat().st_mode) == 0o600
    assert stat.S_IMODE((config_dir / "sandyard/ssh").stat().st_mode) == 0o700


def test_a_missing_configuration_file_is_created(home: Path) -> None:
    file, added = settings.add_include(settings.write_settings())
    assert added
    assert file.read_text().count("\n") == 1
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_concurrent_calls_create_one_key(config_dir: Path) -> None:
    keys: list[str] = []
    threads = [threading.Thread(target=lambda: keys.append(settings.ensure_key())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(keys) == 4
    assert len(set(keys)) == 1
    assert keys[0].startswith("ssh-ed25519 ")


def test_a_new_host_key_replaces_the_old_one(config_dir: Path) -> None:
    for key in ("ssh-ed25519 AAAA", "ssh-ed25519 BBBB"):
        settings.add_known_host(HOST, key)
    assert (config_dir / "sandyard/ssh/known_hosts" / HOST).read_text() == f"{HOST} ssh-ed25519 BBBB\n"


def test_host_names_are_parsed_and_others_are_rejected() -> None:
    assert (
        settings.parse_host(HOST) == settings.parse_host(HOST.removesuffix(".sandyard")) == "ses_00mwhnkz2f0a9s8d7f6g"
    )
    for wrong in ("", "..", "-oProxyCommand=x", "a/b.sandyard", "a b", "example.com"):
        with pytest.raises(CommandError):
            settings.parse_host(wrong)


def test_printing_writes_nothing(home: Path, config_dir: Path) -> None:
    result = CliRunner().invoke(cli, ["ssh-config"])
    assert result.output == settings.format_settings()
    assert not (home / ".ssh").exists()
    assert not config_dir.exists()


def test_a_missing_ssh_client_is_reported(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(home))
    result = CliRunner().invoke(cli, ["ssh", "ses_1"])
    assert result.exit_code == 1
    assert "openssh-client" in result.output


def test_a_session_without_a_sandbox_is_reported(server: Server, home: Path) -> None:
    server.on("GET", "/sessions/ses_1", Reply(200, {"id": "ses_1", "sandboxId": None}))
    result = CliRunner().invoke(cli, ["ssh", "--stdio", "ses_1.sandyard"], input=b"")
    assert result.exit_code == 3
    assert "sandyard session provision ses_1" in result.output
