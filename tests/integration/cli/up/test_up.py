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
from sandyard.engine.drivers.gvisor import runsc
from sandyard.engine.settings import EngineSettings
from sandyard.kit.python import make_python_command
from tests.harness.up import Installation


@pytest.fixture
def installation() -> Iterator[Installation]:
    running = Installation("--driver", "fake")
    yield running
    running.stop()


def is_ready(installation: Installation) -> bool:
    return httpx.get(f"{installation.url}/ready", timeout=10).status_code == 200


def test_killed_children_are_restarted_and_a_new_start_continues(installation: Installation) -> None:
    """One long test, because each start of engine and platform takes seconds."""
    printed = installation.up.text
    assert printed.index("engine    ready") < printed.index("platform  ready") < printed.index("Sandyard is at")
    assert f"sandyard login {installation.url}" in printed
    assert f"\nsign in at:  {installation.url}/sign-in#token={installation.token}\n" in printed
    assert is_ready(installation)

    key = (installation.data / "engine.key").read_text().strip()
    assert (installation.data / "engine.key").stat().st_mode & 0o777 == 0o600
    assert not [line for line in installation.up.processes().values() if key in line], "the key is on no command line"
    assert key not in printed

    made = installation.run("sandbox", "create")
    assert made.returncode == 0, made.stderr
    before = {name: installation.pids(name) for name in ("engine", "platform")}
    for (number,) in before.values():
        os.kill(number, signal.SIGKILL)
    for name, (number,) in before.items():
        installation.up.wait_for_line(f"The {name} ended: killed by SIGKILL. Restarting in 0.5 s.")
        installation.up.wait_for_line(rf"^{name} +ready", 2)
        (after,) = installation.pids(name)
        assert after != number
    assert installation.run("sandbox", "create").returncode == 0, "everything still works"

    command = [sys.executable, "-m", "sandyard", "up", "--port", "0", "--data-dir", str(installation.data)]
    second = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert second.returncode == 1
    assert second.stderr.startswith(
        f"sandyard: `sandyard up` is already running on {installation.data} (process {installation.up.process.pid})"
    )
    assert is_ready(installation)

    installation.kill_sandboxes()
    installation.up.process.kill()
    installation.up.wait_for_exit()
    installation.up.wait_until_none_left(seconds=lifeline.STOP_SECONDS + 10)
    installation.start()
    assert "admin token" not in installation.up.text and "#token" not in installation.up.text, (
        "the token is shown only at the first start"
    )
    assert installation.run("sandbox", "list").returncode == 0, "the token is still valid"
    installation.up.process.send_signal(signal.SIGTERM)
    assert installation.up.wait_for_exit() == 0
    stops = [line for line in installation.up.lines if line.startswith("Stop")]
    assert stops[:-1] == ["Stopping the platform.", "Stopping the engine."]
    assert stops[-1] == "Stopped. Any running sandboxes keep running; the next start finds them."
    installation.up.wait_until_none_left()


PLAN = Plan("127.0.0.1", 8700, True, 8701, ("--pool-size", "2"), None, None)


@pytest.fixture
def state(tmp_path: Path) -> Iterator[DataDirectory]:
    taken = DataDirectory(tmp_path / "data")
    taken.acquire_lock()
    yield taken
    os.close(taken.lock_fd)


