"""Run the turns of one session: start them in order, follow the agent's process, and enforce timeouts.

There is one session runner per session with work to do. Everything it decides is stored in rows, so that another one can
continue after a crash.
"""

from __future__ import annotations

import asyncio
import contextlib

from sqlalchemy import String, literal, select

from sandyard.kit.errors import ConflictError, SandyardError
from sandyard.kit.logging import get_logger
from sandyard.kit.tasks import end_tasks
from sandyard.platform.db.models import AgentRun, Checkout, Session, Turn, User
from sandyard.platform.db.retry import TEMPORARY_ERRORS
from sandyard.platform.domain.agents.acp.client import WAKING, NextStep, advance
from sandyard.platform.domain.agents.errors import AgentProtocolError, AgentSilentError
from sandyard.platform.domain.agents.model import RunStatus, TurnStatus
from sandyard.platform.domain.agents.repository import (
    SessionState,
    find_open_turn,
    get_session_fields,
    get_turn_fields,
    load_session_state,
    lock_turn,
)
from sandyard.platform.domain.agents.runner.deps import AgentRunnerDeps
from sandyard.platform.domain.agents.runner.outcomes import finish_turn
from sandyard.platform.domain.agents.runner.process import AgentProcess, create_run
from sandyard.platform.domain.agents.runner.timeouts import InactivityWatch, check_activity, expire_asks
from sandyard.platform.domain.git.model import Reason
from sandyard.platform.domain.models.faults import FAULT_CODES
from sandyard.platform.domain.models.model import OverBudgetError
from sandyard.platform.domain.projects.service import has_lost_access
from sandyard.platform.domain.sandboxes.model import OwnerWithoutAccessError, Status, check_usable, utc_now
from sandyard.platform.domain.users.model import Principal

log = get_logger(__name__)

TICK_S = 1.0
CANCEL_S = 15.0
"""How long an agent may take to stop after a cancel request."""
REFUSED_S = 2.0
"""How long an agent may take to stop if its model provider rejects its requests: it cannot do anything useful."""
INITIALIZE_S = 300.0
"""How long an agent may take to become ready after its start."""
STRAY_S = 15.0
"""How long an agent may print other output before its first message."""
QUIET_S = 10.0
"""How often to check a session that has no turn or whose sandbox is paused. Every change also nudges it."""
MAX_CRASHES, CRASHES_S = 3, 60.0
"""How often, in how many seconds, following a process may fail before the process is ended."""
_INTERNAL = "Internal error; see the platform's log."


