"""Commands: what they say and how they end, whatever happens on the way."""

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
from sandyard.platform.domain.sandboxes.model import CommandRefusedError, NewCommand, NewSandbox
from tests.integration.platform.domain.sandboxes.yard import DEADLINE, Yard, cleared, opened, until
from tests.protocol.engine import Engine

JOURNALS = "ls /tmp/.sandyard/commands"
COUNT = "i=0; while [ $i -lt 30 ]; do echo line $i; echo err $i >&2; i=$((i+1)); sleep 0.05; done; exit 7"
COUNTED = "".join(f"line {number}\n" for number in range(30)).encode()
COUNTED_ERR = "".join(f"err {number}\n" for number in range(30)).encode()


async def said(yard: Yard, command: Command, size: int = 1) -> bool:
    return (await yard.services.commands.get(command.id)).stdout_bytes >= size


# what people ask for ---------------------------------------------------------------------------------------------------


async def test_a_command_its_output_and_its_end(yard: Yard) -> None:
    row = await yard.sandbox()
    command = await yard.start(row, 'echo "$PWD $WORD"; echo bad >&2; exit 3', cwd="/var", envs={"WORD": "hi"})
    assert command.status == "starting"
    done = await yard.wait(command)
    assert (done.status, done.exit_code, done.signal, done.error) == ("exited", 3, None, None)
    assert await yard.output(done) == (b"/var hi\n", b"bad\n")
    assert (done.stdout_bytes, done.stderr_bytes) == (8, 4) and done.duration_s is not None and done.finished_at
    assert (await yard.row(row)).command_count == 1
    kinds = await yard.kinds(row, "command.")
    assert kinds[0] == "command.started" and kinds[-1] == "command.finished"
    assert (await yard.wait(done)).finished_at == done.finished_at, "of one that is over the end is known"


async def test_a_timeout(yard: Yard) -> None:
    row = await yard.sandbox()
    new = NewCommand(command="echo begun; sleep 1000", timeout_s=0.3)
    done = await yard.wait(await yard.services.commands.execute(yard.owner, row.id, new))
    assert done.status == "timed_out" and done.error
    assert (await yard.output(done))[0] == b"begun\n"


