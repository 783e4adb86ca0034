"""One conductor for each session with work to do: it begins turns in their order, holds the agent's process, and looks after time.

All that it decides is in rows, so that another one goes on where this one was cut off.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

from sandyard.kit.errors import ConflictError, SandyardError
from sandyard.kit.logging import get_logger
from sandyard.kit.tasks import end_tasks
from sandyard.platform.db.database import AWAY
from sandyard.platform.db.models import AgentRun, Checkout, Sandbox, Session, Turn, User
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
"""How long an agent may take to stop when it is asked to."""
REFUSED_S = 2.0
"""How long one may take whose model's provider refuses it: it can do nothing, not even tidy up."""
GREET_S = 300.0
"""How long it may take to be ready after its start."""
STRAY_S = 15.0
"""How long it may print what is no message before it prints the first one."""
QUIET_S = 10.0
"""How often a session is checked that has no turn, or whose sandbox sleeps. Whatever changes that nudges it."""
CRASHES, CRASHES_S = 3, 60.0
"""So often, in so many seconds, the platform may fail to follow a process before it is ended."""
_INTERNAL = "Internal error; see the platform's log."


@dataclass(slots=True)
class _View:
    session: Session
    sandbox: Sandbox | None
    turn: Turn | None
    run: AgentRun | None


