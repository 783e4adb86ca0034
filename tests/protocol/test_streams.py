"""Test stdin, reconnecting, and commands that outlive their client."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import pytest
from e2b import CommandExitException, InvalidArgumentException, NotFoundException, Sandbox

from tests.harness.engine import Engine

from .waiting import until


@pytest.mark.parametrize("text", ["Hello, World!", "!@#$%^&*()_+", "Hello,\nWorld!", "ünïcode 🦀"])
def test_stdin_reaches_the_command(sandbox: Sandbox, text: str) -> None:
    command = sandbox.commands.run("cat", background=True, stdin=True)
    sandbox.commands.send_stdin(command.pid, text)
    command.close_stdin()
    assert command.wait().stdout == text


def test_stdin_in_pieces_keeps_its_order(sandbox: Sandbox) -> None:
    command = sandbox.commands.run("cat", background=True, stdin=True)
    for number in range(50):
        command.send_stdin(f"{number}\n")
    command.close_stdin()
    assert command.wait().stdout == "".join(f"{number}\n" for number in range(50))


def test_stdin_of_bytes_larger_than_a_pipe(sandbox: Sandbox) -> None:
    data = os.urandom(1_000_000)
    command = sandbox.commands.run("sha256sum", background=True, stdin=True)
    sandbox.commands.send_stdin(command.pid, data)
    sandbox.commands.close_stdin(command.pid)
    assert command.wait().stdout.split()[0] == hashlib.sha256(data).hexdigest()


def test_stream_input_arrives_in_order(sandbox: Sandbox) -> None:
    command = sandbox.commands.run("cat", background=True, stdin=True)
    sandbox.commands.stream_input(command.pid, (f"line {number}\n" for number in range(100)))
    command.close_stdin()
    assert command.wait().stdout == "".join(f"line {number}\n" for number in range(100))
    with pytest.raises(NotFoundException):
        sandbox.commands.stream_input(999999, ["x"])
    with pytest.raises(InvalidArgumentException):
        sandbox.commands.stream_input(command.pid, "not a list")


def test_input_after_the_command_ended_is_refused(sandbox: Sandbox) -> None:
    command = sandbox.commands.run("cat", background=True, stdin=True)
    command.close_stdin()
    assert command.wait().exit_code == 0
    with pytest.raises(NotFoundException):
        command.send_stdin("too late")


def test_input_without_stdin_is_refused(sandbox: Sandbox) -> None:
    command = sandbox.commands.run("sleep 30", background=True)
    with pytest.raises(Exception, match="stdin"):
        sandbox.commands.send_stdin(command.pid, "x")
    assert command.kill()


def test_a_command_runs_on_after_disconnect_and_connect_resumes_it(sandbox: Sandbox) -> None:
    command = sandbox.commands.run("echo first; read x; echo got $x; exit 5", background=True, stdin=True)
    assert next(iter(command))[0] == "first\n"
    command.disconnect()
    assert command.pid in [process.pid for process in sandbox.commands.list()]
    again = sandbox.commands.connect(command.pid)
    assert again.pid == command.pid
    again.send_stdin("word\n")
    with pytest.raises(CommandExitException) as caught:
        again.wait()
    assert caught.value.exit_code == 5
    assert caught.value.stdout == "got word\n"


def test_output_without_a_reader_is_kept_for_the_next_reader(sandbox: Sandbox) -> None:
    command = sandbox.commands.run("echo seen; sleep 0.5; echo unseen; touch written; sleep 60", background=True)
    assert next(iter(command))[0] == "seen\n"
    command.disconnect()
    until(lambda: sandbox.files.exists("written"))
    again = sandbox.commands.connect(command.pid)
    assert next(iter(again))[0] == "unseen\n"
    assert again.kill()


def test_connecting_after_the_end_returns_output_and_exit_code(sandbox: Sandbox) -> None:
    command = sandbox.commands.run("sleep 0.3; echo last words; exit 9", background=True)
    command.disconnect()
    until(lambda: not sandbox.commands.list())
    with pytest.raises(CommandExitException) as caught:
        sandbox.commands.connect(command.pid).wait()
    assert (caught.value.exit_code, caught.value.stdout) == (9, "last words\n")


def test_two_readers_get_the_same_output(sandbox: Sandbox) -> None:
    command = sandbox.commands.run("read x; echo to both", background=True, stdin=True)
    other = sandbox.commands.connect(command.pid)
    command.send_stdin("go\n")
    assert command.wait().stdout == "to both\n"
    assert other.wait().stdout == "to both\n"


SCRIPT = """
import os, sys
from e2b import Sandbox
sandbox = Sandbox.connect(sys.argv[1])
script = "for i in $(seq 1 40); do echo $i >> ticks; sleep 0.1; done; echo end"
print(sandbox.commands.run(script, background=True, timeout=0).pid, flush=True)
os._exit(1)
"""


def test_a_command_outlives_its_client(sandbox: Sandbox, engine: Engine) -> None:
    """The client exits without closing its connection; its command runs on, and another client reads the result."""
    client = subprocess.run(
        [sys.executable, "-c", SCRIPT, sandbox.sandbox_id],
        env={**os.environ, **engine.environment},
        stdout=subprocess.PIPE,
        check=False,
    )
    pid = int(client.stdout)
    until(lambda: sandbox.files.exists("ticks"))
    result = sandbox.commands.connect(pid, timeout=30).wait()
    assert result.stdout.endswith("end\n")
    assert sandbox.files.read("ticks").split() == [str(number) for number in range(1, 41)]


def test_a_background_process_does_not_keep_its_command_open(sandbox: Sandbox) -> None:
    """A background process keeps the pipe open, but the command counts as ended."""
    result = sandbox.commands.run("nohup sleep 300 >/dev/null 2>&1 & echo started", timeout=20)
    assert result.stdout == "started\n"
    assert sandbox.commands.run("until pgrep -x sleep; do sleep 0.1; done", timeout=60).stdout  # nohup becomes it
