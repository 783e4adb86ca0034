"""Test terminals."""

from __future__ import annotations

import pytest
from e2b import CommandExitException, NotFoundException, PtySize, Sandbox

from .waiting import until


def type_and_read(sandbox: Sandbox, text: bytes, size: PtySize | None = None, **options: object) -> str:
    """Type `text` into a new terminal and return its output until the shell has ended."""
    terminal = sandbox.pty.create(size or PtySize(rows=24, cols=80), **options)  # type: ignore[arg-type]
    sandbox.pty.send_stdin(terminal.pid, text)
    output: list[bytes] = []
    assert terminal.wait(on_pty=output.append).exit_code == 0
    return b"".join(output).decode()


def test_a_terminal_has_a_tty_variables_and_directory(sandbox: Sandbox) -> None:
    commands = b"tty; echo term=$TERM lang=$LANG; echo var=$ABC dir=$PWD\nexit\n"
    output_text = type_and_read(sandbox, commands, envs={"ABC": "123"}, cwd="/")
    assert "/dev/pts/" in output_text
    assert "term=xterm-256color lang=C.UTF-8" in output_text
    assert "var=123 dir=/" in output_text


def test_size_and_resize_reach_the_terminal(sandbox: Sandbox) -> None:
    assert "cols=80 lines=24" in type_and_read(sandbox, b"echo cols=$(tput cols) lines=$(tput lines)\nexit\n")
    terminal = sandbox.pty.create(PtySize(rows=24, cols=80))
    sandbox.pty.resize(terminal.pid, PtySize(rows=40, cols=132))
    sandbox.pty.send_stdin(terminal.pid, b"stty size\nexit\n")
    output: list[bytes] = []
    terminal.wait(on_pty=output.append)
    assert b"40 132" in b"".join(output)


def test_a_running_program_gets_a_signal_on_resize(sandbox: Sandbox) -> None:
    terminal = sandbox.pty.create(PtySize(rows=24, cols=80))
    program = b"bash -c 'trap \"stty size > size\" WINCH; touch ready; for i in $(seq 100); do sleep 0.1; done'\n"
    sandbox.pty.send_stdin(terminal.pid, program)
    until(lambda: sandbox.files.exists("ready"))
    sandbox.pty.resize(terminal.pid, PtySize(rows=11, cols=22))
    until(lambda: sandbox.files.exists("size") and sandbox.files.read("size") == "11 22\n")
    assert sandbox.pty.kill(terminal.pid)


def test_control_c_interrupts_the_foreground_program(sandbox: Sandbox) -> None:
    terminal = sandbox.pty.create(PtySize(rows=24, cols=80))
    # the foreground program creates the file: between two commands of a line, the shell itself would get the signal and continue
    sandbox.pty.send_stdin(terminal.pid, b"sh -c 'touch up; exec sleep 60'\n")
    until(lambda: sandbox.files.exists("up"))
    sandbox.pty.send_stdin(terminal.pid, b"\x03")
    sandbox.pty.send_stdin(terminal.pid, b"exit 4\n")
    with pytest.raises(CommandExitException) as caught:
        terminal.wait()
    assert caught.value.exit_code == 4


def test_reconnect_to_a_terminal(sandbox: Sandbox) -> None:
    terminal = sandbox.pty.create(PtySize(rows=24, cols=80), envs={"FOO": "bar"})
    sandbox.pty.send_stdin(terminal.pid, b"echo one-$FOO\n")
    first = b""
    for _, _, data in terminal:
        first += data or b""
        if b"one-bar" in first:
            break
    terminal.disconnect()

    connected = sandbox.pty.connect(terminal.pid)
    assert connected.pid == terminal.pid
    sandbox.pty.send_stdin(terminal.pid, b"echo two-$FOO\nexit\n")
    second: list[bytes] = []
    assert connected.wait(on_pty=second.append).exit_code == 0
    assert b"two-bar" in b"".join(second)


def test_kill_ends_the_terminal(sandbox: Sandbox) -> None:
    terminal = sandbox.pty.create(PtySize(rows=24, cols=80))
    assert sandbox.pty.kill(terminal.pid) is True
    sandbox.commands.run(f"! kill -0 {terminal.pid} 2>/dev/null")
    assert sandbox.pty.kill(999999) is False


def test_invalid_requests_are_refused(sandbox: Sandbox) -> None:
    with pytest.raises(NotFoundException):
        sandbox.pty.send_stdin(999999, b"x")
    with pytest.raises(NotFoundException):
        sandbox.pty.resize(999999, PtySize(rows=1, cols=1))
    with pytest.raises(NotFoundException):
        sandbox.pty.connect(999999)
    command = sandbox.commands.run("sleep 30", background=True)
    with pytest.raises(Exception, match=r"(?i)tty"):
        sandbox.pty.resize(command.pid, PtySize(rows=1, cols=1))
    command.kill()


def test_large_output_arrives_complete(sandbox: Sandbox) -> None:
    output_text = type_and_read(sandbox, b"stty -echo; seq 1 20000; exit\n")
    assert [line for line in output_text.split() if line.isdigit()][-20000:] == [
        str(number) for number in range(1, 20001)
    ]


def test_stream_input_arrives_in_order(sandbox: Sandbox) -> None:
    terminal = sandbox.pty.create(PtySize(rows=24, cols=80))
    sandbox.pty.stream_input(terminal.pid, [b"echo str", b"eamed-$((1+1))\n", b"exit\n"])
    output: list[bytes] = []
    terminal.wait(on_pty=output.append)
    assert b"streamed-2" in b"".join(output)
