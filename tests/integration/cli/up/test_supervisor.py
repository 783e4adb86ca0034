"""The supervisor over two small servers: order, restarts, and that nothing is ever left behind."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.cli.up.running import Running

Start = Callable[..., Running]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Running] = []

    def run(manner: str = "") -> Running:
        command = [sys.executable, "-m", "tests.integration.cli.up.keeper", "up", str(tmp_path / "data"), manner]
        started.append(Running(command, str(tmp_path), {"SANDYARD_TEST_MARK": str(tmp_path)}))
        return started[-1]

    yield run
    for running in started:
        running.close()


def test_started_in_order_and_stopped_in_reverse(start: Start) -> None:
    up = start()
    up.heard("all ready")
    order = [line.split()[0] for line in up.said if " ready " in line]
    assert order == ["first", "second"]
    up.process.send_signal(signal.SIGTERM)
    assert up.ends() == 0
    assert [line for line in up.said if "goodbye" in line] == ["second says goodbye", "first says goodbye"]
    up.nothing_left()


def test_one_that_can_wait_loads_its_code_meanwhile(start: Start, tmp_path: Path) -> None:
    """The first is not ready before the second has loaded, and the second begins when the first is ready."""
    up = start("patient")
    up.heard("all ready")
    said = up.text
    assert said.index("first     ready") < said.index("second is") < said.index("second    ready")
    os.kill(int(up.heard(r"second is (\d+)")[1]), signal.SIGKILL)
    up.heard(r"^second +ready", 2)
    up.process.send_signal(signal.SIGTERM)
    assert up.ends() == 0
    up.nothing_left()


def test_ctrl_c_in_a_terminal_stops_them_in_order_too(start: Start) -> None:
    """The children are in sessions of their own, so that a terminal's SIGINT does not reach them."""
    up = start()
    up.heard("all ready")
    for number in up.processes():
        if number != up.process.pid:
            assert os.getsid(number) == number
    up.process.send_signal(signal.SIGINT)
    assert up.ends() == 0
    up.nothing_left()


@pytest.mark.parametrize("name", ["first", "second"])
def test_one_that_is_killed_is_started_again(start: Start, name: str) -> None:
    up = start()
    up.heard("all ready")
    for times in (1, 2):
        os.kill(int(up.heard(rf"{name} is (\d+)", times)[1]), signal.SIGKILL)
        up.heard(f"The {name} ended: killed by SIGKILL. Restarting in", times)
        up.heard(rf"^{name} +ready", times + 1)
    pauses = [float(up.heard(rf"The {name} ended.*Restarting in (\S+) s", times)[1]) for times in (1, 2)]
    assert pauses == [0.1, 0.2]
    other = "second" if name == "first" else "first"
    assert len([line for line in up.said if line.startswith(f"{other} is")]) == 1


def test_when_the_supervisor_is_killed_nothing_is_left(start: Start) -> None:
    up = start()
    up.heard("all ready")
    assert len(up.processes()) == 3
    up.process.kill()
    up.nothing_left(seconds=15)


def test_a_child_that_does_not_stop_is_killed(start: Start) -> None:
    up = start("stubborn")
    up.heard("all ready")
    up.process.send_signal(signal.SIGTERM)
    assert up.ends() == 0
    assert "The second did not stop. Killing it." in up.said
    assert "first says goodbye" in up.said
    up.nothing_left()


def test_a_second_signal_does_not_wait(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    up = start("stubborn")
    up.heard("all ready")
    up.process.send_signal(signal.SIGINT)
    up.heard("Stopping the second")
    up.process.send_signal(signal.SIGINT)
    up.ends()
    up.nothing_left()


def test_one_that_does_not_start_ends_it_all(start: Start) -> None:
    up = start("broken")
    assert up.ends() == 1
    assert "I cannot" in up.said
    assert up.said[-1] == "error: The second did not start: exit code 7. See its output above."
    assert "first says goodbye" in up.said
    up.nothing_left()


def test_two_on_one_directory(start: Start) -> None:
    first = start()
    first.heard("all ready")
    second = start()
    assert second.ends() == 1
    assert "is already running on" in second.text and str(first.process.pid) in second.text
    assert first.process.poll() is None


def test_a_new_one_waits_until_what_a_killed_one_left_is_gone(start: Start) -> None:
    """Its children hold the lock until they are gone: ports and data are free when the next one starts."""
    first = start()
    first.heard("all ready")
    before = set(first.processes())
    first.process.kill()
    second = start()
    second.heard("all ready")
    assert not before & set(second.processes())
