"""Run one process of an agent: install it, start it, follow it across interruptions, and end it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Awaitable, Callable, Sequence
from importlib.metadata import version
from typing import Any, TypeVar

from sqlalchemy import select

from sandyard.kit.errors import SandyardError
from sandyard.kit.ids import make_ordered_id
from sandyard.kit.logging import get_logger
from sandyard.kit.tasks import end_tasks
from sandyard.platform.db.models import AgentInput, AgentRun, Checkout, GitOperation, McpServer, Sandbox, Session, Turn
from sandyard.platform.db.retry import TEMPORARY_ERRORS, retry_while_database_unavailable
from sandyard.platform.domain.agents.acp.channel import InputWriter, OutputReader, build_command, get_input_path
from sandyard.platform.domain.agents.acp.client import send_initialize
from sandyard.platform.domain.agents.acp.mcp import (
    RUN_PROGRAM,
    RUN_PROGRAM_PATH,
    find_missing_commands,
    get_records_folder,
    read_exits,
    record_exit_of,
)
from sandyard.platform.domain.agents.errors import (
    CheckoutMissingError,
    RunBrokenError,
    RunGoneError,
    SandboxRestartedError,
)
from sandyard.platform.domain.agents.installation import put_files
from sandyard.platform.domain.agents.json_columns import change_options, get_run_options
from sandyard.platform.domain.agents.model import LIVE_RUNS, RunStatus
from sandyard.platform.domain.agents.profiles.model import LaunchRequest, Profile, list_asking_modes
from sandyard.platform.domain.agents.repository import get_session_fields, load_agent_settings
from sandyard.platform.domain.agents.runner.deps import AgentRunnerDeps
from sandyard.platform.domain.agents.runner.message_handler import MessageHandler
from sandyard.platform.domain.agents.runner.outcomes import REPLACED
from sandyard.platform.domain.git.model import OperationKind, OperationStatus
from sandyard.platform.domain.mcp_servers.model import ServerType, make_acp_entry, make_fingerprint
from sandyard.platform.domain.mcp_servers.records import list_servers
from sandyard.platform.domain.sandboxes.commands import StoppingError
from sandyard.platform.domain.sandboxes.e2b import (
    CommandEnded,
    CommandSpec,
    CommandStarted,
    EndReason,
    EngineError,
    SandboxNotFoundError,
    SandboxNotRunningError,
)
from sandyard.platform.domain.sandboxes.model import SANDBOX_LOST, Status, utc_now

log = get_logger(__name__)
T = TypeVar("T")

RUN_PREFIX = "run_"
HOME = "/home/user"
RUN_VARIABLE = "SANDYARD_RUN"
"""Set in the environment of the agent and everything it starts, to find the processes it leaves behind."""
RETRY_S = 1.0
AWAKE_S = 30.0
KILL_S = 20.0
MAX_UNSEEN_RUNS = 5
"""How many earlier processes whose end was not seen are killed before a new one starts."""
_CHECKOUT_KINDS = (OperationKind.CLONE, OperationKind.RESTORE, OperationKind.BRANCH)
_END_MESSAGES = {
    EndReason.LOST: SandboxRestartedError().message,
    EndReason.NOT_STARTED: "The agent's process was never started.",
}


async def create_run(deps: AgentRunnerDeps, session: Session, turn: Turn, profile: Profile) -> AgentRun:
    """Create the row of a new run with its `initialize` request, before anything is done in the sandbox."""
    assert session.sandbox_id is not None
    run = AgentRun(
        id=make_ordered_id(RUN_PREFIX),
        session_id=session.id,
        sandbox_id=session.sandbox_id,
        agent=profile.name,
        model=turn.model,
        status=RunStatus.STARTING,
        capabilities={},
        options={"auth": profile.auth_method},
        next_request=0,
        sent=0,
        consumed=0,
        started_at=utc_now(),
    )
    async with deps.database.transaction() as tx:
        permissions = (await load_agent_settings(tx.session, session)).permissions
        strictness = permissions.strictness
        if not profile.demo or strictness == "deny":  # the demo agent's mode is part of the demonstration
            change_options(run, {"askingModes": list_asking_modes(profile)})
        change_options(run, {"strictness": strictness})
        tx.add(run)
        await tx.session.flush()
        send_initialize(tx, run, version("sandyard"))
        known = await tx.session.get(Turn, turn.id)
        if known is not None and known.request is None:
            known.run_id = run.id
        tx.emit(
            "agent.starting",
            **get_session_fields(session),
            runId=run.id,
            agent=run.agent,
            model=run.model,
            turnId=turn.id,
        )
    return run


class AgentProcess:
    """Follow the process of one run, which may have been started by an earlier platform process.

    `run` returns when the process has ended and its end is stored.
    """

    def __init__(self, deps: AgentRunnerDeps, session: Session, run: AgentRun, changed: Callable[[], None]) -> None:
        self._deps = deps
        self._session = session
        self._changed = changed
        self.run_id = run.id
        self.sandbox_id = run.sandbox_id
        self._row = run
        self._served = get_run_options(run).get("served", False)
        self._initial_input_size = 0
        self._output = OutputReader(
            deps.database, deps.files, run.id, run.consumed, self._handle_lines, kept=deps.settings.output_kept
        )
        self._input = InputWriter(deps.database, deps.lifecycle, run, lambda: self._output.offsets)
        self._handler = MessageHandler(deps, run.id, self._input.get_output_before, self._read_server_exits)
        self._awake, self._woken = asyncio.Event(), asyncio.Event()
        self._attach_task: asyncio.Task[None] | None = None
        self.start_requested = run.consumed > 0 or run.status == RunStatus.READY  # the process may be running
        self.started = self.start_requested
        self.started_at: float | None = None

    @property
    def last_output_at(self) -> float:
        """Loop time of its last output, or 0."""
        return self._output.last_output_at

    @property
    def stray_since(self) -> float | None:
        """Loop time since which it has printed output without any message."""
        return self._output.stray_since

    @property
    def stray_output_error(self) -> str:
        return self._output.stray_output_error

    def deliver(self) -> None:
        self._input.nudge()

    def deliver_up_to(self, sent: int) -> None:
        """Deliver the input up to this length, which may have been queued without a nudge."""
        if self._input.delivered is not None and sent > self._input.delivered:
            self._input.nudge()

    def check_sandbox(self) -> None:
        """Report that the sandbox was woken or has ended."""
        self._awake.set()
        self._woken.set()

    async def run(self) -> None:
        delivering: asyncio.Task[None] | None = None
        try:
            await self._output.begin()
            spec = None if self.started else await self._retry_database(lambda: self._retry_engine(self._prepare))
            if self.started and self._served:
                self._attach_task = self._deps.tasks.spawn(self._reattach_models())
            delivering = asyncio.get_running_loop().create_task(self._deliver_inputs())
            await self._follow_process(spec)
        except RunGoneError:
            log.info("agent_run_gone", run=self.run_id)
        except (*TEMPORARY_ERRORS, StoppingError) as error:
            log.warning("agent_not_followed", run=self.run_id, reason=error.message)
            await asyncio.sleep(RETRY_S)  # its state is unknown: the session runner follows it again
        except RunBrokenError as error:
            await self._retry_database(self._kill_process)
            await self._finish_run(RunStatus.ENDED, error=error.message, code=error.reason)
        except SandyardError as error:
            log.warning("agent_not_started", run=self.run_id, code=error.code, reason=error.message)
            await self._finish_run(RunStatus.ENDED, error=error.message, code=error.code)
        finally:
            await end_tasks(*(task for task in (delivering, self._attach_task) if task is not None))

    # starting ----------------------------------------------------------------------------------------------------------

    async def _retry_engine(self, work: Callable[[], Awaitable[CommandSpec]]) -> CommandSpec:
        """Retry while the engine is unavailable."""
        while True:
            try:
                return await work()
            except SandboxNotRunningError:
                await self._deps.lifecycle.record_pause(self.sandbox_id)
            except SandboxNotFoundError:
                await self._deps.lifecycle.mark_lost(self.sandbox_id)
            except EngineError as error:
                if not error.transient:
                    raise
                log.info("agent_waits_for_engine", run=self.run_id, reason=error.message)
                await asyncio.sleep(RETRY_S)

    async def _retry_database(self, work: Callable[[], Awaitable[T]]) -> T:
        return await retry_while_database_unavailable(work, "agent", run=self.run_id)

    async def _prepare(self) -> CommandSpec:
        deps, engine = self._deps, self._deps.lifecycle.engine
        sandbox = await deps.lifecycle.repository.get(self.sandbox_id)
        profile = await deps.agents.profile(self._session.owner_id, self._row.agent)
        engine_id = await deps.lifecycle.ensure_running(sandbox)
        await self._kill_earlier_runs(engine_id)
        folder = await self._resolve_folder(sandbox)
        if profile.install is not None:
            await deps.install(engine, engine_id, profile, deps.settings, self._report_progress)
        endpoint = await deps.models.open_endpoint(self._session, sandbox, profile, self._row.model)
        asks = get_run_options(self._row).get("strictness", "none") != "none"
        wanted = LaunchRequest(HOME, folder, self._row.model, self._session.mode, endpoint, asks)
        launch = profile.launch(wanted)
        servers, entries = await self._load_mcp_servers(sandbox)
        commands = [server.name for server in servers if server.type == ServerType.STDIO]
        if commands:
            launch = dataclasses.replace(launch, files={**launch.files, RUN_PROGRAM_PATH: RUN_PROGRAM})
        if launch.files:
            await put_files(engine, engine_id, launch)
        missing = await find_missing_commands(engine, engine_id, entries, folder=folder, envs=launch.envs)
        self._served = endpoint is not None or any(server.type == ServerType.HTTP for server in servers)
        if self._served:
            await self._attach_models()
        async with deps.database.transaction() as tx:
            run = await tx.session.get(AgentRun, self.run_id)
            if run is None:
                raise RunGoneError
            change_options(
                run,
                {
                    "folder": folder,
                    "served": self._served,
                    "mcpServers": [record_exit_of(entry, self.run_id) for entry in entries],
                    "mcpFingerprint": make_fingerprint(servers),
                    "mcpMissing": missing,
                    "mcpCommands": [name for name in commands if name not in missing],
                },
            )
            query = select(AgentInput.line).where(AgentInput.run_id == run.id).order_by(AgentInput.position)
            first = "".join(await tx.session.scalars(query))
        self._initial_input_size = len(first)
        return CommandSpec(
            id=self.run_id,
            command=build_command(self.run_id, launch.argv, first),
            cwd=folder,
            envs={**launch.envs, RUN_VARIABLE: self.run_id},
        )

    async def _load_mcp_servers(self, sandbox: Sandbox) -> tuple[list[McpServer], list[dict[str, Any]]]:
        """Return the project's MCP servers, and their entries for the agent."""
        async with self._deps.database.reading() as session:
            servers = await list_servers(session, self._session.project_id)
        gateway, capability = "", None
        if any(server.type == ServerType.HTTP for server in servers):
            gateway, capability = await self._deps.models.open_gateway(self._session, sandbox)
        return servers, [make_acp_entry(server, gateway, capability) for server in servers]

    async def _read_server_exits(self, names: Sequence[str]) -> dict[str, str]:
        """Return a message for each of these MCP servers that has exited, by name. Empty if the sandbox cannot be read."""
        row = await self._deps.lifecycle.repository.get(self.sandbox_id)
        if row.status != Status.RUNNING or row.engine_id is None:
            return {}
        async with self._deps.database.reading() as session:
            servers = [
                server for server in await list_servers(session, self._session.project_id) if server.name in names
            ]
        try:
            return await read_exits(self._deps.lifecycle.engine, row.engine_id, self.run_id, servers)
        except SandyardError as error:
            log.warning("mcp_exits_not_read", run=self.run_id, reason=error.message)
            return {}

    async def _kill_earlier_runs(self, engine_id: str) -> None:
        """Kill earlier processes that could not be reached at their end because the sandbox was paused."""
        query = select(AgentRun.id).where(
            AgentRun.sandbox_id == self.sandbox_id, AgentRun.status.not_in(LIVE_RUNS), AgentRun.exit_code.is_(None)
        )
        async with self._deps.database.reading() as session:
            found = list(await session.scalars(query.order_by(AgentRun.id.desc()).limit(MAX_UNSEEN_RUNS)))
        for run_id in found:
            await self._deps.lifecycle.engine.commands.kill(engine_id, run_id)

    async def _attach_models(self) -> None:
        await self._deps.models.attach(self._session, await self._deps.lifecycle.repository.get(self.sandbox_id))

    async def _reattach_models(self) -> None:
        """Attach the models again for a process that was started earlier, as soon as its sandbox is awake."""
        while True:
            self._woken.clear()
            try:
                return await self._attach_models()
            except SandyardError as error:
                log.info("agent_without_model", run=self.run_id, reason=error.message)
                asleep = isinstance(error, SandboxNotRunningError)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(AWAKE_S if asleep else RETRY_S):
                    await self._woken.wait()

    async def _resolve_folder(self, sandbox: Sandbox) -> str:
        """Return the working folder: the checkout, after waiting for it, or the home folder."""
        while True:
            async with self._deps.database.reading() as session:
                own = select(GitOperation).where(
                    GitOperation.sandbox_id == sandbox.id, GitOperation.kind.in_(_CHECKOUT_KINDS)
                )
                last = (await session.scalars(own.order_by(GitOperation.id.desc()).limit(1))).first()
                checkout = await session.get(Checkout, sandbox.id)
            if last is not None and not OperationStatus(last.status).is_final:
                await self._deps.git.operations.wait(last.id)
            elif checkout is not None:
                return checkout.folder
            elif last is not None and last.status == OperationStatus.FAILED:
                raise CheckoutMissingError(f"The repository could not be checked out: {last.error}")
            else:
                return HOME

    def _report_progress(self, what: str) -> None:
        self._deps.tasks.spawn(self._emit_progress(what[:1000]))

    async def _emit_progress(self, what: str) -> None:
        async with self._deps.database.transaction() as tx:
            tx.emit(
                "agent.installing",
                **get_session_fields(self._session),
                runId=self.run_id,
                agent=self._row.agent,
                what=what,
            )

    # following ---------------------------------------------------------------------------------------------------------

    async def _follow_process(self, spec: CommandSpec | None) -> None:
        lifecycle = self._deps.lifecycle
        while True:
            self._awake.clear()
            row = await lifecycle.repository.get(self.sandbox_id)
            if row.status in (Status.ERROR, Status.DESTROYED) or row.destroy_requested_at is not None:
                reason = row.error or "The sandbox was deleted."
                await self._finish_run(
                    RunStatus.LOST, error=f"The agent's sandbox no longer exists. {reason}", code=SANDBOX_LOST
                )
                return
            if row.status != Status.RUNNING or row.engine_id is None:
                if not self.started:
                    await self._wake_sandbox(row)
                    continue
                await self._wait_until_awake()
                continue
            ended = await self._read_output(row, row.engine_id, spec)
            if ended is not None:
                await self._record_exit(ended)
                self._deps.tasks.spawn(self._remove_journals(row.engine_id))
                return

    async def _read_output(self, row: Sandbox, engine_id: str, spec: CommandSpec | None) -> CommandEnded | None:
        """Read output until the process ends. Returns None if it cannot be read for now."""
        commands = self._deps.lifecycle.engine.commands
        self.start_requested = True
        try:
            if spec is not None and not self.started:
                return await self._output.read(commands.start(engine_id, spec), self._on_started)
            stream = commands.follow(engine_id, self.run_id, *self._output.offsets)
            return await self._output.read(stream, self._on_started)
        except (RunBrokenError, RunGoneError):
            raise
        except SandboxNotFoundError:
            await self._deps.lifecycle.mark_lost(row.id)
        except SandboxNotRunningError:
            await self._deps.lifecycle.record_pause(row.id)
        except SandyardError as error:
            if not self.started and error.status < 500:  # it certainly does not run
                raise
            log.warning("agent_not_followed", run=self.run_id, reason=error.message)
            await asyncio.sleep(RETRY_S)
        return None

    async def _remove_journals(self, engine_id: str) -> None:
        """Remove the journals from the sandbox. Their contents are stored in the platform."""
        engine = self._deps.lifecycle.engine
        with contextlib.suppress(SandyardError):
            await engine.commands.forget(engine_id, self.run_id)
            await engine.files.remove(engine_id, get_input_path(self.run_id))
            await engine.files.remove(engine_id, get_records_folder(self.run_id))

    async def _wake_sandbox(self, row: Sandbox) -> None:
        try:
            await self._deps.lifecycle.ensure_running(row)
        except EngineError as error:
            if not error.transient:
                raise
            await asyncio.sleep(RETRY_S)

    def _on_started(self, event: CommandStarted) -> None:
        if not self.started and event.pid is not None:
            self._input.delivered = self._initial_input_size
        self.started = True
        self.started_at = asyncio.get_running_loop().time()
        self._awake.set()

    async def _deliver_inputs(self) -> None:
        while not self.started:
            self._awake.clear()
            await self._awake.wait()
        await self._input.run()

    async def _handle_lines(self, lines: Sequence[tuple[int, bytes]], consumed: int) -> None:
        sent = await self._handler.handle_lines(lines, consumed)
        if self._input.delivered is None or sent > self._input.delivered:
            self._input.nudge()
        self._changed()

    async def _wait_until_awake(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(AWAKE_S):
                await self._awake.wait()

    # ending ------------------------------------------------------------------------------------------------------------

    async def _record_exit(self, ended: CommandEnded) -> None:
        status = RunStatus.LOST if ended.reason is EndReason.LOST else RunStatus.ENDED
        number = ended.code if ended.code is not None else None if ended.signal is None else -ended.signal
        code = SandboxRestartedError.code if ended.reason is EndReason.LOST else None
        await self._finish_run(status, exit_code=number, error=_END_MESSAGES.get(ended.reason), code=code)

    async def _finish_run(
        self, status: RunStatus, *, exit_code: int | None = None, error: str | None = None, code: str | None = None
    ) -> None:
        def stderr(offset: int) -> str:
            return self._output.get_tail_since(offset).decode("utf-8", "replace")

        await self._retry_database(
            lambda: self._handler.record_end(status=status, exit_code=exit_code, error=error, code=code, stderr=stderr)
        )
        if self._attach_task is not None:
            self._attach_task.cancel()
        if self._served:
            self._served = False
            with contextlib.suppress(SandyardError):
                await self._deps.models.detach(self.sandbox_id)
        self._changed()

    async def record_loss(self, reason: str) -> None:
        """Record the run as lost: its end is unknown."""
        await self._finish_run(RunStatus.LOST, error=reason, code=SANDBOX_LOST)

    async def _kill_process(self) -> bool:
        """End the process if it can be reached without waking its sandbox. Returns False if it could not be reached."""
        row = await self._deps.lifecycle.repository.get(self.sandbox_id)
        if row.status != Status.RUNNING or row.engine_id is None:
            return row.status in (Status.ERROR, Status.DESTROYED)
        commands = self._deps.lifecycle.engine.commands
        try:
            if not await commands.kill(row.engine_id, self.run_id):
                await commands.claim(row.engine_id, self.run_id)
        except SandyardError as error:
            log.warning("agent_not_ended", run=self.run_id, reason=error.message)
            return False
        return True

    async def end(self, task: asyncio.Task[None], *, replaced: bool = False) -> None:
        """Stop the process with SIGTERM, and with SIGKILL soon after. Returns when it is over. Output until then is
        still read."""
        if replaced:
            async with self._deps.database.transaction() as tx:
                run = await tx.session.get(AgentRun, self.run_id)
                if run is not None:
                    run.error_code = REPLACED
        reached = self.start_requested and await self._kill_process()
        if reached and not task.done():
            await asyncio.wait((task,), timeout=KILL_S)
        await end_tasks(task)
        await self._finish_run(RunStatus.ENDED)
