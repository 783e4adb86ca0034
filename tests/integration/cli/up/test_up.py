"""`sandyard up` with the real engine (driver fake) and the real platform."""

from __future__ import annotations

import json
import os
import pwd
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from sandyard.cli.engine import announce
from sandyard.cli.errors import CommandError
from sandyard.cli.main import cli
from sandyard.cli.up import command, lifeline
from sandyard.cli.up.command import Plan
from sandyard.cli.up.data_directory import DataDirectory
from sandyard.engine.app import Ready
from sandyard.engine.settings import EngineSettings
from sandyard.kit.python import python_command
from tests.integration.cli.real import Yard


@pytest.fixture
def yard() -> Iterator[Yard]:
    running = Yard("--driver", "fake")
    yield running
    running.stop()


def alive(yard: Yard) -> bool:
    return httpx.get(f"{yard.url}/ready", timeout=10).status_code == 200


def test_started_killed_started_again(yard: Yard) -> None:
    """One long life, because each start of the real thing takes seconds."""
    said = yard.up.text
    assert said.index("engine    ready") < said.index("platform  ready") < said.index("Sandyard is at")
    assert f"sandyard login {yard.url}" in said
    assert f"\nsign in at:  {yard.url}/sign-in#token={yard.token}\n" in said
    assert alive(yard)

    key = (yard.data / "engine.key").read_text().strip()
    assert (yard.data / "engine.key").stat().st_mode & 0o777 == 0o600
    assert not [line for line in yard.up.processes().values() if key in line], "not on a command line"
    assert key not in said

    made = yard.run("sandbox", "create")
    assert made.returncode == 0, made.stderr
    for name in ("engine", "platform"):
        (before,) = yard.pids(name)
        os.kill(before, signal.SIGKILL)
        yard.up.heard(f"The {name} ended: killed by SIGKILL. Restarting in 0.5 s.")
        yard.up.heard(rf"^{name} +ready", 2)
        (after,) = yard.pids(name)
        assert after != before
    assert yard.run("sandbox", "create").returncode == 0, "it all works on"

    command = [sys.executable, "-m", "sandyard", "up", "--port", "0", "--data-dir", str(yard.data)]
    second = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert second.returncode == 1
    assert second.stderr.startswith(
        f"sandyard: `sandyard up` is already running on {yard.data} (process {yard.up.process.pid})"
    )
    assert alive(yard)

    yard.up.process.kill()
    yard.up.ends()
    yard.start()  # waits by itself until the killed one's children are gone
    assert "admin token" not in yard.up.text and "#token" not in yard.up.text, "shown once in a life"
    assert yard.run("sandbox", "list").returncode == 0, "the token is still good"
    yard.clear()
    yard.up.process.send_signal(signal.SIGTERM)
    assert yard.up.ends() == 0
    stops = [line for line in yard.up.said if line.startswith("Stop")]
    assert stops[:-1] == ["Stopping the platform.", "Stopping the engine."]
    assert stops[-1] == "Stopped. Running sandboxes keep running; the next start finds them."
    yard.up.nothing_left()


def test_when_it_is_killed_nothing_is_left(yard: Yard) -> None:
    yard.up.process.kill()
    yard.up.nothing_left(seconds=lifeline.STOP_SECONDS + 10)


PLAN = Plan("127.0.0.1", 8700, True, 8701, ("--pool-size", "2"), None, None)


@pytest.fixture
def state(tmp_path: Path) -> Iterator[DataDirectory]:
    taken = DataDirectory(tmp_path / "data")
    taken.acquire_lock()
    yield taken
    os.close(taken.lock_fd)


def test_what_each_is_told(state: DataDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "E2B_API_KEY": "e2b_cloud",
        "E2B_DOMAIN": "e2b.example",
        "SANDYARD_PORT": "1",
        "SANDYARD_TOKEN": "sy_mine",
        "SANDYARD_API_KEYS": "e2b_more",
        "SANDYARD_IDLE_SECONDS": "60",
    }.items():
        monkeypatch.setenv(name, value)
    engine, platform = command.make_children(PLAN, state)
    key = state.get_engine_key().reveal()
    assert engine.command[4:9] == ["engine", "--host", "127.0.0.1", "--port", "8701"]
    assert engine.command[-2:] == ["--pool-size", "2"]
    assert engine.environment["SANDYARD_API_KEYS"] == f"e2b_more,{key}"
    told = platform.environment
    assert (told["E2B_API_KEY"], told["E2B_API_URL"], told["E2B_SANDBOX_URL"]) == (
        key,
        "http://127.0.0.1:8701",
        "http://127.0.0.1:8701",
    )
    assert (told["SANDYARD_HOST"], told["SANDYARD_PORT"]) == ("127.0.0.1", "8700")
    assert told["SANDYARD_DATA_DIR"] == str(state.path / "platform")
    assert told["SANDYARD_IDLE_SECONDS"] == "60"
    assert "E2B_DOMAIN" not in told
    for child in (engine, platform):
        assert "SANDYARD_TOKEN" not in child.environment
        assert key not in " ".join(child.command)
    assert "SANDYARD_API_KEYS" not in told


