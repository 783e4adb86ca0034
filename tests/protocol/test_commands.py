"""Test running commands: output, exit codes, users, directories, timeouts, signals, and invalid input."""

from __future__ import annotations

import signal
import time

import httpx
import pytest
from e2b import (
    AuthenticationException,
    CommandExitException,
    InvalidArgumentException,
    NotFoundException,
    Sandbox,
    SandboxException,
    SandboxNotRunningException,
    TimeoutException,
)

from .conftest import DataPlane
from .waiting import until

UNKNOWN_PID = 999999


def test_output_and_exit_code(sandbox: Sandbox) -> None:
    result = sandbox.commands.run("echo out; echo err >&2")
    assert (result.stdout, result.stderr, result.exit_code, result.error) == ("out\n", "err\n", 0, None)


def test_a_failed_command_raises_with_output_and_exit_code(sandbox: Sandbox) -> None:
    with pytest.raises(CommandExitException) as caught:
        sandbox.commands.run("echo partial; echo why >&2; exit 42")
    assert caught.value.exit_code == 42
    assert caught.value.stdout == "partial\n"
    assert caught.value.stderr == "why\n"
    assert caught.value.error == "exit status 42"


@pytest.mark.parametrize("text", ["Hello, World!", "!@#$%^&*()_+", "Hello,\nWorld!", "naïve 日本語 🦀", "tab\tquote'"])
def test_special_characters_are_unchanged(sandbox: Sandbox, text: str) -> None:
    assert sandbox.commands.run(f'echo "{text}"').stdout == f"{text}\n"


def test_broken_utf8_at_a_chunk_boundary_is_replaced(sandbox: Sandbox) -> None:
    result = sandbox.commands.run('printf "' + "a" * 8191 + '\\xe2"')
    assert result.stdout == "a" * 8191 + "\ufffd"


def test_large_output_arrives_complete_and_in_order(sandbox: Sandbox) -> None:
    result = sandbox.commands.run("seq 1 200000")
    assert result.stdout == "".join(f"{number}\n" for number in range(1, 200001))


def test_callbacks_get_output_immediately(sandbox: Sandbox) -> None:
    seen: list[str] = []

    def on_stdout(text: str) -> None:
        seen.append(text)
        sandbox.files.write("seen", "")

    sandbox.commands.run("echo one; until [ -e seen ]; do sleep 0.05; done; echo two", on_stdout=on_stdout)
    assert seen == ["one\n", "two\n"]


def test_commands_run_in_a_login_shell_of_user(sandbox: Sandbox) -> None:
    values = sandbox.commands.run('echo "$(id -un) $HOME $PWD $USER $LOGNAME $0"').stdout.split()
    assert values == ["user", "/home/user", "/home/user", "user", "user", "/bin/bash"]


def test_commands_run_as_root(sandbox: Sandbox) -> None:
    assert sandbox.commands.run('echo "$(id -u) $HOME $PWD"', user="root").stdout.split() == ["0", "/root", "/root"]


def test_sudo_needs_no_password(sandbox: Sandbox) -> None:
    assert sandbox.commands.run("sudo -n id -u").stdout == "0\n"


def test_working_directory(sandbox: Sandbox) -> None:
    sandbox.files.make_dir("project/src")
    assert sandbox.commands.run("pwd", cwd="/tmp").stdout == "/tmp\n"
    assert sandbox.commands.run("pwd", cwd="project/src").stdout == "/home/user/project/src\n"
    assert sandbox.commands.run("pwd", cwd="~/project").stdout == "/home/user/project\n"


def test_variables_apply_to_one_command_only(sandbox: Sandbox) -> None:
    assert sandbox.commands.run('echo "$FOO"', envs={"FOO": "bar baz"}).stdout == "bar baz\n"
    assert sandbox.commands.run('echo "$FOO"').stdout == "\n"


def test_invalid_directories_and_users_are_refused(sandbox: Sandbox) -> None:
    with pytest.raises(InvalidArgumentException):
        sandbox.commands.run("pwd", cwd="/no/such/place")
    sandbox.commands.run("mkdir -m 700 /tmp/closed", user="root")
    with pytest.raises(SandboxException):
        sandbox.commands.run("pwd", cwd="/tmp/closed")
    with pytest.raises(AuthenticationException):
        sandbox.commands.run("true", user="nobodyhere")
    assert sandbox.commands.run("echo still fine").stdout == "still fine\n"


def test_stdin_is_empty_by_default(sandbox: Sandbox) -> None:
    assert sandbox.commands.run("cat; echo done").stdout == "done\n"
    with pytest.raises(CommandExitException) as caught:
        sandbox.commands.run("read -p 'Enter your name: '")
    assert caught.value.exit_code == 1


@pytest.mark.parametrize("background", [False, True])
def test_the_timeout_ends_the_command_and_its_children(sandbox: Sandbox, background: bool) -> None:
    started = time.monotonic()
    script = "sleep 30 & echo $! > pid; wait"
    with pytest.raises(TimeoutException):
        if background:
            sandbox.commands.run(script, timeout=3, background=True).wait()
        else:
            sandbox.commands.run(script, timeout=3)
    assert time.monotonic() - started < 25
    pid = sandbox.files.read("pid").strip()
    until(lambda: sandbox.commands.run(f"kill -0 {pid} 2>/dev/null || echo gone").stdout == "gone\n")


def test_timeout_zero_means_no_timeout(sandbox: Sandbox) -> None:
    assert sandbox.commands.run("sleep 1.2; echo done", timeout=0).stdout == "done\n"


