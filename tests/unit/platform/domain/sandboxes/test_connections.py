"""The number of a user's connections is limited: commands, terminals, file operations and SSH connections hold connections to the engine."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sandyard.kit.clock import SystemClock
from sandyard.platform.db.database import DatabaseFullError
from sandyard.platform.db.models import Command, Sandbox
from sandyard.platform.domain.remote.connections import SshConnections
from sandyard.platform.domain.sandboxes.activity import Activity
from sandyard.platform.domain.sandboxes.command_output import OutputFiles
from sandyard.platform.domain.sandboxes.commands import Commands
from sandyard.platform.domain.sandboxes.connections import TooManyOperationsError
from sandyard.platform.domain.sandboxes.e2b import CommandEnded, EndReason, EngineError
from sandyard.platform.domain.sandboxes.lifecycle import Lifecycle
from sandyard.platform.domain.sandboxes.model import NewCommand, NewSandbox
from sandyard.platform.domain.sandboxes.service import Sandboxes
from sandyard.platform.domain.sandboxes.terminals import Terminals
from tests.unit.platform.world import Person, World

LIMIT = 3
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIK7d4M1Zb1XqI8m6c5v3l0y5w0nq1x8p3y0h7m1q2w3e"


class Handle:
    """An open terminal. Its output ends when `ended` is set."""

    pid = 1

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.detached = False

    async def output(self) -> AsyncIterator[bytes]:
        await self.ended.wait()
        yield b"bye"

    async def detach(self) -> None:
        self.detached = True


class Engine:
    """Commands and terminals run until they are ended. Downloads are two pieces."""

    def __init__(self) -> None:
        self.handles: list[Handle] = []
        self.ended = asyncio.Event()
        self.error: EngineError | None = None
        self.closed_downloads = 0
        self.breaker = SimpleNamespace(state="closed")
        self.commands = SimpleNamespace(start=self._run, follow=self._run, claim=self._claim)
        self.terminals = SimpleNamespace(open=self._open, attach=self._open)
        self.files = SimpleNamespace(read=self._read, write=self._write)

    async def create(self, **_: Any) -> Any:
        return SimpleNamespace(id="eng_1", isolation=None)

    async def _run(self, *_: Any, **__: Any) -> AsyncIterator[CommandEnded]:
        await self.ended.wait()
        yield CommandEnded(EndReason.EXITED, 0, None, 0.0)

    async def _claim(self, *_: Any) -> bool:
        return False

    async def _open(self, *_: Any, **__: Any) -> Handle:
        self._raise_error()
        self.handles.append(Handle())
        return self.handles[-1]

    async def _read(self, *_: Any) -> tuple[int, AsyncGenerator[bytes, None]]:
        self._raise_error()

        async def chunks() -> AsyncGenerator[bytes, None]:
            try:
                yield b"a"
                yield b"b"
            finally:
                self.closed_downloads += 1

        return 2, chunks()

    async def _write(self, engine_id: str, path: str, chunks: AsyncIterator[bytes]) -> int:
        self._raise_error()
        return sum([len(chunk) async for chunk in chunks])

    def _raise_error(self) -> None:
        if self.error is not None:
            raise self.error


class ConnectionsHarness:
    def __init__(self, world: World, ann: Person, bob: Person) -> None:
        self.world, self.ann, self.bob = world, ann.principal, bob.principal
        self.engine = Engine()
        self.lifecycle = Lifecycle(
            world.database, cast(Any, self.engine), cast(Any, None), Activity(SystemClock()), instance="x", idle_margin_s=1
        )  # fmt: skip
        self.commands = Commands(
            world.database, self.lifecycle, OutputFiles(world.settings.data_dir), max_timeout_s=100, output_kept=1000
        )
        self.terminals = Terminals(world.database, self.lifecycle)
        self.sandboxes = Sandboxes(world.database, self.lifecycle, world.projects, world.settings)
        self.row: Sandbox

    async def execute(self) -> Command:
        return await self.commands.execute(self.ann, self.row.id, NewCommand(command="ls", timeout_s=10))

    async def upload(self) -> None:
        async def chunks() -> AsyncIterator[bytes]:
            yield b"x"

        await self.sandboxes.upload_file(self.ann, self.row.id, "/x", chunks(), None)

    def fill(self) -> None:
        """Take all of Ann's connections."""
        self.lifecycle.connections.open_connections[self.ann.user_id] = LIMIT

    async def wait_until_free(self) -> None:
        async with asyncio.timeout(20):
            while self.lifecycle.connections.open_connections:
                gc.collect()
                await asyncio.sleep(0.01)


@pytest.fixture
async def harness(world: World, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ConnectionsHarness]:
    monkeypatch.setattr("sandyard.platform.domain.sandboxes.connections.MAX_CONNECTIONS_PER_USER", LIMIT)
    made = ConnectionsHarness(world, await world.create_person("ann"), await world.create_person("bob"))
    wanted = NewSandbox(template="base", idle_seconds=300)
    made.row = await made.lifecycle.create(made.ann.user_id, wanted)
    made.row = await made.lifecycle.wait_until_provisioned(made.row.id)
    yield made
    await made.lifecycle.close()


