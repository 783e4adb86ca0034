"""Machines of a source become hosts, and stay hosts when the source loses them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from sandyard.engine.hosts import supply as supply_module
from sandyard.engine.hosts.administration import HostAdministration
from sandyard.engine.hosts.directory import STATIC, HostDetails
from sandyard.engine.hosts.enrollment import JoinRequest
from sandyard.engine.hosts.identity import make_certificate_request
from sandyard.engine.hosts.join_token import JoinToken
from sandyard.engine.hosts.machines import Machine, MachineEvent, MachineList, NotJoinedError, StaticMachines
from sandyard.engine.hosts.supply import HostSupply
from sandyard.kit.errors import SandyardError
from tests.unit.engine.hosts.support import EngineSide, open_engine

ONE, TWO = Machine("n1", "one", "10.0.0.1"), Machine("n2", "two", "10.0.0.2")


@dataclass
class FakeSource:
    """A source whose machines join when they are started with a token."""

    engine: EngineSide
    name: str = "other"
    problem: str | None = None
    machines: MachineList = field(default_factory=MachineList)
    keys: dict[str, ec.EllipticCurvePrivateKey] = field(default_factory=dict)  # of machines, by address
    calls: list[tuple[str, bool]] = field(default_factory=list)  # machine, and whether there was a token
    failure: str | None = None

    def list(self) -> Sequence[Machine]:
        return self.machines.list()

    def watch(self) -> AsyncIterator[MachineEvent]:
        return self.machines.watch()

    async def start(self, machine: Machine, token: JoinToken | None) -> None:
        self.calls.append((machine.id, token is not None))
        if self.failure is not None:
            raise SandyardError(self.failure)
        if token is None and machine.address not in self.keys:
            raise NotJoinedError
        if token is not None:
            key = self.keys.setdefault(machine.address, ec.generate_private_key(ec.SECP256R1()))
            details = HostDetails(machine.name, machine.address, 3011, {})
            self.engine.enrollment.join(
                JoinRequest(token.id, token.secret.reveal(), make_certificate_request(key), details)
            )


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineSide]:
    monkeypatch.setattr(supply_module, "FIRST_RETRY_S", 0.001)
    monkeypatch.setattr(supply_module, "CHECK_S", 0.01)
    with open_engine(tmp_path) as opened:
        yield opened


@pytest.fixture
async def source(engine: EngineSide) -> FakeSource:
    return FakeSource(engine)


@pytest.fixture
async def supply(engine: EngineSide, source: FakeSource) -> AsyncIterator[HostSupply]:
    sources = [StaticMachines(engine.hosts), source]
    supply = HostSupply(sources, engine.hosts, engine.enrollment, engine.database)
    supply.start()
    yield supply
    await supply.close()


async def wait_until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0)


def get_problem(supply: HostSupply) -> str | None:
    ((_, problem),) = supply.list()[1].machines
    return problem


async def test_machine_gets_a_token_once(engine: EngineSide, source: FakeSource, supply: HostSupply) -> None:
    source.machines.replace([ONE])
    await wait_until(lambda: len(source.calls) > 2)
    assert source.calls[:3] == [("n1", True), ("n1", False), ("n1", False)], (
        "the keeper is asked again, without a token"
    )
    (host,) = engine.hosts.list()
    assert (host.source, host.record.name, host.record.address) == ("other", "one", "10.0.0.1")


async def test_machine_that_lost_its_identity_joins_again(
    engine: EngineSide, source: FakeSource, supply: HostSupply
) -> None:
    source.machines.replace([ONE])
    await wait_until(engine.hosts.list)
    source.keys.clear()
    engine.hosts.update("one", name="former")
    await wait_until(lambda: len(engine.hosts.list()) == 2)


async def test_failure_is_shown_and_retried(engine: EngineSide, source: FakeSource, supply: HostSupply) -> None:
    source.failure = "There is no disk."
    source.machines.replace([ONE])
    await wait_until(lambda: get_problem(supply) == "There is no disk.")
    tokens = len(engine.database.query("SELECT id FROM join_tokens"))
    await wait_until(lambda: len(source.calls) > 4)
    assert len(engine.database.query("SELECT id FROM join_tokens")) == tokens, "retries use the same token"
    source.failure = None
    await wait_until(lambda: engine.hosts.list() and get_problem(supply) is None)


async def test_lost_machine_stays_a_host(engine: EngineSide, source: FakeSource, supply: HostSupply) -> None:
    source.machines.replace([ONE, TWO])
    await wait_until(lambda: len(engine.hosts.list()) == 2)
    source.machines.replace([TWO])
    await wait_until(lambda: len(supply.list()[1].machines) == 1)
    administration = HostAdministration(engine.database, engine.hosts, lambda: (), engine.enrollment, supply=supply)
    views = {view.status.record.name: view for view in administration.list()}
    assert {name: view.is_missing for name, view in views.items()} == {"one": True, "two": False}
    source.problem = "The source does not answer."
    assert not any(view.is_missing for view in administration.list()), "it is not known"


async def test_source_with_a_problem_is_not_asked(source: FakeSource, supply: HostSupply) -> None:
    source.problem = "The source does not answer."
    source.machines.replace([ONE])
    for _ in range(50):
        await asyncio.sleep(0.001)
    assert not source.calls
    source.problem = None
    await wait_until(lambda: source.calls)


async def test_removed_host_does_not_come_back_by_itself(
    engine: EngineSide, source: FakeSource, supply: HostSupply
) -> None:
    administration = HostAdministration(
        engine.database, engine.hosts, engine.get_statuses, engine.enrollment, supply=supply
    )
    source.machines.replace([ONE])
    await wait_until(engine.hosts.list)
    await administration.forget("one")
    await wait_until(lambda: "An administrator has removed this host" in str(get_problem(supply)))
    assert not engine.hosts.list()

    back = Machine("n3", "one", "10.0.0.1")  # with a new id, because it was away
    source.machines.replace([back])
    await wait_until(engine.hosts.list)


async def test_static_hosts_are_listed_and_left_alone(
    engine: EngineSide, source: FakeSource, supply: HostSupply
) -> None:
    token = engine.enrollment.create_token().token
    request = make_certificate_request(ec.generate_private_key(ec.SECP256R1()))
    details = HostDetails("rack-1", "10.0.0.9", 3011, {})
    engine.enrollment.join(JoinRequest(token.id, token.secret.reveal(), request, details))
    (host,) = engine.hosts.list()
    assert host.source == STATIC
    static = supply.list()[0]
    assert (static.name, static.problem) == (STATIC, None)
    assert [(machine.name, problem) for machine, problem in static.machines] == [("rack-1", None)]
    assert not supply.is_missing(STATIC, host.record)
    await asyncio.sleep(0.05)
    assert len(engine.database.query("SELECT id FROM join_tokens")) == 1, "nobody made another token"
    await engine.administration.forget("rack-1")
    assert not supply.list()[0].machines


async def test_events_are_the_differences() -> None:
    machines = MachineList()
    machines.replace([ONE])
    events = machines.watch()
    assert await anext(events) == MachineEvent(ONE, is_listed=True)
    machines.replace([ONE, TWO])
    machines.replace([TWO])
    assert await anext(events) == MachineEvent(ONE, is_listed=False)
    assert await anext(events) == MachineEvent(TWO, is_listed=True)
