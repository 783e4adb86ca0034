"""`sandyard sandbox shell`, in a real terminal."""

from __future__ import annotations

import pytest

from tests.harness.up import Installation, in_terminal, run_json


def test_a_shell_handles_input_resizing_and_ctrl_c(installation: Installation, sandbox: str) -> None:
    with in_terminal(installation, "sandbox", "shell", sandbox) as terminal:
        terminal.resize(40, 123)
        terminal.until("$ ")
        terminal.type("stty size; X=kept\r")
        terminal.until("40 123")
        terminal.resize(20, 60)
        terminal.type("sleep 0.3; stty size\r")
        terminal.until("20 60")
        terminal.type("bash -c 'echo it ru''ns; sleep 1000'\r")
        terminal.until("it runs")  # before that, Ctrl-C would reach the shell instead of the command
        terminal.type("\x03")
        terminal.type("echo still $X\r")
        terminal.until("still kept")
        terminal.type("exit\r")
        assert terminal.wait_for_exit() == 0


@pytest.mark.slow  # tests/web/test_files_terminal.py tests a shell that survives a reload
def test_a_shell_reconnects_after_a_restart_of_the_platform(installation: Installation, sandbox: str) -> None:
    with in_terminal(installation, "sandbox", "shell", sandbox) as terminal:
        terminal.until("$ ")
        terminal.type("X=kept; echo re''ady\r")
        terminal.until("ready")
        installation.kill("platform", meanwhile=lambda: terminal.until("connection lost, reconnecting"))
        terminal.type("echo it was $X\r")
        terminal.until("it was kept")
        terminal.type("exit\r")
        assert terminal.wait_for_exit() == 0


def test_a_shell_without_a_terminal_is_a_usage_error(installation: Installation, sandbox: str) -> None:
    assert installation.run("sandbox", "shell", sandbox).returncode == 2


def test_a_shell_in_a_deleted_sandbox_is_an_error(installation: Installation) -> None:
    gone = run_json(installation, "sandbox", "create")["id"]
    installation.ok("sandbox", "kill", gone)
    with in_terminal(installation, "sandbox", "shell", gone) as terminal:
        assert terminal.wait_for_exit() == 3
        assert b"was deleted" in terminal.shown
