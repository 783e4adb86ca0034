"""Processes on a terminal."""

from __future__ import annotations

import base64
from collections.abc import Callable

import pytest

from tests.integration.engine.guest.client import Client, RpcFailureError, Run

Dial = Callable[[], Client]


def start_on_terminal(client: Client, *argv: str, columns: int = 80, rows: int = 24, **fields: object) -> Run:
    return client.start(*argv, pty={"size": {"cols": columns, "rows": rows}}, **fields)


def type_in(client: Client, pid: int, text: str) -> None:
    data = base64.b64encode(text.encode()).decode()
    client.call("process.Process/SendInput", {"process": {"pid": pid}, "input": {"pty": data}})


def test_a_shell_runs_on_a_terminal_that_can_be_resized(dial: Dial) -> None:
    run = start_on_terminal(dial(), "/bin/bash", "--norc", "-i", process={"envs": {"PS1": "> ", "ABC": "123"}})
    control = dial()
    type_in(control, run.pid, "echo $ABC; tty; stty size; echo $TERM; ps -o tpgid= -p $$\n")
    run.until("pty", b"xterm-256color")
    control.call("process.Process/Update", {"process": {"pid": run.pid}, "pty": {"size": {"cols": 100, "rows": 30}}})
    type_in(control, run.pid, "stty size\nexit 4\n")
    run.finish()
    text = run.output["pty"].decode()
    assert "123\r\n/dev/pts/" in text
    assert "24 80\r\n" in text
    assert "30 100\r\n" in text
    assert "no job control" not in text
    assert run.end is not None
    assert run.end["exitCode"] == 4
    assert run.output["stdout"] == b""


def test_control_characters_reach_the_foreground_process(dial: Dial) -> None:
    run = start_on_terminal(dial(), "/bin/bash", "--norc", "-i", process={"envs": {"PS1": "> ", "TERM": "dumb"}})
    control = dial()
    run.until("pty", b"> ")
    script = "trap 'echo cau''ght; exit' INT; echo run''ning; while :; do sleep 0.05; done"
    type_in(control, run.pid, f'sh -c "{script}"\n')
    run.until("pty", b"running\r\n")
    type_in(control, run.pid, "\x03")
    run.until("pty", b"caught\r\n> ")
    type_in(control, run.pid, "\x04")
    assert run.finish().end is not None


def test_all_output_comes_before_the_end(client: Client) -> None:
    run = start_on_terminal(client, "/bin/sh", "-c", "seq 1 20000").finish()
    assert run.output["pty"].decode() == "".join(f"{number}\r\n" for number in range(1, 20001))


def test_a_process_on_a_terminal_has_no_stdin(dial: Dial) -> None:
    run = start_on_terminal(dial(), "/bin/cat")
    control = dial()
    with pytest.raises(RpcFailureError) as failure:
        control.call("process.Process/SendInput", {"process": {"pid": run.pid}, "input": {"stdin": "eA=="}})
    assert failure.value.code == "failed_precondition"
    with pytest.raises(RpcFailureError) as failure:
        control.call("process.Process/CloseStdin", {"process": {"pid": run.pid}})
    assert failure.value.code == "failed_precondition"
    control.call("process.Process/SendSignal", {"process": {"pid": run.pid}, "signal": "SIGNAL_SIGKILL"})
    assert run.finish().end is not None


def test_a_process_without_a_terminal_cannot_be_resized(dial: Dial) -> None:
    run = dial().start("/bin/sleep", "60")
    control = dial()
    with pytest.raises(RpcFailureError) as failure:
        control.call("process.Process/Update", {"process": {"pid": run.pid}, "pty": {"size": {"cols": 1, "rows": 1}}})
    assert failure.value.code == "internal"
    assert control.call("process.Process/Update", {"process": {"pid": run.pid}}) == {}
    control.call("process.Process/SendSignal", {"process": {"pid": run.pid}, "signal": "SIGNAL_SIGKILL"})


def test_a_background_process_does_not_keep_a_terminal_open(dial: Dial) -> None:
    run = start_on_terminal(dial(), "/bin/sh", "-c", "setsid sleep 5 & echo bye")
    assert run.finish().end is not None
    assert b"bye" in run.output["pty"]