async def test_one_limit_for_all_of_a_users_operations(harness: ConnectionsHarness) -> None:
    async def open_ssh() -> None:
        async with SshConnections(harness.lifecycle).open(harness.ann, harness.row.id, KEY):
            pass

    harness.fill()
    operations: list[Callable[[], Awaitable[object]]] = [
        harness.execute,
        lambda: harness.terminals.open(harness.ann, harness.row.id, 80, 24),
        harness.upload,
        lambda: harness.sandboxes.download_file(harness.ann, harness.row.id, "/x"),
        lambda: harness.sandboxes.list_files(harness.ann, harness.row.id, "/", 1),
        lambda: harness.sandboxes.get_file_info(harness.ann, harness.row.id, "/x"),
        lambda: harness.sandboxes.remove_file(harness.ann, harness.row.id, "/x"),
        open_ssh,
    ]
    for operation in operations:
        with pytest.raises(TooManyOperationsError) as failed:
            await operation()
        assert failed.value.status == 429
    with harness.lifecycle.connections.hold(harness.bob.user_id):
        pass


async def test_command_counts_until_it_has_ended(harness: ConnectionsHarness) -> None:
    commands = [await harness.execute() for _ in range(LIMIT)]
    with pytest.raises(TooManyOperationsError):
        await harness.execute()
    harness.engine.ended.set()
    await asyncio.gather(*(harness.commands.wait(command.id) for command in commands))
    await harness.wait_until_free()
    await harness.execute()


async def test_commands_of_an_earlier_process_count(harness: ConnectionsHarness) -> None:
    """All of them continue, even if they are more than the limit."""
    await harness.execute()
    later = Commands(
        harness.world.database, harness.lifecycle, harness.commands.files, max_timeout_s=100, output_kept=1000
    )
    harness.fill()
    assert await later.recover() == 1
    assert harness.lifecycle.connections.open_connections[harness.ann.user_id] == LIMIT + 1


async def test_terminal_counts_until_it_has_ended(harness: ConnectionsHarness) -> None:
    for _ in range(LIMIT):
        await harness.terminals.open(harness.ann, harness.row.id, 80, 24)
    with pytest.raises(TooManyOperationsError):
        await harness.terminals.open(harness.ann, harness.row.id, 80, 24)
    for handle in harness.engine.handles:
        handle.ended.set()
    await harness.wait_until_free()


async def test_returning_to_a_terminal_counts(harness: ConnectionsHarness) -> None:
    terminal = await harness.terminals.open(harness.ann, harness.row.id, 80, 24)
    later = Terminals(harness.world.database, harness.lifecycle)
    for _ in range(2):
        async with later.view(harness.ann, harness.row.id, terminal.id):
            assert harness.lifecycle.connections.open_connections[harness.ann.user_id] == 2
    harness.fill()
    with pytest.raises(TooManyOperationsError):
        async with Terminals(harness.world.database, harness.lifecycle).view(harness.ann, harness.row.id, terminal.id):
            pass


async def test_terminal_that_could_not_be_stored_is_detached(
    harness: ConnectionsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise DatabaseFullError

    with monkeypatch.context() as patch:
        patch.setattr(harness.world.database, "transaction", fail)
        with pytest.raises(DatabaseFullError):
            await harness.terminals.open(harness.ann, harness.row.id, 80, 24)
    assert harness.engine.handles[0].detached and not harness.lifecycle.connections.open_connections


async def test_failed_operations_do_not_count(harness: ConnectionsHarness) -> None:
    harness.engine.error = EngineError()
    for operation in (
        harness.upload(),
        harness.sandboxes.download_file(harness.ann, harness.row.id, "/x"),
        harness.terminals.open(harness.ann, harness.row.id, 80, 24),
    ):
        with pytest.raises(EngineError):
            await operation
    assert not harness.lifecycle.connections.open_connections


async def test_transfers_count_until_they_have_ended(harness: ConnectionsHarness) -> None:
    await harness.upload()
    assert not harness.lifecycle.connections.open_connections
    size, chunks = await harness.sandboxes.download_file(harness.ann, harness.row.id, "/x")
    assert harness.lifecycle.connections.open_connections[harness.ann.user_id] == 1
    assert (size, b"".join([chunk async for chunk in chunks])) == (2, b"ab")
    assert not harness.lifecycle.connections.open_connections


async def test_download_that_nobody_reads_is_closed(harness: ConnectionsHarness) -> None:
    """The client disconnects before the response begins."""
    await harness.sandboxes.download_file(harness.ann, harness.row.id, "/x")
    await harness.wait_until_free()
    assert harness.engine.closed_downloads == 1