class SessionRunner:
    """Run one session. `run` returns, with `has_ended` set, when there is no turn and no process to follow."""

    def __init__(self, deps: AgentRunnerDeps, session_id: str) -> None:
        self._deps = deps
        self.session_id = session_id
        self.has_ended = False
        self.paused_by_platform = False
        self.ending: asyncio.Future[None] | None = None  # set when the process is to be ended
        self._nudged = asyncio.Event()
        self._process: AgentProcess | None = None
        self._task: asyncio.Task[None] | None = None
        self._held = contextlib.ExitStack()
        self._holding: tuple[str, str, bool] | None = None
        self._watch: InactivityWatch | None = None
        self._last_output_at = 0.0
        self._idle_since: float | None = None
        self._tick = TICK_S
        self._crashes: list[float] = []

    def nudge(self) -> None:
        """Report that something has changed."""
        self._nudged.set()
        if self._process is not None:
            self._process.deliver()

    def check_sandbox(self) -> None:
        """Report that the sandbox was woken or has ended."""
        self.paused_by_platform = False
        if self._process is not None:
            self._process.check_sandbox()
        self._nudged.set()

    async def run(self) -> None:
        try:
            while True:
                self._nudged.clear()
                try:
                    busy = await self._run_once()
                except SandyardError as error:
                    log.warning("session_waits", session=self.session_id, reason=error.message)
                    busy = True
                except Exception as error:
                    log.error("session_crashed", session=self.session_id, exc=error)  # noqa: TRY400
                    busy = True
                    with contextlib.suppress(SandyardError):
                        await self._fail_turn(_INTERNAL, "internal")
                    await asyncio.sleep(TICK_S)
                if not busy and not self._nudged.is_set():
                    self.has_ended = True
                    return
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._tick):
                        await self._nudged.wait()
        finally:
            self.has_ended = True
            self._release_sandbox()
            if self._task is not None:
                await end_tasks(self._task)

    # one round ---------------------------------------------------------------------------------------------------------

    async def load_state(self) -> SessionState | None:
        async with self._deps.database.reading() as session:
            return await load_session_state(session, self.session_id)

    async def _run_once(self) -> bool:
        """Do the next piece of work. Returns False if nothing is left to do."""
        # check before loading the state, which could otherwise show an ended process as alive
        over = self._task is not None and self._task.done()
        state = await self.load_state()
        crashed = over and _has_crashed(self._task)
        if over:
            self._task = self._process = None
        if state is None:
            self._release_sandbox()
            return False
        asleep = state.sandbox is not None and state.sandbox.status == Status.PAUSED
        self._tick = QUIET_S if asleep else TICK_S
        if crashed and state.run is not None:
            await self._handle_crash(state)
            return self._repeat_at_once()
        if self.ending is not None:
            await self._end_process(state)
            done, self.ending = self.ending, None
            done.set_result(None)
            return self._repeat_at_once()
        if state.run is not None and state.run.sandbox_id != state.session.sandbox_id:
            await self._abandon_run(state.session, state.run)
            return self._repeat_at_once()
        if state.turn is None:
            return await self._supervise_idle(state)
        self._idle_since = None
        return await self._supervise_turn(state, state.turn)

    async def _handle_crash(self, state: SessionState) -> None:
        """Follow the process again after an internal error, but end it after too many errors."""
        now = asyncio.get_running_loop().time()
        self._crashes = [*(at for at in self._crashes if now - at < CRASHES_S), now]
        await asyncio.sleep(TICK_S)
        if len(self._crashes) >= MAX_CRASHES:
            self._crashes = []
            await self._fail_turn(_INTERNAL, "internal")
            await self._end_process(state)

    def _repeat_at_once(self) -> bool:
        self._nudged.set()
        return True

    async def _supervise_idle(self, state: SessionState) -> bool:
        """Follow the process while there is no turn, and end it after the idle time."""
        if self._holding is not None:
            self._deps.tasks.spawn(self._create_checkpoint(state))
        self._release_sandbox()
        if state.run is None:
            return False
        self._ensure_followed(state.session, state.run)
        now = self._deps.clock.now()
        if self._idle_since is None:
            self._idle_since = now
        awake = state.sandbox is not None and state.sandbox.status == Status.RUNNING
        left = self._idle_since + self._deps.settings.agent_idle_s - now
        if awake and left <= 0:
            await self._end_process(state)
            return self._repeat_at_once()
        self._tick = min(QUIET_S, left) if awake else QUIET_S
        return True

    async def _supervise_turn(self, state: SessionState, turn: Turn) -> bool:
        if turn.status == TurnStatus.QUEUED:
            await self._begin_turn(state, turn)
            return self._repeat_at_once()
        if state.run is None:
            await self._start_agent(state, turn)
            return self._repeat_at_once()
        self._ensure_followed(state.session, state.run)
        self._hold_sandbox(state, turn)
        if self._process is not None:
            self._process.deliver_up_to(state.run.sent)
        if state.run.status == RunStatus.READY and turn.request is None and turn.cancel_at is None:
            await self._advance_turn(turn, state.run)
        asleep = state.sandbox is not None and state.sandbox.status == Status.PAUSED
        if asleep and turn.status == TurnStatus.RUNNING and not self.paused_by_platform and state.sandbox is not None:
            try:
                await self._deps.lifecycle.resume(state.sandbox)  # the engine paused it while nobody followed it
            except OwnerWithoutAccessError as error:
                await self._fail_turn(error.message, error.code)
                return self._repeat_at_once()
        await self._check_timeouts(state, turn, state.run)
        return True

    async def _begin_turn(self, state: SessionState, turn: Turn) -> None:
        """Start a queued turn, or finish it if the sandbox or the budget does not allow it."""
        try:
            if state.sandbox is None:
                raise ConflictError("The session has no sandbox. Create a new sandbox for it.")
            check_usable(state.sandbox)
            await self._check_requester(state.session, turn)
            await self._deps.models.check_budget(state.session)
        except TEMPORARY_ERRORS:
            raise
        except SandyardError as error:
            status = TurnStatus.OVER_BUDGET if isinstance(error, OverBudgetError) else TurnStatus.FAILED
            async with self._deps.database.transaction() as tx:
                if (locked := await lock_turn(tx, turn.id)) is not None:
                    await finish_turn(locked, status, error=error.message, code=error.code)
            return
        async with self._deps.database.transaction() as tx:
            run = await tx.session.get(AgentRun, state.run.id, with_for_update=True) if state.run is not None else None
            locked = await lock_turn(tx, turn.id)
            if locked is None or locked.turn.status != TurnStatus.QUEUED:
                return
            session, known = locked.session, locked.turn
            known.status, known.started_at, known.active_at = TurnStatus.RUNNING, utc_now(), utc_now()
            known.run_id = run.id if run is not None else None
            tx.emit("turn.started", **get_session_fields(session), **get_turn_fields(known))
            if run is not None:
                await advance(tx, session, run, known)
        if self._process is not None:
            self._process.deliver()

    async def _check_requester(self, session: Session, turn: Turn) -> None:
        """Raise OwnerWithoutAccessError if the author of the prompt was disabled or has left the project since."""
        if turn.user_id is None:
            return
        lost = has_lost_access(literal(turn.user_id), literal(session.project_id, String()))
        async with self._deps.database.reading() as reading:
            if await reading.scalar(select(lost)):
                raise OwnerWithoutAccessError(
                    "The author of this prompt was disabled or no longer has access to the project, so it was not sent to the agent."
                )

    async def _start_agent(self, state: SessionState, turn: Turn) -> None:
        try:
            if state.sandbox is None or state.session.agent is None:
                raise ConflictError("The session has no sandbox, or no agent.")
            check_usable(state.sandbox)
            profile = await self._deps.agents.profile(state.session.owner_id, state.session.agent)
        except TEMPORARY_ERRORS:
            raise
        except SandyardError as error:
            await self._fail_turn(error.message, error.code)
            return
        run = await create_run(self._deps, state.session, turn, profile)
        self._ensure_followed(state.session, run)
        self._hold_sandbox(state, turn)

    def _ensure_followed(self, session: Session, run: AgentRun) -> None:
        """Follow the process, no matter who started it."""
        if self._process is None or self._process.run_id != run.id:
            self._process = AgentProcess(self._deps, session, run, self._nudged.set)
            self._task = asyncio.get_running_loop().create_task(self._process.run(), name=f"agent {run.id}")
            self._task.add_done_callback(self._on_process_done)

    def _on_process_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("agent_crashed", session=self.session_id, exc=error)
        self._nudged.set()

    async def _advance_turn(self, turn: Turn, run: AgentRun) -> None:
        async with self._deps.database.transaction() as tx:
            own = await tx.session.get(AgentRun, run.id, with_for_update=True)
            locked = await lock_turn(tx, turn.id)
            if own is None or locked is None or locked.turn.status != TurnStatus.RUNNING:
                return
            locked.turn.run_id = own.id
            step = await advance(tx, locked.session, own, locked.turn)
        if step is NextStep.RESTART and self._process is not None and self._task is not None:
            await self._process.end(self._task, replaced=True)
            self._repeat_at_once()
        elif step is NextStep.WORK and self._process is not None:
            self._process.deliver()

    # timeouts ----------------------------------------------------------------------------------------------------------

    async def _check_timeouts(self, state: SessionState, turn: Turn, run: AgentRun) -> None:
        if turn.cancel_at is not None or turn.error_code == WAKING:
            since = turn.cancel_at or turn.stuck_at
            patience = REFUSED_S if turn.error_code in FAULT_CODES else CANCEL_S
            if since is not None and (utc_now() - since).total_seconds() > patience:
                await self._end_process(state)
        elif turn.status == TurnStatus.WAITING:
            if await expire_asks(self._deps, turn.id):
                self.nudge()
        elif run.status == RunStatus.STARTING:
            started = self._process.started_at if self._process is not None else None
            stray = self._process.stray_since if self._process is not None else None
            if self._process is not None and stray is not None and asyncio.get_running_loop().time() - stray > STRAY_S:
                await self._fail_turn(self._process.stray_output_error, AgentProtocolError.code)
                await self._end_process(state)
            elif started is not None and asyncio.get_running_loop().time() - started > INITIALIZE_S:
                await self._fail_turn(AgentSilentError().message, AgentSilentError.code)
                await self._end_process(state)
        elif turn.request is not None:
            await self._check_stuck(state, turn)

    async def _check_stuck(self, state: SessionState, turn: Turn) -> None:
        if self._watch is None:
            self._watch = InactivityWatch(self._deps.clock)
        if self._process is not None and self._process.last_output_at != self._last_output_at:
            self._last_output_at = self._process.last_output_at
            self._watch.record_output()
        sandbox = state.sandbox
        awake = sandbox is not None and sandbox.status == Status.RUNNING
        if turn.stuck_at is not None or not awake or sandbox is None or not self._watch.is_due:
            return
        if await check_activity(self._deps, self._watch, sandbox, turn):
            self._watch.record_output()
            self.nudge()

    async def _create_checkpoint(self, state: SessionState) -> None:
        """Create a checkpoint of the work of a turn. Failures are only logged."""
        sandbox = state.sandbox
        if sandbox is None or sandbox.status != Status.RUNNING:
            return
        async with self._deps.database.reading() as session:
            checkout = await session.get(Checkout, sandbox.id)
            owner = await session.get(User, state.session.owner_id)
        if checkout is None or owner is None:
            return
        try:
            caller = Principal(owner.id, owner.name, owner.role, "turn")
            await self._deps.git.checkpoint(caller, sandbox.id, Reason.TURN)
        except SandyardError as error:
            log.info("turn_not_kept", session=self.session_id, reason=error.message)

    # ending ------------------------------------------------------------------------------------------------------------

    async def _end_process(self, state: SessionState) -> None:
        """End the agent's process, whatever it is doing."""
        if state.run is None:
            return
        self._ensure_followed(state.session, state.run)
        assert self._process is not None
        assert self._task is not None
        await self._process.end(self._task)
        self._process = self._task = None

    async def _abandon_run(self, session: Session, run: AgentRun) -> None:
        """Record a run as lost, because its sandbox no longer belongs to the session."""
        if self._task is not None:
            await end_tasks(self._task)
        self._process = self._task = None
        await AgentProcess(self._deps, session, run, self._nudged.set).record_loss(
            "The session now has another sandbox."
        )

    async def _fail_turn(self, message: str, code: str) -> None:
        async with self._deps.database.transaction() as tx:
            turn = await find_open_turn(tx.session, self.session_id)
            locked = await lock_turn(tx, turn.id) if turn is not None else None
            if locked is not None:
                await finish_turn(locked, TurnStatus.FAILED, error=message, code=code)

    # holding -----------------------------------------------------------------------------------------------------------

    def _hold_sandbox(self, state: SessionState, turn: Turn) -> None:
        """Keep the sandbox from counting as idle while the agent works, but not while it waits for a person."""
        assert state.session.sandbox_id is not None
        wanted = (turn.id, state.session.sandbox_id, turn.status == TurnStatus.RUNNING)
        if self._holding == wanted:
            return
        self._release_sandbox()
        if wanted[2]:
            self._held.enter_context(self._deps.lifecycle.activity.using(wanted[1]))
        self._held.enter_context(self._deps.models.count_for_turn(wanted[1], turn))
        self._holding = wanted

    def _release_sandbox(self) -> None:
        self._held.close()
        self._holding, self._watch = None, None


def _has_crashed(task: asyncio.Task[None] | None) -> bool:
    return task is not None and task.done() and not task.cancelled() and task.exception() is not None
