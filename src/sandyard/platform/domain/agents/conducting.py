"""Run the turns of one session: start them in order, follow the agent's process, and enforce timeouts.

There is one conductor per session with work to do. Everything it decides is stored in rows, so that another one can
continue after a crash.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

from sandyard.kit.errors import ConflictError, SandyardError
from sandyard.kit.logging import get_logger
from sandyard.kit.tasks import end_tasks
from sandyard.platform.db.models import AgentRun, Checkout, Sandbox, Session, Turn, User
from sandyard.platform.db.retry import TEMPORARY_ERRORS
from sandyard.platform.domain.agents import ending, runs, steps, timing
from sandyard.platform.domain.agents.errors import AgentProtocolError, AgentSilentError
from sandyard.platform.domain.agents.model import RunStatus, TurnStatus
from sandyard.platform.domain.agents.ports import Desk
from sandyard.platform.domain.agents.rows import about, about_turn, load_view, locked, open_turn
from sandyard.platform.domain.agents.runs import Life
from sandyard.platform.domain.agents.steps import Next
from sandyard.platform.domain.agents.stuck import Watch
from sandyard.platform.domain.git.model import Reason
from sandyard.platform.domain.models.faults import FAULT_CODES
from sandyard.platform.domain.models.model import OverBudgetError
from sandyard.platform.domain.sandboxes.model import Status, check_usable, utc_now
from sandyard.platform.domain.users.model import Principal

log = get_logger(__name__)

TICK_S = 1.0
CANCEL_S = 15.0
"""How long an agent may take to stop after a cancel request."""
REFUSED_S = 2.0
"""How long an agent may take to stop if its model provider rejects its requests: it cannot do anything useful."""
GREET_S = 300.0
"""How long an agent may take to become ready after its start."""
STRAY_S = 15.0
"""How long an agent may print other output before its first message."""
QUIET_S = 10.0
"""How often to check a session that has no turn or whose sandbox is paused. Every change also nudges it."""
CRASHES, CRASHES_S = 3, 60.0
"""How often, in how many seconds, following a process may fail before the process is ended."""
_INTERNAL = "Internal error; see the platform's log."


@dataclass(slots=True)
class _View:
    session: Session
    sandbox: Sandbox | None
    turn: Turn | None
    run: AgentRun | None


class Conductor:
    """Conduct one session. `run` returns, with `over` set, when there is no turn and no process to follow."""

    def __init__(self, desk: Desk, session_id: str) -> None:
        self._desk = desk
        self.session_id = session_id
        self.over = False
        self.resting = False  # the platform paused the sandbox
        self.ending: asyncio.Future[None] | None = None  # set when the process is to be ended
        self._nudged = asyncio.Event()
        self._life: Life | None = None
        self._task: asyncio.Task[None] | None = None
        self._held = contextlib.ExitStack()
        self._holding: tuple[str, str, bool] | None = None
        self._watch: Watch | None = None
        self._last_heard = 0.0
        self._idle_since: float | None = None
        self._tick = TICK_S
        self._crashes: list[float] = []

    def nudge(self) -> None:
        """Report that something has changed."""
        self._nudged.set()
        if self._life is not None:
            self._life.deliver()

    def look(self) -> None:
        """Report that the sandbox was woken or has ended."""
        self.resting = False
        if self._life is not None:
            self._life.look()
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
                    self.over = True
                    return
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._tick):
                        await self._nudged.wait()
        finally:
            self.over = True
            self._release_sandbox()
            if self._task is not None:
                await end_tasks(self._task)

    # one round ---------------------------------------------------------------------------------------------------------

    async def _view(self) -> _View | None:
        async with self._desk.database.reading() as session:
            found = await load_view(session, self.session_id)
        return None if found is None else _View(*found)

    async def _run_once(self) -> bool:
        """Do the next piece of work. Returns False if nothing is left to do."""
        # check before loading the view, which could otherwise show an ended process as alive
        over = self._task is not None and self._task.done()
        view = await self._view()
        crashed = over and _has_crashed(self._task)
        if over:
            self._task = self._life = None
        if view is None:
            self._release_sandbox()
            return False
        asleep = view.sandbox is not None and view.sandbox.status == Status.PAUSED
        self._tick = QUIET_S if asleep else TICK_S
        if crashed and view.run is not None:
            await self._handle_crash(view)
            return self._repeat_at_once()
        if self.ending is not None:
            await self._end_process(view)
            done, self.ending = self.ending, None
            done.set_result(None)
            return self._repeat_at_once()
        if view.run is not None and view.run.sandbox_id != view.session.sandbox_id:
            await self._abandon_run(view.session, view.run)
            return self._repeat_at_once()
        if view.turn is None:
            return await self._supervise_idle(view)
        self._idle_since = None
        return await self._supervise_turn(view, view.turn)

    async def _handle_crash(self, view: _View) -> None:
        """Follow the process again after an internal error, but end it after too many errors."""
        now = asyncio.get_running_loop().time()
        self._crashes = [*(at for at in self._crashes if now - at < CRASHES_S), now]
        await asyncio.sleep(TICK_S)
        if len(self._crashes) >= CRASHES:
            self._crashes = []
            await self._fail_turn(_INTERNAL, "internal")
            await self._end_process(view)

    def _repeat_at_once(self) -> bool:
        self._nudged.set()
        return True

    async def _supervise_idle(self, view: _View) -> bool:
        """Follow the process while there is no turn, and end it after the idle time."""
        if self._holding is not None:
            self._desk.tasks.spawn(self._create_checkpoint(view))
        self._release_sandbox()
        if view.run is None:
            return False
        self._ensure_followed(view.session, view.run)
        now = self._desk.clock.now()
        if self._idle_since is None:
            self._idle_since = now
        awake = view.sandbox is not None and view.sandbox.status == Status.RUNNING
        left = self._idle_since + self._desk.settings.agent_idle_s - now
        if awake and left <= 0:
            await self._end_process(view)
            return self._repeat_at_once()
        self._tick = min(QUIET_S, left) if awake else QUIET_S
        return True

    async def _supervise_turn(self, view: _View, turn: Turn) -> bool:
        if turn.status == TurnStatus.QUEUED:
            await self._begin_turn(view, turn)
            return self._repeat_at_once()
        if view.run is None:
            await self._start_agent(view, turn)
            return self._repeat_at_once()
        self._ensure_followed(view.session, view.run)
        self._hold_sandbox(view, turn)
        if self._life is not None:
            self._life.said(view.run.sent)
        if view.run.status == RunStatus.READY and turn.request is None and turn.cancel_at is None:
            await self._advance_turn(turn, view.run)
        asleep = view.sandbox is not None and view.sandbox.status == Status.PAUSED
        if asleep and turn.status == TurnStatus.RUNNING and not self.resting and view.sandbox is not None:
            await self._desk.lifecycle.resume(view.sandbox)  # the engine paused it while nobody followed it
        await self._check_timeouts(view, turn, view.run)
        return True

    async def _begin_turn(self, view: _View, turn: Turn) -> None:
        """Start a queued turn, or finish it if the sandbox or the budget does not allow it."""
        try:
            if view.sandbox is None:
                raise ConflictError("The session has no sandbox. Create a new sandbox for it.")
            check_usable(view.sandbox)
            await self._desk.models.check_budget(view.session)
        except TEMPORARY_ERRORS:
            raise
        except SandyardError as error:
            status = TurnStatus.OVER_BUDGET if isinstance(error, OverBudgetError) else TurnStatus.FAILED
            async with self._desk.database.transaction() as tx:
                if (found := await locked(tx, turn.id)) is not None:
                    await ending.finish(tx, *found, status, error=error.message, code=error.code)
            return
        async with self._desk.database.transaction() as tx:
            run = await tx.session.get(AgentRun, view.run.id, with_for_update=True) if view.run is not None else None
            found = await locked(tx, turn.id)
            if found is None or found[2].status != TurnStatus.QUEUED:
                return
            session, _, known = found
            known.status, known.started_at, known.active_at = TurnStatus.RUNNING, utc_now(), utc_now()
            known.run_id = run.id if run is not None else None
            tx.emit("turn.started", **about(session), **about_turn(known))
            if run is not None:
                await steps.advance(tx, session, run, known)
        if self._life is not None:
            self._life.deliver()

    async def _start_agent(self, view: _View, turn: Turn) -> None:
        try:
            if view.sandbox is None or view.session.agent is None:
                raise ConflictError("The session has no sandbox, or no agent.")
            check_usable(view.sandbox)
            profile = await self._desk.agents.profile(view.session.owner_id, view.session.agent)
        except TEMPORARY_ERRORS:
            raise
        except SandyardError as error:
            await self._fail_turn(error.message, error.code)
            return
        run = await runs.draft(self._desk, view.session, turn, profile)
        self._ensure_followed(view.session, run)
        self._hold_sandbox(view, turn)

    def _ensure_followed(self, session: Session, run: AgentRun) -> None:
        """Follow the process, no matter who started it."""
        if self._life is None or self._life.run_id != run.id:
            self._life = Life(self._desk, session, run, self._nudged.set)
            self._task = asyncio.get_running_loop().create_task(self._life.run(), name=f"agent {run.id}")
            self._task.add_done_callback(self._on_life_done)

    def _on_life_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("agent_crashed", session=self.session_id, exc=error)
        self._nudged.set()

    async def _advance_turn(self, turn: Turn, run: AgentRun) -> None:
        async with self._desk.database.transaction() as tx:
            own = await tx.session.get(AgentRun, run.id, with_for_update=True)
            found = await locked(tx, turn.id)
            if own is None or found is None or found[2].status != TurnStatus.RUNNING:
                return
            session, _, known = found
            known.run_id = own.id
            what = await steps.advance(tx, session, own, known)
        if what is Next.RESTART and self._life is not None and self._task is not None:
            await self._life.end(self._task, replaced=True)
            self._repeat_at_once()
        elif what is Next.WORK and self._life is not None:
            self._life.deliver()

    # timeouts ----------------------------------------------------------------------------------------------------------

    async def _check_timeouts(self, view: _View, turn: Turn, run: AgentRun) -> None:
        if turn.cancel_at is not None or turn.error_code == steps.WAKING:
            since = turn.cancel_at or turn.stuck_at
            patience = REFUSED_S if turn.error_code in FAULT_CODES else CANCEL_S
            if since is not None and (utc_now() - since).total_seconds() > patience:
                await self._end_process(view)
        elif turn.status == TurnStatus.WAITING:
            if await timing.expire(self._desk, turn.id):
                self.nudge()
        elif run.status == RunStatus.STARTING:
            began = self._life.began_at if self._life is not None else None
            stray = self._life.stray_at if self._life is not None else None
            if self._life is not None and stray is not None and asyncio.get_running_loop().time() - stray > STRAY_S:
                await self._fail_turn(self._life.stray_fault, AgentProtocolError.code)
                await self._end_process(view)
            elif began is not None and asyncio.get_running_loop().time() - began > GREET_S:
                await self._fail_turn(AgentSilentError().message, AgentSilentError.code)
                await self._end_process(view)
        elif turn.request is not None:
            await self._check_stuck(view, turn)

    async def _check_stuck(self, view: _View, turn: Turn) -> None:
        if self._watch is None:
            self._watch = Watch(self._desk.clock)
        if self._life is not None and self._life.heard != self._last_heard:
            self._last_heard = self._life.heard
            self._watch.heard()
        sandbox = view.sandbox
        awake = sandbox is not None and sandbox.status == Status.RUNNING
        if turn.stuck_at is not None or not awake or sandbox is None or not self._watch.due:
            return
        if await timing.watch(self._desk, self._watch, sandbox, turn):
            self._watch.heard()
            self.nudge()

    async def _create_checkpoint(self, view: _View) -> None:
        """Create a checkpoint of the work of a turn. Failures are only logged."""
        sandbox = view.sandbox
        if sandbox is None or sandbox.status != Status.RUNNING:
            return
        async with self._desk.database.reading() as session:
            checkout = await session.get(Checkout, sandbox.id)
            owner = await session.get(User, view.session.owner_id)
        if checkout is None or owner is None:
            return
        try:
            caller = Principal(owner.id, owner.name, owner.role, "turn")
            await self._desk.git.checkpoint(caller, sandbox.id, Reason.TURN)
        except SandyardError as error:
            log.info("turn_not_kept", session=self.session_id, reason=error.message)

    # ending ------------------------------------------------------------------------------------------------------------

    async def _end_process(self, view: _View) -> None:
        """End the agent's process, whatever it is doing."""
        if view.run is None:
            return
        self._ensure_followed(view.session, view.run)
        assert self._life is not None
        assert self._task is not None
        await self._life.end(self._task)
        self._life = self._task = None

    async def _abandon_run(self, session: Session, run: AgentRun) -> None:
        """Record a run as lost, because its sandbox no longer belongs to the session."""
        if self._task is not None:
            await end_tasks(self._task)
        self._life = self._task = None
        await Life(self._desk, session, run, self._nudged.set).lose("The session now has another sandbox.")

    async def _fail_turn(self, sentence: str, code: str) -> None:
        async with self._desk.database.transaction() as tx:
            turn = await open_turn(tx.session, self.session_id)
            found = await locked(tx, turn.id) if turn is not None else None
            if found is not None:
                await ending.finish(tx, *found, TurnStatus.FAILED, error=sentence, code=code)

    # holding -----------------------------------------------------------------------------------------------------------

    def _hold_sandbox(self, view: _View, turn: Turn) -> None:
        """Keep the sandbox from counting as idle while the agent works, but not while it waits for a person."""
        assert view.session.sandbox_id is not None
        wanted = (turn.id, view.session.sandbox_id, turn.status == TurnStatus.RUNNING)
        if self._holding == wanted:
            return
        self._release_sandbox()
        if wanted[2]:
            self._held.enter_context(self._desk.lifecycle.activity.using(wanted[1]))
        self._held.enter_context(self._desk.models.counted(wanted[1], turn))
        self._holding = wanted

    def _release_sandbox(self) -> None:
        self._held.close()
        self._holding, self._watch = None, None


def _has_crashed(task: asyncio.Task[None] | None) -> bool:
    return task is not None and task.done() and not task.cancelled() and task.exception() is not None