def test_engine_and_platform_get_their_own_environment(state: DataDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
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
    environment = platform.environment
    assert (environment["E2B_API_KEY"], environment["E2B_API_URL"], environment["E2B_SANDBOX_URL"]) == (
        key,
        "http://127.0.0.1:8701",
        "http://127.0.0.1:8701",
    )
    assert (environment["SANDYARD_HOST"], environment["SANDYARD_PORT"]) == ("127.0.0.1", "8700")
    assert environment["SANDYARD_DATA_DIR"] == str(state.path / "platform")
    assert environment["SANDYARD_IDLE_SECONDS"] == "60"
    assert "E2B_DOMAIN" not in environment
    for child in (engine, platform):
        assert "SANDYARD_TOKEN" not in child.environment
        assert key not in " ".join(child.command)
    assert "SANDYARD_API_KEYS" not in environment


def test_domain_and_tls_options_go_to_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[Plan] = []

    async def supervise(*_: object) -> None:
        pass

    monkeypatch.setattr(command, "make_children", lambda plan, _: plans.append(plan))
    monkeypatch.setattr(command, "supervise", supervise)
    given = ["--domain", "example.com", "--tls-port", "443", "--tls-host", "0.0.0.0", "--tls-cert", "/both.pem"]
    result = CliRunner().invoke(command.up, ["--data-dir", str(tmp_path / "data"), "--port", "0", *given])
    assert result.exit_code == 0, result.output
    assert sorted(plans[0].engine_options) == sorted(given)


def test_the_sign_in_url_is_printed_with_the_token(
    state: DataDirectory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command.make_children(PLAN, state)[1].on_output("admin token: sy_first")
    monkeypatch.setenv("SANDYARD_PUBLIC_URL", "https://yard.example.org/")
    command.make_children(PLAN, state)[1].on_output("admin token: sy_first")
    command.make_children(PLAN, state)[1].on_output("Warning: look out.")
    assert capsys.readouterr().out.splitlines() == [
        "admin token: sy_first",
        "sign in at:  http://127.0.0.1:8700/sign-in#token=sy_first",
        "admin token: sy_first",
        "sign in at:  https://yard.example.org/sign-in#token=sy_first",
        "Warning: look out.",
    ]


def test_the_tls_message_of_the_engine_is_passed_on(state: DataDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    """The lines about TLS are passed on, and no other lines of the start."""
    settings = EngineSettings(tls_port=443, domain="example.com", data_dir=state.engine)
    authority = state.engine / "tls/example.com/ca.pem"
    announce(Ready("http://127.0.0.1:8701", False, None, "fake", "example.com", authority), settings)
    printed = capsys.readouterr().out.splitlines()
    engine = command.make_children(PLAN, state)[0]
    for line in printed:
        engine.on_output(line)
    passed_on = capsys.readouterr().out.splitlines()
    assert passed_on == printed[printed.index(passed_on[0]) :]
    assert f"sandyard ca --data-dir {state.engine} --domain example.com" in "\n".join(passed_on)
    assert "E2B_API_URL" not in "\n".join(passed_on)


@pytest.mark.skipif(os.geteuid() != 0, reason="gVisor requires root")
def test_the_command_that_adds_gvisor_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(runsc, "PRIVATE_RUNSC", tmp_path / "runsc")
    monkeypatch.setenv("PATH", str(tmp_path))
    command.announce_missing_gvisor()
    assert "run `sandyard setup gvisor` to install it, then start Sandyard again" in capsys.readouterr().out
    program = tmp_path / "runsc"
    program.write_text("#!/bin/sh\necho runsc version release-20991231.0\n")
    program.chmod(0o755)
    command.announce_missing_gvisor()
    assert capsys.readouterr().out == ""


def test_the_platform_runs_without_its_own_engine(state: DataDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert platform.url.endswith("/health"), "without an engine it never becomes ready, but it is started"


@pytest.mark.skipif(os.geteuid() != 0, reason="switches to another user")
def test_the_platform_runs_as_another_user(state: DataDirectory) -> None:
    nobody = pwd.getpwnam("nobody")
    state.platform.mkdir()
    (state.platform / "platform.db").write_text("")
    engine, platform = command.make_children(Plan("127.0.0.1", 1, True, 2, (), nobody, None), state)
    order = json.loads(platform.command[4])
    assert (order["uid"], order["gid"]) == (nobody.pw_uid, nobody.pw_gid)
    assert order["shown"][str(state.platform)] is True
    assert not any(writable for path, writable in order["shown"].items() if path != str(state.platform))
    assert platform.command[5:] == make_python_command("sandyard", "platform")
    assert engine.command[:4] == make_python_command("sandyard")
    for path in (state.platform, state.platform / "platform.db"):
        assert path.stat().st_uid == nobody.pw_uid
    assert state.path.stat().st_mode & 0o777 == 0o711, "the user can enter its own directory and list nothing else"
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
def test_unusable_options_are_reported(arguments: tuple[str, ...], words: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["up", "--data-dir", str(tmp_path / "data"), *arguments])
    assert result.exit_code == 1
    assert result.stderr.startswith("sandyard: ")
    assert words in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_port_in_use_is_reported(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        for option in ("--port", "--engine-port"):
            given = ["--port", "0"] if option == "--engine-port" else []
            result = CliRunner().invoke(cli, ["up", "--data-dir", str(tmp_path / option), *given, option, port])
            assert result.exit_code == 1
            assert f"Cannot bind 127.0.0.1:{port}: Address already in use" in result.stderr
            assert option in result.stderr


def test_the_engine_gets_another_port_if_the_next_one_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    def choose_port(host: str, port: int, option: str) -> int:
        if port == 9001:
            raise CommandError("taken")
        return port or 9500

    monkeypatch.setattr(command, "choose_port", choose_port)
    assert command.choose_ports("127.0.0.1", 9000, None, embedded=True) == (9000, 9500)
    assert command.choose_ports("127.0.0.1", 9002, None, embedded=True) == (9002, 9003)
    with pytest.raises(CommandError, match="taken"):
        command.choose_ports("127.0.0.1", 9000, 9001, embedded=True)
