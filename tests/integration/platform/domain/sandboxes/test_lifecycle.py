"""The life of a sandbox, from the request to its destruction."""

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
from tests.integration.platform.domain.sandboxes.platform_harness import DEADLINE, PlatformHarness, until

WANTED = NewSandbox(template="base", idle_seconds=300)


async def add_row(platform: PlatformHarness, wanted: NewSandbox = WANTED) -> Sandbox:
    """Add a row whose process died before it called the engine."""
    row = platform.services.lifecycle.draft(platform.owner.user_id, wanted)
    async with platform.services.database.transaction() as tx:
        tx.add(row)
    return row


async def create_in_engine(platform: PlatformHarness, row: Sandbox) -> str:
    """Create the sandbox in the engine, as a process does that dies before it stores the result."""
    created = await platform.services.engine.create(
        template=row.template,
        timeout_s=row.idle_seconds + platform.services.settings.idle_margin_s,
        metadata={INSTANCE: platform.services.lifecycle.instance, ROW: row.id},
        envs={},
        idempotency_key=row.idempotency_key,
    )
    return created.id


async def hold_result(
    monkeypatch: pytest.MonkeyPatch, target: object, verb: str
) -> tuple[asyncio.Event, asyncio.Event]:
    """Hold an operation when it is done, before its caller gets the result. Return the events (done, proceed)."""
    done, proceed = asyncio.Event(), asyncio.Event()
    real = getattr(target, verb)

    async def held(*given: object, **options: object) -> object:
        result = await real(*given, **options)
        done.set()
        await proceed.wait()
        return result

    monkeypatch.setattr(target, verb, held)
    return done, proceed


# provisioning ----------------------------------------------------------------------------------------------------------


async def test_a_sandbox_is_provisioned_with_its_variables(platform: PlatformHarness) -> None:
    row = await platform.create_sandbox(envs={"COLOUR": "deep green"})
    assert row.status == "running" and row.started_at and row.used_at
    assert await platform.get_engine_state(row) == "running"
    assert await platform.run(row, 'printf "$COLOUR"') == "deep green"
    assert row.envs is not None and b"deep green" not in row.envs
    assert await platform.list_event_kinds(row) == ["sandbox.provisioning", "sandbox.running"]


async def test_a_rejection_by_the_engine_is_stored_with_its_code(platform: PlatformHarness) -> None:
    with pytest.raises(EngineInvalidError):
        await platform.create_sandbox(template="no-such-template")
    (row,) = await platform.services.lifecycle.repository.list_with_status(Status.ERROR)
    assert row.error_code == "template_not_found" and row.error and row.engine_id is None
    with pytest.raises(SandboxFailedError):
        await platform.services.sandboxes.resume(platform.owner, row.id)
    assert await platform.list_event_kinds(row) == ["sandbox.provisioning", "sandbox.error"]
    await platform.services.sandboxes.destroy_sandbox(platform.owner, row.id)
    assert (await platform.reload(row)).status == "destroyed"


async def test_an_unreachable_engine_is_stored_with_its_code(platform: PlatformHarness) -> None:
    await platform.engine_proxy.stop()
    with pytest.raises(EngineUnreachableError):
        await platform.create_sandbox()
    (row,) = await platform.services.lifecycle.repository.list_with_status(Status.ERROR)
    assert row.error_code == "engine_unreachable"


