"""`sandyard engine`: its messages when it starts and when it cannot start."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from sandyard.cli.engine import announce
from sandyard.cli.main import cli
from sandyard.engine.app import Ready
from sandyard.engine.settings import EngineSettings
from sandyard.engine.store.datadir import DataDir
from sandyard.kit.secret import Secret


def start_failing(*arguments: str) -> str:
    """Start an engine that cannot start. Returns its message, which is one line."""
    done = CliRunner().invoke(cli, ["engine", *arguments])
    assert done.exit_code == 1, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("sandyard: ")
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def test_a_port_in_use_is_reported(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        printed = start_failing("--port", str(port), "--data-dir", str(tmp_path / "data"))
    assert f"Port {port}" in printed
    assert "--port" in printed
    assert not (tmp_path / "data").exists(), "nothing is created"


def test_a_data_directory_in_use_is_reported(tmp_path: Path) -> None:
    data = DataDir(tmp_path / "data")
    data.lock()
    try:
        assert "in use by another engine" in start_failing("--port", "0", "--data-dir", str(data.path))
    finally:
        data.unlock()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--host", "no.such.host.invalid"), "--host"),
        (("--host", "192.0.2.1"), "--host"),
        (("--port", "0", "--data-dir", "/dev/null/data"), "/dev/null"),
        (("--port", "0", "--data-dir", "/proc/data"), "/proc/data"),
    ],
)
def test_unusable_addresses_and_directories_are_reported(arguments: tuple[str, ...], words: str) -> None:
    assert words in start_failing(*arguments)


@pytest.mark.skipif(os.geteuid() != 0, reason="switches to another user")
def test_a_directory_without_permission_is_reported(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    code = "import encodings.idna, os, sandyard.engine.app, sandyard.cli.engine; from sandyard.__main__ import main\n"
    code += "os.setuid(65534); main()"  # the modules are loaded before: another user might not be able to read them
    arguments = [sys.executable, "-c", code, "engine", "--port", "0", "--data-dir", str(closed / "data")]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("sandyard: ")
    assert str(closed) in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "arguments", [("--port", "99999"), ("--driver", "magic"), ("--nonsense",), ("--max-sandboxes", "0")]
)
def test_invalid_options_are_usage_errors(arguments: tuple[str, ...]) -> None:
    result = CliRunner().invoke(cli, ["engine", *arguments])
    assert result.exit_code == 2
    assert "Traceback" not in result.output


def test_an_invalid_environment_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDYARD_POOL_SIZE", "many")
    result = CliRunner().invoke(cli, ["engine"])
    assert result.exit_code == 1
    assert "pool_size" in result.output


URL = "http://127.0.0.1:3000"


@pytest.mark.parametrize(
    ("ready", "settings", "words"),
    [
        (Ready(URL, False, Secret("e2b_new"), "fake"), {}, ["export E2B_API_KEY=e2b_new", "not shown again"]),
        (Ready(URL, False, None, "fake"), {"api_keys": ["e2b_given"]}, ["the key from --api-key"]),
        (Ready(URL, False, None, "fake"), {"data_dir": "/a b"}, ["sandyard keys --data-dir '/a b' list"]),
    ],
)
def test_the_start_message_names_the_url_and_the_key(
    ready: Ready, settings: dict[str, list[str]], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    announce(ready, EngineSettings(**settings))  # type: ignore[arg-type]
    printed = capsys.readouterr()
    for word in [f"export E2B_API_URL={URL}", f"export E2B_SANDBOX_URL={URL}", *words]:
        assert word in printed.out
    assert "e2b_given" not in printed.out
    assert printed.err == ""


def test_a_reachable_address_prints_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    announce(Ready(URL, True, None, "fake"), EngineSettings(host="0.0.0.0"))
    assert "Warning" in capsys.readouterr().err


def test_the_start_message_explains_tls(capsys: pytest.CaptureFixture[str]) -> None:
    ready = Ready(URL, False, None, "fake", "example.com", Path("/data/tls/example.com/ca.pem"))
    announce(ready, EngineSettings(tls_port=443, domain="example.com", data_dir=Path("/data")))
    printed = capsys.readouterr().out
    assert "export E2B_DOMAIN=example.com " in printed
    assert "`sandyard ca --data-dir /data --domain example.com`" in printed
    assert "/data/tls/example.com/ca.pem" in printed
    announce(Ready(URL, False, None, "fake", "example.com"), EngineSettings(tls_port=443, domain="example.com"))
    assert "sandyard ca" not in capsys.readouterr().out, "no authority has to be trusted for a given certificate"


def test_a_tls_port_in_use_is_reported(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        printed = start_failing("--port", "0", "--tls-port", str(port), "--data-dir", str(tmp_path / "data"))
    assert "--tls-port" in printed


def test_a_redirect_port_in_use_is_reported(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        options = ("--port", "0", "--tls-port", "0", "--redirect-port", str(port))
        assert "--redirect-port" in start_failing(*options, "--data-dir", str(tmp_path / "data"))


def test_an_unreadable_certificate_is_reported(tmp_path: Path) -> None:
    missing = str(tmp_path / "cert.pem")
    printed = start_failing(
        "--port", "0", "--tls-port", "0", "--tls-cert", missing, "--data-dir", str(tmp_path / "data")
    )
    assert missing in printed
    assert "--tls-port" in printed or "Could not use" in printed
