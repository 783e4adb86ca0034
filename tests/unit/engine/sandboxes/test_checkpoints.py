"""Checkpoints of sandboxes on other hosts, and sandboxes that continue from them because their host is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandyard.engine.contract import Condition, Handle, Layers
from sandyard.engine.sandboxes.checkpoints import CHECK_S, FIRST_RETRY_S, MAX_POSTPONED, SETTLE_S, Checkpointer
from sandyard.engine.sandboxes.evacuation import EmptiedHost, Evacuation, Progress, format_duration
from sandyard.engine.sandboxes.model import OnTimeout, PauseKind, State
from sandyard.kit.errors import FullError, NoSpaceError
from tests.unit.engine.sandboxes import harness as harness_module
from tests.unit.engine.sandboxes.harness import SandboxesHarness
from tests.unit.engine.sandboxes.two_hosts import OTHER, TwoHosts, TwoHostsDriver

INTERVAL_S = 40.0
LONG = {"timeout_s": 86400, "on_timeout": OnTimeout.PAUSE}


@pytest.fixture
async def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SandboxesHarness]:
    monkeypatch.setattr(harness_module, "DoubleDriver", TwoHostsDriver)
    harness = SandboxesHarness(tmp_path)
    await harness.start()
    yield harness
    await harness.stop()


@pytest.fixture
def places(harness: SandboxesHarness) -> TwoHosts:
    return TwoHosts(harness)


@pytest.fixture
async def checkpointer(harness: SandboxesHarness, places: TwoHosts) -> AsyncIterator[Checkpointer]:
    components = harness.service.components
    made = Checkpointer(
        checkpoints=components.checkpoints,
        registry=components.registry,
        lifecycle=components.lifecycle,
        creation=components.creation,
        snapshots=components.snapshots,
        calls=components.calls,
        clock=harness.clock,
        places=places,
        interval_s=INTERVAL_S,
        get_free_disk=lambda: places.free_disk,
        min_free_disk=10 << 20,
    )
    made.start()
    yield made
    await made.close()


@pytest.fixture
async def evacuation(harness: SandboxesHarness, places: TwoHosts) -> AsyncIterator[Evacuation]:
    components = harness.service.components
    made = Evacuation(
        mover=components.mover,
        checkpoints=components.checkpoints,
        registry=components.registry,
        pool=components.pool,
        clock=harness.clock,
        places=places,
        on_return=lambda host_id: made.set_hosts({}),
    )
    yield made
    await made.close()


def lose(harness: SandboxesHarness) -> None:
    """Let the first host be away, so that sandboxes are created on the second."""
    harness.driver.away = harness.driver.draining = True  # type: ignore[attr-defined]


async def recover(harness: SandboxesHarness, evacuation: Evacuation) -> Progress:
    evacuation.set_hosts({"first": EmptiedHost("one", lost=True)})
    await harness.settle()
    progress = evacuation.find_progress("first")
    assert progress is not None
    return progress


async def pass_time(harness: SandboxesHarness, seconds: float) -> None:
    """Let the time pass in steps in which the checkpointer looks at the sandboxes."""
    end = harness.clock.now() + seconds
    while harness.clock.now() < end:
        await harness.clock.advance(CHECK_S)
        await harness.settle()


def find_taken_at(harness: SandboxesHarness, sandbox_id: str) -> float | None:
    checkpoint = harness.service.components.checkpoints.find(sandbox_id)
    return None if checkpoint is None else checkpoint.taken_at


@pytest.mark.usefixtures("checkpointer")
async def test_an_idle_sandbox_gets_a_checkpoint_when_it_has_done_something(
    harness: SandboxesHarness, places: TwoHosts
) -> None:
    created = await harness.create(**LONG)
    machine = harness.host.machines[created.id]
    await pass_time(harness, INTERVAL_S - CHECK_S)
    assert find_taken_at(harness, created.id) is None
    await pass_time(harness, 3 * CHECK_S)
    first = find_taken_at(harness, created.id)
    assert first is not None
    assert [layers[0] for layers in places.fetched] == [f"snap:{snapshot}" for snapshot in harness.host.snapshots]
    await pass_time(harness, 3 * INTERVAL_S)
    assert find_taken_at(harness, created.id) == first, "it has done nothing since then"
    machine.cpu_seconds += 1
    await pass_time(harness, 3 * CHECK_S)
    assert find_taken_at(harness, created.id) != first
    assert len(harness.host.snapshots) == 1, "the old one is removed"
    assert harness.service.list_snapshots().items == (), "clients do not see it"
    await harness.service.kill(created.id)
    await pass_time(harness, 2 * CHECK_S)
    assert (find_taken_at(harness, created.id), harness.host.snapshots) == (None, {})


@pytest.mark.usefixtures("checkpointer")
async def test_a_busy_sandbox_is_not_postponed_forever(harness: SandboxesHarness) -> None:
    created = await harness.create(**LONG)
    machine = harness.host.machines[created.id]
    while harness.clock.now() < created.created_at + MAX_POSTPONED * INTERVAL_S - CHECK_S:
        machine.cpu_seconds += CHECK_S
        await pass_time(harness, CHECK_S)
        assert find_taken_at(harness, created.id) is None
    machine.cpu_seconds += CHECK_S
    await pass_time(harness, 2 * CHECK_S)
    assert find_taken_at(harness, created.id) is not None


@pytest.mark.usefixtures("checkpointer")
async def test_a_paused_sandbox_gets_one_that_survives_the_engine(harness: SandboxesHarness) -> None:
    created = await harness.create(**LONG)
    await harness.service.pause(created.id)
    await pass_time(harness, SETTLE_S + CHECK_S)
    taken_at = find_taken_at(harness, created.id)
    assert taken_at is not None
    await pass_time(harness, 3 * INTERVAL_S)
    assert find_taken_at(harness, created.id) == taken_at
    await harness.restart()
    assert find_taken_at(harness, created.id) == taken_at
    assert len(harness.host.snapshots) == 1


@pytest.mark.usefixtures("checkpointer")
async def test_a_failed_copy_leaves_nothing_and_is_tried_again(
    harness: SandboxesHarness, places: TwoHosts, evacuation: Evacuation
) -> None:
    created = await harness.create(**LONG)
    await harness.service.pause(created.id)
    places.error = NoSpaceError("The disk of the engine is full.")
    await pass_time(harness, SETTLE_S + CHECK_S)
    assert (find_taken_at(harness, created.id), harness.host.snapshots) == (None, {})
    harness.driver.away = True  # type: ignore[attr-defined]
    progress = await recover(harness, evacuation)
    assert progress.failures[created.id].endswith(
        "The last attempt to copy them failed: The disk of the engine is full."
    )
    harness.driver.away, places.error = False, None  # type: ignore[attr-defined]
    await pass_time(harness, FIRST_RETRY_S + 2 * CHECK_S)
    assert find_taken_at(harness, created.id) is not None
    assert harness.service.components.checkpoints.failures == {}


@pytest.mark.usefixtures("checkpointer")
async def test_a_host_that_never_finishes_delays_no_other(
    harness: SandboxesHarness, places: TwoHosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    take, blocked = harness.driver.snapshot, set[Layers]()

    async def snapshot(handle: Handle, snapshot_id: str) -> Layers:
        layers = await take(handle, snapshot_id)
        if places.find_host(handle) == "first":
            blocked.add(layers)
        return layers

    async def fetch_layers(layers: Layers) -> None:
        if layers in blocked:
            await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(harness.driver, "snapshot", snapshot)
    monkeypatch.setattr(places, "fetch_layers", fetch_layers)
    created = [await harness.create(**LONG) for _ in range(6)]
    harness.driver.draining = True  # type: ignore[attr-defined]
    other = await harness.create(**LONG)
    for sandbox in (*created, other):
        await harness.service.pause(sandbox.id)
    await pass_time(harness, SETTLE_S + 2 * CHECK_S)
    assert find_taken_at(harness, other.id) is not None
    assert not any(find_taken_at(harness, sandbox.id) for sandbox in created)


@pytest.mark.usefixtures("checkpointer")
async def test_the_disk_of_the_engine_is_not_filled(harness: SandboxesHarness, places: TwoHosts) -> None:
    created = await harness.create(**LONG)
    await harness.service.pause(created.id)
    places.free_disk = (10 << 20) - 1
    await pass_time(harness, SETTLE_S + CHECK_S)
    assert (places.fetched, harness.host.snapshots) == ([], {})
    assert "10 MiB of the disk" in harness.service.components.checkpoints.failures[created.id]


@pytest.mark.usefixtures("checkpointer")
async def test_sandboxes_with_volumes_and_of_hosts_that_are_away_get_none(
    harness: SandboxesHarness, places: TwoHosts, evacuation: Evacuation
) -> None:
    mounting = await harness.create(**LONG, volume_mounts=({"name": "data", "id": "v1", "path": "/data"},))
    plain = await harness.create(**LONG)
    await harness.service.pause(mounting.id)
    await harness.service.pause(plain.id)
    harness.driver.away = True  # type: ignore[attr-defined]
    await pass_time(harness, 3 * SETTLE_S)
    harness.driver.away = False  # type: ignore[attr-defined]
    await pass_time(harness, 2 * CHECK_S)
    assert len(places.fetched) == 1
    assert find_taken_at(harness, mounting.id) is None
    lose(harness)
    progress = await recover(harness, evacuation)
    assert (progress.moved, [*progress.failures]) == (1, [mounting.id])
    assert "the volume data" in progress.failures[mounting.id]


@pytest.mark.usefixtures("checkpointer")
async def test_sandboxes_of_a_lost_host_continue_from_their_checkpoints(
    harness: SandboxesHarness, places: TwoHosts, evacuation: Evacuation
) -> None:
    running, paused = await harness.create(**LONG), await harness.create(**LONG)
    await harness.service.pause(paused.id)
    for machine in harness.host.machines.values():
        machine.files = frozenset({"kept"})
    await pass_time(harness, INTERVAL_S + 3 * CHECK_S)
    harness.host.machines[running.id].files |= {"lost"}
    unsaved = await harness.create(**LONG)
    taken_at = find_taken_at(harness, running.id)
    assert taken_at is not None
    places.seen_at = taken_at + 125
    lose(harness)
    progress = await recover(harness, evacuation)
    assert (progress.moved, progress.total, [*progress.failures]) == (2, 3, [unsaved.id])
    assert "It has no checkpoint" in progress.failures[unsaved.id]
    assert progress.stranded == {unsaved.id}
    copies = {sandbox_id: machine for sandbox_id, machine in harness.host.machines.items() if OTHER in sandbox_id}
    assert {name: (copy.condition, copy.files) for name, copy in copies.items()} == {
        running.id + OTHER: (Condition.RUNNING, {"kept"}),
        paused.id + OTHER: (Condition.STOPPED, {"kept"}),
    }
    assert sorted(places.abandoned) == sorted([running.id, paused.id])
    recovered = harness.service.get(running.id)
    assert (recovered.state, recovered.access_token) == (State.RUNNING, running.access_token)
    reason = recovered.memory_lost or ""
    assert reason.startswith("Its host one was lost; its files are from ")
    assert reason.endswith(" UTC, 2 minutes before the host last answered")
    stayed = harness.service.get(paused.id)
    assert (stayed.state, stayed.pause_kind) == (State.PAUSED, PauseKind.FILESYSTEM)
    assert (stayed.memory_lost or "").endswith(" UTC, after it was paused")
    assert harness.service.get(unsaved.id).handle == unsaved.handle, "it is kept in case the host returns"

    harness.driver.away = False  # type: ignore[attr-defined]
    await harness.clock.advance(10)
    await harness.settle()
    assert evacuation.find_progress("first") is None, "the host is back"
    assert harness.host.machines[unsaved.id].condition is Condition.RUNNING
    assert harness.service.get(unsaved.id).memory_lost is None


@pytest.mark.usefixtures("checkpointer")
async def test_a_sandbox_that_no_host_can_take_is_kept(
    harness: SandboxesHarness, places: TwoHosts, evacuation: Evacuation
) -> None:
    created = await harness.create(**LONG)
    await harness.service.pause(created.id)
    await pass_time(harness, SETTLE_S + CHECK_S)
    lose(harness)
    harness.driver.fail("create", FullError("No host can take the sandbox."))
    progress = await recover(harness, evacuation)
    assert progress.failures == {created.id: "No host can take the sandbox."}
    assert not progress.stranded, "it continues when there is room"
    assert (harness.service.get(created.id).pause_kind, places.abandoned) == (PauseKind.MEMORY, [])
    harness.driver.clear_faults()
    await harness.clock.advance(10)
    await harness.settle()
    assert (progress.moved, progress.failures, places.abandoned) == (1, {}, [created.id])


async def test_a_host_that_answers_is_not_lost(harness: SandboxesHarness, evacuation: Evacuation) -> None:
    created = await harness.create(**LONG)
    harness.driver.draining = True  # type: ignore[attr-defined]
    evacuation.set_hosts({"first": EmptiedHost("one", lost=True)})
    await harness.settle()
    assert evacuation.find_progress("first") is None
    assert [*harness.host.machines] == [created.id]


def test_durations_are_rounded_down() -> None:
    texts = [format_duration(seconds) for seconds in (0, 1.5, 59, 60, 120, 3600, 7200, 200_000)]
    assert texts == ["0 seconds", "1 second", "59 seconds", "1 minute", "2 minutes", "60 minutes", "2 hours", "2 days"]
