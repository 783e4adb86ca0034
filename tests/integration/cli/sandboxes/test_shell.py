"""`sandyard sandbox shell`, in a real terminal."""

from __future__ import annotations

import pytest

from tests.integration.cli.real import Yard, in_terminal, read


def test_a_shell(yard: Yard, box: str) -> None:
    with in_terminal(yard, "sandbox", "shell", box) as terminal:
        terminal.resize(40, 123)
        terminal.until("$ ")
        terminal.type("stty size; X=kept\r")
        terminal.until("40 123")
        terminal.resize(20, 60)
        terminal.type("sleep 0.3; stty size\r")
        terminal.until("20 60")
        terminal.type("bash -c 'echo it ru''ns; sleep 1000'\r")
        terminal.until("it runs")  # before that, Ctrl-C would reach the shell in place of the command
        terminal.type("\x03")
        terminal.type("echo still $X\r")
        terminal.until("still kept")
        terminal.type("exit\r")
        assert terminal.ends() == 0


@pytest.mark.slow  # tests/web/test_files_terminal.py has one that outlives its page
def test_a_shell_is_found_again(yard: Yard, box: str) -> None:
    with in_terminal(yard, "sandbox", "shell", box) as terminal:
        terminal.until("$ ")
        terminal.type("X=kept; echo re''ady\r")
        terminal.until("ready")
        yard.kill("platform", noticed=lambda: terminal.until("connection lost, reconnecting"))
        terminal.type("echo it was $X\r")
        terminal.until("it was kept")
        terminal.type("exit\r")
        assert terminal.ends() == 0


def test_a_shell_without_a_terminal_is_wrong_usage(yard: Yard, box: str) -> None:
    assert yard.run("sandbox", "shell", box).returncode == 2


def test_no_shell_in_a_sandbox_that_is_gone(yard: Yard) -> None:
    gone = read(yard, "sandbox", "create")["id"]
    yard.ok("sandbox", "kill", gone)
    with in_terminal(yard, "sandbox", "shell", gone) as terminal:
        assert terminal.ends() == 3
        assert b"was deleted" in terminal.shown
