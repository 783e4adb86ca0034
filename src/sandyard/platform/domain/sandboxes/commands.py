"""Commands in sandboxes. One that was started goes on whatever becomes of us, and its whole output and real end are found again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Mapping
from datetime import timedelta
from typing import Any, cast

from sqlalchemy import Select, delete, select, update

from sandyard.kit.errors import BusyError, InvalidInputError, NotFoundError, SandyardError
from sandyard.kit.ids import ordered_id
from sandyard.kit.logging import get_logger
from sandyard.platform.db.database import Database
from sandyard.platform.db.models import Command, Project, Sandbox
from sandyard.platform.domain.paging import Listing, PageRequest, newest_first
from sandyard.platform.domain.sandboxes.e2b import (
    BreakerState,
    CommandSpec,
    Ended,
    Output,
    SandboxNotFoundError,
    SandboxNotRunningError,
    Started,
)
from sandyard.platform.domain.sandboxes.lifecycle import Lifecycle
from sandyard.platform.domain.sandboxes.model import CommandStatus, NewCommand, Status, about, check_usable, utc_now
from sandyard.platform.domain.sandboxes.output import STDERR, STDOUT, OutputFiles
from sandyard.platform.domain.sandboxes.policy import CommandPolicy
from sandyard.platform.domain.sandboxes.recorder import Recorder
from sandyard.platform.domain.users.model import Principal

log = get_logger(__name__)

MAX_COMMAND = 1_000_000
RETRY_S = 2.0
SILENCE_S = 15.0
NOTED_S = 0.2
"""A command that is over sooner is never shown as running. For what a crash leaves the two are the same."""
FORGET_MANY, FORGET_BYTES = 20, 1 << 20
REMOVED_AT_ONCE = 200
OVERDUE_S = 60.0
_ENDS = {
    CommandStatus.LOST: "Its end was not seen: the sandbox was restarted under it.",
    CommandStatus.NOT_STARTED: "It was never started.",
    CommandStatus.TIMED_OUT: "It ran longer than its timeout and was ended.",
}
OPEN = (CommandStatus.STARTING, CommandStatus.RUNNING)


class StoppingError(BusyError):
    """The platform is stopping; try again in a moment."""

    code = "stopping"


class Commands:
    def __init__(
        self,
        database: Database,
        lifecycle: Lifecycle,
        files: OutputFiles,
        *,
        max_timeout_s: float,
        output_kept: int = 1 << 30,
    ) -> None:
        self._database = database
        self._lifecycle = lifecycle
        self.files = files
        self._max_timeout_s = max_timeout_s
        self._output_kept = output_kept
        self._running: dict[str, asyncio.Task[None]] = {}
        self._recorders: dict[str, Recorder] = {}
        self._stop: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._over: dict[str, list[str]] = {}  # by sandbox: commands whose journals are still there
        self._awake: dict[str, asyncio.Event] = {}  # by sandbox: set when it runs again
        lifecycle.before_pause.append(self._forget)
        lifecycle.woken.append(self._woken)
        lifecycle.ended.append(self._ended)

    # what people ask for -----------------------------------------------------------------------------------------------

    async def execute(self, principal: Principal, sandbox_id: str, new: NewCommand) -> Command:
        """Start it. It runs on its own from here; `wait` gives its end."""
        row = await self._lifecycle.rows.get_for(principal, sandbox_id)
        check_usable(row)
        self._check(new)
        await self._check_policy(row, new.command)
        command = Command(
            id=ordered_id("cmd_"),
            sandbox_id=row.id,
            user_id=principal.user_id,
            command=new.command,
            cwd=new.cwd,
            background=new.background,
            timeout_s=new.timeout_s,
            status=CommandStatus.STARTING,
            stdout_bytes=0,
            stderr_bytes=0,
            started_at=utc_now(),
        )
        async with self._database.transaction() as tx:
            tx.add(command)
            tx.emit(
                "command.started", **about(row), commandId=command.id, command=new.command[:2000], by=principal.name
            )
            counted = update(Sandbox).where(Sandbox.id == row.id).values(command_count=Sandbox.command_count + 1)
            await tx.session.execute(counted)
        self._spawn(row, command, self._run(row, command, new))
        return command

    async def wait(self, command_id: str) -> Command:
        """The command at its end. Cancelling this does not end the command. StoppingError when the platform stops first."""
        task = self._running.get(command_id)
        while task is not None and not task.done():
            await asyncio.wait((task, self._stop), return_when=asyncio.FIRST_COMPLETED)
            self._check_stopping(command_id)
        command = await self.get(command_id)
        while not CommandStatus(command.status).over:  # another platform follows it
            await asyncio.wait((self._stop,), timeout=0.5)
            self._check_stopping(command_id)
            command = await self.get(command_id)
        return command

    def stop(self) -> None:
        """Let nobody wait any longer: the platform is about to end, commands are not."""
        if not self._stop.done():
            self._stop.set_result(None)

    def _check_stopping(self, command_id: str) -> None:
        if self._stop.done():
            raise StoppingError(
                f"The platform is stopping. The command goes on; ask for its end later: GET /api/v1/commands/{command_id}."
            )

    async def get_for(self, principal: Principal, command_id: str) -> tuple[Command, Sandbox]:
        command = await self.get(command_id)
        try:
            return command, await self._lifecycle.rows.get_for(principal, command.sandbox_id)
        except NotFoundError:
            raise _no_such(command_id) from None

    async def page(self, principal: Principal, sandbox_id: str, page: PageRequest) -> Listing[Command]:
        row = await self._lifecycle.rows.get_for(principal, sandbox_id)
        async with self._database.reading() as session:
            return await newest_first(session, select(Command).where(Command.sandbox_id == row.id), Command.id, page)

    async def kill(self, principal: Principal, command_id: str) -> Command:
        """Idempotent: one that is over stays what it was."""
        command, row = await self.get_for(principal, command_id)
        if CommandStatus(command.status).over:
            return command
        await self._lifecycle.call(row, lambda engine_id: self._end(engine_id, command.id))
        return await self.wait(command_id)

    async def _end(self, engine_id: str, command_id: str) -> None:
        """One that does not run yet never will."""
        commands = self._lifecycle.engine.commands
        if not await commands.kill(engine_id, command_id) and not await commands.claim(engine_id, command_id):
            await commands.kill(engine_id, command_id)  # it has started between the two, or is over

    async def follow(
        self, command: Command, offsets: Mapping[str, int]
    ) -> AsyncIterator[tuple[str, int, bytes] | None]:
        """(stream, offset, bytes) of its output from there on, until it is over; None now and then when it is silent. To
        watch a command is to use its sandbox: it is woken for that, and does not count as idle meanwhile."""
        with self._lifecycle.activity.using(command.sandbox_id):
            if not CommandStatus(command.status).over:
                with contextlib.suppress(SandyardError):
                    await self._lifecycle.awake(await self._lifecycle.rows.get(command.sandbox_id))
            async for piece in self._pieces(command, offsets):
                yield piece

    async def _pieces(
        self, command: Command, offsets: Mapping[str, int]
    ) -> AsyncIterator[tuple[str, int, bytes] | None]:
        at = dict(offsets)
        told = asyncio.get_running_loop().time()
        while True:
            recorder = self._recorders.get(command.id)
            news = recorder.news() if recorder else asyncio.ensure_future(asyncio.sleep(0.5))
            command = await self.get(command.id)
            for stream, total in ((STDOUT, command.stdout_bytes), (STDERR, command.stderr_bytes)):
                while at[stream] < total:
                    data = await self.files.read(command.id, stream, at[stream], min(65536, total - at[stream]))
                    if not data:
                        break
                    yield stream, at[stream], data
                    at[stream] += len(data)
                    told = asyncio.get_running_loop().time()
            if CommandStatus(command.status).over or self._stop.done():
                news.cancel()
                return
            await asyncio.wait((news, self._stop), timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
            news.cancel()
            if asyncio.get_running_loop().time() - told > SILENCE_S:
                told = asyncio.get_running_loop().time()
                yield None

    async def purge(self, session_id: str) -> None:
        """Forget all commands of a session's sandboxes, with what they wrote."""
        own = select(Sandbox.id).where(Sandbox.session_id == session_id)
        await self._remove(select(Command.id).where(Command.sandbox_id.in_(own)))

    async def trim(self, older_than: timedelta) -> int:
        """Forget those that ended longer ago; how many."""
        return await self._remove(select(Command.id).where(Command.finished_at < utc_now() - older_than))

    async def _remove(self, which: Select[str]) -> int:
        total = 0
        while True:
            async with self._database.reading() as session:
                found = list((await session.execute(which.limit(REMOVED_AT_ONCE))).scalars())
            if not found:
                return total
            for command_id in found:
                await self.files.remove(command_id)
            async with self._database.transaction() as tx:
                await tx.session.execute(delete(Command).where(Command.id.in_(found)))
            total += len(found)

    # how they run ------------------------------------------------------------------------------------------------------

    async def _run(self, row: Sandbox, command: Command, new: NewCommand) -> None:
        recorder = await self._recorder(row, command)
        spec = CommandSpec(
            id=command.id, command=new.command, cwd=new.cwd, envs=dict(new.envs), timeout_s=new.timeout_s
        )
        asked = False
        for _ in range(2):
            try:
                async with self._held(row, command):
                    engine_id = await self._lifecycle.awake(row)
                    asked = True
                    events = self._lifecycle.engine.commands.start(engine_id, spec)
                    if await self._record(events, recorder, row):
                        return
            except SandboxNotFoundError:
                await self._lifecycle.lost(row.id)
                await self._lose(recorder, row)
                return
            except SandboxNotRunningError:
                await self._lifecycle.seen_paused(row.id)
                if not recorder.begun:
                    asked = False
                    continue  # it slept, and nobody here knew: once more, awake
            except SandyardError as error:
                log.warning("command_stream_broke", command=command.id, reason=error.message)
                if not asked or (not recorder.begun and error.status < 500):  # else it is not certain
                    await recorder.finish(CommandStatus.NOT_STARTED, error=error.message)
                    return
            break
        await self._follow(row, command.id, recorder)

    async def _follow(self, row: Sandbox, command_id: str, recorder: Recorder) -> None:
        """Go on with one that was started, from what is known of it, until its end is seen."""
        while True:
            row = await self._lifecycle.rows.get(row.id)
            if row.status in (Status.ERROR, Status.DESTROYED) or row.doomed_at is not None:
                await self._lose(recorder, row)
                return
            if row.status != Status.RUNNING or row.engine_id is None:
                await self._until_awake(row.id)
                continue
            command = await self.get(command_id)
            try:
                async with self._held(row, command):
                    if not await self._began(row.engine_id, command):
                        await recorder.finish(
                            CommandStatus.NOT_STARTED, error="The platform stopped before it was started."
                        )
                        return
                    events = self._lifecycle.engine.commands.follow(row.engine_id, command_id, *recorder.offsets)
                    if await self._record(events, recorder, row):
                        return
            except SandboxNotFoundError:
                await self._lifecycle.lost(row.id)
            except SandboxNotRunningError:
                await self._lifecycle.seen_paused(row.id)
            except SandyardError as error:
                log.warning("command_not_followed", command=command_id, reason=error.message)
                await asyncio.sleep(RETRY_S)

    async def _began(self, engine_id: str, command: Command) -> bool:
        """A start whose outcome nobody knows: settle it, so that it is either running or can never run."""
        if command.status != CommandStatus.STARTING:
            return True
        return not await self._lifecycle.engine.commands.claim(engine_id, command.id)

    async def _record(self, events: AsyncIterator[Started | Output | Ended], recorder: Recorder, row: Sandbox) -> bool:
        """True when its end was seen."""
        noting: asyncio.Task[None] | None = None
        async with contextlib.aclosing(cast("AsyncGenerator[Started | Output | Ended, None]", events)) as stream:
            async for event in stream:
                if isinstance(event, Started):
                    recorder.begun = True
                    noting = self._lifecycle.tasks.spawn(self._note_started(recorder.command_id))
                elif isinstance(event, Output):
                    self._lifecycle.activity.touch(row.id)
                    await recorder.add(event.stream, event.offset, event.data)
                else:
                    if noting is not None:
                        noting.cancel()
                    status = CommandStatus(event.reason.value)
                    await recorder.finish(
                        status,
                        exit_code=event.code,
                        signal=event.signal,
                        error=_ENDS.get(status),
                        duration_s=event.duration_s,
                    )
                    self._remember_over(row, recorder)
                    return True
        return False

    def _remember_over(self, row: Sandbox, recorder: Recorder) -> None:
        """Its journal in the sandbox is all here. Removing it costs a process there, so that many go together."""
        over = self._over.setdefault(row.id, [])
        over.append(recorder.command_id)
        if len(over) >= FORGET_MANY or sum(recorder.offsets) >= FORGET_BYTES:
            self._lifecycle.tasks.spawn(self._forget(row))

    async def _forget(self, row: Sandbox) -> None:
        over = self._over.pop(row.id, [])
        row = await self._lifecycle.rows.get(row.id)
        if over and row.engine_id is not None and row.status == Status.RUNNING:
            with contextlib.suppress(SandyardError):
                await self._lifecycle.engine.commands.forget(row.engine_id, *over)

    async def _note_started(self, command_id: str) -> None:
        await asyncio.sleep(NOTED_S)
        async with self._database.transaction() as tx:
            started = update(Command).where(Command.id == command_id, Command.status == CommandStatus.STARTING)
            await tx.session.execute(started.values(status=CommandStatus.RUNNING))

    @contextlib.asynccontextmanager
    async def _held(self, row: Sandbox, command: Command) -> AsyncIterator[None]:
        """What somebody waits for keeps its sandbox awake; what runs in the background does so only while it says
        something."""
        if command.background:
            self._lifecycle.activity.touch(row.id)
            yield
        else:
            with self._lifecycle.activity.using(row.id):
                yield

    async def _lose(self, recorder: Recorder, row: Sandbox) -> None:
        row = await self._lifecycle.rows.get(row.id)
        reason = row.error or "The sandbox was destroyed."
        await recorder.finish(CommandStatus.LOST, error=f"Its end was not seen. {reason}")

    # after a restart, after a wake -------------------------------------------------------------------------------------

    async def recover(self) -> int:
        """Take up every command that an earlier process left open. How many there were."""
        async with self._database.reading() as session:
            query = select(Command, Sandbox).join(Sandbox, Sandbox.id == Command.sandbox_id)
            rows = (await session.execute(query.where(Command.status.in_(OPEN)))).all()
        for command, row in rows:
            self._spawn(row, command, self._take_up(row, command))
        return len(rows)

    async def _take_up(self, row: Sandbox, command: Command) -> None:
        await self._follow(row, command.id, await self._recorder(row, command))

    async def _recorder(self, row: Sandbox, command: Command) -> Recorder:
        recorder = Recorder(self._database, self.files, row, command, most=self._output_kept)
        self._recorders[command.id] = recorder
        await recorder.begin()
        return recorder

    async def _until_awake(self, sandbox_id: str) -> None:
        awake = self._awake.setdefault(sandbox_id, asyncio.Event())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(awake.wait(), 30)  # or look again: another platform may have woken it

    async def _woken(self, row: Sandbox) -> None:
        if event := self._awake.pop(row.id, None):
            event.set()

    _ended = _woken

    def _spawn(self, row: Sandbox, command: Command, work: Coroutine[Any, Any, None]) -> None:
        def done(_: asyncio.Task[None]) -> None:
            self._running.pop(command.id, None)
            self._recorders.pop(command.id, None)

        task = self._running[command.id] = self._lifecycle.tasks.spawn(self._see_to_its_end(row, command, work))
        task.add_done_callback(done)

    async def _see_to_its_end(self, row: Sandbox, command: Command, work: Coroutine[Any, Any, None]) -> None:
        """The relay ends a command in its time. Should a tenant have put another program in the relay's place, or should we
        fail, it is not left open for ever."""
        main = asyncio.ensure_future(work)
        watch = asyncio.ensure_future(self._overdue(row.id, command.timeout_s))
        try:
            await asyncio.wait((main, watch), return_when=asyncio.FIRST_COMPLETED)
        finally:
            late = not main.done()
            for task in (main, watch):
                task.cancel()
            await asyncio.wait((main, watch))
        failure = None if main.cancelled() else main.exception()
        if failure is not None:
            log.error("command_crashed", command=command.id, exc=failure)
        recorder = self._recorders.get(command.id)
        if recorder is not None and (late or failure is not None):
            said = "It did not end in its time." if late else "The platform failed to follow it."
            await recorder.finish(CommandStatus.LOST, error=f"Its end was not seen. {said}")

    async def _overdue(self, sandbox_id: str, timeout_s: float) -> None:
        """Returns when a command should long be over. Time in which its sandbox slept or the engine was away does not count."""
        while True:
            before = await self._lifecycle.rows.get(sandbox_id)
            await asyncio.sleep(timeout_s + OVERDUE_S)
            row = await self._lifecycle.rows.get(sandbox_id)
            awake = row.status == Status.RUNNING and row.pause_count == before.pause_count
            if awake and self._lifecycle.engine.breaker.state is BreakerState.CLOSED:
                return

    async def get(self, command_id: str) -> Command:
        async with self._database.reading() as session:
            command = await session.get(Command, command_id)
        if command is None:
            raise _no_such(command_id)
        return command

    def _check(self, new: NewCommand) -> None:
        if not new.command.strip():
            raise InvalidInputError("The command is empty.")
        if len(new.command) > MAX_COMMAND:
            raise InvalidInputError(f"The command is longer than {MAX_COMMAND:,} characters: upload it as a script.")
        if "\0" in new.command or any("\0" in part for part in (new.cwd or "", *new.envs, *new.envs.values())):
            raise InvalidInputError("A command, its folder and its variables hold no NUL characters.")
        for name in new.envs:
            if not name or "=" in name:
                raise InvalidInputError(f"envs: {name[:100]!r} is not the name of a variable.")
        if not 0 < new.timeout_s <= self._max_timeout_s:
            raise InvalidInputError(f"timeout is not valid: more than 0, at most {self._max_timeout_s:.0f} seconds.")

    async def _check_policy(self, row: Sandbox, command: str) -> None:
        if row.project_id is None:
            return
        async with self._database.reading() as session:
            project = await session.get(Project, row.project_id)
        if project is not None:
            CommandPolicy.of(project.settings).check(command)


def _no_such(command_id: str) -> NotFoundError:
    return NotFoundError(f"There is no command {command_id[:60]!r}.")
