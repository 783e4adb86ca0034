"""The supervisor with two small servers: start order, restarts, and no process left behind."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.harness.processes import Running

Start = Callable[..., Running]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Running] = []

    def run(behaviour: str = "") -> Running:
        command = [sys.executable, "-m", "tests.integration.cli.up.keeper", "up", str(tmp_path / "data"), behaviour]
        started.append(Running(command, str(tmp_path), {"SANDYARD_TEST_MARK": str(tmp_path)}))
        return started[-1]

    yield run
    for running in started:
        running.close()


def test_children_start_in_order_and_ctrl_c_stops_them_in_reverse(start: Start) -> None:
    """They run in their own sessions, so that SIGINT from a terminal does not reach them. The next test stops with SIGTERM."""
    up = start()
    up.wait_for_line("all ready")
    order = [line.split()[0] for line in up.lines if " ready " in line]
    assert order == ["first", "second"]
    for number in up.processes():
        if number != up.process.pid:
            assert os.getsid(number) == number
    up.process.send_signal(signal.SIGINT)
    assert up.wait_for_exit() == 0
    assert [line for line in up.lines if "goodbye" in line] == ["second says goodbye", "first says goodbye"]
    up.wait_until_none_left()


def test_a_patient_child_loads_its_code_while_it_waits(start: Start, tmp_path: Path) -> None:
    """The first server is ready only after the second has loaded, and the second starts when the first is ready."""
    up = start("patient")
    up.wait_for_line("all ready")
    printed = up.text
    assert printed.index("first     ready") < printed.index("second is") < printed.index("second    ready")
    os.kill(int(up.wait_for_line(r"second is (\d+)")[1]), signal.SIGKILL)
    up.wait_for_line(r"^second +ready", 2)
    up.process.send_signal(signal.SIGTERM)
    assert up.wait_for_exit() == 0
    up.wait_until_none_left()


def test_killed_children_are_restarted_each_on_its_own(start: Start) -> None:
    up = start()
    up.wait_for_line("all ready")
    for name, starts_of_the_other in (("first", 1), ("second", 3)):
        for times in (1, 2):
            os.kill(int(up.wait_for_line(rf"{name} is (\d+)", times)[1]), signal.SIGKILL)
            up.wait_for_line(f"The {name} ended: killed by SIGKILL. Restarting in", times)
            up.wait_for_line(rf"^{name} +ready", times + 1)
        pauses = [float(up.wait_for_line(rf"The {name} ended.*Restarting in (\S+) s", times)[1]) for times in (1, 2)]
        assert pauses == [0.1, 0.2]
        other = "second" if name == "first" else "first"
        assert len([line for line in up.lines if line.startswith(f"{other} is")]) == starts_of_the_other


def test_a_child_that_does_not_stop_is_killed(start: Start) -> None:
    up = start("stubborn")
    up.wait_for_line("all ready")
    up.process.send_signal(signal.SIGTERM)
    assert up.wait_for_exit() == 0
    assert "The second did not stop. Killing it." in up.lines
    assert "first says goodbye" in up.lines
    up.wait_until_none_left()


def test_a_second_signal_stops_at_once(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    up = start("stubborn")
    up.wait_for_line("all ready")
    up.process.send_signal(signal.SIGINT)
    up.wait_for_line("Stopping the second")
    up.process.send_signal(signal.SIGINT)
    up.wait_for_exit()
    up.wait_until_none_left()


def test_a_child_that_does_not_start_ends_the_supervisor(start: Start) -> None:
    up = start("broken")
    assert up.wait_for_exit() == 1
    assert "I cannot" in up.lines
    assert up.lines[-1] == "error: The second did not start: exit code 7. See its output above."
    assert "first says goodbye" in up.lines
    up.wait_until_none_left()


def test_a_directory_has_one_supervisor_and_the_next_waits_for_the_children_of_a_killed_one(start: Start) -> None:
    """The children hold the lock until they end: ports and data are free when the next supervisor starts."""
    first = start()
    first.wait_for_line("all ready")
    second = start()
    assert second.wait_for_exit() == 1
    assert "is already running on" in second.text and str(first.process.pid) in second.text
    assert first.process.poll() is None
    before = set(first.processes())
    assert len(before) == 3
    first.process.kill()
    third = start()
    third.wait_for_line("all ready")
    assert not before & set(third.processes())
    third.process.kill()
    third.wait_until_none_left(seconds=15)
