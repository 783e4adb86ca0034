"""The verbs as a client sees them, on a host that does what it is told."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from sandyard.engine.contract import AGENT_PORT, Condition, Denied, Limits, NetworkPolicy
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
    UnsupportedError,
)
from tests.unit.engine.sandboxes.yard import Yard, told


async def test_created_sandbox_is_running_and_recorded(yard: Yard) -> None:
    sandbox = await yard.create(metadata={"a": "b"}, timeout_s=60)
    assert sandbox.state is State.RUNNING
    assert sandbox.id.isalnum() and sandbox.id.islower() and sandbox.id.startswith("i")
    assert sandbox.template_id == "base0000000000000000" and sandbox.alias == "base" and sandbox.name == "base"
    assert sandbox.ends_at == yard.clock.now() + 60
    assert sandbox.access_token and sandbox.traffic_token is None
    assert yard.service.get(sandbox.id) == sandbox
    assert [entry.message for entry in yard.service.logs(sandbox.id)] == ["The sandbox was created"]
    yard.check()


async def test_agent_is_told_who_it_is_and_its_variables(yard: Yard) -> None:
    plain = await yard.create()
    assert yard.host.machines[plain.id].init == told(plain)
    other = await yard.create(env={"A": "1"})
    assert yard.host.machines[other.id].init == told(other, {"A": "1"})


async def test_template_settings_reach_the_agent_and_the_driver(yard: Yard) -> None:
    template = Template(
        "special00", ("tpl:s",), ("special",), {"T": "1", "A": "0"}, Defaults("root", "/srv"), memory_mb=64, cpu_count=1
    )
    yard.templates.templates.append(template)
    sandbox = await yard.create(template="special", env={"A": "1"})
    machine = yard.host.machines[sandbox.id]
    assert machine.init == told(sandbox, {"T": "1", "A": "1"}, "root") | {"defaultWorkdir": "/srv"}
    assert machine.spec.limits == Limits(memory_mb=64, cpu_count=1)
    assert machine.spec.layers == ("tpl:s",)


async def test_unknown_template(yard: Yard) -> None:
    with pytest.raises(NotFoundError, match="template 'nope' not found"):
        await yard.create(template="nope")
    yard.check()


@pytest.mark.parametrize("timeout_s", [-1, float("nan"), 25 * 3600])
async def test_bad_timeouts_change_nothing(yard: Yard, timeout_s: float) -> None:
    with pytest.raises(InvalidInputError):
        await yard.create(timeout_s=timeout_s)
    assert yard.host.machines == {}


async def test_filesystem_auto_pause_excludes_auto_resume(yard: Yard) -> None:
    with pytest.raises(InvalidInputError):
        await yard.create(on_timeout=OnTimeout.PAUSE, auto_pause_memory=False, auto_resume=True)


async def test_kill_removes_everything_once(yard: Yard) -> None:
    sandbox = await yard.create()
    await yard.service.kill(sandbox.id)
    assert yard.service.find(sandbox.id) is None
    with pytest.raises(NotFoundError):
        await yard.service.kill(sandbox.id)
    assert yard.interrupted == [(sandbox.id, "killed")]
    assert yard.service.logs(sandbox.id)[-1].message == "The sandbox was killed on request"
    yard.check()


async def test_pause_and_resume_keep_memory_and_tokens(yard: Yard) -> None:
    sandbox = await yard.create()
    memory = yard.host.machines[sandbox.id].memory
    paused = await yard.service.pause(sandbox.id)
    assert (paused.state, paused.pause_kind, paused.paused_at) == (State.PAUSED, PauseKind.MEMORY, yard.clock.now())
    assert yard.interrupted == [(sandbox.id, "paused")]
    with pytest.raises(ConflictError, match="already paused"):
        await yard.service.pause(sandbox.id)
    await yard.clock.advance(10_000)  # paused time does not count
    resumed, did = await yard.service.connect(sandbox.id, 60)
    assert did and resumed.running and resumed.ends_at == yard.clock.now() + 60
    assert resumed.access_token == sandbox.access_token
    assert yard.host.machines[sandbox.id].memory == memory
    yard.check()


async def test_filesystem_pause_boots_anew_with_the_same_settings(yard: Yard) -> None:
    sandbox = await yard.create(env={"A": "1"})
    memory = yard.host.machines[sandbox.id].memory
    paused = await yard.service.pause(sandbox.id, memory=False)
    assert paused.pause_kind is PauseKind.FILESYSTEM
    yard.check()
    resumed = await yard.service.resume(sandbox.id, 60)
    machine = yard.host.machines[sandbox.id]
    assert machine.memory != memory and machine.init == told(sandbox, {"A": "1"})
    assert resumed.memory_lost is None and resumed.handle.data == {"boot": machine.memory}
    yard.check()


async def test_cold_resume_of_a_memory_pause(yard: Yard) -> None:
    sandbox = await yard.create()
    memory = yard.host.machines[sandbox.id].memory
    await yard.service.pause(sandbox.id)
    resumed, did = await yard.service.connect(sandbox.id, 60, memory=False)
    assert did and resumed.running and yard.host.machines[sandbox.id].memory != memory
    yard.check()


async def test_resume_of_a_running_one_is_a_conflict(yard: Yard) -> None:
    sandbox = await yard.create()
    with pytest.raises(ConflictError, match="already running"):
        await yard.service.resume(sandbox.id, 60)


async def test_resume_can_change_what_happens_at_the_timeout(yard: Yard) -> None:
    sandbox = await yard.create()
    await yard.service.pause(sandbox.id)
    assert (await yard.service.resume(sandbox.id, 60, auto_pause=True)).on_timeout is OnTimeout.PAUSE


async def test_connect_extends_and_never_shortens(yard: Yard) -> None:
    sandbox = await yard.create(timeout_s=100)
    same, resumed = await yard.service.connect(sandbox.id, 10)
    assert not resumed and same.ends_at == sandbox.ends_at
    longer, _ = await yard.service.connect(sandbox.id, 200)
    assert longer.ends_at == yard.clock.now() + 200
    assert (await yard.service.refresh(sandbox.id, 5)).ends_at == longer.ends_at
    assert (await yard.service.set_timeout(sandbox.id, 5)).ends_at == yard.clock.now() + 5
    yard.check()


async def test_timeout_kills(yard: Yard) -> None:
    sandbox = await yard.create(timeout_s=30)
    await yard.clock.advance(29)
    assert yard.service.find(sandbox.id) is not None
    await yard.clock.advance(2)
    await yard.settle()
    assert yard.service.find(sandbox.id) is None
    assert "timeout" in yard.service.logs(sandbox.id)[-1].message
    yard.check()


async def test_timeout_pauses_when_asked(yard: Yard) -> None:
    sandbox = await yard.create(timeout_s=30, on_timeout=OnTimeout.PAUSE)
    other = await yard.create(timeout_s=30, on_timeout=OnTimeout.PAUSE, auto_pause_memory=False)
    await yard.clock.advance(31)
    await yard.settle()
    assert yard.service.get(sandbox.id).pause_kind is PauseKind.MEMORY
    assert yard.service.get(other.id).pause_kind is PauseKind.FILESYSTEM
    yard.check()


async def test_timeout_zero_expires_at_once(yard: Yard) -> None:
    killed = await yard.create()
    paused = await yard.create(on_timeout=OnTimeout.PAUSE)
    await yard.service.set_timeout(killed.id, 0)
    assert yard.service.find(killed.id) is None
    assert not (await yard.service.set_timeout(paused.id, 0)).running
    with pytest.raises(NotFoundError):
        await yard.service.set_timeout(paused.id, 10)
    yard.check()


async def test_failed_auto_pause_is_tried_again(yard: Yard) -> None:
    sandbox = await yard.create(timeout_s=30, on_timeout=OnTimeout.PAUSE)
    yard.driver.broken("freeze", SandyardError("no"))
    await yard.clock.advance(31)
    await yard.settle()
    assert yard.service.get(sandbox.id).running
    yard.driver.heal()
    await yard.clock.advance(6)
    await yard.settle()
    assert not yard.service.get(sandbox.id).running
    yard.check()


@pytest.mark.parametrize("memory", [True, False])
async def test_a_failing_auto_pause_is_not_tried_all_the_time(yard: Yard, memory: bool) -> None:
    sandbox = await yard.create(timeout_s=30, on_timeout=OnTimeout.PAUSE, auto_pause_memory=memory)
    verb = "freeze" if memory else "stop"
    yard.driver.broken(verb, SandyardError("no"))
    await yard.clock.advance(31)
    for _ in range(20):
        await yard.settle()
    assert [name for name, _ in yard.driver.calls].count(verb) == 1
    await yard.clock.advance(60)
    assert 5 <= [name for name, _ in yard.driver.calls].count(verb) <= 13
    yard.driver.heal()
    await yard.clock.advance(6)
    await yard.settle()
    assert not yard.service.get(sandbox.id).running
    yard.check()


async def test_list_pages_are_stable_while_things_happen(yard: Yard) -> None:
    made = [await yard.create(metadata={"n": str(number)}) for number in range(7)]
    seen = []
    page = yard.service.list(SandboxQuery(limit=3))
    seen += [one.id for one in page.items]
    await yard.service.pause(made[0].id)
    await yard.service.connect(made[0].id, 60)
    await yard.service.kill(made[2].id)
    newest = await yard.create()
    while page.next_cursor:
        page = yard.service.list(SandboxQuery(limit=3, cursor=page.next_cursor))
        seen += [one.id for one in page.items]
    expected = [one.id for one in reversed(made) if one.id != made[2].id]
    assert seen == expected and newest.id not in seen


async def test_list_filters(yard: Yard) -> None:
    first = await yard.create(metadata={"k": "1", "x": "y"})
    await yard.clock.advance(10)
    middle = yard.clock.now() - 5
    second = await yard.create(metadata={"k": "2"})
    await yard.service.pause(second.id)

    def ids(**filters: object) -> list[str]:
        return [one.id for one in yard.service.list(SandboxQuery(**filters)).items]

    assert ids() == [second.id, first.id]
    assert ids(oldest_first=True) == [first.id, second.id]
    assert ids(metadata={"k": "1"}) == [first.id]
    assert ids(metadata={"k": "1", "x": "z"}) == []
    assert ids(states=frozenset({State.PAUSED})) == [second.id]
    assert ids(started_after=middle) == [second.id]
    assert ids(started_before=middle) == [first.id]
    assert ids(template="base") == ids(template="base0000000000000000") == [second.id, first.id]
    assert ids(template="other") == []
    with pytest.raises(InvalidInputError):
        ids(cursor="§§")


async def test_counting(yard: Yard) -> None:
    for number in range(3):
        sandbox = await yard.create(metadata={"odd": str(number % 2)})
    await yard.service.pause(sandbox.id)
    running = frozenset({State.RUNNING})
    assert yard.service.count() == 3
    assert yard.service.count(SandboxQuery(states=running, limit=1)) == 2
    assert yard.service.count(SandboxQuery(states=running, metadata={"odd": "1"})) == 1
    assert yard.service.count(SandboxQuery(template="other")) == 0


@pytest.mark.parametrize("cursor", ["", "abc", "c2VxOi0x", "c2VxOng", "c2VxOjk5OTk5OTk5OTk5OTk5OTk5OTk5"])
async def test_bad_cursors(yard: Yard, cursor: str) -> None:
    with pytest.raises(InvalidInputError):
        yard.service.list(SandboxQuery(cursor=cursor))


async def test_fork_copies_and_the_parent_goes_on(yard: Yard) -> None:
    parent = await yard.create(metadata={"a": "b"}, env={"E": "1"})
    yard.host.machines[parent.id].files = frozenset({"/x"})
    (outcome,) = await yard.service.fork(parent.id, 1, 60)
    child = outcome.sandbox
    assert child is not None and child.id != parent.id and child.metadata == {"a": "b"}
    assert child.access_token != parent.access_token and child.ends_at == yard.clock.now() + 60
    assert yard.host.machines[child.id].files == frozenset({"/x"})
    assert yard.host.machines[child.id].init == told(child, {"E": "1"})
    yard.check()


async def test_many_forks_are_of_one_instant_and_leave_no_snapshot_behind(yard: Yard) -> None:
    parent = await yard.create()
    yard.host.machines[parent.id].files = frozenset({"/x"})
    outcomes = await yard.service.fork(parent.id, 5, 60)
    children = [one.sandbox for one in outcomes if one.sandbox]
    assert len({child.id for child in children}) == 5
    assert [verb for verb, _ in yard.driver.calls].count("snapshot") == 1
    assert all(yard.host.machines[child.id].files == frozenset({"/x"}) for child in children)
    assert len(yard.host.snapshots) == 1 and yard.service.snapshots().items == ()
    for child in children:
        assert len(yard.host.snapshots) == 1
        await yard.service.kill(child.id)
    await yard.settle()
    assert yard.host.snapshots == {}
    yard.check()


async def test_fork_reports_each_failure_by_itself(yard: Yard) -> None:
    parent = await yard.create()
    yard.host.room = 3
    outcomes = await yard.service.fork(parent.id, 4, 60)
    assert sum(one.sandbox is not None for one in outcomes) == 2
    assert all(isinstance(one.error, FullError) for one in outcomes if one.sandbox is None)
    yard.check()


async def test_fork_refuses(yard: Yard) -> None:
    sandbox = await yard.create()
    for count in (0, -1, 101):
        with pytest.raises(InvalidInputError):
            await yard.service.fork(sandbox.id, count)
    await yard.service.pause(sandbox.id)
    with pytest.raises(ConflictError, match="resume it first"):
        await yard.service.fork(sandbox.id)
    with pytest.raises(NotFoundError):
        await yard.service.fork("inosuch")


async def test_snapshot_serves_as_a_template(yard: Yard) -> None:
    sandbox = await yard.create(env={"E": "1"})
    yard.host.machines[sandbox.id].files = frozenset({"/x"})
    snapshot = await yard.service.snapshot(sandbox.id)
    assert snapshot.ref == f"{snapshot.id}:default" and snapshot.names == ()
    copy = await yard.create(template=snapshot.ref)
    assert yard.host.machines[copy.id].files == frozenset({"/x"}) and copy.template_id == snapshot.id
    assert yard.host.machines[copy.id].init == told(copy, {"E": "1"})
    yard.check()


async def test_deleted_snapshot_stays_on_disk_while_needed(yard: Yard) -> None:
    sandbox = await yard.create()
    snapshot = await yard.service.snapshot(sandbox.id)
    child = await yard.create(template=snapshot.id)
    grandchild_snapshot = await yard.service.snapshot(child.id)
    await yard.service.delete_snapshot(snapshot.ref)
    with pytest.raises(NotFoundError):
        await yard.service.delete_snapshot(snapshot.ref)
    with pytest.raises(NotFoundError):
        await yard.create(template=snapshot.id)
    await yard.service.kill(child.id)
    await yard.settle()
    assert set(yard.host.snapshots) == {snapshot.id, grandchild_snapshot.id}
    await yard.service.delete_snapshot(grandchild_snapshot.id)
    await yard.settle()
    assert yard.host.snapshots == {}
    assert yard.database.query("SELECT count(*) FROM snapshots") == [(0,)]


async def test_a_template_that_is_not_ready(yard: Yard) -> None:
    unbuilt = Template("desk", (), ("desktop",), status=TemplateStatus.WAITING, yields=True)
    yard.templates.templates.append(unbuilt)
    asked: list[str] = []

    def make_ready(template: Template) -> str:
        asked.append(template.id)
        return "is being built."

    yard.service._make_ready = make_ready
    assert yard.service.find_template("desktop") is unbuilt
    assert asked == [], "who only looks wants nothing built"
    with pytest.raises(NotFoundError, match=r"^template 'desktop' is being built\.$"):
        await yard.create(template="desktop")
    assert asked == ["desk"]
    assert not yard.service.has_snapshot("desktop")
    sandbox = await yard.create()
    own = await yard.service.snapshot(sandbox.id, "desktop")  # as it was possible before there was such a template
    assert yard.service.has_snapshot("desktop")
    assert (await yard.create(template="desktop")).template_id == own.id
    yard.templates.templates[-1] = replace(unbuilt, status=TemplateStatus.READY)
    assert yard.service.resolve_template("desktop").id == own.id


async def test_nothing_is_kept_ready_of_a_template_that_is_not(tmp_path: Path) -> None:
    yard = Yard(tmp_path, pool_size=2, default_template="desktop")
    yard.templates.templates.append(Template("desk", (), ("desktop",), status=TemplateStatus.WAITING))
    await yard.start()
    await yard.settle()
    assert yard.host.machines == {}
    await yard.stop()


async def test_snapshot_names_and_tags(yard: Yard) -> None:
    sandbox = await yard.create()
    first = await yard.service.snapshot(sandbox.id, "Mine")
    assert first.ref == "mine:default" and first.names == ("mine:default",)
    tagged = await yard.service.snapshot(sandbox.id, "mine:v2")
    assert yard.service.resolve_template("mine").id == first.id
    assert yard.service.resolve_template("mine:v2").id == tagged.id
    second = await yard.service.snapshot(sandbox.id, "mine")
    assert yard.service.resolve_template("mine").id == second.id
    listed = [one.id for one in yard.service.snapshots(SnapshotQuery(name="mine")).items]
    assert listed == [second.id, tagged.id]
    assert yard.service.snapshots(SnapshotQuery(name="other")).items == ()
    await yard.settle()
    assert set(yard.host.snapshots) == {second.id, tagged.id}  # the superseded one is gone
    await yard.service.delete_snapshot("mine")
    await yard.settle()
    assert yard.host.snapshots == {}
    for bad in ("", "a b", "ä", "x:", ":x", "../x", "a/b/c"):
        with pytest.raises(InvalidInputError):
            await yard.service.snapshot(sandbox.id, bad)
    with pytest.raises(ConflictError):
        await yard.service.snapshot(sandbox.id, "base")


async def test_snapshot_paging(yard: Yard) -> None:
    sandbox = await yard.create()
    made = [(await yard.service.snapshot(sandbox.id)).id for _ in range(5)]
    page = yard.service.snapshots(SnapshotQuery(limit=2))
    seen = [one.id for one in page.items]
    while page.next_cursor:
        page = yard.service.snapshots(SnapshotQuery(limit=2, cursor=page.next_cursor))
        seen += [one.id for one in page.items]
    assert seen == made[::-1]
    assert yard.service.snapshots(SnapshotQuery(sandbox_id="other")).items == ()


async def test_network_is_replaced_live(yard: Yard) -> None:
    sandbox = await yard.create()
    network = Network(NetworkPolicy(False, ("1.1.1.1",)), {"allowOut": ["1.1.1.1"]}, False)
    changed = await yard.service.set_network(sandbox.id, network)
    assert changed.network == network and yard.service.get(sandbox.id).network.config == {"allowOut": ["1.1.1.1"]}
    yard.check()
    await yard.service.pause(sandbox.id)
    with pytest.raises(ConflictError):
        await yard.service.set_network(sandbox.id, Network())


async def test_refused_connections_are_in_the_log_once_each(yard: Yard) -> None:
    sandbox = await yard.create()
    yard.driver.denied = [Denied("evil.test", "dns"), Denied("192.0.2.9", "tcp", 443)] * 2
    await yard.service.note_denied(sandbox.id)
    yard.driver.denied = [Denied("evil.test", "dns"), *(Denied(f"{number}.test", "dns") for number in range(1000))]
    await yard.service.note_denied(sandbox.id)
    told = [entry for entry in yard.service.logs(sandbox.id) if entry.fields.get("event") == "egress_denied"]
    assert [entry.fields["host"] for entry in told[:3]] == ["evil.test", "192.0.2.9", "0.test"]
    assert told[1].fields["port"] == "443"
    assert len(told) == 300, "what happened to it stays in its log"
    assert "created" in yard.service.logs(sandbox.id)[0].message.lower()


async def test_failed_network_change_leaves_the_old_one(yard: Yard) -> None:
    sandbox = await yard.create()
    yard.driver.broken("set_network", InvalidInputError("bad rule"))
    with pytest.raises(InvalidInputError):
        await yard.service.set_network(sandbox.id, Network(NetworkPolicy(False)))
    yard.driver.heal()
    await yard.settle()
    assert yard.service.get(sandbox.id).network == Network()
    yard.check()


async def test_dial(yard: Yard) -> None:
    sandbox = await yard.create()
    connection = await yard.service.dial(sandbox.id, AGENT_PORT)
    assert connection.getblocking() is False
    connection.close()
    with pytest.raises(PortClosedError, match="port is not open"):
        await yard.service.dial(sandbox.id, 8080)
    await yard.service.pause(sandbox.id)
    with pytest.raises(SandboxUnreachableError, match="was not found"):
        await yard.service.dial(sandbox.id, AGENT_PORT)
    with pytest.raises(SandboxUnreachableError, match="was not found"):
        await yard.service.dial("inosuch", AGENT_PORT)


async def test_dial_wakes_once_for_many(yard: Yard) -> None:
    sandbox = await yard.create(timeout_s=5, on_timeout=OnTimeout.PAUSE, auto_resume=True)
    await yard.service.pause(sandbox.id)
    connections = await asyncio.gather(*(yard.service.dial(sandbox.id, AGENT_PORT) for _ in range(20)))
    for connection in connections:
        connection.close()
    assert [verb for verb, _ in yard.driver.calls].count("thaw") == 1
    assert yard.service.get(sandbox.id).ends_at == yard.clock.now() + 60
    yard.check()


async def test_traffic_does_not_boot_what_was_paused_without_memory(yard: Yard) -> None:
    sandbox = await yard.create(on_timeout=OnTimeout.PAUSE, auto_resume=True)
    await yard.service.pause(sandbox.id, memory=False)
    with pytest.raises(SandboxUnreachableError):
        await yard.service.dial(sandbox.id, AGENT_PORT)
    assert not yard.service.get(sandbox.id).running


async def test_dial_waits_for_a_pause_that_is_under_way(yard: Yard) -> None:
    sandbox = await yard.create(on_timeout=OnTimeout.PAUSE, auto_resume=True)
    reached = yard.driver.held("freeze", "after")
    pausing = asyncio.create_task(yard.service.pause(sandbox.id))
    await reached.wait()
    dialling = asyncio.create_task(yard.service.dial(sandbox.id, AGENT_PORT))
    await yard.settle()
    assert not dialling.done()
    yard.driver.release("freeze", "after")
    await pausing
    (await dialling).close()
    assert yard.service.get(sandbox.id).running
    yard.check()


async def test_the_machine_is_full(yard: Yard, tmp_path) -> None:
    full = Yard(tmp_path / "full", max_sandboxes=2)
    full.path.mkdir()
    await full.start()
    first, second = await full.create(), await full.create()
    with pytest.raises(FullError, match="2 of 2 sandboxes"):
        await full.create()
    await full.service.pause(first.id)  # a paused one leaves its place
    await full.create()
    with pytest.raises(FullError):
        await full.service.connect(first.id, 60)
    assert not full.service.get(first.id).running
    await full.service.kill(second.id)
    await full.service.connect(first.id, 60)
    full.check()
    await full.stop()


async def test_memory_and_disk_reserves_are_named(yard: Yard, tmp_path) -> None:
    huge = 1 << 30
    for settings, word in (({"memory_reserve_mb": huge}, "memory"), ({"disk_reserve_mb": huge}, "disk")):
        full = Yard(tmp_path / word, **settings)
        full.path.mkdir()
        await full.start()
        with pytest.raises(FullError, match=word):
            await full.create()
        await full.stop()


async def test_one_sandbox_too_many_at_the_same_time(tmp_path) -> None:
    full = Yard(tmp_path, max_sandboxes=5)
    await full.start()
    outcomes = await asyncio.gather(*(full.create() for _ in range(20)), return_exceptions=True)
    assert sum(isinstance(one, FullError) for one in outcomes) == 15
    full.check()
    await full.stop()


async def test_without_a_freezer(tmp_path) -> None:
    yard = Yard(tmp_path, freeze=False)
    await yard.start()
    sandbox = await yard.create(on_timeout=OnTimeout.PAUSE, timeout_s=10)
    with pytest.raises(UnsupportedError, match="no freezer"):
        await yard.service.pause(sandbox.id)
    await yard.clock.advance(11)
    await yard.settle()
    paused = yard.service.get(sandbox.id)
    assert paused.pause_kind is PauseKind.FILESYSTEM and paused.memory_lost
    yard.check()
    await yard.stop()


async def test_long_paused_memory_goes_to_disk_and_comes_back(tmp_path) -> None:
    yard = Yard(tmp_path, suspend=True, suspend_after_s=100)
    await yard.start()
    sandbox = await yard.create()
    memory = yard.host.machines[sandbox.id].memory
    await yard.service.pause(sandbox.id)
    await yard.clock.advance(101)
    await yard.settle()
    assert yard.service.get(sandbox.id).pause_kind is PauseKind.DISK
    yard.check()
    await yard.service.connect(sandbox.id, 60)
    assert yard.host.machines[sandbox.id].memory == memory
    yard.check()
    await yard.stop()


async def test_a_sandbox_that_ends_by_itself_is_booted_from_its_files(yard: Yard) -> None:
    sandbox = await yard.create(env={"A": "1"})
    machine = yard.host.machines[sandbox.id]
    machine.files, memory = frozenset({"work"}), machine.memory
    yard.host.end(sandbox.id, "out of memory")
    await yard.settle()
    now = yard.service.get(sandbox.id)
    assert now.running and now.ends_at == sandbox.ends_at and "out of memory" in (now.memory_lost or "")
    assert machine.files == {"work"} and machine.memory != memory and machine.init == told(sandbox, {"A": "1"})
    assert "out of memory" in yard.service.logs(sandbox.id)[-1].message
    assert (sandbox.id, "died") in yard.interrupted
    yard.check()
    yard.host.end(sandbox.id, "again")
    assert (await yard.service.connect(sandbox.id, 60))[0].running
    await yard.settle()
    assert "again" in (yard.service.get(sandbox.id).memory_lost or "")
    yard.check()


async def test_a_sandbox_that_ends_again_and_again_is_paused(yard: Yard) -> None:
    sandbox = await yard.create(timeout_s=3600)
    for _ in range(4):
        assert yard.service.get(sandbox.id).running
        yard.host.end(sandbox.id, "it was shut down")
        await yard.settle()
    paused = yard.service.get(sandbox.id)
    assert paused.pause_kind is PauseKind.FILESYSTEM and "shut down" in (paused.memory_lost or "")
    yard.check()
    await yard.clock.advance(601)
    await yard.service.connect(sandbox.id, 3600)
    yard.host.end(sandbox.id, "it was shut down")
    await yard.settle()
    assert yard.service.get(sandbox.id).running
    yard.check()


async def test_a_sandbox_that_ends_and_cannot_boot_is_paused(yard: Yard) -> None:
    sandbox = await yard.create()
    yard.driver.broken("boot", FullError("no memory is left"))
    yard.host.end(sandbox.id, "out of memory")
    await yard.settle()
    assert yard.service.get(sandbox.id).pause_kind is PauseKind.FILESYSTEM
    yard.driver.heal()
    await yard.service.connect(sandbox.id, 60)
    yard.check()


async def test_traffic_waits_for_the_boot_after_an_end(yard: Yard) -> None:
    sandbox = await yard.create()
    reached = yard.driver.held("boot")
    yard.host.end(sandbox.id, "out of memory")
    await reached.wait()
    dialled = asyncio.ensure_future(yard.service.dial(sandbox.id, 49983))
    await yard.settle()
    assert not dialled.done()
    yard.driver.release("boot")
    (await dialled).close()
    yard.check()


async def test_a_paused_sandbox_whose_processes_end_keeps_its_files(yard: Yard) -> None:
    sandbox = await yard.create()
    await yard.service.pause(sandbox.id)
    yard.host.end(sandbox.id, "out of memory")
    await yard.settle()
    paused = yard.service.get(sandbox.id)
    assert paused.pause_kind is PauseKind.FILESYSTEM and paused.memory_lost == "out of memory"
    yard.check()
    await yard.service.connect(sandbox.id, 60)
    yard.check()


async def test_metrics_are_there_at_once(yard: Yard) -> None:
    sandbox = await yard.create()
    (metric,) = await yard.service.metrics(sandbox.id)
    assert metric.timestamp == yard.clock.now() and metric.mem_used == 10 << 20 and metric.disk_total == 10 << 30
    assert (await yard.service.latest_metrics([sandbox.id, "inosuch"]))[sandbox.id] == metric
    assert await yard.service.metrics(sandbox.id, start=yard.clock.now() + 1) == []
    with pytest.raises(NotFoundError):
        await yard.service.metrics("inosuch")


async def test_logs_of_nobody(yard: Yard) -> None:
    with pytest.raises(NotFoundError):
        yard.service.logs("inosuch", LogQuery())


async def test_idempotency_key(yard: Yard) -> None:
    request = CreateSandbox(metadata={"a": "b"}, idempotency_key="k-1", owner="me")
    first, second = await asyncio.gather(yard.service.create(request), yard.service.create(request))
    assert first == second == await yard.service.create(request)
    with pytest.raises(ConflictError, match="a different request"):
        await yard.service.create(CreateSandbox(metadata={"a": "c"}, idempotency_key="k-1", owner="me"))
    other = await yard.service.create(CreateSandbox(metadata={"a": "b"}, idempotency_key="k-1", owner="you"))
    assert other.id != first.id
    await yard.restart()
    assert (await yard.service.create(request)).id == first.id
    await yard.service.kill(first.id)
    with pytest.raises(ConflictError, match="has ended"):
        await yard.service.create(request)
    yard.check()


async def test_a_failed_create_frees_its_idempotency_key(yard: Yard) -> None:
    yard.driver.broken("create", FullError("no slot"))
    request = CreateSandbox(idempotency_key="k-1")
    with pytest.raises(FullError):
        await yard.service.create(request)
    yard.driver.heal()
    assert (await yard.service.create(request)).running
    yard.check()


async def test_condition_of_the_double_is_not_guessed(yard: Yard) -> None:
    sandbox = await yard.create()
    assert yard.host.machines[sandbox.id].condition is Condition.RUNNING
