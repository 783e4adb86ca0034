"""Commands: their output and their end, across pauses, outages and restarts."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from sandyard.kit.errors import InvalidInputError, NotFoundError
from sandyard.platform.db.database import Database, DatabaseUnavailableError
from sandyard.platform.db.models import Command, Sandbox
from sandyard.platform.domain.paging import PageRequest
from sandyard.platform.domain.sandboxes import command_runner as module
from sandyard.platform.domain.sandboxes.command_output import INLINE_BYTES, STDERR, STDOUT
from sandyard.platform.domain.sandboxes.command_policy import CommandPolicy
from sandyard.platform.domain.sandboxes.commands import MAX_COMMAND
from sandyard.platform.domain.sandboxes.e2b import commands as engine_commands
from sandyard.platform.domain.sandboxes.e2b.commands import PAUSED_RETRIES
from sandyard.platform.domain.sandboxes.model import CommandRefusedError, NewCommand, NewSandbox
from tests.harness.engine import Engine
from tests.integration.platform.domain.sandboxes.platform_harness import (
    DEADLINE,
    PlatformHarness,
    kill_sandboxes,
    open_platform,
    until,
)

JOURNALS = "ls /tmp/.sandyard/commands"
COUNT = "i=0; while [ $i -lt 30 ]; do echo line $i; echo err $i >&2; i=$((i+1)); sleep 0.05; done; exit 7"
COUNTED = "".join(f"line {number}\n" for number in range(30)).encode()
COUNTED_ERR = "".join(f"err {number}\n" for number in range(30)).encode()


async def has_output(platform: PlatformHarness, command: Command, size: int = 1) -> bool:
    return (await platform.services.commands.get(command.id)).stdout_bytes >= size


# requests --------------------------------------------------------------------------------------------------------------


async def test_a_command_has_output_and_an_exit_code(platform: PlatformHarness) -> None:
    row = await platform.create_sandbox()
    command = await platform.start(row, 'echo "$PWD $WORD"; echo bad >&2; exit 3', cwd="/var", envs={"WORD": "hi"})
    assert command.status == "starting"
    done = await platform.wait(command)
    assert (done.status, done.exit_code, done.signal, done.error) == ("exited", 3, None, None)
    assert await platform.output(done) == (b"/var hi\n", b"bad\n")
    assert (done.stdout_bytes, done.stderr_bytes) == (8, 4) and done.duration_s is not None and done.finished_at
    assert (await platform.reload(row)).command_count == 1
    kinds = await platform.list_event_kinds(row, "command.")
    assert kinds[0] == "command.started" and kinds[-1] == "command.finished"
    assert (await platform.wait(done)).finished_at == done.finished_at, "the end of a finished command is known"


async def test_a_timeout_ends_the_command(platform: PlatformHarness) -> None:
    row = await platform.create_sandbox()
    new = NewCommand(command="echo begun; sleep 1000", timeout_s=0.3)
    done = await platform.wait(await platform.services.commands.execute(platform.owner, row.id, new))
    assert done.status == "timed_out" and done.error
    assert (await platform.output(done))[0] == b"begun\n"


async def test_a_command_denied_by_the_project_leaves_no_trace(
    platform: PlatformHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[str] = set()
    check = CommandPolicy.check

    def check_and_record(policy: CommandPolicy, command: str) -> None:
        threads.add(threading.current_thread().name.partition("_")[0])
        check(policy, command)

    monkeypatch.setattr(CommandPolicy, "check", check_and_record)
    project = await platform.project(platform.owner, command_policy={"deny": ["\\bsudo\\b"]})
    _, row = await platform.services.sessions.create(platform.owner, project_id=project)
    with pytest.raises(CommandRefusedError, match="sudo"):
        await platform.start(row, "sudo rm -rf /")
    with pytest.raises(CommandRefusedError, match="could not be checked"):
        await platform.start(row, "sudo rm -rf / #" + "x" * (MAX_COMMAND - 100))
    assert threads == {"patterns"}  # never on the event loop
    assert (await platform.services.commands.page(platform.owner, row.id, PageRequest())).items == []
    assert await platform.list_event_kinds(row, "command.") == []
    assert await platform.run(row, "echo fine") == "fine\n"
    assert (await platform.reload(row)).command_count == 1


async def test_invalid_commands_are_rejected(platform: PlatformHarness) -> None:
    row = platform.services.lifecycle.draft(platform.owner.user_id, NewSandbox(template="base", idle_seconds=300))
    async with platform.services.database.transaction() as tx:
        tx.add(row)
    for new in (
        NewCommand("  ", 1),
        NewCommand("a\0b", 1),
        NewCommand("true", 0),
        NewCommand("true", 1e9),
        NewCommand("true", 1, envs={"A=B": "c"}),
        NewCommand("true", 1, cwd="/\0"),
        NewCommand("x" * (MAX_COMMAND + 1), 1),
    ):
        with pytest.raises(InvalidInputError):
            await platform.services.commands.execute(platform.owner, row.id, new)
    assert (await platform.services.commands.page(platform.owner, row.id, PageRequest())).items == []


async def test_a_command_in_a_missing_folder_is_not_started(platform: PlatformHarness) -> None:
    row = await platform.create_sandbox()
    done = await platform.wait(await platform.start(row, "true", cwd="/nowhere"))
    assert done.status == "not_started" and "/nowhere" in (done.error or "")


async def test_strangers_cannot_access_commands(platform: PlatformHarness) -> None:
    row, stranger = await platform.create_sandbox(), await platform.create_person("stranger")
    done = await platform.wait(await platform.start(row, "true"))
    for attempt in (
        platform.services.commands.get_for(stranger, done.id),
        platform.services.commands.kill(stranger, done.id),
        platform.services.commands.page(stranger, row.id, PageRequest()),
        platform.services.commands.execute(stranger, row.id, NewCommand("true", 1)),
    ):
        with pytest.raises(NotFoundError):
            await attempt
    admin = await platform.create_person("boss", "admin")
    assert (await platform.services.commands.get_for(admin, done.id))[0].id == done.id


async def test_commands_are_listed_newest_first(platform: PlatformHarness) -> None:
    row = await platform.create_sandbox()
    ids = [(await platform.wait(await platform.start(row, "true"))).id for _ in range(3)]
    page = await platform.services.commands.page(platform.owner, row.id, PageRequest(2))
    assert [item.id for item in page.items] == ids[:0:-1]
    rest = await platform.services.commands.page(platform.owner, row.id, PageRequest(2, page.next_cursor))
    assert [item.id for item in rest.items] == ids[:1] and rest.next_cursor is None


# kill ------------------------------------------------------------------------------------------------------------------


async def test_kill_ends_the_command_and_its_children(platform: PlatformHarness) -> None:
    row = await platform.create_sandbox()
    command = await platform.start(row, "echo begun; sleep 1001 & sleep 1002", background=True)
    await until(lambda: has_output(platform, command), "there is output")
    for _ in range(2):
        async with asyncio.timeout(DEADLINE):
            done = await platform.services.commands.kill(platform.owner, command.id)
        assert done.status == "killed" and done.exit_code is None
    assert await platform.run(row, "pgrep -x sleep || echo none") == "none\n"


async def test_a_command_killed_before_its_start_never_runs(
    platform: PlatformHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = await platform.create_sandbox()
    await platform.run(row, "true")  # the relay is installed
    proceed, real = asyncio.Event(), platform.services.lifecycle.ensure_running

    async def ensure_running_late(box: Sandbox) -> str:
        engine_id = await real(box)
        task = asyncio.current_task()
        # only the task of the command, not that of the kill
        if task is not None and getattr(task.get_coro(), "__name__", "") == "_run_through_outages":
            await proceed.wait()
        return engine_id

    monkeypatch.setattr(platform.services.lifecycle, "ensure_running", ensure_running_late)
    command = await platform.start(row, "touch /tmp/started; sleep 1000")
    killing = asyncio.ensure_future(platform.services.commands.kill(platform.owner, command.id))
    await until(lambda: sandbox_knows(platform, row, command), "the kill is first")
    proceed.set()
    async with asyncio.timeout(DEADLINE):
        assert (await killing).status == "not_started"
    monkeypatch.undo()
    assert await platform.run(row, "test -e /tmp/started || echo never") == "never\n"


async def sandbox_knows(platform: PlatformHarness, row: Sandbox, command: Command) -> bool:
    assert row.engine_id
    entries = (await platform.services.engine.files.list(row.engine_id, "/tmp/.sandyard/commands", 1)).entries
    return command.id in {entry.name for entry in entries}


# pauses and outages ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("retries", [0, PAUSED_RETRIES])  # 0: as in a long pause
async def test_a_foreground_command_survives_a_pause(
    platform: PlatformHarness, monkeypatch: pytest.MonkeyPatch, retries: int
) -> None:
    monkeypatch.setattr(engine_commands, "PAUSED_RETRIES", retries)
    row = await platform.create_sandbox()
    command = await platform.start(row, COUNT)
    waiting = asyncio.ensure_future(platform.wait(command))
    await until(lambda: has_output(platform, command), "there is output")
    await platform.services.sandboxes.pause(platform.owner, row.id)
    assert await platform.get_engine_state(row) == "paused"
    known = (await platform.services.commands.get(command.id)).stdout_bytes
    assert known < len(COUNTED) and not waiting.done()
    await platform.services.sandboxes.resume(platform.owner, row.id)
    done = await waiting
    assert (done.status, done.exit_code) == ("exited", 7)
    assert await platform.output(done) == (COUNTED, COUNTED_ERR)


async def test_a_command_resumes_a_paused_sandbox(platform: PlatformHarness) -> None:
    row = await platform.create_sandbox()
    await platform.services.sandboxes.pause(platform.owner, row.id)
    assert await platform.run(row, "echo awake") == "awake\n"
    assert (await platform.reload(row)).status == "running"


async def test_a_command_is_not_started_if_the_sandbox_cannot_be_resumed(platform: PlatformHarness) -> None:
    row = await platform.create_sandbox()
    await platform.services.sandboxes.pause(platform.owner, row.id)
    await platform.engine_proxy.stop()
    done = await platform.wait(await platform.start(row, "true"))
    assert done.status == "not_started" and "could not be reached" in (done.error or "")


async def test_a_command_is_not_started_after_a_long_engine_outage(
    platform: PlatformHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """During the outage the state is unknown; afterwards the command is either running or can never run."""
    monkeypatch.setattr("sandyard.platform.domain.sandboxes.e2b.commands.START_PATIENCE_S", 0.5)
    monkeypatch.setattr(module, "RETRY_S", 0.2)
    row = await platform.create_sandbox()
    await platform.engine_proxy.stop()
    command = await platform.start(row, "touch /tmp/started")
    await until(lambda: is_breaker_open(platform), "the breaker opens")
    assert (await platform.services.commands.get(command.id)).status == "starting"
    await platform.reconnect_engine()
    assert (await platform.wait(command)).status == "not_started"
    assert await platform.run(row, "test -e /tmp/started || echo never") == "never\n"


async def is_breaker_open(platform: PlatformHarness) -> bool:
    return platform.services.engine.breaker.opened_at is not None


async def test_a_command_is_not_started_if_the_sandbox_could_not_be_created(platform: PlatformHarness) -> None:
    _, row = await platform.services.sessions.create(platform.owner, template="no-such-template")
    done = await platform.wait(await platform.start(row, "true"))
    assert done.status == "not_started" and done.error


async def test_output_is_complete_after_an_engine_outage(platform: PlatformHarness) -> None:
    row = await platform.create_sandbox()
    command = await platform.start(row, COUNT)
    await until(lambda: has_output(platform, command), "there is output")
    await platform.engine_proxy.stop()
    await platform.reconnect_engine()
    done = await platform.wait(command)
    assert (done.status, done.exit_code) == ("exited", 7)
    assert await platform.output(done) == (COUNTED, COUNTED_ERR)


async def test_commands_of_a_lost_sandbox_are_lost(platform: PlatformHarness) -> None:
    row = await platform.create_sandbox()
    command = await platform.start(row, "echo here; sleep 1000")
    waiters = [asyncio.ensure_future(platform.wait(command)) for _ in range(3)]
    await until(lambda: has_output(platform, command), "there is output")
    assert row.engine_id
    await platform.services.engine.kill(row.engine_id)
    for waiter in waiters:
        done = await waiter
        assert done.status == "lost" and done.exit_code is None and "exit was not observed" in (done.error or "")
    assert (await platform.reload(row)).status == "error"
    assert (await platform.output(command))[0] == b"here\n"


async def test_waiting_ends_when_the_sandbox_is_lost(platform: PlatformHarness) -> None:
    """It may have been lost between a check of its state and the wait."""
    row = await platform.create_sandbox()
    await platform.services.lifecycle.mark_lost(row.id)
    async with asyncio.timeout(10):  # otherwise the state is checked again only after 30 s
        await platform.services.commands.runner.wait_until_running(row.id)


# following output ------------------------------------------------------------------------------------------------------


async def read_followed_output(
    platform: PlatformHarness, command: Command, out: int = 0, err: int = 0
) -> dict[str, bytes]:
    output = {STDOUT: b"", STDERR: b""}
    async with asyncio.timeout(DEADLINE):
        async for piece in platform.services.commands.follow(command, {STDOUT: out, STDERR: err}):
            if piece is not None:
                stream, offset, data = piece
                assert offset == (out if stream == STDOUT else err) + len(output[stream])
                output[stream] += data
    return output


async def test_output_is_followed_live_and_from_any_byte(platform: PlatformHarness) -> None:
    row = await platform.create_sandbox()
    command = await platform.start(row, f"echo first; while ! test -e /tmp/go; do sleep 0.05; done; {COUNT}")
    follower = platform.services.commands.follow(command, {STDOUT: 0, STDERR: 0})
    async with asyncio.timeout(DEADLINE):
        piece = await anext(follower)
    assert piece == (STDOUT, 0, b"first\n"), "output is shown while the command runs"
    assert not module.CommandStatus((await platform.services.commands.get(command.id)).status).is_final
    readers = [
        asyncio.ensure_future(read_followed_output(platform, command, out, err)) for out, err in ((0, 0), (8, 3))
    ]
    await platform.run(row, "touch /tmp/go")
    whole = {STDOUT: b"first\n" + COUNTED, STDERR: COUNTED_ERR}
    assert await readers[0] == whole
    assert await readers[1] == {STDOUT: whole[STDOUT][8:], STDERR: whole[STDERR][3:]}
    assert await read_followed_output(platform, await platform.wait(command), 6) == {
        STDOUT: COUNTED,
        STDERR: COUNTED_ERR,
    }
    await follower.aclose()  # type: ignore[attr-defined]


async def test_output_larger_than_an_event_is_complete(platform: PlatformHarness) -> None:
    row = await platform.create_sandbox()
    size = 40 * INLINE_BYTES
    done = await platform.wait(await platform.start(row, f"head -c {size} /dev/zero | tr '\\0' x; echo end >&2"))
    assert (done.stdout_bytes, done.stderr_bytes) == (size, 4)
    assert await platform.output(done) == (b"x" * size, b"end\n")
    assert await read_followed_output(platform, done) == {STDOUT: b"x" * size, STDERR: b"end\n"}


# after a restart -------------------------------------------------------------------------------------------------------


async def test_a_restart_neither_loses_nor_repeats_output(
    tmp_path: Path, engine_process: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_platform(tmp_path, engine_process, monkeypatch) as platform:
        row, lost = await platform.create_sandbox(), await platform.create_sandbox()
        command, short = (
            await platform.start(row, COUNT),
            await platform.start(row, "echo soon over; sleep 0.5; echo over"),
        )
        unfinished = await platform.start(lost, "sleep 1000")
        await until(lambda: has_output(platform, command), "there is output")
        await until(lambda: has_output(platform, short), "there is output")
        await until(lambda: is_running(platform, unfinished), "the command runs")
        assert lost.engine_id
    async with open_platform(tmp_path, engine_process, monkeypatch) as platform:
        done = await platform.wait(command)
        assert (done.status, done.exit_code) == ("exited", 7)
        assert await platform.output(done) == (COUNTED, COUNTED_ERR)
        assert await platform.output(await platform.wait(short)) == (b"soon over\nover\n", b"")
        assert not module.CommandStatus((await platform.services.commands.get(unfinished.id)).status).is_final
        await platform.services.engine.kill(lost.engine_id)
        assert (await platform.wait(unfinished)).status == "lost"
        assert await platform.list_event_kinds(row, "command.finished") == ["command.finished"] * 2
        await kill_sandboxes(platform)


async def test_a_short_database_outage_loses_no_command(
    platform: PlatformHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.05)
    row, database = await platform.create_sandbox(), platform.services.database
    command = await platform.start(row, "echo begun; while ! test -e /tmp/go; do sleep 0.05; done; echo over")
    await until(lambda: has_output(platform, command), "there is output")
    recorder, failures = platform.services.commands.runner.recorders[command.id], 0

    def fail() -> AsyncEngine:
        nonlocal failures
        failures += 1
        raise DatabaseUnavailableError

    assert row.engine_id
    await platform.services.engine.programs.run(row.engine_id, ["touch", "/tmp/go"])
    with monkeypatch.context() as outage:
        outage.setattr(Database, "engine", property(lambda _: fail()))
        outage.setattr(database, "reading", fail)
        async with asyncio.timeout(DEADLINE):
            while recorder.offsets[0] < len("begun\nover\n") or failures < 5:
                await asyncio.sleep(0.02)
    done = await platform.wait(command)
    assert (done.status, done.exit_code) == ("exited", 0)
    assert await platform.output(done) == (b"begun\nover\n", b"")
    assert await platform.list_event_kinds(row, "command.finished") == ["command.finished"]


async def test_a_database_error_of_the_deadline_watch_loses_no_command(
    platform: PlatformHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    row, rows = await platform.create_sandbox(), platform.services.lifecycle.repository
    real, lookups = rows.get, 0

    async def fail_once(sandbox_id: str) -> Sandbox:
        nonlocal lookups
        task = asyncio.current_task()
        if task is not None and getattr(task.get_coro(), "__name__", "") == "wait_until_overdue":
            lookups += 1
            if lookups == 1:
                raise DatabaseUnavailableError
        return await real(sandbox_id)

    monkeypatch.setattr(module, "RETRY_S", 0.05)
    monkeypatch.setattr(rows, "get", fail_once)
    command = await platform.start(row, "while ! test -e /tmp/go; do sleep 0.05; done")
    async with asyncio.timeout(DEADLINE):
        while lookups < 2:
            await asyncio.sleep(0.02)
    await platform.run(row, "touch /tmp/go")
    assert (await platform.wait(command)).status == "exited"


async def is_running(platform: PlatformHarness, command: Command) -> bool:
    return (await platform.services.commands.get(command.id)).status == "running"


async def test_a_command_that_was_never_sent_is_settled_after_a_restart(platform: PlatformHarness) -> None:
    """A process has stored the row and died: the command must not start by itself, now or later."""
    row = await platform.create_sandbox()
    done = await platform.wait(await platform.start(row, "true"))
    async with platform.services.database.transaction() as tx:
        unsent = Command(
            id=done.id[:-3] + "zzz",
            sandbox_id=row.id,
            command="touch /tmp/started",
            background=False,
            timeout_s=60,
            status="starting",
            started_at=done.started_at,
        )
        tx.add(unsent)
    assert await platform.services.commands.recover() == 1
    assert (await platform.wait(unsent)).status == "not_started"
    assert await platform.services.commands.recover() == 0


async def test_journals_of_finished_commands_are_deleted(
    platform: PlatformHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_KEPT_JOURNALS", 3)
    row = await platform.create_sandbox()
    assert row.engine_id
    ids = {(await platform.wait(await platform.start(row, "true"))).id for _ in range(3)}

    async def are_forgotten() -> bool:
        assert row.engine_id
        entries = (await platform.services.engine.files.list(row.engine_id, "/tmp/.sandyard/commands", 1)).entries
        return not ids & {entry.name for entry in entries}

    await until(are_forgotten, "the journals are deleted")
    last = await platform.wait(await platform.start(row, "true"))
    assert last.id in await platform.run(row, JOURNALS)
    await platform.services.sandboxes.pause(platform.owner, row.id)
    assert last.id not in await platform.run(row, JOURNALS), "journals are deleted before a pause"


async def test_a_command_is_lost_after_invalid_messages_of_a_hostile_relay(platform: PlatformHarness) -> None:
    """The relay is a file in the sandbox: its user can replace it and send anything, but only about that command."""
    for line in (
        ":1 zzz AAAA",
        ":1 0 A",
        f":1 {'9' * 5000} AAAA",
        ":s xx",
        ":b 1 5000000 0",
        ":b 1 9 ..",
        ':e {"reason": "exited", "code": 1e999}',
    ):
        row = await platform.create_sandbox()
        await platform.run(row, "true")
        fake = f"import sys; sys.stdout.write('\\n:: ' + sys.argv[1] + '\\n{line}\\n'); sys.stdout.flush()"
        await platform.run(
            row,
            f"cat > /tmp/fake <<'EOF'\n{fake}\nEOF\nfor f in /tmp/.sandyard/relay-*/main.py; do cp /tmp/fake $f; done",
        )
        async with asyncio.timeout(DEADLINE):
            assert (await platform.wait(await platform.start(row, "echo hi"))).status == "lost", line


async def test_output_over_the_limit_is_dropped_and_reported(
    platform: PlatformHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform.services.commands.runner, "output_kept", 1000)
    row = await platform.create_sandbox()
    done = await platform.wait(await platform.start(row, "head -c 5000 /dev/zero; echo fine >&2"))
    assert (done.status, done.exit_code, done.stdout_bytes, done.stderr_bytes) == ("exited", 0, 1000, 5)
    assert done.error and "1,000 bytes of stdout" in done.error
    done = await platform.wait(await platform.start(row, "head -c 50000000 /dev/zero; echo fine >&2"))
    assert (done.status, done.exit_code, done.stdout_bytes, done.stderr_bytes) == ("exited", 0, 1000, 5)
    assert done.error and "1,000 bytes of stdout" in done.error
