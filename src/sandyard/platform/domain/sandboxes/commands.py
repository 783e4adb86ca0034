"""Command operations for users: start, wait, read output, kill, delete. `command_runner.py` executes them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from datetime import timedelta

from sqlalchemy import Select, delete, select, update

from sandyard.kit.errors import BusyError, InvalidInputError, NotFoundError, SandyardError
from sandyard.kit.ids import make_ordered_id
from sandyard.kit.tasks import end_tasks
from sandyard.platform.db.database import Database, DatabaseBusyError, DatabaseUnavailableError
from sandyard.platform.db.models import Command, Sandbox
from sandyard.platform.db.retry import TEMPORARY_ERRORS, retry_while_database_unavailable
from sandyard.platform.domain.paging import Listing, PageRequest, list_newest_first
from sandyard.platform.domain.projects.inheritance import find_project
from sandyard.platform.domain.projects.patterns import run_in_thread
from sandyard.platform.domain.sandboxes.command_output import STDERR, STDOUT, OutputFiles
from sandyard.platform.domain.sandboxes.command_policy import CommandPolicy
from sandyard.platform.domain.sandboxes.command_runner import CommandRunner, make_command_not_found
from sandyard.platform.domain.sandboxes.lifecycle import Lifecycle
from sandyard.platform.domain.sandboxes.model import (
    CommandStatus,
    NewCommand,
    check_usable,
    get_sandbox_event_fields,
    utc_now,
)
from sandyard.platform.domain.users.model import Principal

MAX_COMMAND = 1_000_000
SILENCE_S = 15.0
ACCESS_CHECK_S = 10.0
REMOVED_AT_ONCE = 200


class StoppingError(BusyError):
    """The platform is stopping. Try again in a moment."""

    code = "stopping"


class Commands:
    def __init__(
        self,
        database: Database,
        lifecycle: Lifecycle,
        files: OutputFiles,
        *,
        max_timeout_s: float,
        output_kept: int,
    ) -> None:
        self._database = database
        self._lifecycle = lifecycle
        self.files = files
        self._max_timeout_s = max_timeout_s
        self.runner = CommandRunner(database, lifecycle, files, output_kept)
        self._stop: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.get = self.runner.get
        self.recover = self.runner.recover
        self.before_pause = self.runner.remove_journals
        self.after_resume = self.after_end = self.runner.notify_waiters

    async def execute(
        self, principal: Principal, sandbox_id: str, new: NewCommand, *, internal: bool = False
    ) -> Command:
        """Start a command, which then runs on its own; use `wait` for its result.

        Raises TooManyOperationsError if too many run for the caller. `internal`: a command of the platform itself, which is not counted.
        """
        row = await self._lifecycle.repository.get_for(principal, sandbox_id, internal=internal)
        check_usable(row)
        self._check(new)
        if row.project_id is not None:
            await self._lifecycle.check_access(row)
            await self._check_policy(row, new.command)
        command = Command(
            id=make_ordered_id("cmd_"),
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
        with contextlib.ExitStack() as stack:
            if not internal:
                stack.enter_context(self._lifecycle.connections.hold(principal.user_id))
            try:
                await self._insert(row, command, principal.name)
            except DatabaseUnavailableError:
                # It is unknown whether an interrupted commit took effect, and a command that nobody starts would stay open
                # forever; with a full disk it did not take effect.
                await retry_while_database_unavailable(
                    lambda: self._insert(row, command, principal.name),
                    "command",
                    errors=(DatabaseUnavailableError, DatabaseBusyError),
                )
            self.runner.start(row, command, new, stack.pop_all())
        return command

    async def _insert(self, row: Sandbox, command: Command, by: str) -> None:
        async with self._database.transaction() as tx:
            if await tx.session.get(Command, command.id) is not None:
                return
            tx.add(command)
            tx.emit(
                "command.started",
                **get_sandbox_event_fields(row),
                commandId=command.id,
                command=command.command[:2000],
                by=by,
            )
            counted = update(Sandbox).where(Sandbox.id == row.id).values(command_count=Sandbox.command_count + 1)
            await tx.session.execute(counted)

    async def wait(self, command_id: str) -> Command:
        """Return the command when it has finished. Cancelling the call does not end the command.

        Raises StoppingError if the platform stops first.
        """
        task = self.runner.running.get(command_id)
        while task is not None and not task.done():
            await asyncio.wait((task, self._stop), return_when=asyncio.FIRST_COMPLETED)
            self._check_stopping(command_id)
        command = await self.get(command_id)
        while not CommandStatus(command.status).is_final:  # another platform process follows it
            await asyncio.wait((self._stop,), timeout=0.5)
            self._check_stopping(command_id)
            command = await self.get(command_id)
        return command

    async def wait_for(self, principal: Principal, command: Command) -> Command:
        """Wait like `wait`, but only while the caller has access to the sandbox: a paused command of a removed user may never finish.

        Raises NotFoundError or OwnerWithoutAccessError when the caller loses access.
        """
        waiting = asyncio.ensure_future(self.wait(command.id))
        try:
            while True:
                await asyncio.wait((waiting,), timeout=ACCESS_CHECK_S)
                try:
                    await self.check_access(principal, command)
                except TEMPORARY_ERRORS:
                    if waiting.done():
                        raise
                    continue
                if waiting.done():
                    return waiting.result()
        finally:
            await end_tasks(waiting)

    def stop(self) -> None:
        """Make all waiters return, because the platform is about to stop. The commands continue."""
        if not self._stop.done():
            self._stop.set_result(None)

    def _check_stopping(self, command_id: str) -> None:
        if self._stop.done():
            raise StoppingError(
                f"The platform is stopping. The command continues; get its result later from GET /api/v1/commands/{command_id}."
            )

    async def get_for(self, principal: Principal, command_id: str, *, internal: bool = True) -> tuple[Command, Sandbox]:
        """Return the command and its sandbox. With `internal`, also the platform's own commands, such as a project's
        setup."""
        command = await self.get(command_id)
        try:
            return command, await self._lifecycle.repository.get_for(principal, command.sandbox_id, internal=internal)
        except NotFoundError:
            raise make_command_not_found(command_id) from None

    async def check_access(self, principal: Principal, command: Command) -> None:
        """Raise NotFoundError or OwnerWithoutAccessError if the caller lost access to the sandbox while the command ran."""
        row = await self._lifecycle.repository.get_for(principal, command.sandbox_id, internal=True)
        await self._lifecycle.check_access(row)

    async def page(self, principal: Principal, sandbox_id: str, page: PageRequest) -> Listing[Command]:
        row = await self._lifecycle.repository.get_for(principal, sandbox_id)
        async with self._database.reading() as session:
            return await list_newest_first(
                session, select(Command).where(Command.sandbox_id == row.id), Command.id, page
            )

    async def kill(self, principal: Principal, command_id: str) -> Command:
        """Kill the command. Idempotent: a finished command stays as it is."""
        command, row = await self.get_for(principal, command_id, internal=False)
        if CommandStatus(command.status).is_final:
            return command
        await self._lifecycle.call(row, lambda engine_id: self._kill(engine_id, command.id))
        return await self.wait(command_id)

    async def _kill(self, engine_id: str, command_id: str) -> None:
        """Kill the command, or prevent it from starting if it does not run yet."""
        commands = self._lifecycle.engine.commands
        if not await commands.kill(engine_id, command_id) and not await commands.claim(engine_id, command_id):
            await commands.kill(engine_id, command_id)  # it started between the two calls, or has finished

    async def follow(
        self, command: Command, offsets: Mapping[str, int]
    ) -> AsyncIterator[tuple[str, int, bytes] | None]:
        """Yield (stream, offset, bytes) of the output from the offsets on until the command has finished, and None
        periodically if it is silent.

        Following a command counts as use of its sandbox: it is resumed, and is not idle meanwhile.
        """
        with contextlib.ExitStack() as stack:
            if not CommandStatus(command.status).is_final:
                stack.enter_context(self._lifecycle.activity.using(command.sandbox_id))
                with contextlib.suppress(SandyardError):
                    await self._lifecycle.ensure_running(await self._lifecycle.repository.get(command.sandbox_id))
            async for piece in self._follow_output(command, offsets):
                yield piece

    async def _follow_output(
        self, command: Command, offsets: Mapping[str, int]
    ) -> AsyncIterator[tuple[str, int, bytes] | None]:
        at = dict(offsets)
        last_sent = asyncio.get_running_loop().time()
        while True:
            recorder = self.runner.recorders.get(command.id)
            news = recorder.watch() if recorder else asyncio.ensure_future(asyncio.sleep(0.5))
            command = await self.get(command.id)
            for stream, total in ((STDOUT, command.stdout_bytes), (STDERR, command.stderr_bytes)):
                while at[stream] < total:
                    data = await self.files.read(command.id, stream, at[stream], min(65536, total - at[stream]))
                    if not data:
                        break
                    yield stream, at[stream], data
                    at[stream] += len(data)
                    last_sent = asyncio.get_running_loop().time()
            if CommandStatus(command.status).is_final or self._stop.done():
                news.cancel()
                return
            await asyncio.wait((news, self._stop), timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
            news.cancel()
            if asyncio.get_running_loop().time() - last_sent > SILENCE_S:
                last_sent = asyncio.get_running_loop().time()
                yield None

    async def purge(self, session_id: str) -> None:
        """Delete all commands of a session's sandboxes and their output."""
        own = select(Sandbox.id).where(Sandbox.session_id == session_id)
        await self._remove(select(Command.id).where(Command.sandbox_id.in_(own)))

    async def trim(self, older_than: timedelta) -> int:
        """Delete commands that finished longer ago, and return how many."""
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

    def _check(self, new: NewCommand) -> None:
        if not new.command.strip():
            raise InvalidInputError("The command is empty.")
        if len(new.command) > MAX_COMMAND:
            raise InvalidInputError(f"The command is longer than {MAX_COMMAND:,} characters. Upload it as a script.")
        if "\0" in new.command or any("\0" in part for part in (new.cwd or "", *new.envs, *new.envs.values())):
            raise InvalidInputError("A command, its folder and its variables must not contain NUL characters.")
        for name in new.envs:
            if not name or "=" in name:
                raise InvalidInputError(f"envs: {name[:100]!r} is not a valid variable name.")
        if not 0 < new.timeout_s <= self._max_timeout_s:
            raise InvalidInputError(
                f"timeout is invalid: it must be more than 0 and at most {self._max_timeout_s:.0f} seconds."
            )

    async def _check_policy(self, row: Sandbox, command: str) -> None:
        async with self._database.reading() as session:
            project = await find_project(session, row)
        policy = CommandPolicy.from_settings(project.settings if project is not None else {})
        if not policy.is_empty:
            await run_in_thread(policy.check, command)
