"""From wanted to destroyed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from sandyard.platform.db.models import Sandbox
from sandyard.platform.domain.sandboxes.e2b import (
    EngineInvalidError,
    EngineUnreachableError,
    SandboxEngine,
    SandboxNotFoundError,
    SandboxNotRunningError,
)
from sandyard.platform.domain.sandboxes.lifecycle import INSTANCE, ROW
from sandyard.platform.domain.sandboxes.model import NewSandbox, SandboxDestroyedError, SandboxFailedError, Status
from sandyard.platform.domain.sandboxes.service import TooLargeError
from tests.integration.platform.domain.sandboxes.yard import DEADLINE, Yard, until

WANTED = NewSandbox(template="base", idle_seconds=300)


async def added(yard: Yard, wanted: NewSandbox = WANTED) -> Sandbox:
    """A row whose process died before it asked the engine."""
    row = yard.services.lifecycle.draft(yard.owner.user_id, wanted)
    async with yard.services.database.transaction() as tx:
        tx.add(row)
    return row


async def asked(yard: Yard, row: Sandbox) -> str:
    """A process asks the engine for it, and dies before it writes that down."""
    made = await yard.services.engine.create(
        template=row.template,
        timeout_s=row.idle_seconds + yard.services.settings.idle_margin_s,
        metadata={INSTANCE: yard.services.lifecycle.instance, ROW: row.id},
        envs={},
        idempotency_key=row.idempotency_key,
    )
    return made.id


async def hold(monkeypatch: pytest.MonkeyPatch, target: object, verb: str) -> tuple[asyncio.Event, asyncio.Event]:
    """Stop a verb when it is done and before its caller hears of it: (done, go on)."""
    done, go_on = asyncio.Event(), asyncio.Event()
    real = getattr(target, verb)

    async def held(*given: object, **options: object) -> object:
        answer = await real(*given, **options)
        done.set()
        await go_on.wait()
        return answer

    monkeypatch.setattr(target, verb, held)
    return done, go_on


# making ----------------------------------------------------------------------------------------------------------------


async def test_a_sandbox_is_provisioned_with_its_variables(yard: Yard) -> None:
    row = await yard.sandbox(envs={"COLOUR": "deep green"})
    assert row.status == "running" and row.started_at and row.used_at
    assert await yard.state(row) == "running"
    assert await yard.run(row, 'printf "$COLOUR"') == "deep green"
    assert row.envs is not None and b"deep green" not in row.envs
    assert await yard.kinds(row) == ["sandbox.provisioning", "sandbox.running"]


async def test_what_the_engine_refuses_is_an_error_with_its_code(yard: Yard) -> None:
    with pytest.raises(EngineInvalidError):
        await yard.sandbox(template="no-such-template")
    (row,) = await yard.services.lifecycle.repository.list_with_status(Status.ERROR)
    assert row.error_code == "engine_invalid" and row.error and row.engine_id is None
    with pytest.raises(SandboxFailedError):
        await yard.services.sandboxes.resume(yard.owner, row.id)
    assert await yard.kinds(row) == ["sandbox.provisioning", "sandbox.error"]
    await yard.services.sandboxes.destroy_sandbox(yard.owner, row.id)
    assert (await yard.row(row)).status == "destroyed"


async def test_an_engine_that_is_away_is_an_error_with_its_code(yard: Yard) -> None:
    await yard.door.shut()
    with pytest.raises(EngineUnreachableError):
        await yard.sandbox()
    (row,) = await yard.services.lifecycle.repository.list_with_status(Status.ERROR)
    assert row.error_code == "engine_unreachable"


async def test_destroyed_while_it_is_provisioned(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    made, go_on = await hold(monkeypatch, yard.services.engine, "create")
    row = await yard.services.lifecycle.create(yard.owner.user_id, WANTED)
    await asyncio.wait_for(made.wait(), 30)
    assert len(await yard.there()) == 1
    destroying = asyncio.ensure_future(yard.services.sandboxes.destroy_sandbox(yard.owner, row.id))
    await until(lambda: destroy_requested(yard, row), "the request is stored")
    go_on.set()
    await destroying
    assert (await yard.row(row)).status == "destroyed"
    assert await yard.there() == set()
    with pytest.raises(SandboxDestroyedError):
        await yard.start(row, "true")


async def destroy_requested(yard: Yard, row: Sandbox) -> bool:
    return (await yard.row(row)).destroy_requested_at is not None


async def test_destroyed_by_another_process_while_it_is_provisioned(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, go_on = await hold(monkeypatch, yard.services.engine, "create")
    row = await yard.services.lifecycle.create(yard.owner.user_id, WANTED)
    await asyncio.wait_for(made.wait(), 30)
    await yard.second().destroy(await yard.row(row))
    assert (await yard.row(row)).status == "destroyed"
    go_on.set()
    assert (await yard.services.lifecycle.wait_until_provisioned(row.id)).status == "destroyed"
    assert await yard.there() == set(), "what came too late is ended"


async def test_after_a_crash_the_very_same_sandbox_is_adopted(yard: Yard) -> None:
    row = await added(yard)
    engine_id = await asked(yard, row)
    await yard.services.maintenance.reconcile()
    found = await yard.services.lifecycle.wait_until_provisioned(row.id)
    assert (found.status, found.engine_id) == ("running", engine_id)
    assert await yard.there() == {engine_id}


async def test_a_second_process_provisions_the_same_sandbox(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    """One is through when the other hears of it: it must not take the sandbox for its own failure."""
    made, go_on = await hold(monkeypatch, yard.services.engine, "create")
    row = await yard.services.lifecycle.create(yard.owner.user_id, WANTED)
    await asyncio.wait_for(made.wait(), 30)
    monkeypatch.undo()
    other = await yard.second().provision(row.id)
    assert other.status == "running"
    go_on.set()
    ours = await yard.services.lifecycle.wait_until_provisioned(row.id)
    assert (ours.status, ours.engine_id) == ("running", other.engine_id)
    assert await yard.state(ours) == "running"
    assert (await yard.kinds(row)).count("sandbox.running") == 1


async def test_a_second_process_that_fails_spoils_nothing(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    row = await added(yard)
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def late(**_: object) -> None:
        begun.set()
        await go_on.wait()
        raise EngineUnreachableError

    with monkeypatch.context() as patched:
        patched.setattr(yard.services.engine, "create", late)
        failing = yard.second().provision(row.id)
        await begun.wait()
    await yard.services.lifecycle.provision(row.id)
    go_on.set()
    with pytest.raises(EngineUnreachableError):
        await failing
    assert (await yard.row(row)).status == "running"


async def test_a_fork_is_a_copy_of_its_own(yard: Yard) -> None:
    parent = await yard.sandbox()
    await yard.run(parent, "echo one > /tmp/file")
    await yard.services.sandboxes.pause(yard.owner, parent.id)
    copy = await yard.services.sandboxes.fork(yard.owner, parent.id)
    assert copy.id != parent.id and copy.engine_id != parent.engine_id and copy.status == "running"
    await yard.run(copy, "echo two >> /tmp/file")
    assert await yard.run(copy, "cat /tmp/file") == "one\ntwo\n"
    assert await yard.run(parent, "cat /tmp/file") == "one\n"
    for _ in range(2):
        await yard.services.maintenance.reconcile()
    assert await yard.state(copy) == "running", "it has the metadata of its parent, and a row"
    await yard.services.sandboxes.destroy_sandbox(yard.owner, parent.id)
    assert await yard.state(copy) == "running"


# using -----------------------------------------------------------------------------------------------------------------


async def test_pause_and_wake_keep_what_runs_and_may_be_said_twice(yard: Yard) -> None:
    row, sandboxes = await yard.sandbox(), yard.services.sandboxes
    command = await yard.start(row, "echo begun; sleep 1000", background=True)
    await until(lambda: said_something(yard, command.id), "begun")
    for _ in range(2):
        assert (await sandboxes.pause(yard.owner, row.id)).status == "paused"
    assert await yard.state(row) == "paused"
    found = await yard.row(row)
    assert found.pause_count == 1 and found.paused_at is not None
    for _ in range(2):
        assert (await sandboxes.resume(yard.owner, row.id)).status == "running"
    found = await yard.row(row)
    assert await yard.state(row) == "running" and found.paused_at is None
    assert await yard.run(row, "pgrep -xc sleep") == "1\n"
    assert await yard.kinds(row) == [f"sandbox.{verb}" for verb in ("provisioning", "running", "paused", "resumed")]


async def test_many_wakes_and_pauses_at_once_end_in_one_state(yard: Yard) -> None:
    row, sandboxes = await yard.sandbox(), yard.services.sandboxes
    verbs = [sandboxes.pause, sandboxes.resume] * 5
    await asyncio.gather(*(verb(yard.owner, row.id) for verb in verbs))
    assert await yard.state(row) == (await yard.row(row)).status
    told = (await yard.kinds(row))[2:]
    assert told == ["sandbox.paused", "sandbox.resumed"] * (len(told) // 2) + ["sandbox.paused"] * (len(told) % 2)


async def test_a_pause_that_is_over_is_not_written_down(yard: Yard) -> None:
    """Whoever was told that a sandbox sleeps may come to say so when somebody has woken it."""
    lifecycle = yard.services.lifecycle
    row = await lifecycle.wait_until_provisioned((await yard.sandbox()).id)
    assert row.engine_id is not None
    await lifecycle.resume(await lifecycle.pause(row))
    assert (await lifecycle.record_pause(row.id)).status == Status.RUNNING
    await lifecycle.engine.pause(row.engine_id)
    await yard.door.shut()
    assert (await lifecycle.record_pause(row.id)).status == Status.RUNNING, "nobody can say"
    await yard.back()
    assert (await lifecycle.record_pause(row.id)).status == Status.PAUSED
    assert (await yard.kinds(row)).count("sandbox.paused") == 2


async def test_a_call_wakes_what_the_engine_has_paused_by_itself(yard: Yard) -> None:
    row = await yard.sandbox()
    await yard.run(row, "echo kept > /tmp/file")
    assert row.engine_id
    await yard.services.engine.pause(row.engine_id)
    entries = await yard.services.sandboxes.list_files(yard.owner, row.id, "/tmp", 1)
    assert "file" in {entry.name for entry in entries.items}
    assert (await yard.kinds(row))[2:] == ["sandbox.paused", "sandbox.resumed"]
    await yard.services.engine.pause(row.engine_id)
    assert await yard.run(row, "cat /tmp/file") == "kept\n"


async def test_a_pause_that_others_notice_first_is_still_a_pause(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine has paused it, we have not written that down, and somebody's call finds it asleep."""
    row = await yard.sandbox()
    done, go_on = await hold(monkeypatch, yard.services.engine, "pause")
    pausing = asyncio.ensure_future(yard.services.sandboxes.pause(yard.owner, row.id))
    await asyncio.wait_for(done.wait(), 30)
    listing = asyncio.ensure_future(yard.services.sandboxes.list_files(yard.owner, row.id, "/", 1))
    await until(lambda: noticed(yard, row), "noticed")
    go_on.set()
    assert (await pausing).status == "paused"
    assert await listing
    found = await yard.row(row)
    assert (found.status, found.pause_count, await yard.state(row)) == ("running", 1, "running")


