"""Running commands: output, exit codes, users, directories, deadlines, signals, and bad input."""

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

from .conftest import Plane
from .waiting import until

NOBODY = 999999


def test_output_and_exit_code(sandbox: Sandbox) -> None:
    result = sandbox.commands.run("echo out; echo err >&2")
    assert (result.stdout, result.stderr, result.exit_code, result.error) == ("out\n", "err\n", 0, None)


def test_failure_carries_everything(sandbox: Sandbox) -> None:
    with pytest.raises(CommandExitException) as caught:
        sandbox.commands.run("echo partial; echo why >&2; exit 42")
    assert caught.value.exit_code == 42
    assert caught.value.stdout == "partial\n"
    assert caught.value.stderr == "why\n"
    assert caught.value.error == "exit status 42"


@pytest.mark.parametrize("text", ["Hello, World!", "!@#$%^&*()_+", "Hello,\nWorld!", "naïve 日本語 🦀", "tab\tquote'"])
def test_every_character_comes_through(sandbox: Sandbox, text: str) -> None:
    assert sandbox.commands.run(f'echo "{text}"').stdout == f"{text}\n"


def test_broken_utf8_at_a_border(sandbox: Sandbox) -> None:
    result = sandbox.commands.run('printf "' + "a" * 8191 + '\\xe2"')
    assert result.stdout == "a" * 8191 + "\ufffd"


def test_much_output_arrives_whole_and_in_order(sandbox: Sandbox) -> None:
    result = sandbox.commands.run("seq 1 200000")
    assert result.stdout == "".join(f"{number}\n" for number in range(1, 200001))


def test_callbacks_see_output_as_it_comes(sandbox: Sandbox) -> None:
    seen: list[str] = []

    def on_stdout(text: str) -> None:
        seen.append(text)
        sandbox.files.write("seen", "")

    sandbox.commands.run("echo one; until [ -e seen ]; do sleep 0.05; done; echo two", on_stdout=on_stdout)
    assert seen == ["one\n", "two\n"]


def test_it_is_a_login_shell_of_user(sandbox: Sandbox) -> None:
    told = sandbox.commands.run('echo "$(id -un) $HOME $PWD $USER $LOGNAME $0"').stdout.split()
    assert told == ["user", "/home/user", "/home/user", "user", "user", "/bin/bash"]


def test_as_root(sandbox: Sandbox) -> None:
    assert sandbox.commands.run('echo "$(id -u) $HOME $PWD"', user="root").stdout.split() == ["0", "/root", "/root"]


def test_sudo_needs_no_password(sandbox: Sandbox) -> None:
    assert sandbox.commands.run("sudo -n id -u").stdout == "0\n"


def test_working_directory(sandbox: Sandbox) -> None:
    sandbox.files.make_dir("project/src")
    assert sandbox.commands.run("pwd", cwd="/tmp").stdout == "/tmp\n"
    assert sandbox.commands.run("pwd", cwd="project/src").stdout == "/home/user/project/src\n"
    assert sandbox.commands.run("pwd", cwd="~/project").stdout == "/home/user/project\n"


def test_variables_of_a_command_are_its_own(sandbox: Sandbox) -> None:
    assert sandbox.commands.run('echo "$FOO"', envs={"FOO": "bar baz"}).stdout == "bar baz\n"
    assert sandbox.commands.run('echo "$FOO"').stdout == "\n"


def test_bad_places_and_users(sandbox: Sandbox) -> None:
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
def test_deadline_ends_the_command(sandbox: Sandbox, background: bool) -> None:
    began = time.monotonic()
    script = "sleep 30 & echo $! > pid; wait"
    with pytest.raises(TimeoutException):
        if background:
            sandbox.commands.run(script, timeout=3, background=True).wait()
        else:
            sandbox.commands.run(script, timeout=3)
    assert time.monotonic() - began < 25
    pid = sandbox.files.read("pid").strip()
    until(lambda: sandbox.commands.run(f"kill -0 {pid} 2>/dev/null || echo gone").stdout == "gone\n")


def test_no_deadline(sandbox: Sandbox) -> None:
    assert sandbox.commands.run("sleep 1.2; echo done", timeout=0).stdout == "done\n"


def test_background_handle(sandbox: Sandbox) -> None:
    command = sandbox.commands.run("sleep 0.3; echo done; exit 3", background=True)
    assert command.pid > 1
    with pytest.raises(CommandExitException) as caught:
        command.wait()
    assert (caught.value.exit_code, caught.value.stdout) == (3, "done\n")