def test_names_and_tls_are_the_engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[Plan] = []

    async def supervise(*_: object) -> None:
        pass

    monkeypatch.setattr(command, "make_children", lambda plan, _: plans.append(plan))
    monkeypatch.setattr(command, "supervise", supervise)
    given = ["--domain", "example.com", "--tls-port", "443", "--tls-host", "0.0.0.0", "--tls-cert", "/both.pem"]
    result = CliRunner().invoke(command.up, ["--data-dir", str(tmp_path / "data"), "--port", "0", *given])
    assert result.exit_code == 0, result.output
    assert sorted(plans[0].engine_options) == sorted(given)


def test_where_to_sign_in(
    state: DataDirectory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command.make_children(PLAN, state)[1].heard("admin token: sy_first")
    monkeypatch.setenv("SANDYARD_PUBLIC_URL", "https://yard.example.org/")
    command.make_children(PLAN, state)[1].heard("admin token: sy_first")
    command.make_children(PLAN, state)[1].heard("Warning: look out.")
    assert capsys.readouterr().out.splitlines() == [
        "admin token: sy_first",
        "sign in at:  http://127.0.0.1:8700/sign-in#token=sy_first",
        "admin token: sy_first",
        "sign in at:  https://yard.example.org/sign-in#token=sy_first",
        "Warning: look out.",
    ]


def test_how_the_engine_is_reached_over_tls(state: DataDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    """What the engine says of TLS is passed on, and nothing else of its start."""
    settings = EngineSettings(tls_port=443, domain="example.com", data_dir=state.engine)
    authority = state.engine / "tls/example.com/ca.pem"
    announce(Ready("http://127.0.0.1:8701", False, None, "fake", "example.com", authority), settings)
    said = capsys.readouterr().out.splitlines()
    engine = command.make_children(PLAN, state)[0]
    for line in said:
        engine.heard(line)
    heard = capsys.readouterr().out.splitlines()
    assert heard == said[said.index(heard[0]) :]
    assert f"sandyard ca --data-dir {state.engine} --domain example.com" in "\n".join(heard)
    assert "E2B_API_URL" not in "\n".join(heard)


def test_against_e2b_cloud(state: DataDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("E2B_API_KEY", "e2b_cloud")
    alone = Plan("127.0.0.1", 8700, False, 8701, (), None, "warning")
    (platform,) = command.make_children(alone, state)
    assert platform.environment["E2B_API_KEY"] == "e2b_cloud"
    assert "E2B_API_URL" not in platform.environment
    assert platform.environment["SANDYARD_LOG_LEVEL"] == "warning"
    assert platform.url.endswith("/ready")
    assert not (state.path / "engine.key").exists()
    monkeypatch.delenv("E2B_API_KEY")
    (platform,) = command.make_children(alone, state)
    assert platform.url.endswith("/health"), "without sandboxes it is never ready, and still started"


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_the_platform_as_another_user(state: DataDirectory) -> None:
    nobody = pwd.getpwnam("nobody")
    state.platform.mkdir()
    (state.platform / "platform.db").write_text("")
    engine, platform = command.make_children(Plan("127.0.0.1", 1, True, 2, (), nobody, None), state)
    order = json.loads(platform.command[4])
    assert (order["uid"], order["gid"]) == (nobody.pw_uid, nobody.pw_gid)
    assert order["shown"][str(state.platform)] is True
    assert not any(writable for path, writable in order["shown"].items() if path != str(state.platform))
    assert platform.command[5:] == python_command("sandyard", "platform")
    assert engine.command[:4] == python_command("sandyard")
    for path in (state.platform, state.platform / "platform.db"):
        assert path.stat().st_uid == nobody.pw_uid
    assert state.path.stat().st_mode & 0o777 == 0o711, "it can get to its own part, and see nothing else"
    assert (state.path / "engine.key").stat().st_uid == 0
    home = platform.environment["HOME"]
    assert home == (nobody.pw_dir if Path(nobody.pw_dir).is_dir() else str(state.platform))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--platform-user", "no-such-user"), "no-such-user"),
        (("--data-dir", "/dev/null/data"), "/dev/null"),
        (("--host", "192.0.2.1"), "--port"),
        (("--host", "no.such.host.invalid"), "no.such.host.invalid"),
    ],
)
def test_what_cannot_be_had(arguments: tuple[str, ...], words: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["up", "--data-dir", str(tmp_path / "data"), *arguments])
    assert result.exit_code == 1
    assert result.stderr.startswith("sandyard: ")
    assert words in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        for option in ("--port", "--engine-port"):
            given = ["--port", "0"] if option == "--engine-port" else []
            result = CliRunner().invoke(cli, ["up", "--data-dir", str(tmp_path / option), *given, option, port])
            assert result.exit_code == 1
            assert f"Cannot bind 127.0.0.1:{port}: Address already in use" in result.stderr
            assert option in result.stderr


def test_the_engine_gets_another_port_if_the_next_one_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    def reserve(host: str, port: int, option: str) -> int:
        if port == 9001:
            raise CommandError("taken")
        return port or 9500

    monkeypatch.setattr(command, "reserve", reserve)
    assert command._ports("127.0.0.1", 9000, None, embedded=True) == (9000, 9500)
    assert command._ports("127.0.0.1", 9002, None, embedded=True) == (9002, 9003)
    with pytest.raises(CommandError, match="taken"):
        command._ports("127.0.0.1", 9000, 9001, embedded=True)