async def test_a_sandbox_can_be_destroyed_while_it_is_provisioned(
    platform: PlatformHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, proceed = await hold_result(monkeypatch, platform.services.engine, "create")
    row = await platform.services.lifecycle.create(platform.owner.user_id, WANTED)
    await asyncio.wait_for(made.wait(), 30)
    assert len(await platform.list_engine_ids()) == 1
    destroying = asyncio.ensure_future(platform.services.sandboxes.destroy_sandbox(platform.owner, row.id))
    await until(lambda: is_destroy_requested(platform, row), "the request is stored")
    proceed.set()
    await destroying
    assert (await platform.reload(row)).status == "destroyed"
    assert await platform.list_engine_ids() == set()
    with pytest.raises(SandboxDestroyedError):
        await platform.start(row, "true")


async def is_destroy_requested(platform: PlatformHarness, row: Sandbox) -> bool:
    return (await platform.reload(row)).destroy_requested_at is not None


async def test_a_sandbox_can_be_destroyed_by_another_process_while_it_is_provisioned(
    platform: PlatformHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, proceed = await hold_result(monkeypatch, platform.services.engine, "create")
    row = await platform.services.lifecycle.create(platform.owner.user_id, WANTED)
    await asyncio.wait_for(made.wait(), 30)
    await platform.create_second_lifecycle().destroy(await platform.reload(row))
    assert (await platform.reload(row)).status == "destroyed"
    proceed.set()
    assert (await platform.services.lifecycle.wait_until_provisioned(row.id)).status == "destroyed"
    assert await platform.list_engine_ids() == set(), "the late sandbox is killed"


async def test_a_sandbox_created_before_a_crash_is_adopted(platform: PlatformHarness) -> None:
    row = await add_row(platform)
    engine_id = await create_in_engine(platform, row)
    await platform.finish_round(platform.services.maintenance.reconcile())
    found = await platform.services.lifecycle.wait_until_provisioned(row.id)
    assert (found.status, found.engine_id) == ("running", engine_id)
    assert await platform.list_engine_ids() == {engine_id}


async def test_two_processes_can_provision_the_same_sandbox(
    platform: PlatformHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One has finished before the other gets its result, which must not treat that as its own failure."""
    made, proceed = await hold_result(monkeypatch, platform.services.engine, "create")
    row = await platform.services.lifecycle.create(platform.owner.user_id, WANTED)
    await asyncio.wait_for(made.wait(), 30)
    monkeypatch.undo()
    other = await platform.create_second_lifecycle().provision(row.id)
    assert other.status == "running"
    proceed.set()
    ours = await platform.services.lifecycle.wait_until_provisioned(row.id)
    assert (ours.status, ours.engine_id) == ("running", other.engine_id)
    assert await platform.get_engine_state(ours) == "running"
    assert (await platform.list_event_kinds(row)).count("sandbox.running") == 1


async def test_the_failure_of_a_second_process_does_not_affect_the_sandbox(
    platform: PlatformHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = await add_row(platform)
    started, proceed = asyncio.Event(), asyncio.Event()

    async def fail_late(**_: object) -> None:
        started.set()
        await proceed.wait()
        raise EngineUnreachableError

    with monkeypatch.context() as patched:
        patched.setattr(platform.services.engine, "create", fail_late)
        failing = platform.create_second_lifecycle().provision(row.id)
        await started.wait()
    await platform.services.lifecycle.provision(row.id)
    proceed.set()
    with pytest.raises(EngineUnreachableError):
        await failing
    assert (await platform.reload(row)).status == "running"


async def test_a_fork_is_an_independent_copy(platform: PlatformHarness) -> None:
    parent = await platform.create_sandbox()
    await platform.run(parent, "echo one > /tmp/file")
    await platform.services.sandboxes.pause(platform.owner, parent.id)
    copy = await platform.services.sandboxes.fork(platform.owner, parent.id)
    assert copy.id != parent.id and copy.engine_id != parent.engine_id and copy.status == "running"
    await platform.run(copy, "echo two >> /tmp/file")
    assert await platform.run(copy, "cat /tmp/file") == "one\ntwo\n"
    assert await platform.run(parent, "cat /tmp/file") == "one\n"
    for _ in range(2):
        await platform.finish_round(platform.services.maintenance.reconcile())
    assert await platform.get_engine_state(copy) == "running", "it has the metadata of its parent, but its own row"
    await platform.services.sandboxes.destroy_sandbox(platform.owner, parent.id)
    assert await platform.get_engine_state(copy) == "running"


# using -----------------------------------------------------------------------------------------------------------------


async def test_pause_and_resume_keep_processes_and_are_idempotent(platform: PlatformHarness) -> None:
    row, sandboxes = await platform.create_sandbox(), platform.services.sandboxes
    command = await platform.start(row, "echo begun; sleep 1000", background=True)
    await until(lambda: has_output(platform, command.id), "there is output")
    for _ in range(2):
        assert (await sandboxes.pause(platform.owner, row.id)).status == "paused"
    assert await platform.get_engine_state(row) == "paused"
    found = await platform.reload(row)
    assert found.pause_count == 1 and found.paused_at is not None
    for _ in range(2):
        assert (await sandboxes.resume(platform.owner, row.id)).status == "running"
    found = await platform.reload(row)
    assert await platform.get_engine_state(row) == "running" and found.paused_at is None
    assert await platform.run(row, "pgrep -xc sleep") == "1\n"
    assert await platform.list_event_kinds(row) == [
        f"sandbox.{verb}" for verb in ("provisioning", "running", "paused", "resumed")
    ]


async def test_concurrent_pauses_and_resumes_end_in_a_consistent_state(platform: PlatformHarness) -> None:
    row, sandboxes = await platform.create_sandbox(), platform.services.sandboxes
    verbs = [sandboxes.pause, sandboxes.resume] * 5
    await asyncio.gather(*(verb(platform.owner, row.id) for verb in verbs))
    assert await platform.get_engine_state(row) == (await platform.reload(row)).status
    kinds = (await platform.list_event_kinds(row))[2:]
    assert kinds == ["sandbox.paused", "sandbox.resumed"] * (len(kinds) // 2) + ["sandbox.paused"] * (len(kinds) % 2)


async def test_a_pause_that_has_ended_is_not_recorded(platform: PlatformHarness) -> None:
    """A caller that saw a sandbox paused may report it after somebody else has resumed it."""
    lifecycle = platform.services.lifecycle
    row = await lifecycle.wait_until_provisioned((await platform.create_sandbox()).id)
    assert row.engine_id is not None
    await lifecycle.resume(await lifecycle.pause(row))
    assert (await lifecycle.record_pause(row.id)).status == Status.RUNNING
    await lifecycle.engine.pause(row.engine_id)
    await platform.engine_proxy.stop()
    assert (await lifecycle.record_pause(row.id)).status == Status.RUNNING, "the state is unknown"
    await platform.reconnect_engine()
    assert (await lifecycle.record_pause(row.id)).status == Status.PAUSED
    assert (await platform.list_event_kinds(row)).count("sandbox.paused") == 2


async def test_a_call_resumes_a_sandbox_paused_by_the_engine(platform: PlatformHarness) -> None:
    row = await platform.create_sandbox()
    await platform.run(row, "echo kept > /tmp/file")
    assert row.engine_id
    await platform.services.engine.pause(row.engine_id)
    entries = await platform.services.sandboxes.list_files(platform.owner, row.id, "/tmp", 1)
    assert "file" in {entry.name for entry in entries.items}
    assert (await platform.list_event_kinds(row))[2:] == ["sandbox.paused", "sandbox.resumed"]
    await platform.services.engine.pause(row.engine_id)
    assert await platform.run(row, "cat /tmp/file") == "kept\n"


async def test_a_pause_noticed_first_by_another_caller_is_recorded_once(
    platform: PlatformHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine has paused it, the pause is not yet recorded, and another call finds it paused."""
    row = await platform.create_sandbox()
    done, proceed = await hold_result(monkeypatch, platform.services.engine, "pause")
    pausing = asyncio.ensure_future(platform.services.sandboxes.pause(platform.owner, row.id))
    await asyncio.wait_for(done.wait(), 30)
    listing = asyncio.ensure_future(platform.services.sandboxes.list_files(platform.owner, row.id, "/", 1))
    await until(lambda: is_recorded_as_paused(platform, row), "the pause is recorded")
    proceed.set()
    assert (await pausing).status == "paused"
    assert await listing
    found = await platform.reload(row)
    assert (found.status, found.pause_count, await platform.get_engine_state(row)) == ("running", 1, "running")


async def test_a_pause_ended_by_another_process_is_not_recorded(
    platform: PlatformHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    row, other = await platform.create_sandbox(), platform.create_second_lifecycle()
    done, proceed = await hold_result(monkeypatch, platform.services.engine, "pause")
    pausing = asyncio.ensure_future(platform.services.sandboxes.pause(platform.owner, row.id))
    async with asyncio.timeout(DEADLINE):
        await done.wait()
    await other.resume(await other.record_pause(row.id))
    proceed.set()
    assert (await pausing).status == "running"
    assert ((await platform.reload(row)).status, await platform.get_engine_state(row)) == ("running", "running")


async def test_two_processes_can_resume_a_sandbox_at_once(
    platform: PlatformHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    row, other = await platform.create_sandbox(), platform.create_second_lifecycle()
    await platform.services.sandboxes.pause(platform.owner, row.id)
    done, proceed = await hold_result(monkeypatch, platform.services.engine, "resume")
    waking = asyncio.ensure_future(platform.services.sandboxes.resume(platform.owner, row.id))
    async with asyncio.timeout(DEADLINE):
        await done.wait()
    monkeypatch.undo()
    await other.resume(await platform.reload(row))
    proceed.set()
    assert (await waking).status == "running"
    assert (await platform.list_event_kinds(row)).count("sandbox.resumed") == 1


async def test_a_resume_is_completed_when_its_caller_is_cancelled(
    platform: PlatformHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    row, notified = await platform.create_sandbox(), asyncio.Event()

    async def notify(_: Sandbox) -> None:
        notified.set()

    platform.services.lifecycle.after_resume.append(notify)
    await platform.services.sandboxes.pause(platform.owner, row.id)
    done, proceed = await hold_result(monkeypatch, platform.services.engine, "resume")
    waking = asyncio.ensure_future(platform.services.sandboxes.resume(platform.owner, row.id))
    async with asyncio.timeout(DEADLINE):
        await done.wait()
        waking.cancel()
        await asyncio.wait((waking,))
        proceed.set()
        await notified.wait()
    assert (await platform.reload(row)).status == "running"


async def is_recorded_as_paused(platform: PlatformHarness, row: Sandbox) -> bool:
    return (await platform.reload(row)).status == "paused"


async def test_a_call_to_a_missing_sandbox_fails_and_marks_it_lost(platform: PlatformHarness) -> None:
    row = await platform.create_sandbox()
    assert row.engine_id
    await platform.services.engine.kill(row.engine_id)
    with pytest.raises(SandboxNotFoundError):
        await platform.services.sandboxes.list_files(platform.owner, row.id, "/", 1)
    found = await platform.reload(row)
    assert (found.status, found.error_code) == ("error", "sandbox_lost")
    with pytest.raises(SandboxFailedError):
        await platform.services.sandboxes.list_files(platform.owner, row.id, "/", 1)


# destroying ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("paused", [False, True])
async def test_destroy_is_idempotent(platform: PlatformHarness, paused: bool) -> None:
    row, sandboxes = await platform.create_sandbox(envs={"A": "b"}), platform.services.sandboxes
    if paused:
        await sandboxes.pause(platform.owner, row.id)
    await asyncio.gather(*(sandboxes.destroy_sandbox(platform.owner, row.id) for _ in range(3)))
    await sandboxes.destroy_sandbox(platform.owner, row.id)
    found = await platform.reload(row)
    assert found.status == "destroyed" and found.destroyed_at and found.envs is None
    assert await platform.get_engine_state(row) == "gone"
    assert (await platform.list_event_kinds(row)).count("sandbox.destroyed") == 1
    for verb in (sandboxes.pause, sandboxes.resume, sandboxes.fork):
        with pytest.raises(SandboxDestroyedError):
            await verb(platform.owner, row.id)


async def test_destroy_is_completed_when_the_engine_is_back(platform: PlatformHarness) -> None:
    row = await platform.create_sandbox()
    await platform.engine_proxy.stop()
    with pytest.raises(EngineUnreachableError):
        await platform.services.sandboxes.destroy_sandbox(platform.owner, row.id)
    assert (await platform.reload(row)).status == "running"
    with pytest.raises(SandboxDestroyedError):
        await platform.start(row, "true")
    await platform.reconnect_engine()
    assert await platform.get_engine_state(row) == "running"
    await platform.finish_round(platform.services.maintenance.reconcile())
    assert (await platform.reload(row)).status == "destroyed"
    assert await platform.get_engine_state(row) == "gone"


async def test_destroying_a_busy_sandbox_is_not_an_error(
    platform: PlatformHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its commands notice that it is gone before its row is updated."""
    row = await platform.create_sandbox()
    commands = [await platform.start(row, f"echo {number}; sleep 1000", background=True) for number in range(3)]
    for command in commands:
        await until(lambda command=command: has_output(platform, command.id), "the command has started")  # type: ignore[misc]
    _, proceed = await hold_result(monkeypatch, platform.services.engine, "kill")
    destroying = asyncio.ensure_future(platform.services.sandboxes.destroy_sandbox(platform.owner, row.id))
    for command in commands:
        done = await platform.wait(command)
        assert done.status == "lost" and "deleted" in (done.error or "")
    proceed.set()
    await destroying
    assert (await platform.list_event_kinds(row))[2:] == ["sandbox.destroyed"]
    assert (await platform.reload(row)).error is None


async def has_output(platform: PlatformHarness, command_id: str) -> bool:
    return (await platform.services.commands.get(command_id)).stdout_bytes > 0


# usage and files -------------------------------------------------------------------------------------------------------


async def test_usage_of_a_paused_sandbox_is_its_last_sample(platform: PlatformHarness) -> None:
    row, sandboxes = await platform.create_sandbox(), platform.services.sandboxes
    await until(lambda: sandboxes.usage(platform.owner, row.id), "a sample")
    await platform.finish_round(platform.services.maintenance.check_health())
    kept = (await platform.reload(row)).usage
    assert kept and kept["memory_bytes"] > 0
    await sandboxes.pause(platform.owner, row.id)
    assert await sandboxes.usage(platform.owner, row.id) == kept
    assert await platform.get_engine_state(row) == "paused", "reading usage does not resume it"


async def test_an_upload_over_the_limit_leaves_no_file(platform: PlatformHarness) -> None:
    row = await platform.create_sandbox()
    sandboxes = platform.services.sandboxes
    sandboxes.settings = platform.services.settings.model_copy(update={"upload_limit": 100_000})

    async def chunks(size: int) -> AsyncIterator[bytes]:
        for _ in range(0, size, 10_000):
            yield b"x" * 10_000

    assert await sandboxes.upload_file(platform.owner, row.id, "/tmp/good", chunks(100_000), None) == 100_000
    for announced in (None, 200_000):
        with pytest.raises(TooLargeError, match="larger than the limit of 100,000 bytes"):
            await sandboxes.upload_file(platform.owner, row.id, "/tmp/bad", chunks(200_000), announced)
        with pytest.raises(TooLargeError):
            await sandboxes.upload_file(platform.owner, row.id, "/tmp/good", chunks(200_000), announced)

    async def is_removed() -> bool:
        return "bad" not in {
            entry.name for entry in (await sandboxes.list_files(platform.owner, row.id, "/tmp", 1)).items
        }

    await until(is_removed, "the removal of the partial file")
    size, data = await sandboxes.download_file(platform.owner, row.id, "/tmp/good")
    assert size == 100_000 and b"".join([chunk async for chunk in data]) == b"x" * 100_000
    names = {entry.name for entry in (await sandboxes.list_files(platform.owner, row.id, "/tmp", 1)).items}
    assert "good" in names and "bad" not in names
    await sandboxes.remove_file(platform.owner, row.id, "/tmp/good")
    assert await platform.list_event_kinds(row, "file.") == ["file.uploaded", "file.removed"]


async def test_an_upload_resumes_a_sandbox_paused_by_the_engine(platform: PlatformHarness) -> None:
    row, sandboxes = await platform.create_sandbox(), platform.services.sandboxes
    assert row.engine_id

    async def body(text: bytes) -> AsyncIterator[bytes]:
        yield text

    await platform.services.engine.pause(row.engine_id)
    await sandboxes.upload_file(platform.owner, row.id, "/tmp/file", body(b"abc"), 3)
    assert await platform.run(row, "cat /tmp/file") == "abc"

    stranger = SandboxEngine(platform.services.engine.config)  # the platform's own client does not know of its pauses
    await stranger.pause(row.engine_id)
    await stranger.close()
    with pytest.raises(SandboxNotRunningError, match="Send the file again"):  # the body cannot be read twice
        await sandboxes.upload_file(platform.owner, row.id, "/tmp/file", body(b"def"), 3)
    await sandboxes.upload_file(platform.owner, row.id, "/tmp/file", body(b"ghi"), 3)
    assert await platform.run(row, "cat /tmp/file") == "ghi"
