"""Hosts that are killed, restarted, taken over and removed: no sandbox is lost, and an older engine is refused."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection
from dataclasses import replace

import pytest

from sandyard.engine.contract import AGENT_PORT, Condition, Handle
from sandyard.engine.drivers.cluster.driver import ClusterDriver
from sandyard.engine.drivers.cluster.model import HostRecord, HostState
from sandyard.kit.errors import FullError, InvalidInputError, NotFoundError, UnreachableError
from tests.conformance.guest_agent import GuestAgent
from tests.integration.engine.drivers.cluster.conftest import Cluster, Host, get_states, wait_until


class Doubts:
    """The sandboxes that a driver has reported as doubtful."""

    def __init__(self, driver: ClusterDriver) -> None:
        self.ids: set[str] = set()
        self.reasons: list[str] = []
        driver.on_doubt = self._add

    def _add(self, sandbox_ids: Collection[str], reason: str) -> None:
        self.ids.update(sandbox_ids)
        self.reasons.append(reason)


async def start_counter(driver: ClusterDriver, handle: Handle) -> int:
    """Start a process in a sandbox, whose id shows later whether it is still the same. Return the id."""
    return await GuestAgent(driver, handle).start("sleep 1000")


async def is_alive(driver: ClusterDriver, handle: Handle, pid: int) -> bool:
    return (await GuestAgent(driver, handle).run(f"kill -0 {pid}")).code == 0


async def test_sandboxes_are_spread_and_each_is_used_where_it_is(cluster: Cluster) -> None:
    driver = await cluster.open()
    handles = [await driver.create(cluster.spec()) for _ in range(4)]
    assert sorted(handle.data["host"] for handle in handles) == ["host-a", "host-a", "host-b", "host-b"]
    for handle in handles:
        await GuestAgent(driver, handle).run(f"echo {handle.id} > me")
    assert [await GuestAgent(driver, handle).read("me") for handle in handles] == [f"{item.id}\n" for item in handles]
    assert {status.record.id: status.sandboxes for status in driver.list_statuses()} == {
        "local": 0,
        "host-a": 2,
        "host-b": 2,
    }


async def test_sandboxes_are_only_on_hosts_with_their_labels(cluster: Cluster) -> None:
    directory = cluster.make_directory()
    driver = await cluster.open(directory)
    directory.set([replace(host, labels={"disk": "ssd"}) if host.id == "host-b" else host for host in directory.hosts])
    handles = [await driver.create(cluster.spec(host_labels={"disk": "ssd"})) for _ in range(2)]
    assert {handle.data["host"] for handle in handles} == {"host-b"}
    with pytest.raises(InvalidInputError, match=r"host-a: it does not have the label disk=hdd; host-b"):
        await driver.create(cluster.spec(host_labels={"disk": "hdd"}))


async def test_sandboxes_created_at_once_are_spread(cluster: Cluster) -> None:
    driver = await cluster.open()
    handles = await asyncio.gather(*(driver.create(cluster.spec()) for _ in range(8)))
    hosts = [handle.data["host"] for handle in handles]
    assert sorted(hosts.count(host) for host in set(hosts)) == [4, 4]


async def test_processes_survive_a_killed_host_service(cluster: Cluster) -> None:
    driver = cluster.make_driver()
    doubts = Doubts(driver)
    await driver.open((), ())
    first, second = [await driver.create(cluster.spec()) for _ in range(2)]
    pid = await start_counter(driver, first)
    host = cluster.get_host(first)
    host.kill()
    await wait_until(lambda: get_states(driver)[host.id] is HostState.UNREACHABLE)
    for operation in (driver.get_condition, driver.freeze, driver.get_stats, driver.kill):
        with pytest.raises(UnreachableError, match=host.id):
            await operation(first)
    with pytest.raises(UnreachableError):
        await driver.connect(first, AGENT_PORT)
    assert await driver.get_condition(second) is Condition.RUNNING
    assert not doubts.ids
    host.start()
    await wait_until(lambda: get_states(driver)[host.id] is HostState.READY)
    assert doubts.ids == {first.id} and doubts.reasons == ["Its host was restarted"]
    assert await driver.get_condition(first) is Condition.RUNNING
    assert await is_alive(driver, first, pid)


async def test_a_lost_host_that_returns_removes_what_continues_elsewhere(cluster: Cluster) -> None:
    driver = await cluster.open()
    first, second = [await driver.create(cluster.spec()) for _ in range(2)]
    third = await driver.create(cluster.spec())
    assert third.data["host"] == first.data["host"]
    pid = await start_counter(driver, third)
    host = cluster.get_host(first)
    host.kill()
    await wait_until(lambda: get_states(driver)[host.id] is HostState.UNREACHABLE)
    copy = await driver.create(replace(cluster.spec(), id=first.id))
    assert copy.data["host"] == second.data["host"]
    driver.abandon(first)
    host.start()
    await wait_until(lambda: get_states(driver)[host.id] is HostState.READY)
    assert await driver.get_condition(first) is Condition.ABSENT
    assert await driver.get_condition(copy) is Condition.RUNNING
    assert await is_alive(driver, third, pid), "what was not recovered continues"
    driver.abandon(third)  # when it is back already
    await wait_until(lambda: third.id not in driver.list_sandboxes(host.id))
    async with asyncio.timeout(30):
        while await driver.get_condition(third) is not Condition.ABSENT:
            await asyncio.sleep(0.02)


async def test_a_host_that_is_away_when_the_engine_starts_is_opened_later(cluster: Cluster) -> None:
    before = await cluster.open()
    first, second = [await before.create(cluster.spec()) for _ in range(2)]
    snapshots = [f"snapshot{number}" for number in range(2)]
    for snapshot in snapshots:
        await before.snapshot(first, snapshot)
    await before.close()
    host = cluster.get_host(first)
    host.kill()
    driver = cluster.make_driver()
    doubts = Doubts(driver)
    assert await driver.open([first, second], snapshots) == {second.id: Condition.RUNNING}
    await driver.delete_snapshot(snapshots[0])
    host.start()
    await wait_until(lambda: get_states(driver)[host.id] is HostState.READY)
    assert doubts.ids == {first.id}
    assert await driver.get_condition(first) is Condition.RUNNING
    folder = host.settings.folder / "host/fake/snapshots"
    assert [path.name for path in folder.iterdir()] == snapshots[1:]


async def test_a_new_engine_takes_over_and_the_old_one_is_refused(cluster: Cluster) -> None:
    old = await cluster.open()
    handle = await old.create(cluster.spec())
    pid = await start_counter(old, handle)
    new = cluster.make_driver()
    assert await new.open([handle], ()) == {handle.id: Condition.RUNNING}
    await wait_until(lambda: set(get_states(old).values()) == {HostState.READY, HostState.UNREACHABLE})
    with pytest.raises(UnreachableError):
        await old.kill(handle)
    with pytest.raises(UnreachableError):
        await old.connect(handle, AGENT_PORT)
    await wait_until(
        lambda: any("Another engine has taken over" in (status.reason or "") for status in old.list_statuses())
    )
    restarted = cluster.make_driver(epoch=1)
    assert await restarted.open((), ()) == {}
    assert HostState.READY not in {state for host, state in get_states(restarted).items() if host != "local"}
    assert await new.get_condition(handle) is Condition.RUNNING
    assert await is_alive(new, handle, pid)


async def test_ends_are_reported(cluster: Cluster) -> None:
    driver = await cluster.open()
    spec = cluster.spec()
    handle = await driver.create(spec)
    ended = asyncio.ensure_future(driver.wait_for_exit(handle))
    with contextlib.suppress(EOFError):  # its agent ends too
        await GuestAgent(driver, handle).run("kill -9 $PPID")
    assert await asyncio.wait_for(ended, 10)
    assert await asyncio.wait_for(driver.wait_for_exit(handle), 10)
    assert await driver.get_condition(handle) is Condition.STOPPED
    booted = await driver.boot(handle, spec)
    again = asyncio.ensure_future(driver.wait_for_exit(booted))
    await asyncio.sleep(0)
    assert not again.done()
    again.cancel()


async def test_a_removed_host_takes_its_sandboxes_with_it(cluster: Cluster) -> None:
    directory = cluster.make_directory()
    driver = cluster.make_driver(directory)
    doubts = Doubts(driver)
    await driver.open((), ())
    first, second = [await driver.create(cluster.spec()) for _ in range(2)]
    records = list(directory.hosts)
    directory.set([record for record in records if record.id != first.data["host"]])
    assert doubts.ids == {first.id}
    assert await driver.get_condition(first) is Condition.ABSENT
    await driver.kill(first)
    with pytest.raises(NotFoundError, match="no longer registered"):
        await driver.connect(first, AGENT_PORT)
    assert await driver.get_condition(second) is Condition.RUNNING
    directory.set(records)
    await wait_until(lambda: get_states(driver)[first.data["host"]] is HostState.READY)
    assert await driver.get_condition(first) is Condition.ABSENT, "it was swept when its host came back"


async def test_all_hosts_are_tried_and_the_error_says_why_each_refuses(cluster: Cluster) -> None:
    directory = cluster.make_directory()
    driver = await cluster.open(directory)
    first, second = cluster.hosts
    directory.set([_drain(first), second.settings.record])
    assert {(await driver.create(cluster.spec())).data["host"] for _ in range(3)} == {second.id}
    directory.set([_drain(first), _drain(second)])
    with pytest.raises(FullError, match=r"host-a: it is being drained; host-b: it is being drained"):
        await driver.create(cluster.spec())
    second.kill()
    await wait_until(lambda: get_states(driver)[second.id] is HostState.UNREACHABLE)
    with pytest.raises(FullError, match=r"host-b: it is unreachable"):
        await driver.create(cluster.spec())


def _drain(host: Host) -> HostRecord:
    return replace(host.settings.record, draining=True)