def test_a_background_command_returns_its_result_on_wait(sandbox: Sandbox) -> None:
    command = sandbox.commands.run("sleep 0.3; echo done; exit 3", background=True)
    assert command.pid > 1
    with pytest.raises(CommandExitException) as caught:
        command.wait()
    assert (caught.value.exit_code, caught.value.stdout) == (3, "done\n")


def test_list_shows_only_commands_started_by_clients(sandbox: Sandbox) -> None:
    assert sandbox.commands.list() == []
    command = sandbox.commands.run("sleep 60 & sleep 60", background=True, cwd="/tmp", envs={"A": "b"})
    (listed,) = sandbox.commands.list()
    assert (listed.pid, listed.cmd, listed.args[-1]) == (command.pid, "/bin/bash", "sleep 60 & sleep 60")
    assert (listed.cwd, listed.envs) == ("/tmp", {"A": "b"})
    assert command.kill()
    until(lambda: sandbox.commands.list() == [], 5)


def test_kill_ends_the_command_and_its_children(sandbox: Sandbox) -> None:
    command = sandbox.commands.run("sleep 120 & sleep 120 & echo ready; wait", background=True)
    assert next(iter(command))[0] == "ready\n"
    children = sandbox.commands.run(f"pgrep -P {command.pid}").stdout.split()
    assert len(children) == 2
    assert command.kill() is True
    alive = f"for p in {command.pid} {' '.join(children)}; do kill -0 $p 2>/dev/null && echo $p; done; true"
    assert sandbox.commands.run(alive).stdout == ""


def test_a_killed_command_reports_the_signal(sandbox: Sandbox) -> None:
    command = sandbox.commands.run("echo up; sleep 60", background=True)
    command.kill()
    with pytest.raises(CommandExitException) as caught:
        command.wait()
    assert caught.value.exit_code != 0
    assert caught.value.error == "signal: killed"


@pytest.mark.parametrize("sent_signal", [signal.SIGTERM, signal.SIGKILL])
def test_signals_through_the_protocol(sandbox: Sandbox, data_plane: DataPlane, sent_signal: signal.Signals) -> None:
    script = "trap 'echo caught; exit 7' TERM; echo up; while :; do sleep 0.1; done"
    command = sandbox.commands.run(script, background=True)
    assert next(iter(command))[0] == "up\n"
    response = data_plane(sandbox).post(
        "/process.Process/SendSignal",
        json={"process": {"pid": command.pid}, "signal": f"SIGNAL_{sent_signal.name}"},
    )
    assert response.status_code == 200, response.text
    with pytest.raises(CommandExitException) as caught:
        command.wait()
    if sent_signal == signal.SIGTERM:
        assert (caught.value.exit_code, caught.value.stdout) == (7, "up\ncaught\n")


def test_an_unknown_process_is_not_found(sandbox: Sandbox) -> None:
    assert sandbox.commands.kill(UNKNOWN_PID) is False
    with pytest.raises(NotFoundException):
        sandbox.commands.send_stdin(UNKNOWN_PID, "x")
    with pytest.raises(NotFoundException):
        sandbox.commands.close_stdin(UNKNOWN_PID)
    with pytest.raises(NotFoundException):
        sandbox.commands.connect(UNKNOWN_PID)


def test_other_processes_cannot_be_killed(sandbox: Sandbox) -> None:
    """Pid 1 is the guest agent: clients must not be able to signal it or processes that it did not start."""
    assert sandbox.commands.kill(1) is False
    assert sandbox.commands.run("echo alive").stdout == "alive\n"


def test_killing_the_sandbox_ends_the_stream_with_an_error(sandbox: Sandbox) -> None:
    command = sandbox.commands.run("sleep 60", background=True)
    sandbox.kill()
    with pytest.raises(SandboxException, match="sandbox was killed or reached its end of life"):
        command.wait()
    with pytest.raises(SandboxNotRunningException):
        sandbox.commands.run("true")


def test_starting_a_missing_program_exits_with_127(sandbox: Sandbox, data_plane: DataPlane) -> None:
    """Any program may be started, not only bash; a missing one exits as it would in a shell."""
    frame = b'{"process": {"cmd": "/no/such/program", "args": []}}'
    response = data_plane(sandbox).post(
        "/process.Process/Start",
        content=b"\0" + len(frame).to_bytes(4, "big") + frame,
        headers={"Content-Type": "application/connect+json", "Connect-Protocol-Version": "1"},
    )
    assert response.status_code == 200
    assert b'"exitCode":127' in response.content


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/process.Process/SendInput", "{}"),
        ("/process.Process/SendInput", "nonsense"),
        ("/process.Process/SendSignal", '{"process": {"pid": "x"}}'),
        ("/process.Process/SendSignal", '{"process": {}, "signal": "SIGNAL_SIGKILL"}'),
        ("/process.Process/Update", "[]"),
        ("/process.Process/SendInput", '{"process": {"pid": 1}, "input": {"stdin": "***"}}'),
    ],
)
def test_invalid_requests_return_a_connect_error(sandbox: Sandbox, data_plane: DataPlane, path: str, body: str) -> None:
    response = data_plane(sandbox).post(path, content=body, headers={"Content-Type": "application/json"})
    assert response.status_code in (400, 404), response.text
    assert response.json()["code"] in ("invalid_argument", "not_found")
    assert response.json()["message"]


def test_an_unknown_procedure_is_refused(sandbox: Sandbox, data_plane: DataPlane) -> None:
    response: httpx.Response = data_plane(sandbox).post("/process.Process/Explode", json={})
    assert response.status_code in (404, 501)


def test_many_concurrent_commands(sandbox: Sandbox) -> None:
    commands = [sandbox.commands.run(f"sleep 0.5; echo {number}", background=True) for number in range(30)]
    assert [command.wait().stdout for command in commands] == [f"{number}\n" for number in range(30)]
