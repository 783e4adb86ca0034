"""What people and tasks ask of agents: prompts, one after the other, and their end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import delete, func, select

from sandyard.kit.clock import Clock
from sandyard.kit.errors import ConflictError, ForbiddenError, NotFoundError, SandyardError
from sandyard.kit.ids import ordered_id
from sandyard.kit.logging import get_logger
from sandyard.kit.tasks import TaskSet
from sandyard.kit.text import storable_json
from sandyard.platform.db.database import Database, Transaction
from sandyard.platform.db.models import AgentInput, AgentRun, Event, Message, Project, Sandbox, Session, Turn
from sandyard.platform.domain.agents import asking, ending, wire
from sandyard.platform.domain.agents.conducting import Conductor
from sandyard.platform.domain.agents.model import OPEN_TURNS, Origin, TurnStatus
from sandyard.platform.domain.agents.ports import Catalogue, Desk, Installer, ModelsPort, Putter
from sandyard.platform.domain.agents.rows import (
    LIVE_RUNS,
    about,
    about_turn,
    agent_settings,
    last_message,
    live_run,
    locked,
    say,
)
from sandyard.platform.domain.agents.runs import RUN
from sandyard.platform.domain.agents.transcript import message_id, shown
from sandyard.platform.domain.git.service import GitService
from sandyard.platform.domain.models.default_agent import find_default_agent
from sandyard.platform.domain.models.faults import Fault
from sandyard.platform.domain.paging import Listing, PageRequest, newest_first
from sandyard.platform.domain.projects.service import visible_to
from sandyard.platform.domain.sandboxes.commands import StoppingError
from sandyard.platform.domain.sandboxes.lifecycle import Lifecycle
from sandyard.platform.domain.sandboxes.model import Status, utc_now
from sandyard.platform.domain.sandboxes.output import OutputFiles
from sandyard.platform.domain.sandboxes.rows import sessions_visible_to
from sandyard.platform.domain.users.model import Principal
from sandyard.platform.settings import PlatformSettings

log = get_logger(__name__)
POLL_S = 1.0
QUEUE = 100
END_S = 60.0
Parts = Sequence[dict[str, Any]]


class Turns:
    """`recover` takes up what an earlier process has left, and `close` leaves it to the next one: agents never notice."""

    def __init__(
        self,
        database: Database,
        lifecycle: Lifecycle,
        *,
        files: OutputFiles,
        git: GitService,
        agents: Catalogue,
        models: ModelsPort,
        settings: PlatformSettings,
        clock: Clock,
        install: Installer,
        put_files: Putter,
    ) -> None:
        self._database = database
        self._lifecycle = lifecycle
        self._files = files
        self._settings = settings
        self._tasks = TaskSet("turns")
        self._desk = Desk(
            database, lifecycle, files, git, agents, models, install, put_files, settings, clock, self._tasks
        )
        self._conductors: dict[str, Conductor] = {}
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}
        self._stop: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        database.listen(self._heard)
        lifecycle.before_pause.append(self._pausing)
        lifecycle.woken.append(self._looked)
        lifecycle.ended.append(self._looked)

    # asking ------------------------------------------------------------------------------------------------------------

    async def prompt(
        self,
        caller: Principal,
        session_id: str,
        parts: Parts,
        *,
        key: str | None = None,
        origin: Origin = Origin.PERSON,
        model: str | None = None,
        mode: str | None = None,
    ) -> Turn:
        """A turn, queued behind those there are. Under the same key it is the same turn. Model and mode stay for the turns that
        follow. ForbiddenError for whoever has left the session's project, whose models it would use."""
        await self._session(caller, session_id)
        try:
            async with self._database.transaction() as tx:
                row = await tx.session.get(Session, session_id, with_for_update=True)
                if row is None:
                    raise _no_session(session_id)
                if key is not None:  # whoever asks for the same at the same time waits above
                    known = (await tx.session.scalars(select(Turn).where(Turn.key == key))).first()
                    if known is not None:
                        self._conduct(session_id)  # whoever asked first may have been cut off before this
                        return known
                turn = await self.draft(tx, caller, row, parts, key=key, origin=origin, model=model, mode=mode)
        except asyncio.CancelledError:
            self._conduct(session_id)  # it may be written down
            raise
        self._conduct(session_id)
        return turn

    async def draft(
        self,
        tx: Transaction,
        caller: Principal,
        row: Session,
        parts: Parts,
        *,
        key: str | None,
        origin: Origin = Origin.PERSON,
        model: str | None = None,
        mode: str | None = None,
    ) -> Turn:
        """Queue a turn within a transaction that has locked the session; then `nudge`."""
        await _require_project(tx, caller, row)
        own = select(func.count(), func.max(Turn.number)).where(Turn.session_id == row.id)
        waiting = (await tx.session.execute(own.where(Turn.status.in_(OPEN_TURNS)))).one()[0]
        if waiting >= QUEUE:
            raise ConflictError(f"{QUEUE} prompts are already waiting in this session. Wait, or cancel some.")
        number = ((await tx.session.execute(own)).one()[1] or 0) + 1
        settings = await agent_settings(tx.session, row.project_id)
        if row.agent is None:
            project = await tx.session.get(Project, row.project_id) if row.project_id is not None else None
            row.agent = await find_default_agent(tx.session, project, self._settings)
        if model is not None:
            row.model = model
        if mode is not None:
            row.mode = mode
        now = utc_now()
        row.updated_at, row.archived_at = now, None
        message = Message(
            id=message_id(await last_message(tx.session, row.id)),
            session_id=row.id,
            author_id=caller.user_id,
            role="user",
            parts=storable_json(list(parts)),
            created_at=now,
        )
        turn = Turn(
            id=ordered_id("trn_"),
            session_id=row.id,
            number=number,
            key=key,
            origin=origin,
            user_id=caller.user_id,
            prompt_id=message.id,
            model=row.model or settings.model,
            mode=row.mode or settings.mode,
            status=TurnStatus.QUEUED,
            usage={},
            queued_at=now,
        )
        tx.add(turn)
        await tx.session.flush()
        message.turn_id = turn.id
        tx.add(message)
        part = shown(message.parts[0]) if message.parts else None
        tx.emit(
            "message.created",
            **about(row),
            messageId=message.id,
            role="user",
            by=caller.name,
            turnId=turn.id,
            part=part,
        )
        tx.emit("turn.queued", **about(row), **about_turn(turn), messageId=message.id)
        return turn

    async def retry(self, caller: Principal, turn_id: str) -> Turn:
        """The same prompt as a new turn."""
        turn = await self.get(caller, turn_id)
        if not TurnStatus(turn.status).over:
            raise ConflictError("The turn is still running. Cancel it first.")
        async with self._database.reading() as session:
            message = await session.get(Message, turn.prompt_id or "")
        if message is None:
            raise ConflictError("The prompt of this turn no longer exists.")
        origin = Origin(turn.origin)
        return await self.prompt(
            caller, turn.session_id, message.parts, origin=origin, model=turn.model, mode=turn.mode
        )

    async def resume_allowed(self, caller: Principal, session_id: str, titles: Sequence[str]) -> Turn | None:
        """Tell the agent that it may do this now, unless it is at work and finds out by itself."""
        async with self._database.reading() as session:
            query = select(Turn.id).where(Turn.session_id == session_id, Turn.status.in_(OPEN_TURNS))
            if (await session.scalars(query.limit(1))).first() is not None:
                return None
        return await self.prompt(caller, session_id, [{"type": "text", "text": allowed_words(titles)}])

    # looking -----------------------------------------------------------------------------------------------------------

    async def get(self, caller: Principal, turn_id: str) -> Turn:
        async with self._database.reading() as session:
            query = select(Turn).join(Session, Session.id == Turn.session_id)
            found = await session.scalars(query.where(Turn.id == turn_id, sessions_visible_to(caller)))
            turn = found.first()
        if turn is None:
            raise _no_turn(turn_id)
        return turn

    async def list(self, caller: Principal, session_id: str, page: PageRequest) -> Listing[Turn]:
        await self._session(caller, session_id)
        async with self._database.reading() as session:
            return await newest_first(session, select(Turn).where(Turn.session_id == session_id), Turn.id, page)

    async def agent(self, caller: Principal, session_id: str) -> tuple[Session, AgentRun | None]:
        """The newest life of the session's agent."""
        row = await self._session(caller, session_id)
        async with self._database.reading() as session:
            query = select(AgentRun).where(AgentRun.session_id == session_id).order_by(AgentRun.id.desc())
            return row, (await session.scalars(query.limit(1))).first()

    async def wait(self, turn_id: str) -> Turn:
        """The turn at its end. Cancelling this does not end the turn. StoppingError when the platform stops first."""
        while True:
            news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(turn_id, set()).add(news)
            try:
                turn = await self._get(turn_id)
                if TurnStatus(turn.status).over:
                    return turn
                # or another platform works on it
                await asyncio.wait((news, self._stop), timeout=POLL_S, return_when=asyncio.FIRST_COMPLETED)
            finally:
                waiting = self._waiting.get(turn_id, set())
                waiting.discard(news)
                if not waiting:
                    self._waiting.pop(turn_id, None)
            if self._stop.done():
                raise StoppingError(f"The platform is stopping. The turn continues: GET /api/v1/turns/{turn_id}.")

    async def _get(self, turn_id: str) -> Turn:
        async with self._database.reading() as session:
            turn = await session.get(Turn, turn_id)
        if turn is None:
            raise _no_turn(turn_id)
        return turn

    # ending ------------------------------------------------------------------------------------------------------------

    async def cancel(self, caller: Principal, turn_id: str) -> Turn:
        """Idempotent. One that is queued never starts; one that runs is asked to stop, and made to if it does not."""
        await self.get(caller, turn_id)
        return await self._cancel(turn_id)

    async def cancel_all(self, session_id: str) -> None:
        async with self._database.reading() as session:
            query = select(Turn.id).where(Turn.session_id == session_id, Turn.status.in_(OPEN_TURNS))
            found = list(await session.scalars(query.order_by(Turn.number.desc())))
        for turn_id in found:  # the last first: none of them shall begin
            await self._cancel(turn_id)

    async def over_budget(self, turn_id: str, sentence: str) -> None:
        """Stop it, because no more may be spent."""
        with contextlib.suppress(NotFoundError):
            await self._cancel(turn_id, TurnStatus.OVER_BUDGET, sentence, ending.OVER_BUDGET)

    async def fail(self, turn_id: str, fault: Fault) -> None:
        """Stop it, because its model's provider refuses it. An agent would go on trying for minutes."""
        with contextlib.suppress(NotFoundError):
            await self._cancel(turn_id, TurnStatus.FAILED, fault.sentence, fault.code)

    async def note(self, turn_id: str, code: str, sentence: str) -> None:
        """The platform's own word in the transcript of a turn that is not over."""
        async with self._database.transaction() as tx:
            found = await locked(tx, turn_id)
            if found is not None and not TurnStatus(found[2].status).over:
                await ending.notice(tx, found[0], found[2], code, sentence)

    async def _cancel(
        self,
        turn_id: str,
        status: TurnStatus = TurnStatus.CANCELLED,
        sentence: str | None = None,
        code: str | None = None,
    ) -> Turn:
        """`status` is what it becomes, with a sentence and its code unless a person has asked for the end."""
        async with self._database.transaction() as tx:
            found = await locked(tx, turn_id)
            if found is None:
                raise _no_turn(turn_id)
            row, run, turn = found
            if TurnStatus(turn.status).over:
                return turn
            if sentence is not None and turn.cancel_at is None:
                turn.error, turn.error_code = sentence, code
            if turn.status == TurnStatus.QUEUED or turn.request is None or run is None:
                await ending.finish(tx, row, run, turn, status, error=sentence, code=code)
            elif turn.cancel_at is None:
                turn.cancel_at = utc_now()
                say(tx, run, wire.notice("session/cancel", {"sessionId": run.acp_session}))
                await asking.cancel_all(tx, row, run, turn)
                await asking.go_on(tx, row, turn)
        self._conduct(turn.session_id)
        return turn

    async def end_agent(self, session_id: str) -> None:
        """End its process, if there is one. What it was doing has failed."""
        async with self._database.reading() as session:
            query = select(AgentRun.id).where(AgentRun.session_id == session_id, AgentRun.status.in_(LIVE_RUNS))
            if (await session.scalars(query)).first() is None:
                return
        conductor = self._conduct(session_id)
        if conductor.ending is None:
            conductor.ending = asyncio.get_running_loop().create_future()
        done = conductor.ending
        conductor.nudge()
        await asyncio.wait((done, self._stop), timeout=END_S, return_when=asyncio.FIRST_COMPLETED)

    async def end_leftovers(self, session_id: str) -> int:
        """End what the session's agent started and left behind, but for servers; how many processes. Wakes nothing."""
        async with self._database.reading() as session:
            run = await live_run(session, session_id)
            sandbox = await session.get(Sandbox, run.sandbox_id) if run is not None else None
        if run is None or sandbox is None or sandbox.status != Status.RUNNING or sandbox.engine_id is None:
            return 0
        try:
            ended = await self._lifecycle.engine.commands.end_leftovers(sandbox.engine_id, run.id)
        except SandyardError as error:
            log.info("leftovers_not_ended", session=session_id, reason=error.message)
            return 0
        if ended:
            log.info("leftovers_ended", session=session_id, processes=ended)
        return ended or 0

    # life --------------------------------------------------------------------------------------------------------------

    async def recover(self) -> None:
        """Take up every session with a turn or a process that an earlier platform has left open."""
        async with self._database.reading() as session:
            turns = await session.scalars(select(Turn.session_id).where(Turn.status.in_(OPEN_TURNS)).distinct())
            open_ = set(turns)
            runs = await session.scalars(select(AgentRun.session_id).where(AgentRun.status.in_(LIVE_RUNS)).distinct())
            open_ |= set(runs)
        for session_id in sorted(open_):
            self._conduct(session_id)

    def start(self) -> None:
        """Nothing runs but what was asked for; `recover` begins that."""

    def stop(self) -> None:
        """Let nobody wait any longer: the platform is about to end, agents are not."""
        if not self._stop.done():
            self._stop.set_result(None)

    async def close(self) -> None:
        self.stop()
        await self._tasks.cancel()

    async def tidy(self, older_than: timedelta) -> None:
        """Forget what was said to, and the raw output of, agents that ended longer ago; messages stay."""
        async with self._database.reading() as session:
            query = select(AgentRun.id).where(AgentRun.ended_at < utc_now() - older_than)
            said = query.where(AgentRun.id.in_(select(AgentInput.run_id).distinct()))
            found = list(await session.scalars(said.limit(500)))
        for run_id in found:
            await self._files.remove(run_id)
        async with self._database.transaction() as tx:
            await tx.session.execute(delete(AgentInput).where(AgentInput.run_id.in_(found)))
        kept = await self._files.ids(RUN)
        async with self._database.reading() as session:
            known = set(await session.scalars(select(AgentRun.id)))
        for run_id in set(kept) - known:  # of sessions that were deleted
            await self._files.remove(run_id)

    async def purge(self, session_id: str) -> None:
        """Before a session is deleted: its turns and its agent's process end, and the raw output of its agents goes."""
        await self.cancel_all(session_id)
        await self.end_agent(session_id)
        async with self._database.reading() as session:
            found = list(await session.scalars(select(AgentRun.id).where(AgentRun.session_id == session_id)))
        for run_id in found:
            await self._files.remove(run_id)

    def nudge(self, session_id: str) -> None:
        """Something was decided for this session elsewhere."""
        self._conduct(session_id)

    def _conduct(self, session_id: str) -> Conductor:
        known = self._conductors.get(session_id)
        if known is not None and not known.over:
            known.nudge()
            return known
        conductor = self._conductors[session_id] = Conductor(self._desk, session_id)

        def done(_: asyncio.Task[None]) -> None:
            if self._conductors.get(session_id) is conductor:
                del self._conductors[session_id]

        self._tasks.spawn(conductor.run()).add_done_callback(done)
        return conductor

    async def _looked(self, sandbox: Sandbox) -> None:
        if sandbox.session_id is not None and (known := self._conductors.get(sandbox.session_id)) is not None:
            known.look()

    async def _pausing(self, sandbox: Sandbox) -> None:
        if sandbox.session_id is not None and (known := self._conductors.get(sandbox.session_id)) is not None:
            known.resting = True

    def _heard(self, events: Sequence[Event]) -> None:
        for event in events:
            if event.kind.startswith("turn.") and (waiting := self._waiting.get(event.data.get("turnId", ""))):
                for news in waiting:
                    if not news.done():
                        news.set_result(None)

    async def _session(self, caller: Principal, session_id: str) -> Session:
        async with self._database.reading() as session:
            query = select(Session).where(Session.id == session_id, sessions_visible_to(caller))
            row = (await session.scalars(query)).first()
        if row is None:
            raise _no_session(session_id)
        return row


def allowed_words(titles: Sequence[str]) -> str:
    """What an agent is told when something is allowed that it was refused."""
    listed = "\n".join(f"- {' '.join(title.split())[:500]}" for title in titles)
    return f"You were denied permission before and are allowed to do this now:\n{listed}\nPlease continue your work."


async def _require_project(tx: Transaction, caller: Principal, row: Session) -> None:
    if row.project_id is not None:
        seen = select(Project.id).where(Project.id == row.project_id, visible_to(caller))
        if await tx.session.scalar(seen) is None:
            raise ForbiddenError("You have left the project of this session, so you can no longer use its agent.")


def _no_session(session_id: str) -> NotFoundError:
    return NotFoundError(f"There is no session {session_id[:60]!r}.")


def _no_turn(turn_id: str) -> NotFoundError:
    return NotFoundError(f"There is no turn {turn_id[:60]!r}.")
