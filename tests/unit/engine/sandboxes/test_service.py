"""The verbs as a client sees them, on a host without faults."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from sandyard.engine.contract import AGENT_PORT, Condition, DeniedAttempt, Limits, NetworkPolicy, Room
from sandyard.engine.sandboxes import capacity
from sandyard.engine.sandboxes.errors import PortClosedError, SandboxUnreachableError
from sandyard.engine.sandboxes.model import (
    CreateSandbox,
    Defaults,
    LogQuery,
    Network,
    OnTimeout,
    PauseKind,
    SandboxQuery,
    SnapshotQuery,
    State,
    Template,
    TemplateStatus,
)
from sandyard.kit.errors import (
    ConflictError,
    FullError,
    InvalidInputError,
    NotFoundError,
    SandyardError,
    UnreachableError,
    UnsupportedError,
)
from tests.unit.engine.sandboxes.harness import SandboxesHarness, expected_settings


async def test_created_sandbox_is_running_and_recorded(harness: SandboxesHarness) -> None:
    sandbox = await harness.create(metadata={"a": "b"}, timeout_s=60)
    assert sandbox.state is State.RUNNING
    assert sandbox.id.isalnum() and sandbox.id.islower() and sandbox.id.startswith("i")
    assert sandbox.template_id == "base0000000000000000" and sandbox.alias == "base" and sandbox.name == "base"
    assert sandbox.ends_at == harness.clock.now() + 60
    assert sandbox.access_token and sandbox.traffic_token is None
    assert harness.service.get(sandbox.id) == sandbox
    assert [entry.message for entry in harness.service.list_logs(sandbox.id)] == ["The sandbox was created"]
    harness.check()


async def test_the_agent_receives_its_identity_and_variables(harness: SandboxesHarness) -> None:
    plain = await harness.create()
    assert harness.host.machines[plain.id].init == expected_settings(plain)
    other = await harness.create(env={"A": "1"})
    assert harness.host.machines[other.id].init == expected_settings(other, {"A": "1"})


async def test_template_settings_reach_the_agent_and_the_driver(harness: SandboxesHarness) -> None:
    template = Template(
        "special00", ("tpl:s",), ("special",), {"T": "1", "A": "0"}, Defaults("root", "/srv"), memory_mb=64, cpu_count=1
    )
    harness.templates.templates.append(template)
    sandbox = await harness.create(template="special", env={"A": "1"})
    machine = harness.host.machines[sandbox.id]
    assert machine.init == expected_settings(sandbox, {"T": "1", "A": "1"}, "root") | {"defaultWorkdir": "/srv"}
    assert machine.spec.limits == Limits(memory_mb=64, cpu_count=1)
    assert machine.spec.layers == ("tpl:s",)


async def test_an_unknown_template_is_not_found(harness: SandboxesHarness) -> None:
    with pytest.raises(NotFoundError, match="template 'nope' not found"):
        await harness.create(template="nope")
    harness.check()


@pytest.mark.parametrize("timeout_s", [-1, float("nan"), 25 * 3600])
async def test_invalid_timeouts_are_rejected(harness: SandboxesHarness, timeout_s: float) -> None:
    with pytest.raises(InvalidInputError):
        await harness.create(timeout_s=timeout_s)
    assert harness.host.machines == {}


async def test_filesystem_auto_pause_excludes_auto_resume(harness: SandboxesHarness) -> None:
    with pytest.raises(InvalidInputError):
        await harness.create(on_timeout=OnTimeout.PAUSE, auto_pause_memory=False, auto_resume=True)


async def test_kill_removes_the_sandbox_and_a_second_kill_fails(harness: SandboxesHarness) -> None:
    sandbox = await harness.create()
    await harness.service.kill(sandbox.id)
    assert harness.service.find(sandbox.id) is None
    with pytest.raises(NotFoundError):
        await harness.service.kill(sandbox.id)
    assert harness.interrupted == [(sandbox.id, "killed")]
    assert harness.service.list_logs(sandbox.id)[-1].message == "The sandbox was killed on request"
    harness.check()


async def test_pause_and_resume_keep_memory_and_tokens(harness: SandboxesHarness) -> None:
    sandbox = await harness.create()
    memory = harness.host.machines[sandbox.id].memory
    paused = await harness.service.pause(sandbox.id)
    assert (paused.state, paused.pause_kind, paused.paused_at) == (State.PAUSED, PauseKind.MEMORY, harness.clock.now())
    assert harness.interrupted == [(sandbox.id, "paused")]
    with pytest.raises(ConflictError, match="already paused"):
        await harness.service.pause(sandbox.id)
    await harness.clock.advance(10_000)  # paused time does not count
    resumed, was_resumed = await harness.service.connect(sandbox.id, 60)
    assert was_resumed and resumed.running and resumed.ends_at == harness.clock.now() + 60
    assert resumed.access_token == sandbox.access_token
    assert harness.host.machines[sandbox.id].memory == memory
    harness.check()


async def test_resume_after_a_filesystem_pause_boots_with_the_same_settings(harness: SandboxesHarness) -> None:
    sandbox = await harness.create(env={"A": "1"})
    memory = harness.host.machines[sandbox.id].memory
    paused = await harness.service.pause(sandbox.id, memory=False)
    assert paused.pause_kind is PauseKind.FILESYSTEM
    harness.check()
    resumed = await harness.service.resume(sandbox.id, 60)
    machine = harness.host.machines[sandbox.id]
    assert machine.memory != memory and machine.init == expected_settings(sandbox, {"A": "1"})
    assert resumed.memory_lost is None and resumed.handle.data == {"boot": machine.memory}
    harness.check()


async def test_cold_resume_after_a_memory_pause_boots_the_sandbox(harness: SandboxesHarness) -> None:
    sandbox = await harness.create()
    memory = harness.host.machines[sandbox.id].memory
    await harness.service.pause(sandbox.id)
    resumed, was_resumed = await harness.service.connect(sandbox.id, 60, memory=False)
    assert was_resumed and resumed.running and harness.host.machines[sandbox.id].memory != memory
    harness.check()


async def test_resume_of_a_running_sandbox_is_a_conflict(harness: SandboxesHarness) -> None:
    sandbox = await harness.create()
    with pytest.raises(ConflictError, match="already running"):
        await harness.service.resume(sandbox.id, 60)


async def test_resume_can_change_what_happens_at_the_timeout(harness: SandboxesHarness) -> None:
    sandbox = await harness.create()
    await harness.service.pause(sandbox.id)
    assert (await harness.service.resume(sandbox.id, 60, auto_pause=True)).on_timeout is OnTimeout.PAUSE


async def test_connect_extends_and_never_shortens(harness: SandboxesHarness) -> None:
    sandbox = await harness.create(timeout_s=100)
    same, resumed = await harness.service.connect(sandbox.id, 10)
    assert not resumed and same.ends_at == sandbox.ends_at
    longer, _ = await harness.service.connect(sandbox.id, 200)
    assert longer.ends_at == harness.clock.now() + 200
    assert (await harness.service.refresh(sandbox.id, 5)).ends_at == longer.ends_at
    assert (await harness.service.set_timeout(sandbox.id, 5)).ends_at == harness.clock.now() + 5
    harness.check()


async def test_timeout_kills_by_default(harness: SandboxesHarness) -> None:
    sandbox = await harness.create(timeout_s=30)
    await harness.clock.advance(29)
    assert harness.service.find(sandbox.id) is not None
    await harness.clock.advance(2)
    await harness.settle()
    assert harness.service.find(sandbox.id) is None
    assert "timeout" in harness.service.list_logs(sandbox.id)[-1].message
    harness.check()


async def test_timeout_pauses_when_requested(harness: SandboxesHarness) -> None:
    sandbox = await harness.create(timeout_s=30, on_timeout=OnTimeout.PAUSE)
    other = await harness.create(timeout_s=30, on_timeout=OnTimeout.PAUSE, auto_pause_memory=False)
    await harness.clock.advance(31)
    await harness.settle()
    assert harness.service.get(sandbox.id).pause_kind is PauseKind.MEMORY
    assert harness.service.get(other.id).pause_kind is PauseKind.FILESYSTEM
    harness.check()


async def test_timeout_zero_expires_at_once(harness: SandboxesHarness) -> None:
    killed = await harness.create()
    paused = await harness.create(on_timeout=OnTimeout.PAUSE)
    await harness.service.set_timeout(killed.id, 0)
    assert harness.service.find(killed.id) is None
    assert not (await harness.service.set_timeout(paused.id, 0)).running
    with pytest.raises(NotFoundError):
        await harness.service.set_timeout(paused.id, 10)
    harness.check()


async def test_a_failed_auto_pause_is_retried(harness: SandboxesHarness) -> None:
    sandbox = await harness.create(timeout_s=30, on_timeout=OnTimeout.PAUSE)
    harness.driver.fail("freeze", SandyardError("no"))
    await harness.clock.advance(31)
    await harness.settle()
    assert harness.service.get(sandbox.id).running
    harness.driver.clear_faults()
    await harness.clock.advance(6)
    await harness.settle()
    assert not harness.service.get(sandbox.id).running
    harness.check()


@pytest.mark.parametrize("memory", [True, False])
async def test_a_failing_auto_pause_is_retried_at_intervals(harness: SandboxesHarness, memory: bool) -> None:
    sandbox = await harness.create(timeout_s=30, on_timeout=OnTimeout.PAUSE, auto_pause_memory=memory)
    verb = "freeze" if memory else "stop"
    harness.driver.fail(verb, SandyardError("no"))
    await harness.clock.advance(31)
    for _ in range(20):
        await harness.settle()
    assert [name for name, _ in harness.driver.calls].count(verb) == 1
    await harness.clock.advance(60)
    assert 5 <= [name for name, _ in harness.driver.calls].count(verb) <= 13
    harness.driver.clear_faults()
    await harness.clock.advance(6)
    await harness.settle()
    assert not harness.service.get(sandbox.id).running
    harness.check()


async def test_list_pages_are_stable_while_sandboxes_change(harness: SandboxesHarness) -> None:
    created_sandboxes = [await harness.create(metadata={"n": str(number)}) for number in range(7)]
    listed_ids = []
    page = harness.service.list(SandboxQuery(limit=3))
    listed_ids += [item.id for item in page.items]
    await harness.service.pause(created_sandboxes[0].id)
    await harness.service.connect(created_sandboxes[0].id, 60)
    await harness.service.kill(created_sandboxes[2].id)
    newest = await harness.create()
    while page.next_cursor:
        page = harness.service.list(SandboxQuery(limit=3, cursor=page.next_cursor))
        listed_ids += [item.id for item in page.items]
    expected = [
        created_sandbox.id
        for created_sandbox in reversed(created_sandboxes)
        if created_sandbox.id != created_sandboxes[2].id
    ]
    assert listed_ids == expected and newest.id not in listed_ids


async def test_sandboxes_are_listed_by_filter(harness: SandboxesHarness) -> None:
    first = await harness.create(metadata={"k": "1", "x": "y"})
    await harness.clock.advance(10)
    middle = harness.clock.now() - 5
    second = await harness.create(metadata={"k": "2"})
    await harness.service.pause(second.id)

    def list_ids(**filters: object) -> list[str]:
        return [item.id for item in harness.service.list(SandboxQuery(**filters)).items]

    assert list_ids() == [second.id, first.id]
    assert list_ids(oldest_first=True) == [first.id, second.id]
    assert list_ids(metadata={"k": "1"}) == [first.id]
    assert list_ids(metadata={"k": "1", "x": "z"}) == []
    assert list_ids(states=frozenset({State.PAUSED})) == [second.id]
    assert list_ids(started_after=middle) == [second.id]
    assert list_ids(started_before=middle) == [first.id]
    assert list_ids(template="base") == list_ids(template="base0000000000000000") == [second.id, first.id]
    assert list_ids(template="other") == []
    with pytest.raises(InvalidInputError):
        list_ids(cursor="§§")


async def test_sandboxes_are_counted_by_filter(harness: SandboxesHarness) -> None:
    for number in range(3):
        sandbox = await harness.create(metadata={"odd": str(number % 2)})
    await harness.service.pause(sandbox.id)
    running = frozenset({State.RUNNING})
    assert harness.service.count() == 3
    assert harness.service.count(SandboxQuery(states=running, limit=1)) == 2
    assert harness.service.count(SandboxQuery(states=running, metadata={"odd": "1"})) == 1
    assert harness.service.count(SandboxQuery(template="other")) == 0


@pytest.mark.parametrize("cursor", ["", "abc", "c2VxOi0x", "c2VxOng", "c2VxOjk5OTk5OTk5OTk5OTk5OTk5OTk5"])
async def test_invalid_cursors_are_rejected(harness: SandboxesHarness, cursor: str) -> None:
    with pytest.raises(InvalidInputError):
        harness.service.list(SandboxQuery(cursor=cursor))


async def test_fork_copies_the_sandbox_and_the_parent_keeps_running(harness: SandboxesHarness) -> None:
    parent = await harness.create(metadata={"a": "b"}, env={"E": "1"})
    harness.host.machines[parent.id].files = frozenset({"/x"})
    (outcome,) = await harness.service.fork(parent.id, 1, 60)
    child = outcome.sandbox
    assert child is not None and child.id != parent.id and child.metadata == {"a": "b"}
    assert child.access_token != parent.access_token and child.ends_at == harness.clock.now() + 60
    assert harness.host.machines[child.id].files == frozenset({"/x"})
    assert harness.host.machines[child.id].init == expected_settings(child, {"E": "1"})
    harness.check()


async def test_many_forks_share_one_snapshot_that_is_removed_after_them(harness: SandboxesHarness) -> None:
    parent = await harness.create()
    harness.host.machines[parent.id].files = frozenset({"/x"})
    outcomes = await harness.service.fork(parent.id, 5, 60)
    children = [outcome.sandbox for outcome in outcomes if outcome.sandbox]
    assert len({child.id for child in children}) == 5
    assert [verb for verb, _ in harness.driver.calls].count("snapshot") == 1
    assert all(harness.host.machines[child.id].files == frozenset({"/x"}) for child in children)
    assert len(harness.host.snapshots) == 1 and harness.service.list_snapshots().items == ()
    for child in children:
        assert len(harness.host.snapshots) == 1
        await harness.service.kill(child.id)
    await harness.settle()
    assert harness.host.snapshots == {}
    harness.check()


async def test_fork_reports_each_failure_separately(harness: SandboxesHarness) -> None:
    parent = await harness.create()
    harness.host.capacity = 3
    outcomes = await harness.service.fork(parent.id, 4, 60)
    assert sum(outcome.sandbox is not None for outcome in outcomes) == 2
    assert all(isinstance(outcome.error, FullError) for outcome in outcomes if outcome.sandbox is None)
    harness.check()


async def test_invalid_forks_are_rejected(harness: SandboxesHarness) -> None:
    sandbox = await harness.create()
    for count in (0, -1, 101):
        with pytest.raises(InvalidInputError):
            await harness.service.fork(sandbox.id, count)
    await harness.service.pause(sandbox.id)
    with pytest.raises(ConflictError, match="resume it first"):
        await harness.service.fork(sandbox.id)
    with pytest.raises(NotFoundError):
        await harness.service.fork("inosuch")


async def test_a_snapshot_can_be_used_as_a_template(harness: SandboxesHarness) -> None:
    sandbox = await harness.create(env={"E": "1"})
    harness.host.machines[sandbox.id].files = frozenset({"/x"})
    snapshot = await harness.service.snapshot(sandbox.id)
    assert snapshot.ref == f"{snapshot.id}:default" and snapshot.names == ()
    copy = await harness.create(template=snapshot.ref)
    assert harness.host.machines[copy.id].files == frozenset({"/x"}) and copy.template_id == snapshot.id
    assert harness.host.machines[copy.id].init == expected_settings(copy, {"E": "1"})
    harness.check()


async def test_deleted_snapshot_stays_on_disk_while_needed(harness: SandboxesHarness) -> None:
    sandbox = await harness.create()
    snapshot = await harness.service.snapshot(sandbox.id)
    child = await harness.create(template=snapshot.id)
    grandchild_snapshot = await harness.service.snapshot(child.id)
    await harness.service.delete_snapshot(snapshot.ref)
    with pytest.raises(NotFoundError):
        await harness.service.delete_snapshot(snapshot.ref)
    with pytest.raises(NotFoundError):
        await harness.create(template=snapshot.id)
    await harness.service.kill(child.id)
    await harness.settle()
    assert set(harness.host.snapshots) == {snapshot.id, grandchild_snapshot.id}
    await harness.service.delete_snapshot(grandchild_snapshot.id)
    await harness.settle()
    assert harness.host.snapshots == {}
    assert harness.database.query("SELECT count(*) FROM snapshots") == [(0,)]


async def test_creating_from_a_template_that_is_not_ready_requests_its_build(harness: SandboxesHarness) -> None:
    unbuilt = Template("desk", (), ("desktop",), status=TemplateStatus.WAITING, can_be_overridden=True)
    harness.templates.templates.append(unbuilt)
    build_requests: list[str] = []

    def make_ready(template: Template) -> str:
        build_requests.append(template.id)
        return "is being built."

    harness.service.make_ready = make_ready
    assert harness.service.find_template("desktop") is unbuilt
    assert build_requests == [], "a lookup must not request a build"
    with pytest.raises(NotFoundError, match=r"^template 'desktop' is being built\.$"):
        await harness.create(template="desktop")
    assert build_requests == ["desk"]
    assert not harness.service.has_snapshot("desktop")
    sandbox = await harness.create()
    own = await harness.service.snapshot(sandbox.id, "desktop")  # possible before this template existed
    assert harness.service.has_snapshot("desktop")
    assert (await harness.create(template="desktop")).template_id == own.id
    harness.templates.templates[-1] = replace(unbuilt, status=TemplateStatus.READY)
    assert harness.service.resolve_template("desktop").id == own.id


async def test_the_pool_skips_a_template_that_is_not_ready(tmp_path: Path) -> None:
    harness = SandboxesHarness(tmp_path, pool_size=2, default_template="desktop")
    harness.templates.templates.append(Template("desk", (), ("desktop",), status=TemplateStatus.WAITING))
    await harness.start()
    await harness.settle()
    assert harness.host.machines == {}
    await harness.stop()


async def test_snapshots_are_resolved_by_name_and_tag(harness: SandboxesHarness) -> None:
    sandbox = await harness.create()
    first = await harness.service.snapshot(sandbox.id, "Mine")
    assert first.ref == "mine:default" and first.names == ("mine:default",)
    tagged = await harness.service.snapshot(sandbox.id, "mine:v2")
    assert harness.service.resolve_template("mine").id == first.id
    assert harness.service.resolve_template("mine:v2").id == tagged.id
    second = await harness.service.snapshot(sandbox.id, "mine")
    assert harness.service.resolve_template("mine").id == second.id
    listed = [snapshot.id for snapshot in harness.service.list_snapshots(SnapshotQuery(name="mine")).items]
    assert listed == [second.id, tagged.id]
    assert harness.service.list_snapshots(SnapshotQuery(name="other")).items == ()
    await harness.settle()
    assert set(harness.host.snapshots) == {second.id, tagged.id}  # the superseded one is gone
    await harness.service.delete_snapshot("mine")
    await harness.settle()
    assert harness.host.snapshots == {}
    for bad in ("", "a b", "ä", "x:", ":x", "../x", "a/b/c"):
        with pytest.raises(InvalidInputError):
            await harness.service.snapshot(sandbox.id, bad)
    with pytest.raises(ConflictError):
        await harness.service.snapshot(sandbox.id, "base")


async def test_snapshots_are_listed_in_pages(harness: SandboxesHarness) -> None:
    sandbox = await harness.create()
    created_ids = [(await harness.service.snapshot(sandbox.id)).id for _ in range(5)]
    page = harness.service.list_snapshots(SnapshotQuery(limit=2))
    listed_ids = [item.id for item in page.items]
    while page.next_cursor:
        page = harness.service.list_snapshots(SnapshotQuery(limit=2, cursor=page.next_cursor))
        listed_ids += [item.id for item in page.items]
    assert listed_ids == created_ids[::-1]
    assert harness.service.list_snapshots(SnapshotQuery(sandbox_id="other")).items == ()


async def test_network_is_replaced_while_running(harness: SandboxesHarness) -> None:
    sandbox = await harness.create()
    network = Network(NetworkPolicy(False, ("1.1.1.1",)), {"allowOut": ["1.1.1.1"]}, False)
    changed = await harness.service.set_network(sandbox.id, network)
    assert changed.network == network and harness.service.get(sandbox.id).network.config == {"allowOut": ["1.1.1.1"]}
    harness.check()
    await harness.service.pause(sandbox.id)
    with pytest.raises(ConflictError):
        await harness.service.set_network(sandbox.id, Network())


async def test_denied_connections_are_logged_once_each(harness: SandboxesHarness) -> None:
    sandbox = await harness.create()
    harness.driver.denied = [DeniedAttempt("evil.test", "dns"), DeniedAttempt("192.0.2.9", "tcp", 443)] * 2
    await harness.service.log_denied(sandbox.id)
    harness.driver.denied = [
        DeniedAttempt("evil.test", "dns"),
        *(DeniedAttempt(f"{number}.test", "dns") for number in range(1000)),
    ]
    await harness.service.log_denied(sandbox.id)
    denied_entries = [
        entry for entry in harness.service.list_logs(sandbox.id) if entry.fields.get("event") == "egress_denied"
    ]
    assert [entry.fields["host"] for entry in denied_entries[:3]] == ["evil.test", "192.0.2.9", "0.test"]
    assert denied_entries[1].fields["port"] == "443"
    assert len(denied_entries) == 300, "the number is limited so that other log entries are kept"
    assert "created" in harness.service.list_logs(sandbox.id)[0].message.lower()


async def test_a_failed_network_change_keeps_the_old_network(harness: SandboxesHarness) -> None:
    sandbox = await harness.create()
    harness.driver.fail("set_network", InvalidInputError("bad rule"))
    with pytest.raises(InvalidInputError):
        await harness.service.set_network(sandbox.id, Network(NetworkPolicy(False)))
    harness.driver.clear_faults()
    await harness.settle()
    assert harness.service.get(sandbox.id).network == Network()
    harness.check()


async def test_dial_connects_only_to_open_ports_of_running_sandboxes(harness: SandboxesHarness) -> None:
    sandbox = await harness.create()
    connection = await harness.service.dial(sandbox.id, AGENT_PORT)
    assert connection.getblocking() is False
    connection.close()
    with pytest.raises(PortClosedError, match="port is not open"):
        await harness.service.dial(sandbox.id, 8080)
    await harness.service.pause(sandbox.id)
    with pytest.raises(SandboxUnreachableError, match="was not found"):
        await harness.service.dial(sandbox.id, AGENT_PORT)
    with pytest.raises(SandboxUnreachableError, match="was not found"):
        await harness.service.dial("inosuch", AGENT_PORT)


async def test_concurrent_dials_resume_the_sandbox_once(harness: SandboxesHarness) -> None:
    sandbox = await harness.create(timeout_s=5, on_timeout=OnTimeout.PAUSE, auto_resume=True)
    await harness.service.pause(sandbox.id)
    connections = await asyncio.gather(*(harness.service.dial(sandbox.id, AGENT_PORT) for _ in range(20)))
    for connection in connections:
        connection.close()
    assert [verb for verb, _ in harness.driver.calls].count("thaw") == 1
    assert harness.service.get(sandbox.id).ends_at == harness.clock.now() + 60
    harness.check()


async def test_traffic_does_not_boot_a_sandbox_paused_without_memory(harness: SandboxesHarness) -> None:
    sandbox = await harness.create(on_timeout=OnTimeout.PAUSE, auto_resume=True)
    await harness.service.pause(sandbox.id, memory=False)
    with pytest.raises(SandboxUnreachableError):
        await harness.service.dial(sandbox.id, AGENT_PORT)
    assert not harness.service.get(sandbox.id).running


async def test_dial_waits_for_a_pause_in_progress(harness: SandboxesHarness) -> None:
    sandbox = await harness.create(on_timeout=OnTimeout.PAUSE, auto_resume=True)
    reached = harness.driver.hold("freeze", "after")
    pausing = asyncio.create_task(harness.service.pause(sandbox.id))
    await reached.wait()
    dialling = asyncio.create_task(harness.service.dial(sandbox.id, AGENT_PORT))
    await harness.settle()
    assert not dialling.done()
    harness.driver.release("freeze", "after")
    await pausing
    (await dialling).close()
    assert harness.service.get(sandbox.id).running
    harness.check()


async def test_creating_or_resuming_beyond_the_limit_fails(harness: SandboxesHarness, tmp_path) -> None:
    full = SandboxesHarness(tmp_path / "full", max_sandboxes=2)
    full.path.mkdir()
    await full.start()
    first, second = await full.create(), await full.create()
    with pytest.raises(FullError, match="2 of 2 sandboxes"):
        await full.create()
    await full.service.pause(first.id)  # a paused sandbox does not count
    await full.create()
    with pytest.raises(FullError):
        await full.service.connect(first.id, 60)
    assert not full.service.get(first.id).running
    await full.service.kill(second.id)
    await full.service.connect(first.id, 60)
    full.check()
    await full.stop()


async def test_the_missing_reserve_is_named_in_the_error(harness: SandboxesHarness, tmp_path) -> None:
    huge = 1 << 30
    for settings, word in (({"memory_reserve_mb": huge}, "memory"), ({"disk_reserve_mb": huge}, "disk")):
        full = SandboxesHarness(tmp_path / word, **settings)
        full.available_memory = 1 << 30
        full.path.mkdir()
        await full.start()
        with pytest.raises(FullError, match=word):
            await full.create()
        await full.stop()


async def test_a_driver_without_room_accepts_neither_sandboxes_nor_snapshots(
    harness: SandboxesHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandyard.engine.sandboxes.capacity.CACHE_SECONDS", -1)
    sandbox = await harness.create()
    harness.host.full = "The store is full."
    with pytest.raises(FullError, match="The store is full"):
        await harness.create()
    with pytest.raises(FullError, match="The store is full"):
        await harness.service.snapshot(sandbox.id)
    assert harness.service.find_shortage() == "The store is full."
    harness.host.full = None
    await harness.create()


async def test_concurrent_creates_do_not_exceed_the_limit(tmp_path) -> None:
    full = SandboxesHarness(tmp_path, max_sandboxes=5)
    await full.start()
    outcomes = await asyncio.gather(*(full.create() for _ in range(20)), return_exceptions=True)
    assert sum(isinstance(outcome, FullError) for outcome in outcomes) == 15
    full.check()
    await full.stop()


@pytest.mark.parametrize("memory", [True, False])
async def test_concurrent_resumes_and_creates_do_not_exceed_the_limit(tmp_path, *, memory: bool) -> None:
    full = SandboxesHarness(tmp_path, max_sandboxes=3)
    await full.start()
    paused = []
    for _ in range(8):
        paused.append(await full.create())
        await full.service.pause(paused[-1].id, memory=memory)
    outcomes = await asyncio.gather(
        *(full.service.connect(sandbox.id, 60) for sandbox in paused[:4]),
        *(full.service.resume(sandbox.id, 60) for sandbox in paused[4:]),
        *(full.create() for _ in range(4)),
        return_exceptions=True,
    )
    assert sum(isinstance(outcome, FullError) for outcome in outcomes) == 9
    assert full.service.count(SandboxQuery(states=frozenset({State.RUNNING}))) == 3
    full.check()
    await full.stop()


async def test_without_a_freezer_only_filesystem_pauses_work(tmp_path) -> None:
    harness = SandboxesHarness(tmp_path, freeze=False)
    await harness.start()
    sandbox = await harness.create(on_timeout=OnTimeout.PAUSE, timeout_s=10)
    with pytest.raises(UnsupportedError, match="no freezer"):
        await harness.service.pause(sandbox.id)
    await harness.clock.advance(11)
    await harness.settle()
    paused = harness.service.get(sandbox.id)
    assert paused.pause_kind is PauseKind.FILESYSTEM and paused.memory_lost
    harness.check()
    await harness.stop()


async def test_memory_of_a_long_pause_is_moved_to_disk_and_restored(tmp_path) -> None:
    harness = SandboxesHarness(tmp_path, suspend=True, suspend_after_s=100)
    await harness.start()
    sandbox = await harness.create()
    memory = harness.host.machines[sandbox.id].memory
    await harness.service.pause(sandbox.id)
    await harness.clock.advance(101)
    await harness.settle()
    assert harness.service.get(sandbox.id).pause_kind is PauseKind.DISK
    harness.check()
    await harness.service.connect(sandbox.id, 60)
    assert harness.host.machines[sandbox.id].memory == memory
    harness.check()
    await harness.stop()


async def test_memory_is_moved_to_disk_only_beside_the_reserve(tmp_path: Path) -> None:
    harness = SandboxesHarness(tmp_path, suspend=True, suspend_after_s=100, disk_reserve_mb=100)
    await harness.start()
    sandboxes = [await harness.create() for _ in range(2)]
    for sandbox in sandboxes:
        await harness.service.pause(sandbox.id)
    stats = await harness.driver.get_stats(sandboxes[0].handle)
    needed = stats.memory_used + stats.memory_cache

    async def retry(free: int) -> list[PauseKind | None]:
        harness.host.free_disk = free
        await harness.clock.advance(101)
        await harness.settle()
        return sorted(harness.service.get(sandbox.id).pause_kind for sandbox in sandboxes)

    assert await retry((100 << 20) + needed - 1) == [PauseKind.MEMORY, PauseKind.MEMORY]
    harness.check()
    harness.driver.hold("suspend")
    await retry((100 << 20) + 2 * needed - 1)
    harness.driver.release("suspend")
    await harness.settle()
    kinds = sorted(harness.service.get(sandbox.id).pause_kind for sandbox in sandboxes)
    assert kinds == [PauseKind.DISK, PauseKind.MEMORY], "both would have been written at the same time"
    harness.check()
    assert await retry((100 << 20) + needed) == [PauseKind.DISK, PauseKind.DISK]
    harness.check()
    await harness.stop()


async def test_a_sandbox_that_ends_unexpectedly_is_booted_from_its_files(harness: SandboxesHarness) -> None:
    sandbox = await harness.create(env={"A": "1"})
    machine = harness.host.machines[sandbox.id]
    machine.files, memory = frozenset({"work"}), machine.memory
    harness.host.end(sandbox.id, "out of memory")
    await harness.settle()
    now = harness.service.get(sandbox.id)
    assert now.running and now.ends_at == sandbox.ends_at and "out of memory" in (now.memory_lost or "")
    assert (
        machine.files == {"work"}
        and machine.memory != memory
        and machine.init == expected_settings(sandbox, {"A": "1"})
    )
    assert "out of memory" in harness.service.list_logs(sandbox.id)[-1].message
    assert (sandbox.id, "died") in harness.interrupted
    harness.check()
    harness.host.end(sandbox.id, "again")
    assert (await harness.service.connect(sandbox.id, 60))[0].running
    await harness.settle()
    assert "again" in (harness.service.get(sandbox.id).memory_lost or "")
    harness.check()


async def test_a_sandbox_that_ends_repeatedly_is_paused(harness: SandboxesHarness) -> None:
    sandbox = await harness.create(timeout_s=3600)
    for _ in range(4):
        assert harness.service.get(sandbox.id).running
        harness.host.end(sandbox.id, "it was shut down")
        await harness.settle()
    paused = harness.service.get(sandbox.id)
    assert paused.pause_kind is PauseKind.FILESYSTEM and "shut down" in (paused.memory_lost or "")
    harness.check()
    await harness.clock.advance(601)
    await harness.service.connect(sandbox.id, 3600)
    harness.host.end(sandbox.id, "it was shut down")
    await harness.settle()
    assert harness.service.get(sandbox.id).running
    harness.check()


async def test_a_sandbox_that_ends_and_cannot_boot_is_paused(harness: SandboxesHarness) -> None:
    sandbox = await harness.create()
    harness.driver.fail("boot", FullError("no memory is left"))
    harness.host.end(sandbox.id, "out of memory")
    await harness.settle()
    assert harness.service.get(sandbox.id).pause_kind is PauseKind.FILESYSTEM
    harness.driver.clear_faults()
    await harness.service.connect(sandbox.id, 60)
    harness.check()


async def test_traffic_waits_for_the_boot_after_an_unexpected_end(harness: SandboxesHarness) -> None:
    sandbox = await harness.create()
    reached = harness.driver.hold("boot")
    harness.host.end(sandbox.id, "out of memory")
    await reached.wait()
    dialled = asyncio.ensure_future(harness.service.dial(sandbox.id, 49983))
    await harness.settle()
    assert not dialled.done()
    harness.driver.release("boot")
    (await dialled).close()
    harness.check()


async def test_a_paused_sandbox_whose_processes_end_keeps_its_files(harness: SandboxesHarness) -> None:
    sandbox = await harness.create()
    await harness.service.pause(sandbox.id)
    harness.host.end(sandbox.id, "out of memory")
    await harness.settle()
    paused = harness.service.get(sandbox.id)
    assert paused.pause_kind is PauseKind.FILESYSTEM and paused.memory_lost == "out of memory"
    harness.check()
    await harness.service.connect(sandbox.id, 60)
    harness.check()


async def test_metrics_are_available_immediately(harness: SandboxesHarness) -> None:
    sandbox = await harness.create()
    (metric,) = await harness.service.list_metrics(sandbox.id)
    assert metric.timestamp == harness.clock.now() and metric.mem_used == 10 << 20 and metric.disk_total == 10 << 30
    assert (await harness.service.get_latest_metrics([sandbox.id, "inosuch"]))[sandbox.id] == metric
    assert await harness.service.list_metrics(sandbox.id, start=harness.clock.now() + 1) == []
    with pytest.raises(NotFoundError):
        await harness.service.list_metrics("inosuch")


async def test_logs_of_an_unknown_sandbox_are_not_found(harness: SandboxesHarness) -> None:
    with pytest.raises(NotFoundError):
        harness.service.list_logs("inosuch", LogQuery())


async def test_an_idempotency_key_returns_the_same_sandbox(harness: SandboxesHarness) -> None:
    request = CreateSandbox(metadata={"a": "b"}, idempotency_key="k-1", owner="me")
    first, second = await asyncio.gather(harness.service.create(request), harness.service.create(request))
    assert first == second == await harness.service.create(request)
    with pytest.raises(ConflictError, match="a different request"):
        await harness.service.create(CreateSandbox(metadata={"a": "c"}, idempotency_key="k-1", owner="me"))
    other = await harness.service.create(CreateSandbox(metadata={"a": "b"}, idempotency_key="k-1", owner="you"))
    assert other.id != first.id
    await harness.restart()
    assert (await harness.service.create(request)).id == first.id
    await harness.service.kill(first.id)
    with pytest.raises(ConflictError, match="has ended"):
        await harness.service.create(request)
    harness.check()


async def test_a_failed_create_frees_its_idempotency_key(harness: SandboxesHarness) -> None:
    harness.driver.fail("create", FullError("no slot"))
    request = CreateSandbox(idempotency_key="k-1")
    with pytest.raises(FullError):
        await harness.service.create(request)
    harness.driver.clear_faults()
    assert (await harness.service.create(request)).running
    harness.check()


async def test_a_created_sandbox_is_running_on_the_host(harness: SandboxesHarness) -> None:
    sandbox = await harness.create()
    assert harness.host.machines[sandbox.id].condition is Condition.RUNNING


@pytest.fixture
async def gvisor_harness(tmp_path: Path) -> AsyncIterator[SandboxesHarness]:
    harness = SandboxesHarness(tmp_path, gvisor=True)
    await harness.start()
    yield harness
    await harness.stop()


async def test_a_fork_continues_the_processes_where_that_is_possible(gvisor_harness: SandboxesHarness) -> None:
    harness = gvisor_harness
    parent = await harness.create(metadata={"sandyard.isolation": "gvisor"}, env={"E": "1"})
    outcomes = await harness.service.fork(parent.id, 2, 60)
    children = [outcome.sandbox for outcome in outcomes if outcome.sandbox]
    assert len(children) == 2 and harness.host.snapshots == {}
    for child in children:
        machine = harness.host.machines[child.id]
        assert machine.memory == harness.host.machines[parent.id].memory
        assert machine.init == expected_settings(child, {"E": "1"}) and child.access_token != parent.access_token
    (plain,) = await harness.service.fork(parent.id, 1, 60, memory=False)
    assert plain.sandbox is not None
    assert harness.host.machines[plain.sandbox.id].memory != harness.host.machines[parent.id].memory
    harness.check()


async def test_a_fork_without_memory_is_made_only_if_nobody_requires_memory(gvisor_harness: SandboxesHarness) -> None:
    harness = gvisor_harness
    parent = await harness.create(metadata={"sandyard.isolation": "gvisor"})
    harness.driver.fail("fork_with_memory", UnsupportedError("a process cannot be saved"))
    (outcome,) = await harness.service.fork(parent.id)
    assert outcome.sandbox is not None
    assert harness.host.machines[outcome.sandbox.id].memory != harness.host.machines[parent.id].memory
    with pytest.raises(UnsupportedError, match="a process cannot be saved"):
        await harness.service.fork(parent.id, memory=True)
    harness.driver.clear_faults()
    weak = await harness.create()
    with pytest.raises(UnsupportedError):
        await harness.service.fork(weak.id, memory=True)
    harness.check()


async def test_forks_with_memory_report_each_failure_separately(gvisor_harness: SandboxesHarness) -> None:
    harness = gvisor_harness
    parent = await harness.create(metadata={"sandyard.isolation": "gvisor"})
    harness.host.capacity = 3
    outcomes = await harness.service.fork(parent.id, 4, 60)
    assert sum(outcome.sandbox is not None for outcome in outcomes) == 2
    assert all(isinstance(outcome.error, FullError) for outcome in outcomes if outcome.sandbox is None)
    harness.check()


async def test_a_fork_whose_agent_was_replaced_is_unreachable_and_no_fault_of_the_driver(
    gvisor_harness: SandboxesHarness, caplog: pytest.LogCaptureFixture
) -> None:
    harness = gvisor_harness
    parent = await harness.create(metadata={"sandyard.isolation": "gvisor"})
    harness.host.machines[parent.id].silent = True
    harness.driver.block("init")  # only its deadline: the double has no such verb
    with caplog.at_level(logging.INFO, logger="sandyard"):
        (outcome,) = await harness.service.fork(parent.id, 1, 60)
    logged = {record.message: record.levelno for record in caplog.records}
    assert "driver_stuck" not in logged and logged["agent_not_responding"] == logging.WARNING
    assert isinstance(outcome.error, UnreachableError)
    assert "The agent of sandbox" in outcome.error.message and "driver" not in outcome.error.message
    assert set(harness.host.machines) == {parent.id}
    harness.check()


async def test_forks_with_memory_do_not_take_the_memory_that_is_reserved(
    gvisor_harness: SandboxesHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = gvisor_harness
    monkeypatch.setattr(capacity, "CACHE_SECONDS", -1.0)
    parent = await harness.create(metadata={"sandyard.isolation": "gvisor"})
    stats = await harness.driver.get_stats(parent.handle)
    harness.available_memory = (stats.memory_used + stats.memory_cache) * 5 // 2
    outcomes = await harness.service.fork(parent.id, 4, 60)
    assert sum(outcome.sandbox is not None for outcome in outcomes) == 2
    assert all("forks with memory" in str(outcome.error) for outcome in outcomes if outcome.sandbox is None)
    harness.check()


async def test_forks_with_memory_do_not_take_the_disk_space_that_is_reserved(gvisor_harness: SandboxesHarness) -> None:
    harness = gvisor_harness
    parent = await harness.create(metadata={"sandyard.isolation": "gvisor"})
    harness.host.free_disk = 1 << 20
    outcomes = await harness.service.fork(parent.id, 2, 60)
    assert all(isinstance(outcome.error, FullError) and "MiB of disk" in outcome.error.message for outcome in outcomes)
    assert "fork_with_memory" not in {call[0] for call in harness.driver.calls}
    harness.check()


@pytest.mark.parametrize("short", ["memory", "disk"])
async def test_memory_is_written_only_if_it_fits_on_the_sandboxs_own_host(
    gvisor_harness: SandboxesHarness, monkeypatch: pytest.MonkeyPatch, short: str
) -> None:
    """Another host may have more room, or claim to."""
    harness = gvisor_harness
    parent = await harness.create(metadata={"sandyard.isolation": "gvisor"})
    own = Room(1 << 20 if short == "memory" else None, 1 << 20 if short == "disk" else None, "its host")
    other = Room(1 << 60, 1 << 60, "another host")
    monkeypatch.setattr(harness.driver, "get_room", lambda handle=None: other if handle is None else own)
    (outcome,) = await harness.service.fork(parent.id, 1, 60)
    assert isinstance(outcome.error, FullError) and f"of {short} are" in outcome.error.message
    assert "fork_with_memory" not in {call[0] for call in harness.driver.calls}
    harness.check()


async def test_a_suspended_sandbox_needs_room_on_its_own_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = SandboxesHarness(tmp_path, suspend=True, suspend_after_s=100, disk_reserve_mb=100)
    await harness.start()
    rooms = {None: Room(None, 1 << 60, "another host")}
    monkeypatch.setattr(harness.driver, "get_room", lambda handle=None: rooms[handle and handle.id])
    sandbox = await harness.create()
    await harness.service.pause(sandbox.id)
    for free, kind in ((100 << 20, PauseKind.MEMORY), (1 << 40, PauseKind.DISK)):
        rooms[sandbox.id] = Room(None, free, "its host")
        await harness.clock.advance(101)
        await harness.settle()
        assert harness.service.get(sandbox.id).pause_kind is kind
    harness.check()
    await harness.stop()


async def test_a_fork_that_does_not_fit_leaves_its_original_alone(
    gvisor_harness: SandboxesHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = gvisor_harness
    monkeypatch.setattr(capacity, "CACHE_SECONDS", -1.0)
    parent = await harness.create(metadata={"sandyard.isolation": "gvisor"})
    harness.available_memory = 1 << 20
    (outcome,) = await harness.service.fork(parent.id, 1, 60)
    assert isinstance(outcome.error, FullError)
    assert "fork_with_memory" not in {call[0] for call in harness.driver.calls}