async def test_what_the_project_denies_leaves_no_trace(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: set[str] = set()
    check = CommandPolicy.check

    def watched(policy: CommandPolicy, command: str) -> None:
        threads.add(threading.current_thread().name.partition("_")[0])
        check(policy, command)

    monkeypatch.setattr(CommandPolicy, "check", watched)
    project = await yard.project(yard.owner, command_policy={"deny": ["\\bsudo\\b"]})
    _, row = await yard.services.sessions.create(yard.owner, project_id=project)
    with pytest.raises(CommandRefusedError, match="sudo"):
        await yard.start(row, "sudo rm -rf /")
    with pytest.raises(CommandRefusedError, match="could not be checked"):
        await yard.start(row, "sudo rm -rf / #" + "x" * (MAX_COMMAND - 100))
    assert threads == {"patterns"}  # never on the event loop
    assert (await yard.services.commands.page(yard.owner, row.id, PageRequest())).items == []
    assert await yard.kinds(row, "command.") == []
    assert await yard.run(row, "echo fine") == "fine\n"
    assert (await yard.row(row)).command_count == 1


async def test_what_is_no_command(yard: Yard) -> None:
    row = yard.services.lifecycle.draft(yard.owner.user_id, NewSandbox(template="base", idle_seconds=300))
    async with yard.services.database.transaction() as tx:
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
            await yard.services.commands.execute(yard.owner, row.id, new)
    assert (await yard.services.commands.page(yard.owner, row.id, PageRequest())).items == []


async def test_a_folder_that_is_not_there_starts_nothing(yard: Yard) -> None:
    row = await yard.sandbox()
    done = await yard.wait(await yard.start(row, "true", cwd="/nowhere"))
    assert done.status == "not_started" and "/nowhere" in (done.error or "")


async def test_others_see_nothing_of_it(yard: Yard) -> None:
    row, stranger = await yard.sandbox(), await yard.person("stranger")
    done = await yard.wait(await yard.start(row, "true"))
    for attempt in (
        yard.services.commands.get_for(stranger, done.id),
        yard.services.commands.kill(stranger, done.id),
        yard.services.commands.page(stranger, row.id, PageRequest()),
        yard.services.commands.execute(stranger, row.id, NewCommand("true", 1)),
    ):
        with pytest.raises(NotFoundError):
            await attempt
    admin = await yard.person("boss", "admin")
    assert (await yard.services.commands.get_for(admin, done.id))[0].id == done.id


async def test_pages_are_newest_first(yard: Yard) -> None:
    row = await yard.sandbox()
    ids = [(await yard.wait(await yard.start(row, "true"))).id for _ in range(3)]
    page = await yard.services.commands.page(yard.owner, row.id, PageRequest(2))
    assert [item.id for item in page.items] == ids[:0:-1]
    rest = await yard.services.commands.page(yard.owner, row.id, PageRequest(2, page.next_cursor))
    assert [item.id for item in rest.items] == ids[:1] and rest.next_cursor is None


# the end by force ------------------------------------------------------------------------------------------------------


async def test_kill_ends_it_and_all_its_children(yard: Yard) -> None:
    row = await yard.sandbox()
    command = await yard.start(row, "echo begun; sleep 1001 & sleep 1002", background=True)
    await until(lambda: said(yard, command), "output")
    for _ in range(2):
        async with asyncio.timeout(DEADLINE):
            done = await yard.services.commands.kill(yard.owner, command.id)
        assert done.status == "killed" and done.exit_code is None
    assert await yard.run(row, "pgrep -x sleep || echo none") == "none\n"


async def test_kill_before_it_has_started_keeps_it_from_starting(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    row = await yard.sandbox()
    await yard.run(row, "true")  # the relay is there
    go_on, real = asyncio.Event(), yard.services.lifecycle.ensure_running

    async def late(box: Sandbox) -> str:
        engine_id = await real(box)
        task = asyncio.current_task()
        # the command's own, not the kill's
        if task is not None and getattr(task.get_coro(), "__name__", "") == "_run_through_outages":
            await go_on.wait()
        return engine_id

    monkeypatch.setattr(yard.services.lifecycle, "ensure_running", late)
    command = await yard.start(row, "touch /tmp/started; sleep 1000")
    killing = asyncio.ensure_future(yard.services.commands.kill(yard.owner, command.id))
    await until(lambda: knows(yard, row, command), "the kill has come first")
    go_on.set()
    async with asyncio.timeout(DEADLINE):
        assert (await killing).status == "not_started"
    monkeypatch.undo()
    assert await yard.run(row, "test -e /tmp/started || echo never") == "never\n"


async def knows(yard: Yard, row: Sandbox, command: Command) -> bool:
    assert row.engine_id
    entries = (await yard.services.engine.files.list(row.engine_id, "/tmp/.sandyard/commands", 1)).entries
    return command.id in {entry.name for entry in entries}


# sleep and absence -----------------------------------------------------------------------------------------------------


async def test_a_pause_in_the_middle_of_a_foreground_command(yard: Yard) -> None:
    row = await yard.sandbox()
    command = await yard.start(row, COUNT)
    waiting = asyncio.ensure_future(yard.wait(command))
    await until(lambda: said(yard, command), "output")
    await yard.services.sandboxes.pause(yard.owner, row.id)
    assert await yard.state(row) == "paused"
    known = (await yard.services.commands.get(command.id)).stdout_bytes
    assert known < len(COUNTED) and not waiting.done()
    await yard.services.sandboxes.resume(yard.owner, row.id)
    done = await waiting
    assert (done.status, done.exit_code) == ("exited", 7)
    assert await yard.output(done) == (COUNTED, COUNTED_ERR)


async def test_a_command_for_a_sleeping_sandbox_wakes_it(yard: Yard) -> None:
    row = await yard.sandbox()
    await yard.services.sandboxes.pause(yard.owner, row.id)
    assert await yard.run(row, "echo awake") == "awake\n"
    assert (await yard.row(row)).status == "running"


async def test_a_sandbox_that_cannot_be_woken_starts_nothing(yard: Yard) -> None:
    row = await yard.sandbox()
    await yard.services.sandboxes.pause(yard.owner, row.id)
    await yard.door.shut()
    done = await yard.wait(await yard.start(row, "true"))
    assert done.status == "not_started" and "could not be reached" in (done.error or "")


async def test_an_engine_that_is_away_for_long_starts_nothing_later(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it is away nobody knows; when it is back the command is either running or can never run."""
    monkeypatch.setattr("sandyard.platform.domain.sandboxes.e2b.commands.START_PATIENCE_S", 0.5)
    monkeypatch.setattr(module, "RETRY_S", 0.2)
    row = await yard.sandbox()
    await yard.door.shut()
    command = await yard.start(row, "touch /tmp/started")
    await until(lambda: given_up(yard), "the breaker opens")
    assert (await yard.services.commands.get(command.id)).status == "starting"
    await yard.back()
    assert (await yard.wait(command)).status == "not_started"
    assert await yard.run(row, "test -e /tmp/started || echo never") == "never\n"


async def given_up(yard: Yard) -> bool:
    return yard.services.engine.breaker.opened_at is not None


async def test_a_sandbox_that_could_not_be_made_starts_nothing(yard: Yard) -> None:
    _, row = await yard.services.sessions.create(yard.owner, template="no-such-template")
    done = await yard.wait(await yard.start(row, "true"))
    assert done.status == "not_started" and done.error


async def test_an_engine_that_comes_back_gives_the_rest(yard: Yard) -> None:
    row = await yard.sandbox()
    command = await yard.start(row, COUNT)
    await until(lambda: said(yard, command), "output")
    await yard.door.shut()
    await yard.back()
    done = await yard.wait(command)
    assert (done.status, done.exit_code) == ("exited", 7)
    assert await yard.output(done) == (COUNTED, COUNTED_ERR)


async def test_a_sandbox_that_dies_takes_its_commands_along(yard: Yard) -> None:
    row = await yard.sandbox()
    command = await yard.start(row, "echo here; sleep 1000")
    waiters = [asyncio.ensure_future(yard.wait(command)) for _ in range(3)]
    await until(lambda: said(yard, command), "output")
    assert row.engine_id
    await yard.services.engine.kill(row.engine_id)
    for waiter in waiters:
        done = await waiter
        assert done.status == "lost" and done.exit_code is None and "exit was not observed" in (done.error or "")
    assert (await yard.row(row)).status == "error"
    assert (await yard.output(command))[0] == b"here\n"


async def test_nobody_waits_for_one_that_has_ended_to_wake(yard: Yard) -> None:
    """It may have done so between somebody's look and their waiting."""
    row = await yard.sandbox()
    await yard.services.lifecycle.mark_lost(row.id)
    async with asyncio.timeout(10):  # else it is looked at again after 30 s
        await yard.services.commands._runner._wait_until_running(row.id)


# reading along ---------------------------------------------------------------------------------------------------------


async def followed(yard: Yard, command: Command, out: int = 0, err: int = 0) -> dict[str, bytes]:
    found = {STDOUT: b"", STDERR: b""}
    async with asyncio.timeout(DEADLINE):
        async for piece in yard.services.commands.follow(command, {STDOUT: out, STDERR: err}):
            if piece is not None:
                stream, offset, data = piece
                assert offset == (out if stream == STDOUT else err) + len(found[stream])
                found[stream] += data
    return found


async def test_output_is_followed_as_it_comes_and_from_any_byte(yard: Yard) -> None:
    row = await yard.sandbox()
    command = await yard.start(row, f"echo first; while ! test -e /tmp/go; do sleep 0.05; done; {COUNT}")
    follower = yard.services.commands.follow(command, {STDOUT: 0, STDERR: 0})
    async with asyncio.timeout(DEADLINE):
        piece = await anext(follower)
    assert piece == (STDOUT, 0, b"first\n"), "it is shown while the command runs"
    assert not module.CommandStatus((await yard.services.commands.get(command.id)).status).over
    readers = [asyncio.ensure_future(followed(yard, command, out, err)) for out, err in ((0, 0), (8, 3))]
    await yard.run(row, "touch /tmp/go")
    whole = {STDOUT: b"first\n" + COUNTED, STDERR: COUNTED_ERR}
    assert await readers[0] == whole
    assert await readers[1] == {STDOUT: whole[STDOUT][8:], STDERR: whole[STDERR][3:]}
    assert await followed(yard, await yard.wait(command), 6) == {STDOUT: COUNTED, STDERR: COUNTED_ERR}
    await follower.aclose()  # type: ignore[attr-defined]


async def test_output_that_is_larger_than_an_event_is_all_there(yard: Yard) -> None:
    row = await yard.sandbox()
    size = 40 * INLINE_BYTES
    done = await yard.wait(await yard.start(row, f"head -c {size} /dev/zero | tr '\\0' x; echo end >&2"))
    assert (done.stdout_bytes, done.stderr_bytes) == (size, 4)
    assert await yard.output(done) == (b"x" * size, b"end\n")
    assert await followed(yard, done) == {STDOUT: b"x" * size, STDERR: b"end\n"}


# after a restart -------------------------------------------------------------------------------------------------------


async def test_after_a_restart_nothing_is_missing_and_nothing_twice(
    tmp_path: Path, engine_process: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path, engine_process, monkeypatch) as yard:
        row, lost = await yard.sandbox(), await yard.sandbox()
        command, over = await yard.start(row, COUNT), await yard.start(row, "echo soon over; sleep 0.5; echo over")
        gone = await yard.start(lost, "sleep 1000")
        await until(lambda: said(yard, command), "output")
        await until(lambda: said(yard, over), "output")
        await until(lambda: said_running(yard, gone), "running")
        assert lost.engine_id
    async with opened(tmp_path, engine_process, monkeypatch) as yard:
        done = await yard.wait(command)
        assert (done.status, done.exit_code) == ("exited", 7)
        assert await yard.output(done) == (COUNTED, COUNTED_ERR)
        assert await yard.output(await yard.wait(over)) == (b"soon over\nover\n", b"")
        assert not module.CommandStatus((await yard.services.commands.get(gone.id)).status).over
        await yard.services.engine.kill(lost.engine_id)
        assert (await yard.wait(gone)).status == "lost"
        assert await yard.kinds(row, "command.finished") == ["command.finished"] * 2
        await cleared(yard)


async def test_a_database_that_is_away_for_a_moment_loses_no_command(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.05)
    row, database = await yard.sandbox(), yard.services.database
    command = await yard.start(row, "echo begun; while ! test -e /tmp/go; do sleep 0.05; done; echo over")
    await until(lambda: said(yard, command), "output")
    recorder, asked = yard.services.commands._runner.recorders[command.id], 0

    def away() -> AsyncEngine:
        nonlocal asked
        asked += 1
        raise DatabaseUnavailableError

    assert row.engine_id
    await yard.services.engine.programs.run(row.engine_id, ["touch", "/tmp/go"])
    with monkeypatch.context() as gone:
        gone.setattr(Database, "engine", property(lambda _: away()))
        gone.setattr(database, "reading", away)
        async with asyncio.timeout(DEADLINE):
            while recorder.offsets[0] < len("begun\nover\n") or asked < 5:
                await asyncio.sleep(0.02)
    done = await yard.wait(command)
    assert (done.status, done.exit_code) == ("exited", 0)
    assert await yard.output(done) == (b"begun\nover\n", b"")
    assert await yard.kinds(row, "command.finished") == ["command.finished"]


async def test_one_whose_watch_finds_no_database_is_not_lost(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    row, rows = await yard.sandbox(), yard.services.lifecycle.repository
    real, asked = rows.get, 0

    async def away(sandbox_id: str) -> Sandbox:
        nonlocal asked
        task = asyncio.current_task()
        if task is not None and getattr(task.get_coro(), "__name__", "") == "_wait_until_overdue":
            asked += 1
            if asked == 1:
                raise DatabaseUnavailableError
        return await real(sandbox_id)

    monkeypatch.setattr(module, "RETRY_S", 0.05)
    monkeypatch.setattr(rows, "get", away)
    command = await yard.start(row, "while ! test -e /tmp/go; do sleep 0.05; done")
    async with asyncio.timeout(DEADLINE):
        while asked < 2:
            await asyncio.sleep(0.02)
    await yard.run(row, "touch /tmp/go")
    assert (await yard.wait(command)).status == "exited"


async def said_running(yard: Yard, command: Command) -> bool:
    return (await yard.services.commands.get(command.id)).status == "running"


async def test_one_that_was_never_sent_is_settled_after_a_restart(yard: Yard) -> None:
    """A process has written the row down and died: the command must not start by itself, now or later."""
    row = await yard.sandbox()
    done = await yard.wait(await yard.start(row, "true"))
    async with yard.services.database.transaction() as tx:
        left = Command(
            id=done.id[:-3] + "zzz",
            sandbox_id=row.id,
            command="touch /tmp/started",
            background=False,
            timeout_s=60,
            status="starting",
            started_at=done.started_at,
        )
        tx.add(left)
    assert await yard.services.commands.recover() == 1
    assert (await yard.wait(left)).status == "not_started"
    assert await yard.services.commands.recover() == 0


async def test_journals_are_forgotten(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FORGET_MANY", 3)
    row = await yard.sandbox()
    assert row.engine_id
    ids = {(await yard.wait(await yard.start(row, "true"))).id for _ in range(3)}

    async def forgotten() -> bool:
        assert row.engine_id
        entries = (await yard.services.engine.files.list(row.engine_id, "/tmp/.sandyard/commands", 1)).entries
        return not ids & {entry.name for entry in entries}

    await until(forgotten, "forgotten")
    last = await yard.wait(await yard.start(row, "true"))
    assert last.id in await yard.run(row, JOURNALS)
    await yard.services.sandboxes.pause(yard.owner, row.id)
    assert last.id not in await yard.run(row, JOURNALS), "before it sleeps it is tidied"


async def test_what_a_hostile_relay_says_ends_in_lost(yard: Yard) -> None:
    """The relay's program is a file in the sandbox: its tenant may say anything in its place, about that command only."""
    for said in (
        ":1 zzz AAAA",
        ":1 0 A",
        f":1 {'9' * 5000} AAAA",
        ":s xx",
        ":b 1 5000000 0",
        ":b 1 9 ..",
        ':e {"reason": "exited", "code": 1e999}',
    ):
        row = await yard.sandbox()
        await yard.run(row, "true")
        fake = f"import sys; sys.stdout.write('\\n:: ' + sys.argv[1] + '\\n{said}\\n'); sys.stdout.flush()"
        await yard.run(
            row,
            f"cat > /tmp/fake <<'EOF'\n{fake}\nEOF\nfor f in /tmp/.sandyard/relay-*/main.py; do cp /tmp/fake $f; done",
        )
        async with asyncio.timeout(DEADLINE):
            assert (await yard.wait(await yard.start(row, "echo hi"))).status == "lost", said


async def test_output_beyond_what_is_kept_is_said(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yard.services.commands._runner, "_output_kept", 1000)
    row = await yard.sandbox()
    done = await yard.wait(await yard.start(row, "head -c 5000 /dev/zero; echo fine >&2"))
    assert (done.status, done.exit_code, done.stdout_bytes, done.stderr_bytes) == ("exited", 0, 1000, 5)
    assert done.error and "1,000 bytes of stdout" in done.error
    done = await yard.wait(await yard.start(row, "head -c 50000000 /dev/zero; echo fine >&2"))
    assert (done.status, done.exit_code, done.stdout_bytes, done.stderr_bytes) == ("exited", 0, 1000, 5)
    assert done.error and "1,000 bytes of stdout" in done.error