class Conductor:
    """Of one session. `run` returns when there is nothing to do, and no process to look after; then it is `over`."""

    def __init__(self, desk: Desk, session_id: str) -> None:
        self._desk = desk
        self.session_id = session_id
        self.over = False
        self.resting = False  # its sandbox was paused by us
        self.ending: asyncio.Future[None] | None = None  # somebody wants the end of its process
        self._nudged = asyncio.Event()
        self._life: Life | None = None
        self._task: asyncio.Task[None] | None = None
        self._held = contextlib.ExitStack()
        self._holding: tuple[str, str, bool] | None = None
        self._watch: Watch | None = None
        self._heard = 0.0
        self._idle_since: float | None = None
        self._tick = TICK_S
        self._crashes: list[float] = []

    def nudge(self) -> None:
        """Something has changed."""
        self._nudged.set()
        if self._life is not None:
            self._life.deliver()

    def look(self) -> None:
        """The sandbox was woken, or has ended."""
        self.resting = False
        if self._life is not None:
            self._life.look()
        self._nudged.set()

    async def run(self) -> None:
        try:
            while True:
                self._nudged.clear()
                try:
                    busy = await self._round()
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
            self._release()
            if self._task is not None:
                await end_tasks(self._task)

    # one look ----------------------------------------------------------------------------------------------------------

    async def _view(self) -> _View | None:
        async with self._desk.database.reading() as session:
            found = await load_view(session, self.session_id)
        return None if found is None else _View(*found)

    async def _round(self) -> bool:
        """False: nothing is left to do."""
        # before the look, which else may show as alive what has ended since
        over = self._task is not None and self._task.done()
        view = await self._view()
        crashed = over and _crashed(self._task)
        if over:
            self._task = self._life = None
        if view is None:
            self._release()
            return False
        asleep = view.sandbox is not None and view.sandbox.status == Status.PAUSED
        self._tick = QUIET_S if asleep else TICK_S
        if crashed and view.run is not None:
            await self._after_crash(view)
            return self._again()
        if self.ending is not None:
            await self._end(view)
            done, self.ending = self.ending, None
            done.set_result(None)
            return self._again()
        if view.run is not None and view.run.sandbox_id != view.session.sandbox_id:
            await self._abandon(view.session, view.run)
            return self._again()
        if view.turn is None:
            return await self._rest(view)
        self._idle_since = None
        return await self._work(view, view.turn)

    async def _after_crash(self, view: _View) -> None:
        """Its process may be followed again, but not for ever."""
        now = asyncio.get_running_loop().time()
        self._crashes = [*(at for at in self._crashes if now - at < CRASHES_S), now]
        await asyncio.sleep(TICK_S)
        if len(self._crashes) >= CRASHES:
            self._crashes = []
            await self._fail_turn(_INTERNAL, "internal")
            await self._end(view)

    def _again(self) -> bool:
        self._nudged.set()
        return True

    async def _rest(self, view: _View) -> bool:
        """No turn: the process is followed, and ended after a while."""
        if self._holding is not None:
            self._desk.tasks.spawn(self._keep_work(view))
        self._release()
        if view.run is None:
            return False
        self._hold_life(view.session, view.run)
        now = self._desk.clock.now()
        if self._idle_since is None:
            self._idle_since = now
        awake = view.sandbox is not None and view.sandbox.status == Status.RUNNING
        left = self._idle_since + self._desk.settings.agent_idle_s - now
        if awake and left <= 0:
            await self._end(view)
            return self._again()
        self._tick = min(QUIET_S, left) if awake else QUIET_S
        return True

    async def _work(self, view: _View, turn: Turn) -> bool:
        if turn.status == TurnStatus.QUEUED:
            await self._begin(view, turn)
            return self._again()
        if view.run is None:
            await self._start(view, turn)
            return self._again()
        self._hold_life(view.session, view.run)
        self._hold(view, turn)
        if self._life is not None:
            self._life.said(view.run.sent)
        if view.run.status == RunStatus.READY and turn.request is None and turn.cancel_at is None:
            await self._advance(turn, view.run)
        asleep = view.sandbox is not None and view.sandbox.status == Status.PAUSED
        if asleep and turn.status == TurnStatus.RUNNING and not self.resting and view.sandbox is not None:
            await self._desk.lifecycle.wake(view.sandbox)  # the engine has put it to sleep while nobody was here
        await self._look_after(view, turn, view.run)
        return True

    async def _begin(self, view: _View, turn: Turn) -> None:
        """It is this turn's time, unless it has ended before it began."""
        try:
            if view.sandbox is None:
                raise ConflictError("The session has no sandbox. Create a new sandbox for it.")
            check_usable(view.sandbox)
            await self._desk.models.check_budget(view.session)
        except AWAY:
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

    async def _start(self, view: _View, turn: Turn) -> None:
        try:
            if view.sandbox is None or view.session.agent is None:
                raise ConflictError("The session has no sandbox, or no agent.")
            check_usable(view.sandbox)
            profile = await self._desk.agents.profile(view.session.owner_id, view.session.agent)
        except AWAY:
            raise
        except SandyardError as error:
            await self._fail_turn(error.message, error.code)
            return
        run = await runs.draft(self._desk, view.session, turn, profile)
        self._hold_life(view.session, run)
        self._hold(view, turn)

    def _hold_life(self, session: Session, run: AgentRun) -> None:
        """The process is followed, whoever has started it."""
        if self._life is None or self._life.run_id != run.id:
            self._life = Life(self._desk, session, run, self._nudged.set)
            self._task = asyncio.get_running_loop().create_task(self._life.run(), name=f"agent {run.id}")
            self._task.add_done_callback(self._life_over)

    def _life_over(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("agent_crashed", session=self.session_id, exc=error)
        self._nudged.set()

    async def _advance(self, turn: Turn, run: AgentRun) -> None:
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
            self._again()
        elif what is Next.WORK and self._life is not None:
            self._life.deliver()

    # time --------------------------------------------------------------------------------------------------------------

    async def _look_after(self, view: _View, turn: Turn, run: AgentRun) -> None:
        if turn.cancel_at is not None or turn.error_code == steps.WAKING:
            since = turn.cancel_at or turn.stuck_at
            patience = REFUSED_S if turn.error_code in FAULT_CODES else CANCEL_S
            if since is not None and (utc_now() - since).total_seconds() > patience:
                await self._end(view)
        elif turn.status == TurnStatus.WAITING:
            if await timing.expire(self._desk, turn.id):
                self.nudge()
        elif run.status == RunStatus.STARTING:
            began = self._life.began_at if self._life is not None else None
            stray = self._life.stray_at if self._life is not None else None
            if self._life is not None and stray is not None and asyncio.get_running_loop().time() - stray > STRAY_S:
                await self._fail_turn(self._life.stray_fault, AgentProtocolError.code)
                await self._end(view)
            elif began is not None and asyncio.get_running_loop().time() - began > GREET_S:
                await self._fail_turn(AgentSilentError().message, AgentSilentError.code)
                await self._end(view)
        elif turn.request is not None:
            await self._watch_turn(view, turn)

    async def _watch_turn(self, view: _View, turn: Turn) -> None:
        if self._watch is None:
            self._watch = Watch(self._desk.clock)
        if self._life is not None and self._life.heard != self._heard:
            self._heard = self._life.heard
            self._watch.heard()
        sandbox = view.sandbox
        awake = sandbox is not None and sandbox.status == Status.RUNNING
        if turn.stuck_at is not None or not awake or sandbox is None or not self._watch.due:
            return
        if await timing.watch(self._desk, self._watch, sandbox, turn):
            self._watch.heard()
            self.nudge()

    async def _keep_work(self, view: _View) -> None:
        """A checkpoint of what a turn has done; without one the turn is as good."""
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

    # ends --------------------------------------------------------------------------------------------------------------

    async def _end(self, view: _View) -> None:
        """The process, whatever it does."""
        if view.run is None:
            return
        self._hold_life(view.session, view.run)
        assert self._life is not None
        assert self._task is not None
        await self._life.end(self._task)
        self._life = self._task = None

    async def _abandon(self, session: Session, run: AgentRun) -> None:
        """Its sandbox is no longer the session's."""
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

    def _hold(self, view: _View, turn: Turn) -> None:
        """While the agent works, its sandbox does not count as idle; while it waits for a person, it does."""
        assert view.session.sandbox_id is not None
        wanted = (turn.id, view.session.sandbox_id, turn.status == TurnStatus.RUNNING)
        if self._holding == wanted:
            return
        self._release()
        if wanted[2]:
            self._held.enter_context(self._desk.lifecycle.activity.using(wanted[1]))
        self._held.enter_context(self._desk.models.counted(wanted[1], turn))
        self._holding = wanted

    def _release(self) -> None:
        self._held.close()
        self._holding, self._watch = None, None


def _crashed(task: asyncio.Task[None] | None) -> bool:
    return task is not None and task.done() and not task.cancelled() and task.exception() is not None
