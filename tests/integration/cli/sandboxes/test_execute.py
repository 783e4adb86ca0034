"""`sandyard sandbox exec`: live output, exit codes, Ctrl-C, and a platform that is killed meanwhile."""

from __future__ import annotations

import base64
import json
import shlex
import signal
import subprocess

import pytest
from click.testing import CliRunner

from sandyard.cli import sse
from sandyard.cli.main import cli
from sandyard.cli.sandboxes.execute import get_exit_code
from tests.harness.up import Installation
from tests.protocol.waiting import until
from tests.unit.cli.server import Reply, Server, events


def test_exec_passes_output_exit_codes_and_options(installation: Installation, sandbox: str) -> None:
    done = installation.run("sandbox", "exec", sandbox, "printf 'a\\377b'; echo problem >&2; exit 7")
    assert (done.returncode, done.stdout, done.stderr) == (7, b"a\xffb", b"problem\n")
    assert (
        installation.ok("sandbox", "exec", "--cwd", "/tmp", "-e", "A=x  y", sandbox, 'pwd; echo "$A"') == "/tmp\nx  y\n"
    )
    assert installation.ok("sandbox", "exec", sandbox, "--", "printf", "%s|", "a b", "$HOME", "-n") == "a b|$HOME|-n|"
    assert installation.run("sandbox", "exec", "--timeout", "0.5", sandbox, "sleep", "30").returncode == 124
    assert installation.run("sandbox", "exec", sandbox, "kill -9 $$").returncode == 137
    assert installation.run("sandbox", "exec", "--cwd", "/nowhere", sandbox, "true").returncode == 1
    done = installation.run("sandbox", "exec", "-o", "json", sandbox, "echo hi; exit 3")
    assert done.returncode == 3
    assert json.loads(done.stdout)["stdout"] == "hi\n"
    large = installation.run("sandbox", "exec", sandbox, "seq 300000")
    assert large.stdout == b"".join(b"%d\n" % number for number in range(1, 300001))


def test_ctrl_c_kills_the_command(installation: Installation, sandbox: str) -> None:
    running = installation.start_command("sandbox", "exec", sandbox, "echo $$ > pid; echo started; exec sleep 1000")
    running.wait_for_line("started")
    running.process.send_signal(signal.SIGINT)
    assert running.wait_for_exit() == 130
    assert installation.run("sandbox", "exec", sandbox, "kill -0 $(cat pid)").returncode == 1


@pytest.mark.slow
def test_output_is_complete_across_a_restart_of_the_platform(installation: Installation, sandbox: str) -> None:
    running = installation.start_command(
        "sandbox", "exec", sandbox, "for i in $(seq 1 40); do echo line $i; sleep 0.25; done; exit 9"
    )
    running.wait_for_line("line 5$")
    installation.kill("platform")
    assert running.wait_for_exit() == 9
    assert [line for line in running.lines if line.startswith("line ")] == [f"line {number}" for number in range(1, 41)]


def test_a_closed_pipe_ends_the_command(installation: Installation, sandbox: str) -> None:
    line = f"{shlex.join(installation.command('sandbox', 'exec', sandbox, 'echo $$ > writer; yes'))} | head -n 1"
    done = subprocess.run(
        ["sh", "-c", line], capture_output=True, text=True, env=installation.environment, timeout=60, check=False
    )
    assert done.stdout == "y\n"
    assert "Traceback" not in done.stderr
    until(lambda: installation.run("sandbox", "exec", sandbox, "kill -0 $(cat writer)").returncode == 1)


@pytest.mark.parametrize(
    ("ended", "code", "words"),
    [
        ({"status": "exited", "exitCode": 0}, 0, ""),
        ({"status": "exited", "exitCode": 200}, 200, ""),
        ({"status": "exited", "exitCode": None, "signal": 15}, 143, ""),
        ({"status": "killed", "exitCode": None, "signal": 9}, 137, ""),
        ({"status": "timed_out", "exitCode": None}, 124, "timed out"),
        ({"status": "lost", "exitCode": None}, 1, "was lost with its sandbox (cmd_1)"),
        ({"status": "not_started", "error": "No such directory."}, 1, "did not start: No such directory (cmd_1)"),
    ],
)
def test_every_status_has_its_exit_code(
    ended: dict[str, object], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert get_exit_code({"id": "cmd_1", **ended}) == code
    assert words in capsys.readouterr().err


def test_a_dropped_connection_repeats_no_output(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "FIRST_PAUSE_SECONDS", 0.01)

    def piece(stream: str, offset: int, data: bytes) -> tuple[str, str, object]:
        return "", "output", {"stream": stream, "offset": offset, "data": base64.b64encode(data).decode()}

    server.on("POST", "/sandboxes/sbx_1/execute", Reply(202, {"id": "cmd_1", "status": "starting"}))
    server.on(
        "GET",
        "/commands/cmd_1/stream",
        events(piece("stdout", 0, b"one\n"), piece("stderr", 0, b"oh\n"), cut=True),
        events(piece("stdout", 4, b"two\n"), ("", "end", {"id": "cmd_1", "status": "exited", "exitCode": 5})),
    )
    result = CliRunner().invoke(cli, ["sandbox", "exec", "sbx_1", "x"])
    assert (result.exit_code, result.stdout, result.stderr) == (5, "one\ntwo\n", "oh\n")
    assert [request.query for request in server.requests[1:]] == [
        {"stdout": "0", "stderr": "0"},
        {"stdout": "4", "stderr": "3"},
    ]


def test_a_missing_command_is_a_usage_error() -> None:
    for words in ([], ["--"]):
        assert CliRunner().invoke(cli, ["sandbox", "exec", "sbx_1", *words]).exit_code == 2
