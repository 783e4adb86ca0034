"""The output of a command is stored, counted and published once and in order."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import select

from sandyard.kit.errors import NoSpaceError
from sandyard.kit.ids import make_ordered_id
from sandyard.kit.tasks import TaskSet
from sandyard.platform.db.database import Database, DatabaseClosedError
from sandyard.platform.db.models import Command, Event, Sandbox, User
from sandyard.platform.domain.sandboxes.command_output import (
    FLUSH_BYTES,
    FLUSH_S,
    INLINE_BYTES,
    MERGED_BYTES,
    STDERR,
    STDOUT,
    OutputFiles,
    OutputRecorder,
)
from sandyard.platform.domain.sandboxes.command_runner import CommandRunner
from sandyard.platform.domain.sandboxes.model import CommandStatus, utc_now
from sandyard.platform.domain.sandboxes.repository import build_sandbox_row


@pytest.fixture
async def rows(database: Database) -> tuple[Sandbox, Command]:
    user = User(id=make_ordered_id("usr_"), name="a", role="admin", created_at=utc_now())
    sandbox = build_sandbox_row(user.id, template="base", idle_seconds=300)
    command = Command(
        id=make_ordered_id("cmd_"),
        sandbox_id=sandbox.id,
        command="x",
        background=False,
        timeout_s=1,
        status="running",
        stdout_bytes=0,
        stderr_bytes=0,
        started_at=utc_now(),
    )
    async with database.transaction() as tx:
        tx.add(user)
        await tx.session.flush()
        tx.add(sandbox)
        await tx.session.flush()
        tx.add(command)
    return sandbox, command


async def events(database: Database) -> list[Event]:
    async with database.reading() as session:
        return list((await session.execute(select(Event).order_by(Event.seq))).scalars())


async def test_stores_and_publishes_output(database: Database, rows: tuple[Sandbox, Command], tmp_path: Path) -> None:
    sandbox, command = rows
    files = OutputFiles(tmp_path)
    recorder = OutputRecorder(database, files, sandbox, command)
    await recorder.begin()
    news = recorder.watch()
    await recorder.add(STDOUT, 0, b"hello ")
    await recorder.add(STDOUT, 6, b"world")
    await recorder.add(STDERR, 0, b"\xff\xfe")
    await asyncio.wait_for(news, 10)
    await recorder.add(STDOUT, 0, b"hello world!")  # a reader that starts again
    await recorder.add(STDERR, 2, b"x" * (INLINE_BYTES + 1))
    await recorder.finish(CommandStatus.EXITED, exit_code=3, duration_s=1.5)

    assert await files.read(command.id, STDOUT, 0, 100) == b"hello world!"
    assert await files.read(command.id, STDOUT, 6, 5) == b"world"
    async with database.reading() as session:
        row = await session.get(Command, command.id)
    assert row is not None
    assert (row.status, row.exit_code, row.stdout_bytes, row.stderr_bytes) == ("exited", 3, 12, INLINE_BYTES + 3)
    published = await events(database)
    assert [event.kind for event in published if event.kind != "command.output"] == ["command.finished"]
    pieces = [piece for event in published if event.kind == "command.output" for piece in event.data["output"]]
    assert "".join(piece["text"] for piece in pieces if piece["stream"] == STDOUT) == "hello world!"
    binary, large = [piece for piece in pieces if piece["stream"] == STDERR]
    assert binary["base64"] == "//4="
    assert "text" not in large, "output larger than an event is only referenced"
    assert (large["offset"], large["end"]) == (2, INLINE_BYTES + 3)
    assert {event.sandbox_id for event in published} == {sandbox.id}


async def test_writes_output_that_arrives_during_write(
    database: Database, rows: tuple[Sandbox, Command], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox, command = rows
    files = OutputFiles(tmp_path)
    recorder = OutputRecorder(database, files, sandbox, command)
    await recorder.begin()
    gate, write = asyncio.Event(), files.write

    async def slow(*arguments: Any) -> None:
        await gate.wait()
        await write(*arguments)

    monkeypatch.setattr(files, "write", slow)
    await recorder.add(STDOUT, 0, b"x" * FLUSH_BYTES)
    await asyncio.sleep(0)
    await recorder.add(STDOUT, FLUSH_BYTES, b"$ ")
    await asyncio.sleep(3 * FLUSH_S)  # its timer fires while the other write is running
    gate.set()
    while (await files.read(command.id, STDOUT, FLUSH_BYTES, 2)) != b"$ ":
        await asyncio.wait_for(recorder.watch(), 10)
    await recorder.finish(CommandStatus.EXITED, exit_code=0, duration_s=1)


async def test_retries_failed_writes_in_order(
    database: Database, rows: tuple[Sandbox, Command], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox, command = rows
    files = OutputFiles(tmp_path)
    recorder = OutputRecorder(database, files, sandbox, command)
    await recorder.begin()
    dice, expected = random.Random(7), b""

    async def add(count: int) -> None:
        nonlocal expected
        for _ in range(count):
            piece = dice.randbytes(dice.choice((1, 50, MERGED_BYTES - 1, MERGED_BYTES, MERGED_BYTES + 1)))
            await recorder.add(STDOUT, len(expected), piece)
            expected += piece

    write = files.write

    async def full(*_: object) -> None:
        await add(2)  # arrives during the retry
        raise OSError(errno.ENOSPC, "No space left on device")

    await add(12)
    monkeypatch.setattr(files, "write", full)
    for _ in range(2):
        with pytest.raises(NoSpaceError):
            await recorder.flush()
        await add(3)
    assert recorder.offsets == (len(expected), 0)
    monkeypatch.setattr(files, "write", write)
    await recorder.finish(CommandStatus.EXITED, exit_code=0)
    assert await files.read(command.id, STDOUT, 0, 1 << 30) == expected


async def test_writes_many_pieces_in_order(tmp_path: Path) -> None:
    files = OutputFiles(tmp_path)
    await files.begin("cmd_1", {})
    pieces = [str(number).encode() for number in range(3000)]
    await files.write("cmd_1", STDOUT, 0, b"head", *pieces[:1500], b"", bytearray(b"middle"), *pieces[1500:])
    expected = b"head" + b"".join(pieces[:1500]) + b"middle" + b"".join(pieces[1500:])
    assert await files.read("cmd_1", STDOUT, 0, 1 << 20) == expected


async def test_truncates_output_not_counted_before_crash(
    database: Database, rows: tuple[Sandbox, Command], tmp_path: Path
) -> None:
    sandbox, command = rows
    files = OutputFiles(tmp_path)
    await OutputRecorder(database, files, sandbox, command).begin()
    await files.write(command.id, STDOUT, 0, b"written, but never counted")
    again = OutputRecorder(database, files, sandbox, command)
    await again.begin()
    assert again.offsets == (0, 0)
    await again.add(STDOUT, 0, b"abc")
    await again.finish(CommandStatus.EXITED, exit_code=0)
    assert await files.read(command.id, STDOUT, 0, 100) == b"abc"


async def test_removing_command_deletes_output(tmp_path: Path) -> None:
    files = OutputFiles(tmp_path)
    await files.begin("cmd_1", {})
    await files.write("cmd_1", STDOUT, 0, b"abc")
    await files.remove("cmd_1")
    assert await files.read("cmd_1", STDOUT, 0, 10) == b""
    await files.remove("cmd_1")


async def test_ending_during_flush_writes_nothing_twice(
    database: Database, rows: tuple[Sandbox, Command], tmp_path: Path
) -> None:
    sandbox, command = rows
    files = OutputFiles(tmp_path)
    recorder = OutputRecorder(database, files, sandbox, command)
    await recorder.begin()
    expected = b""
    for number in range(30):
        piece = f"{number:04}".encode()
        await recorder.add(STDOUT, len(expected), piece)
        expected += piece
        recorder.start_flush()  # as the timer does at any moment
        await asyncio.sleep(0)
    await recorder.finish(CommandStatus.EXITED, exit_code=0)
    assert await files.read(command.id, STDOUT, 0, 1000) == expected
    published = [piece for event in await events(database) for piece in event.data.get("output", ())]
    assert "".join(piece["text"] for piece in published) == expected.decode()


async def test_writes_nothing_after_release(database: Database, rows: tuple[Sandbox, Command], tmp_path: Path) -> None:
    sandbox, command = rows
    lifecycle = SimpleNamespace(tasks=TaskSet("test"))
    runner = CommandRunner(database, lifecycle, OutputFiles(tmp_path), 1 << 20)  # type: ignore[arg-type]
    has_output = asyncio.Event()

    async def produce_output() -> None:
        recorder = await runner.create_recorder(sandbox, command)
        await recorder.add(STDOUT, 0, b"hello")
        has_output.set()
        await asyncio.Event().wait()

    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    runner.wait_until_overdue = never  # type: ignore[method-assign]
    runner.spawn(sandbox, command, produce_output(), contextlib.ExitStack())
    await has_output.wait()
    recorder = runner.recorders[command.id]
    await lifecycle.tasks.cancel()
    await database.close()
    assert recorder.is_idle
    with pytest.raises(DatabaseClosedError):
        await recorder.flush()


async def test_much_output_takes_few_transactions(
    database: Database, rows: tuple[Sandbox, Command], tmp_path: Path
) -> None:
    """Output that arrives during a write is written together afterwards."""
    sandbox, command = rows
    files = OutputFiles(tmp_path)
    recorder = OutputRecorder(database, files, sandbox, command)
    await recorder.begin()
    piece, count = b"0123456789abcdef" * 3072, 400
    for number in range(count):
        await recorder.add(STDOUT, number * len(piece), piece)
    await recorder.finish(CommandStatus.EXITED, exit_code=0)
    assert await files.get_size(command.id, STDOUT) == count * len(piece)
    assert await files.read(command.id, STDOUT, (count - 1) * len(piece), 1 << 20) == piece
    published = [item for event in await events(database) for item in event.data.get("output", ())]
    assert [item["offset"] for item in published] == [0, *(item["end"] for item in published[:-1])]
    assert published[-1]["end"] == count * len(piece)
    assert len(published) <= 8
