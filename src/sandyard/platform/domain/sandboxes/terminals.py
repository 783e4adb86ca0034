"""Persistent terminals: one reader per shell for any number of viewers, and recent output for those who join later."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

from sqlalchemy import select

from sandyard.kit.errors import InvalidInputError, NotFoundError, SandyardError
from sandyard.kit.ids import make_ordered_id
from sandyard.kit.logging import get_logger
from sandyard.platform.db.database import Database
from sandyard.platform.db.models import Checkout, Sandbox, Terminal
from sandyard.platform.domain.sandboxes import e2b
from sandyard.platform.domain.sandboxes.lifecycle import Lifecycle
from sandyard.platform.domain.sandboxes.model import utc_now
from sandyard.platform.domain.users.model import Principal

log = get_logger(__name__)

KEPT_BYTES = 256 * 1024
BACKLOG = 1000
"""Maximum number of pieces a viewer may lag behind. A slower viewer is disconnected and may reconnect."""


@dataclass(eq=False)
class Viewer:
    """Receives all output since it joined. None in the queue marks the end."""

    pieces: asyncio.Queue[bytes | None] = field(default_factory=lambda: asyncio.Queue(BACKLOG))

    def send(self, piece: bytes | None) -> None:
        try:
            self.pieces.put_nowait(piece)
        except asyncio.QueueFull:
            while not self.pieces.empty():
                self.pieces.get_nowait()
            self.pieces.put_nowait(None)


@dataclass(eq=False)
class RecentOutput:
    """The latest output of a shell."""

    pieces: deque[bytes] = field(default_factory=deque)
    size: int = 0

    def add(self, piece: bytes) -> None:
        self.pieces.append(piece)
        self.size += len(piece)
        while self.size > KEPT_BYTES and len(self.pieces) > 1:
            self.size -= len(self.pieces.popleft())


@dataclass(eq=False)
class Shell:
    """A shell that this process reads from."""

    row: Terminal
    handle: e2b.Terminal
    recent: RecentOutput
    viewers: set[Viewer] = field(default_factory=set)
    has_ended: bool = False
    reader: asyncio.Task[None] | None = None

    def add_output(self, piece: bytes) -> None:
        self.recent.add(piece)
        for viewer in list(self.viewers):
            viewer.send(piece)


class Terminals:
    def __init__(self, database: Database, lifecycle: Lifecycle) -> None:
        self._database = database
        self._lifecycle = lifecycle
        self.shells: dict[str, Shell] = {}
        self._recent: dict[str, RecentOutput] = {}
        """Recent output of open shells. A pause of the sandbox ends the reading, but not the shell."""
        self._attaching: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def open(
        self, principal: Principal, sandbox_id: str, cols: int, rows: int, cwd: str | None = None
    ) -> Terminal:
        """Open a login shell. Without `cwd` it starts in the sandbox's checkout, if there is one.

        Raises TooManyOperationsError if the caller has too many.
        """
        box = await self._lifecycle.repository.get_for(principal, sandbox_id)
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(self._lifecycle.connections.hold(principal.user_id))
            if cwd is not None or (folder := await self._checkout(box.id)) is None:
                handle = await self._start(box, cols, rows, cwd)
            else:
                try:
                    handle = await self._start(box, cols, rows, folder)
                except (InvalidInputError, NotFoundError):  # the folder was removed
                    handle = await self._start(box, cols, rows, None)
            stack.push_async_callback(handle.detach)
            row = Terminal(
                id=make_ordered_id("trm_"),
                sandbox_id=box.id,
                user_id=principal.user_id,
                pid=handle.pid,
                created_at=utc_now(),
            )
            async with self._database.transaction() as tx:
                tx.add(row)
            self._start_reading(row, handle, box, stack.pop_all())
        return row

    async def _start(self, box: Sandbox, cols: int, rows: int, cwd: str | None) -> e2b.Terminal:
        return await self._lifecycle.call(
            box, lambda engine_id: self._lifecycle.engine.terminals.open(engine_id, cols, rows, cwd=cwd)
        )

    async def _checkout(self, sandbox_id: str) -> str | None:
        async with self._database.reading() as session:
            return await session.scalar(select(Checkout.folder).where(Checkout.sandbox_id == sandbox_id))

    async def list(self, principal: Principal, sandbox_id: str) -> list[Terminal]:
        """List the terminals that are open, as far as is known."""
        box = await self._lifecycle.repository.get_for(principal, sandbox_id)
        async with self._database.reading() as session:
            query = select(Terminal).where(Terminal.sandbox_id == box.id, Terminal.closed_at.is_(None))
            return list((await session.execute(query.order_by(Terminal.id))).scalars())

    @contextlib.asynccontextmanager
    async def view(
        self, principal: Principal, sandbox_id: str, terminal_id: str
    ) -> AsyncIterator[tuple[Shell, Viewer]]:
        """View a shell: recent output first, then new output. Keeps the sandbox running meanwhile."""
        box = await self._lifecycle.repository.get_for(principal, sandbox_id)
        with self._lifecycle.activity.using(box.id):
            shell = await self._lifecycle.call(
                box, lambda engine_id: self._get_shell(principal, box, engine_id, terminal_id)
            )
            viewer = Viewer()
            if shell.recent.pieces:
                viewer.send(b"".join(shell.recent.pieces))
            if shell.has_ended:
                viewer.send(None)
            shell.viewers.add(viewer)
            try:
                yield shell, viewer
            finally:
                shell.viewers.discard(viewer)

    async def write(self, shell: Shell, data: bytes) -> None:
        self._lifecycle.activity.touch(shell.row.sandbox_id)
        await shell.handle.write(data)

    async def resize(self, shell: Shell, cols: int, rows: int) -> None:
        await shell.handle.resize(cols, rows)

    async def close(self, principal: Principal, sandbox_id: str, terminal_id: str) -> None:
        """End the shell. Idempotent."""
        box = await self._lifecycle.repository.get_for(principal, sandbox_id)
        row = await self._get_row(box, terminal_id)
        if row.closed_at is None:
            await self._lifecycle.call(
                box, lambda engine_id: self._lifecycle.engine.terminals.close(engine_id, row.pid)
            )
            await self._mark_closed(row.id)

    async def _get_shell(self, principal: Principal, box: Sandbox, engine_id: str, terminal_id: str) -> Shell:
        lock = self._attaching.setdefault(terminal_id, asyncio.Lock())
        async with lock, contextlib.AsyncExitStack() as stack:
            row = await self._get_row(box, terminal_id)
            shell = self.shells.get(terminal_id)
            if shell is not None:
                return shell
            if row.closed_at is not None:
                raise NotFoundError(f"Terminal {terminal_id} has ended.")
            stack.enter_context(self._lifecycle.connections.hold(principal.user_id))
            try:  # an earlier process opened it, and the shell is still running
                handle = await self._lifecycle.engine.terminals.attach(engine_id, row.pid)
            except e2b.TerminalNotFoundError:
                await self._mark_closed(row.id)
                raise NotFoundError(f"Terminal {terminal_id} has ended.") from None
            stack.push_async_callback(handle.detach)
            return self._start_reading(row, handle, box, stack.pop_all())

    def _start_reading(
        self, row: Terminal, handle: e2b.Terminal, box: Sandbox, held: contextlib.AsyncExitStack
    ) -> Shell:
        shell = Shell(row, handle, self._recent.setdefault(row.id, RecentOutput()))
        self.shells[row.id] = shell
        shell.reader = self._lifecycle.tasks.spawn(self._pump(shell, box, held))
        return shell

    async def _pump(self, shell: Shell, box: Sandbox, held: contextlib.AsyncExitStack) -> None:
        """Read output until the shell ends, then close `held`. If only the connection broke, disconnect the viewers; they
        attach again on return."""
        try:
            async for piece in shell.handle.output():
                shell.add_output(piece)
            shell.has_ended = True
            await self._mark_closed(shell.row.id)
        except SandyardError as error:
            log.info("terminal_detached", terminal=shell.row.id, sandbox=box.id, reason=error.message)
        finally:
            self.shells.pop(shell.row.id, None)
            for viewer in list(shell.viewers):
                viewer.send(None)
            await held.aclose()

    async def _get_row(self, box: Sandbox, terminal_id: str) -> Terminal:
        async with self._database.reading() as session:
            row = await session.get(Terminal, terminal_id)
        if row is None or row.sandbox_id != box.id:
            raise NotFoundError(f"There is no terminal {terminal_id[:60]!r} in this sandbox.")
        return row

    async def _mark_closed(self, terminal_id: str) -> None:
        self._recent.pop(terminal_id, None)
        async with self._database.transaction() as tx:
            row = await tx.session.get(Terminal, terminal_id)
            if row is not None and row.closed_at is None:
                row.closed_at = utc_now()

    async def after_end(self, box: Sandbox) -> None:
        """Mark the sandbox's terminals as closed."""
        async with self._database.transaction() as tx:
            query = select(Terminal).where(Terminal.sandbox_id == box.id, Terminal.closed_at.is_(None))
            for row in (await tx.session.execute(query)).scalars():
                row.closed_at = utc_now()
                self._recent.pop(row.id, None)
