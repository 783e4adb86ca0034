"""Test attacks of sandboxes with containers on resources that the kernel counts only for the whole machine."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from e2b import CommandExitException, PtySize, Sandbox

from sandyard.engine.drivers.machine import fuse
from tests.harness.engine import Engine
from tests.harness.platform import until

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="containers at the level namespace need root"),
    pytest.mark.skipif(
        not Path("/dev/fuse").is_char_device() or not Path("/dev/net/tun").is_char_device(),
        reason="containers at the level namespace need /dev/fuse and /dev/net/tun",
    ),
]

ATTACKS = (Path(__file__).parent / "container_attacks.py").read_text()
WITH_CONTAINERS = {"sandyard.isolation": "namespace", "sandyard.containers": "true"}
NewSandbox = Callable[..., Sandbox]


@pytest.fixture
def attacker(new_sandbox: NewSandbox) -> Iterator[Sandbox]:
    sandbox = new_sandbox(metadata=WITH_CONTAINERS)
    sandbox.files.write("/tmp/attacks.py", ATTACKS)
    yield sandbox


def start(sandbox: Sandbox, attack: str, is_stopped: Callable[[], object] = lambda: False) -> None:
    """Start an attack in new namespaces, and wait until it has begun, or is stopped before it could say so."""
    sandbox.commands.run(f"nohup unshare -Urmn python3 /tmp/attacks.py {attack} > /tmp/output 2>&1 &")
    until(lambda: is_stopped() or "started" in sandbox.files.read("/tmp/output"))


def list_findings(engine: Engine, sandbox: Sandbox, event: str) -> list[str]:
    return [line for line in engine.log.read_text().splitlines() if event in line and sandbox.sandbox_id in line]


def test_a_container_cannot_fill_the_neighbour_table_of_the_machine(attacker: Sandbox) -> None:
    """The kernel has one table for all network namespaces. When it is full, nobody finds a new neighbour."""
    before = count_refused_neighbours()
    start(attacker, "fill_neighbour_table 1")
    until(lambda: "python3" not in attacker.commands.run("ps -eo args | grep '[f]ill_neigh' || true").stdout)
    assert count_refused_neighbours() == before


def count_refused_neighbours() -> int:
    table = [line.split() for line in Path("/proc/net/stat/arp_cache").read_text().splitlines()]
    column = table[0].index("table_fulls")
    return sum(int(row[column], 16) for row in table[1:])


def test_a_container_cannot_use_up_the_terminals_of_the_machine(attacker: Sandbox, new_sandbox: NewSandbox) -> None:
    neighbour = new_sandbox()
    start(attacker, "open_terminals 3500")
    terminal = neighbour.pty.create(PtySize(rows=24, cols=80))
    terminal.kill()


@pytest.mark.parametrize("attack", ["hold_neighbours 300000", "fill_queue 5000 1000"])
def test_containers_that_hold_too_much_uncounted_kernel_memory_are_killed(
    attacker: Sandbox, engine: Engine, attack: str
) -> None:
    with pytest.raises(CommandExitException):
        attacker.commands.run(f"unshare -Urmn python3 /tmp/attacks.py {attack}")
    assert "kind=nested" in list_findings(engine, attacker, "sandbox_kernel_memory_exceeded")[-1]


@pytest.mark.parametrize("paused", [False, True], ids=["running", "paused"])
def test_packets_that_circulate_in_containers_are_stopped(attacker: Sandbox, engine: Engine, paused: bool) -> None:
    """They are forwarded by the machine, without any process of the sandbox."""

    def is_stopped() -> object:
        return list_findings(engine, attacker, "kind=packets")

    start(attacker, "start_storm", is_stopped)
    if paused:
        attacker.pause()
    until(is_stopped)


def test_a_file_server_that_never_answers_does_not_prevent_a_pause(attacker: Sandbox, engine: Engine) -> None:
    start(attacker, "wait_for_file_server")
    attacker.pause()
    assert list_findings(engine, attacker, "fuse_connections_aborted")


def test_a_file_server_that_never_answers_does_not_prevent_a_kill(attacker: Sandbox, engine: Engine) -> None:
    others = set(fuse.list_connections(range(1 << 32)))
    start(attacker, "wait_for_file_server")
    assert set(fuse.list_connections(range(1 << 32))) - others
    started = time.monotonic()
    assert attacker.kill()
    assert time.monotonic() - started < 10, "its processes are gone when the request is answered"
    assert not list_findings(engine, attacker, "sandbox_removal_failed")