def test_list_shows_what_was_started_and_only_that(sandbox: Sandbox) -> None:
    assert sandbox.commands.list() == []
    command = sandbox.commands.run("sleep 60 & sleep 60", background=True, cwd="/tmp", envs={"A": "b"})
    (found,) = sandbox.commands.list()
    assert (found.pid, found.cmd, found.args[-1]) == (command.pid, "/bin/bash", "sleep 60 & sleep 60")
    assert (found.cwd, found.envs) == ("/tmp", {"A": "b"})
    assert command.kill()
    until(lambda: sandbox.commands.list() == [], 5)


def test_kill_takes_the_whole_tree_at_once(sandbox: Sandbox) -> None:
    command = sandbox.commands.run("sleep 120 & sleep 120 & echo ready; wait", background=True)
    assert next(iter(command))[0] == "ready\n"
    children = sandbox.commands.run(f"pgrep -P {command.pid}").stdout.split()
    assert len(children) == 2
    assert command.kill() is True
    alive = f"for p in {command.pid} {' '.join(children)}; do kill -0 $p 2>/dev/null && echo $p; done; true"
    assert sandbox.commands.run(alive).stdout == ""


def test_killed_command_says_so(sandbox: Sandbox) -> None:
    command = sandbox.commands.run("echo up; sleep 60", background=True)
    command.kill()
    with pytest.raises(CommandExitException) as caught:
        command.wait()
    assert caught.value.exit_code != 0
    assert caught.value.error == "signal: killed"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_signals_through_the_wire(sandbox: Sandbox, plane: Plane, number: signal.Signals) -> None:
    script = "trap 'echo caught; exit 7' TERM; echo up; while :; do sleep 0.1; done"
    command = sandbox.commands.run(script, background=True)
    assert next(iter(command))[0] == "up\n"
    answer = plane(sandbox).post(
        "/process.Process/SendSignal",
        json={"process": {"pid": command.pid}, "signal": f"SIGNAL_{number.name}"},
    )
    assert answer.status_code == 200, answer.text
    with pytest.raises(CommandExitException) as caught:
        command.wait()
    if number == signal.SIGTERM:
        assert (caught.value.exit_code, caught.value.stdout) == (7, "up\ncaught\n")


def test_unknown_process(sandbox: Sandbox) -> None:
    assert sandbox.commands.kill(NOBODY) is False
    with pytest.raises(NotFoundException):
        sandbox.commands.send_stdin(NOBODY, "x")
    with pytest.raises(NotFoundException):
        sandbox.commands.close_stdin(NOBODY)
    with pytest.raises(NotFoundException):
        sandbox.commands.connect(NOBODY)


def test_other_processes_are_not_for_signalling(sandbox: Sandbox) -> None:
    """Pid 1 is the agent itself: a tenant's request must not reach it, nor processes it did not start."""
    assert sandbox.commands.kill(1) is False
    assert sandbox.commands.run("echo alive").stdout == "alive\n"


def test_killing_the_sandbox_ends_the_stream_with_a_reason(sandbox: Sandbox) -> None:
    command = sandbox.commands.run("sleep 60", background=True)
    sandbox.kill()
    with pytest.raises(SandboxException, match="sandbox was killed or reached its end of life"):
        command.wait()
    with pytest.raises(SandboxNotRunningException):
        sandbox.commands.run("true")


def test_start_and_wait_by_the_wire(sandbox: Sandbox, plane: Plane) -> None:
    """Any command may be started, not only bash; one that does not exist ends as it would in a shell."""
    frame = b'{"process": {"cmd": "/no/such/program", "args": []}}'
    answer = plane(sandbox).post(
        "/process.Process/Start",
        content=b"\0" + len(frame).to_bytes(4, "big") + frame,
        headers={"Content-Type": "application/connect+json", "Connect-Protocol-Version": "1"},
    )
    assert answer.status_code == 200
    assert b'"exitCode":127' in answer.content


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
def test_bad_requests_get_a_connect_error(sandbox: Sandbox, plane: Plane, path: str, body: str) -> None:
    answer = plane(sandbox).post(path, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 404), answer.text
    assert answer.json()["code"] in ("invalid_argument", "not_found")
    assert answer.json()["message"]


def test_unknown_procedure(sandbox: Sandbox, plane: Plane) -> None:
    answer: httpx.Response = plane(sandbox).post("/process.Process/Explode", json={})
    assert answer.status_code in (404, 501)


def test_many_commands_at_once(sandbox: Sandbox) -> None:
    commands = [sandbox.commands.run(f"sleep 0.5; echo {number}", background=True) for number in range(30)]
    assert [command.wait().stdout for command in commands] == [f"{number}\n" for number in range(30)]