async def test_a_pause_that_another_process_has_ended_is_not_written_down(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    row, other = await yard.sandbox(), yard.second()
    done, go_on = await hold(monkeypatch, yard.services.engine, "pause")
    pausing = asyncio.ensure_future(yard.services.sandboxes.pause(yard.owner, row.id))
    async with asyncio.timeout(DEADLINE):
        await done.wait()
    await other.resume(await other.record_pause(row.id))
    go_on.set()
    assert (await pausing).status == "running"
    assert ((await yard.row(row)).status, await yard.state(row)) == ("running", "running")


async def test_two_processes_wake_it_at_once(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    row, other = await yard.sandbox(), yard.second()
    await yard.services.sandboxes.pause(yard.owner, row.id)
    done, go_on = await hold(monkeypatch, yard.services.engine, "resume")
    waking = asyncio.ensure_future(yard.services.sandboxes.resume(yard.owner, row.id))
    async with asyncio.timeout(DEADLINE):
        await done.wait()
    monkeypatch.undo()
    await other.resume(await yard.row(row))
    go_on.set()
    assert (await waking).status == "running"
    assert (await yard.kinds(row)).count("sandbox.resumed") == 1


async def test_whoever_wakes_it_and_leaves_has_woken_it_for_others(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    row, told = await yard.sandbox(), asyncio.Event()

    async def woken(_: Sandbox) -> None:
        told.set()

    yard.services.lifecycle.after_resume.append(woken)
    await yard.services.sandboxes.pause(yard.owner, row.id)
    done, go_on = await hold(monkeypatch, yard.services.engine, "resume")
    waking = asyncio.ensure_future(yard.services.sandboxes.resume(yard.owner, row.id))
    async with asyncio.timeout(DEADLINE):
        await done.wait()
        waking.cancel()
        await asyncio.wait((waking,))
        go_on.set()
        await told.wait()
    assert (await yard.row(row)).status == "running"


async def noticed(yard: Yard, row: Sandbox) -> bool:
    return (await yard.row(row)).status == "paused"


async def test_a_call_into_one_that_is_gone_is_an_error_and_a_lost_sandbox(yard: Yard) -> None:
    row = await yard.sandbox()
    assert row.engine_id
    await yard.services.engine.kill(row.engine_id)
    with pytest.raises(SandboxNotFoundError):
        await yard.services.sandboxes.list_files(yard.owner, row.id, "/", 1)
    found = await yard.row(row)
    assert (found.status, found.error_code) == ("error", "sandbox_lost")
    with pytest.raises(SandboxFailedError):
        await yard.services.sandboxes.list_files(yard.owner, row.id, "/", 1)


# ending ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("paused", [False, True])
async def test_destroy_may_be_said_twice(yard: Yard, paused: bool) -> None:
    row, sandboxes = await yard.sandbox(envs={"A": "b"}), yard.services.sandboxes
    if paused:
        await sandboxes.pause(yard.owner, row.id)
    await asyncio.gather(*(sandboxes.destroy_sandbox(yard.owner, row.id) for _ in range(3)))
    await sandboxes.destroy_sandbox(yard.owner, row.id)
    found = await yard.row(row)
    assert found.status == "destroyed" and found.destroyed_at and found.envs is None
    assert await yard.state(row) == "gone"
    assert (await yard.kinds(row)).count("sandbox.destroyed") == 1
    for verb in (sandboxes.pause, sandboxes.resume, sandboxes.fork):
        with pytest.raises(SandboxDestroyedError):
            await verb(yard.owner, row.id)


async def test_destroy_is_carried_out_when_the_engine_is_back(yard: Yard) -> None:
    row = await yard.sandbox()
    await yard.door.shut()
    with pytest.raises(EngineUnreachableError):
        await yard.services.sandboxes.destroy_sandbox(yard.owner, row.id)
    assert (await yard.row(row)).status == "running"
    with pytest.raises(SandboxDestroyedError):
        await yard.start(row, "true")
    await yard.back()
    assert await yard.state(row) == "running"
    await yard.services.maintenance.reconcile()
    assert (await yard.row(row)).status == "destroyed"
    assert await yard.state(row) == "gone"


async def test_destroying_a_busy_sandbox_is_no_failure(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its commands see that it is gone before its row says so."""
    row = await yard.sandbox()
    commands = [await yard.start(row, f"echo {number}; sleep 1000", background=True) for number in range(3)]
    for command in commands:
        await until(lambda command=command: said_something(yard, command.id), "started")  # type: ignore[misc]
    _, go_on = await hold(monkeypatch, yard.services.engine, "kill")
    destroying = asyncio.ensure_future(yard.services.sandboxes.destroy_sandbox(yard.owner, row.id))
    for command in commands:
        done = await yard.wait(command)
        assert done.status == "lost" and "deleted" in (done.error or "")
    go_on.set()
    await destroying
    assert (await yard.kinds(row))[2:] == ["sandbox.destroyed"]
    assert (await yard.row(row)).error is None


async def said_something(yard: Yard, command_id: str) -> bool:
    return (await yard.services.commands.get(command_id)).stdout_bytes > 0


# usage and files -------------------------------------------------------------------------------------------------------


async def test_usage_of_a_paused_sandbox_is_its_last_sample(yard: Yard) -> None:
    row, sandboxes = await yard.sandbox(), yard.services.sandboxes
    await until(lambda: sandboxes.usage(yard.owner, row.id), "a sample")
    await yard.services.maintenance.check_health()
    kept = (await yard.row(row)).usage
    assert kept and kept["memory_bytes"] > 0
    await sandboxes.pause(yard.owner, row.id)
    assert await sandboxes.usage(yard.owner, row.id) == kept
    assert await yard.state(row) == "paused", "asking wakes nothing"


async def test_too_large_uploads_leave_nothing(yard: Yard) -> None:
    row = await yard.sandbox()
    sandboxes = yard.services.sandboxes
    sandboxes._settings = yard.services.settings.model_copy(update={"upload_limit": 100_000})

    async def chunks(size: int) -> AsyncIterator[bytes]:
        for _ in range(0, size, 10_000):
            yield b"x" * 10_000

    assert await sandboxes.upload_file(yard.owner, row.id, "/tmp/good", chunks(100_000), None) == 100_000
    for announced in (None, 200_000):
        with pytest.raises(TooLargeError, match="larger than the limit of 100,000 bytes"):
            await sandboxes.upload_file(yard.owner, row.id, "/tmp/bad", chunks(200_000), announced)
    size, data = await sandboxes.download_file(yard.owner, row.id, "/tmp/good")
    assert size == 100_000 and b"".join([chunk async for chunk in data]) == b"x" * 100_000
    names = {entry.name for entry in (await sandboxes.list_files(yard.owner, row.id, "/tmp", 1)).items}
    assert "good" in names and "bad" not in names
    await sandboxes.remove_file(yard.owner, row.id, "/tmp/good")
    assert await yard.kinds(row, "file.") == ["file.uploaded", "file.removed"]


async def test_an_upload_wakes_what_the_engine_has_paused_by_itself(yard: Yard) -> None:
    row, sandboxes = await yard.sandbox(), yard.services.sandboxes
    assert row.engine_id

    async def body(text: bytes) -> AsyncIterator[bytes]:
        yield text

    await yard.services.engine.pause(row.engine_id)
    await sandboxes.upload_file(yard.owner, row.id, "/tmp/file", body(b"abc"), 3)
    assert await yard.run(row, "cat /tmp/file") == "abc"

    stranger = SandboxEngine(yard.services.engine.config)  # whose pauses ours does not know of
    await stranger.pause(row.engine_id)
    await stranger.close()
    with pytest.raises(SandboxNotRunningError, match="Send the file again"):  # the body cannot be read twice
        await sandboxes.upload_file(yard.owner, row.id, "/tmp/file", body(b"def"), 3)
    await sandboxes.upload_file(yard.owner, row.id, "/tmp/file", body(b"ghi"), 3)
    assert await yard.run(row, "cat /tmp/file") == "ghi"
