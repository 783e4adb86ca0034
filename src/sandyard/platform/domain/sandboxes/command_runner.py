"""Execution of commands: start them once and follow them through pauses, crashes and restarts until they exit."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from functools import partial
from typing import Any, cast

from sqlalchemy import select, update

from sandyard.kit import telemetry
from sandyard.kit.errors import NotFoundError, SandyardError
from sandyard.kit.logging import get_logger
from sandyard.kit.tasks import end_tasks
from sandyard.platform.db.database import Database
from sandyard.platform.db.models import Command, Sandbox
from sandyard.platform.db.retry import TEMPORARY_ERRORS, retry_while_database_unavailable
from sandyard.platform.domain.sandboxes.command_output import OutputFiles, OutputRecorder
from sandyard.platform.domain.sandboxes.e2b import (
    CircuitState,
    CommandEnded,
    CommandOutput,
    CommandSpec,
    CommandStarted,
    SandboxNotFoundError,
    SandboxNotRunningError,
)
from sandyard.platform.domain.sandboxes.lifecycle import Lifecycle
from sandyard.platform.domain.sandboxes.model import CommandStatus, NewCommand, Status

log = get_logger(__name__)

RETRY_S = 2.0
RECORD_START_AFTER_S = 0.2
"""Commands that finish sooner are never shown as running. For crash recovery the two states are equivalent."""
MAX_KEPT_JOURNALS, MAX_KEPT_JOURNAL_BYTES = 20, 1 << 20
"""Journals of finished commands that may stay in a sandbox before they are removed together."""
OVERDUE_S = 60.0
"""How long after its timeout a command is reported as lost."""
_END_MESSAGES = {
    CommandStatus.LOST: "The command's exit was not observed, because the sandbox was restarted.",
    CommandStatus.NOT_STARTED: "The command was never started.",
    CommandStatus.TIMED_OUT: "The command exceeded its timeout and was killed.",
}
OPEN = (CommandStatus.STARTING, CommandStatus.RUNNING)


class CommandRunner:
    """Follows each open command in a task of its own, in `running`, with its output in `recorders`."""

    def __init__(self, database: Database, lifecycle: Lifecycle, files: OutputFiles, output_kept: int) -> None:
        self._database = database
        self._lifecycle = lifecycle
        self._files = files
        self.output_kept = output_kept
        self.running: dict[str, asyncio.Task[None]] = {}
        self.recorders: dict[str, OutputRecorder] = {}
        self._finished: dict[str, list[str]] = {}  # by sandbox: finished commands whose journals still exist
        self._awake: dict[str, asyncio.Event] = {}  # by sandbox: set when it runs again

    def start(self, row: Sandbox, command: Command, new: NewCommand, held: contextlib.ExitStack) -> None:
        """Start the command in the background. Its row must exist. `held` is closed when the command has ended."""
        self.spawn(row, command, self._start_in_span(row, command, new), held)

    async def _start_in_span(self, row: Sandbox, command: Command, new: NewCommand) -> None:
        with telemetry.span("command", command=command.id, sandbox=row.id):
            await self._start_and_follow(row, command, new)

    async def _start_and_follow(self, row: Sandbox, command: Command, new: NewCommand) -> None:
        recorder = await self.create_recorder(row, command)
        spec = CommandSpec(
            id=command.id, command=new.command, cwd=new.cwd, envs=dict(new.envs), timeout_s=new.timeout_s
        )
        is_requested = False  # whether the engine may have started it
        for _ in range(2):  # again if the sandbox turns out to be paused
            try:
                async with self._keep_in_use(row, command):
                    engine_id = await retry_while_database_unavailable(
                        lambda: self._lifecycle.ensure_running(row), "command", command=command.id
                    )
                    is_requested = True
                    events = self._lifecycle.engine.commands.start(engine_id, spec, max_output_bytes=self.output_kept)
                    if await self._record(events, recorder, row):
                        return
            except SandboxNotFoundError:
                await self._lifecycle.mark_lost(row.id)
                await self._finish_as_lost(recorder, row)
                return
            except SandboxNotRunningError:
                await retry_while_database_unavailable(
                    lambda: self._lifecycle.record_pause(row.id), "command", command=command.id
                )
                if not recorder.begun:
                    is_requested = False
                    continue  # the engine or another client paused the sandbox: retry after resuming it
            except SandyardError as error:
                log.warning("command_stream_broke", command=command.id, reason=error.message)
                # otherwise it is uncertain whether it started
                if not is_requested or (not recorder.begun and error.status < 500):
                    await recorder.finish(CommandStatus.NOT_STARTED, error=error.message)
                    return
            break
        await self._follow(row, command.id, recorder)

    async def _follow(self, row: Sandbox, command_id: str, recorder: OutputRecorder) -> None:
        """Follow a started command from its last known state until it exits."""
        while True:
            row = await self._lifecycle.repository.get(row.id)
            if row.status in (Status.ERROR, Status.DESTROYED) or row.destroy_requested_at is not None:
                await self._finish_as_lost(recorder, row)
                return
            if row.status != Status.RUNNING or row.engine_id is None:
                await self.wait_until_running(row.id)
                continue
            command = await self.get(command_id)
            try:
                async with self._keep_in_use(row, command):
                    if not await self._has_started(row.engine_id, command):
                        await recorder.finish(
                            CommandStatus.NOT_STARTED, error="The platform stopped before the command was started."
                        )
                        return
                    events = self._lifecycle.engine.commands.follow(
                        row.engine_id, command_id, *recorder.offsets, max_output_bytes=self.output_kept
                    )
                    if await self._record(events, recorder, row):
                        return
            except SandboxNotFoundError:
                await self._lifecycle.mark_lost(row.id)
            except SandboxNotRunningError:
                if (await self._lifecycle.record_pause(row.id)).status == Status.RUNNING:
                    await asyncio.sleep(RETRY_S)  # it has just been resumed, or does not respond
            except SandyardError as error:
                log.warning("command_not_followed", command=command_id, reason=error.message)
                await asyncio.sleep(RETRY_S)

    async def _has_started(self, engine_id: str, command: Command) -> bool:
        """Determine whether a command with an unknown start has begun. If not, make sure that it can never run."""
        if command.status != CommandStatus.STARTING:
            return True
        return not await self._lifecycle.engine.commands.claim(engine_id, command.id)

    async def _record(
        self,
        events: AsyncIterator[CommandStarted | CommandOutput | CommandEnded],
        recorder: OutputRecorder,
        row: Sandbox,
    ) -> bool:
        """Record events. Returns True if the command's exit was observed."""
        start_record: asyncio.Task[None] | None = None
        async with contextlib.aclosing(
            cast("AsyncGenerator[CommandStarted | CommandOutput | CommandEnded, None]", events)
        ) as stream:
            async for event in stream:
                if isinstance(event, CommandStarted):
                    recorder.begun = True
                    start_record = self._lifecycle.tasks.spawn(self._record_start_later(recorder.command_id))
                elif isinstance(event, CommandOutput):
                    self._lifecycle.activity.touch(row.id)
                    await recorder.add(event.stream, event.offset, event.data)
                else:
                    if start_record is not None:
                        start_record.cancel()
                    status = CommandStatus(event.reason.value)
                    await recorder.finish(
                        status,
                        exit_code=event.code,
                        signal=event.signal,
                        error=_END_MESSAGES.get(status),
                        duration_s=event.duration_s,
                    )
                    self._schedule_journal_removal(row, recorder)
                    return True
        return False

    def _schedule_journal_removal(self, row: Sandbox, recorder: OutputRecorder) -> None:
        """Have the journal of a finished command removed, because its output is stored here. Removing journals takes a
        process in the sandbox, so they are removed in batches."""
        finished = self._finished.setdefault(row.id, [])
        finished.append(recorder.command_id)
        if len(finished) >= MAX_KEPT_JOURNALS or sum(recorder.offsets) >= MAX_KEPT_JOURNAL_BYTES:
            self._lifecycle.tasks.spawn(self.remove_journals(row))

    async def remove_journals(self, row: Sandbox) -> None:
        """Remove the journals of finished commands if the sandbox is running. Errors are ignored: only space is lost."""
        finished = self._finished.pop(row.id, [])
        row = await self._lifecycle.repository.get(row.id)
        if finished and row.engine_id is not None and row.status == Status.RUNNING:
            with contextlib.suppress(SandyardError):
                await self._lifecycle.engine.commands.forget(row.engine_id, *finished)

    async def _record_start_later(self, command_id: str) -> None:
        """Set the command's status to running, unless it finishes first and this is cancelled."""
        await asyncio.sleep(RECORD_START_AFTER_S)
        async with self._database.transaction() as tx:
            started = update(Command).where(Command.id == command_id, Command.status == CommandStatus.STARTING)
            await tx.session.execute(started.values(status=CommandStatus.RUNNING))

    @contextlib.asynccontextmanager
    async def _keep_in_use(self, row: Sandbox, command: Command) -> AsyncIterator[None]:
        """Keep the sandbox in use while somebody waits for the command. A background command counts only while it
        produces output."""
        if command.background:
            self._lifecycle.activity.touch(row.id)
            yield
        else:
            with self._lifecycle.activity.using(row.id):
                yield

    async def _finish_as_lost(self, recorder: OutputRecorder, row: Sandbox) -> None:
        row = await self._lifecycle.repository.get(row.id)
        reason = row.error or "The sandbox was deleted."
        await recorder.finish(CommandStatus.LOST, error=f"The command's exit was not observed. {reason}")

    # after a restart or resume ----------------------------------------------------------------------------------------

    async def recover(self) -> int:
        """Continue every command that an earlier process left open, and return how many there were."""
        async with self._database.reading() as session:
            query = select(Command, Sandbox).join(Sandbox, Sandbox.id == Command.sandbox_id)
            rows = (await session.execute(query.where(Command.status.in_(OPEN)))).all()
        for command, row in rows:
            held = contextlib.ExitStack()
            if command.user_id is not None and not row.internal:
                held.enter_context(self._lifecycle.connections.hold_unlimited(command.user_id))
            self.spawn(row, command, self._resume_following(row, command), held)
        return len(rows)

    async def _resume_following(self, row: Sandbox, command: Command) -> None:
        await self._follow(row, command.id, await self.create_recorder(row, command))

    async def create_recorder(self, row: Sandbox, command: Command) -> OutputRecorder:
        """Create and register the command's recorder. It continues after the output that is already stored."""
        recorder = OutputRecorder(self._database, self._files, row, command, max_bytes=self.output_kept)
        self.recorders[command.id] = recorder
        await recorder.begin()
        return recorder

    async def wait_until_running(self, sandbox_id: str) -> None:
        """Return when the sandbox may run again. The caller must check."""
        awake = self._awake.setdefault(sandbox_id, asyncio.Event())
        if (await self._lifecycle.repository.get(sandbox_id)).status not in (Status.PAUSED, Status.PROVISIONING):
            return  # it has changed since the caller looked, before the event existed
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(30):  # then look again: another platform process may have resumed it
                await awake.wait()

    async def notify_waiters(self, row: Sandbox) -> None:
        """Continue commands that wait until this sandbox runs or has ended."""
        if event := self._awake.pop(row.id, None):
            event.set()

    def spawn(
        self, row: Sandbox, command: Command, work: Coroutine[Any, Any, None], held: contextlib.ExitStack
    ) -> None:
        """Follow the command with `work` in a background task. `held` is closed when it ends."""

        def release(_: asyncio.Task[None]) -> None:
            held.close()
            self.running.pop(command.id, None)
            self.recorders.pop(command.id, None)

        task = self.running[command.id] = self._lifecycle.tasks.spawn(self._run_and_close(row, command, work))
        task.add_done_callback(release)

    async def _run_and_close(self, row: Sandbox, command: Command, work: Coroutine[Any, Any, None]) -> None:
        try:
            await self._run_with_deadline(row, command, work)
        finally:
            if (recorder := self.recorders.get(command.id)) is not None:
                await recorder.close()  # also if the platform stops: the database is closed next

    async def _run_with_deadline(self, row: Sandbox, command: Command, work: Coroutine[Any, Any, None]) -> None:
        """Run the work until the command ends or is overdue.

        The relay ends a command after its timeout. If a tenant has replaced the relay, or if our code fails, the
        command must not stay open forever.
        """
        main = asyncio.ensure_future(self._run_through_outages(row, command.id, work))
        watch = asyncio.ensure_future(self.wait_until_overdue(row.id, command.timeout_s))
        try:
            await asyncio.wait((main, watch), return_when=asyncio.FIRST_COMPLETED)
        finally:
            is_overdue = not main.done()
            await end_tasks(main, watch)
        failure = None if main.cancelled() else main.exception()
        if failure is not None:
            log.error("command_crashed", command=command.id, exc=failure)
        recorder = self.recorders.get(command.id)
        if recorder is not None and (is_overdue or failure is not None):
            reason = "It did not end in time." if is_overdue else "Internal error while following it."
            finish = partial(
                recorder.finish, CommandStatus.LOST, error=f"The command's exit was not observed. {reason}"
            )
            await retry_while_database_unavailable(finish, "command", command=command.id)

    async def _run_through_outages(self, row: Sandbox, command_id: str, work: Coroutine[Any, Any, None]) -> None:
        """Run the work, and keep following the command if the database is temporarily unavailable."""
        try:
            await work
        except TEMPORARY_ERRORS as error:
            log.warning("command_waits", command=command_id, reason=error.message)
            await retry_while_database_unavailable(
                lambda: self._follow(row, command_id, self.recorders[command_id]), "command", command=command_id
            )

    async def wait_until_overdue(self, sandbox_id: str, timeout_s: float) -> None:
        """Return when a command should have ended long ago.

        Time during which its sandbox was paused or the engine was unavailable does not count.
        """
        while True:
            try:
                before = await self._lifecycle.repository.get(sandbox_id)
                await asyncio.sleep(timeout_s + OVERDUE_S)
                row = await self._lifecycle.repository.get(sandbox_id)
            except TEMPORARY_ERRORS:
                await asyncio.sleep(RETRY_S)  # unknown: its time starts again
                continue
            awake = row.status == Status.RUNNING and row.pause_count == before.pause_count
            if awake and self._lifecycle.engine.breaker.state is CircuitState.CLOSED:
                return

    async def get(self, command_id: str) -> Command:
        async with self._database.reading() as session:
            command = await session.get(Command, command_id)
        if command is None:
            raise make_command_not_found(command_id)
        return command


def make_command_not_found(command_id: str) -> NotFoundError:
    return NotFoundError(f"There is no command {command_id[:60]!r}.")
