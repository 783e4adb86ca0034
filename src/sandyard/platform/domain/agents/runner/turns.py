"""Queue prompts for agents, and cancel and observe their turns."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import delete, func, or_, select

from sandyard.kit.clock import Clock
from sandyard.kit.errors import ConflictError, NotFoundError, SandyardError
from sandyard.kit.hidden_characters import make_one_line
from sandyard.kit.ids import make_ordered_id
from sandyard.kit.logging import get_logger
from sandyard.kit.tasks import TaskSet
from sandyard.kit.text import make_json_storable
from sandyard.platform.db.database import Database, Transaction
from sandyard.platform.db.models import UNTITLED, AgentInput, AgentRun, Event, Message, Project, Sandbox, Session, Turn
from sandyard.platform.db.models.message_parts import MessagePart, TextPart
from sandyard.platform.domain.agents.acp.outbox import queue_cancellation
from sandyard.platform.domain.agents.acp.transcript import next_message_id, to_event_part
from sandyard.platform.domain.agents.catalogue import find_default_agent
from sandyard.platform.domain.agents.model import LIVE_RUNS, OPEN_TURNS, PLATFORM, Origin, TurnStatus
from sandyard.platform.domain.agents.questions.asks import cancel_pending, resume_turn
from sandyard.platform.domain.agents.repository import (
    find_last_message_id,
    find_live_run,
    get_session_fields,
    get_turn_fields,
    load_agent_settings,
    lock_turn,
)
from sandyard.platform.domain.agents.runner.deps import AgentRunnerDeps, Installer, ModelAccess, Profiles
from sandyard.platform.domain.agents.runner.outcomes import OVER_BUDGET, add_notice, finish_turn
from sandyard.platform.domain.agents.runner.process import RUN_PREFIX
from sandyard.platform.domain.agents.runner.session_runner import SessionRunner
from sandyard.platform.domain.git.service import GitService
from sandyard.platform.domain.models.faults import Fault
from sandyard.platform.domain.paging import Listing, PageRequest, list_newest_first
from sandyard.platform.domain.sandboxes.command_output import OutputFiles
from sandyard.platform.domain.sandboxes.commands import StoppingError
from sandyard.platform.domain.sandboxes.lifecycle import Lifecycle
from sandyard.platform.domain.sandboxes.model import Status, utc_now
from sandyard.platform.domain.sandboxes.repository import (
    is_session_visible_to,
    require_owner_access,
    require_project_access,
)
from sandyard.platform.domain.users.model import Principal
from sandyard.platform.settings import PlatformSettings

log = get_logger(__name__)
POLL_S = 1.0
MAX_QUEUED = 100
END_S = 60.0
MAX_TITLE_CHARACTERS = 60
"""Maximum length of a session's title that is made from its first message."""
Parts = Sequence[MessagePart]


class AgentTurns:
    """Manage the turns of all sessions.

    `recover` continues what an earlier platform process has left open, and `close` leaves it to the next one. Agents do
    not notice.
    """

    def __init__(
        self,
        database: Database,
        lifecycle: Lifecycle,
        *,
        files: OutputFiles,
        git: GitService,
        agents: Profiles,
        models: ModelAccess,
        settings: PlatformSettings,
        clock: Clock,
        install: Installer,
    ) -> None:
        self._database = database
        self._lifecycle = lifecycle
        self._files = files
        self._settings = settings
        self.tasks = TaskSet("turns")
        self._deps = AgentRunnerDeps(
            database, lifecycle, files, git, agents, models, install, settings, clock, self.tasks
        )
        self.runners: dict[str, SessionRunner] = {}
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}
        self._stop: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        database.listen(self._on_events)

    # prompting ---------------------------------------------------------------------------------------------------------

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
        """Queue a turn after the existing ones. With the same key, the same turn is returned.

        Model and mode are kept for later turns. Raises OwnerWithoutAccessError if the caller or the session's owner has left the session's
        project, whose models and sandbox it would use.
        """
        await self._get_session(caller, session_id)
        try:
            async with self._database.transaction() as tx:
                row = await tx.session.get(Session, session_id, with_for_update=True)
                if row is None:
                    raise _make_session_not_found(session_id)
                if key is not None:  # a concurrent call with the same key waits for the lock above
                    known = (await tx.session.scalars(select(Turn).where(Turn.key == key))).first()
                    if known is not None:
                        self._ensure_runner(session_id)  # the first caller may have been interrupted before this
                        return known
                turn = await self.queue_turn(tx, caller, row, parts, key=key, origin=origin, model=model, mode=mode)
        except asyncio.CancelledError:
            self._ensure_runner(session_id)  # the turn may have been stored
            raise
        self._ensure_runner(session_id)
        return turn

    async def queue_turn(
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
        """Queue a turn within a transaction that has locked the session. Call `nudge` afterwards."""
        await require_project_access(tx.session, caller, row)
        await require_owner_access(tx.session, row)
        own = select(func.count(), func.max(Turn.number)).where(Turn.session_id == row.id)
        waiting = (await tx.session.execute(own.where(Turn.status.in_(OPEN_TURNS)))).one()[0]
        if waiting >= MAX_QUEUED:
            raise ConflictError(f"{MAX_QUEUED} prompts are already waiting in this session. Wait, or cancel some.")
        number = ((await tx.session.execute(own)).one()[1] or 0) + 1
        settings = await load_agent_settings(tx.session, row)
        if row.agent is None:
            project = await tx.session.get(Project, row.project_id) if row.project_id is not None else None
            row.agent = await find_default_agent(tx.session, project, self._settings)
        if model is not None:
            row.model = model
        if mode is not None:
            row.mode = mode
        if row.title == UNTITLED and origin is Origin.PERSON and (title := make_title(parts)):
            row.title = title
            tx.emit("session.renamed", **get_session_fields(row), title=title)
        now = utc_now()
        row.updated_at, row.archived_at = now, None
        message = Message(
            id=next_message_id(await find_last_message_id(tx.session, row.id)),
            session_id=row.id,
            author_id=caller.user_id,
            role="user",
            parts=make_json_storable(list(parts)),
            created_at=now,
        )
        turn = Turn(
            id=make_ordered_id("trn_"),
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
        part = to_event_part(message.parts[0]) if message.parts else None
        tx.emit(
            "message.created",
            **get_session_fields(row),
            messageId=message.id,
            role="user",
            by=caller.name,
            turnId=turn.id,
            part=part,
        )
        tx.emit("turn.queued", **get_session_fields(row), **get_turn_fields(turn), messageId=message.id)
        return turn

    async def retry(self, caller: Principal, turn_id: str) -> Turn:
        """Queue the prompt of this turn as a new turn."""
        turn = await self.get(caller, turn_id)
        if not TurnStatus(turn.status).is_final:
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
        """Tell the agent that it may do this now. Returns None if it has an open turn, where it finds out by itself."""
        async with self._database.reading() as session:
            query = select(Turn.id).where(Turn.session_id == session_id, Turn.status.in_(OPEN_TURNS))
            if (await session.scalars(query.limit(1))).first() is not None:
                return None
        part: TextPart = {"type": "text", "text": write_allowance(titles), "source": PLATFORM, "about": "resume"}
        return await self.prompt(caller, session_id, [part])

    # reading -----------------------------------------------------------------------------------------------------------

    async def get(self, caller: Principal, turn_id: str) -> Turn:
        async with self._database.reading() as session:
            query = select(Turn).join(Session, Session.id == Turn.session_id)
            found = await session.scalars(query.where(Turn.id == turn_id, is_session_visible_to(caller)))
            turn = found.first()
        if turn is None:
            raise _make_turn_not_found(turn_id)
        return turn

    async def list(self, caller: Principal, session_id: str, page: PageRequest) -> Listing[Turn]:
        await self._get_session(caller, session_id)
        async with self._database.reading() as session:
            return await list_newest_first(session, select(Turn).where(Turn.session_id == session_id), Turn.id, page)

    async def get_agent_run(self, caller: Principal, session_id: str) -> tuple[Session, AgentRun | None]:
        """Return the session, and the newest run of its agent."""
        row = await self._get_session(caller, session_id)
        async with self._database.reading() as session:
            query = select(AgentRun).where(AgentRun.session_id == session_id).order_by(AgentRun.id.desc())
            return row, (await session.scalars(query.limit(1))).first()

    async def wait(self, turn_id: str) -> Turn:
        """Wait for the end of a turn and return it. Cancelling this call does not end the turn.

        Raises StoppingError if the platform stops first.
        """
        while True:
            news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(turn_id, set()).add(news)
            try:
                turn = await self._load_turn(turn_id)
                if TurnStatus(turn.status).is_final:
                    return turn
                # another platform process may be working on it
                await asyncio.wait((news, self._stop), timeout=POLL_S, return_when=asyncio.FIRST_COMPLETED)
            finally:
                waiting = self._waiting.get(turn_id, set())
                waiting.discard(news)
                if not waiting:
                    self._waiting.pop(turn_id, None)
            if self._stop.done():
                raise StoppingError(f"The platform is stopping. The turn continues: GET /api/v1/turns/{turn_id}.")

    async def _load_turn(self, turn_id: str) -> Turn:
        async with self._database.reading() as session:
            turn = await session.get(Turn, turn_id)
        if turn is None:
            raise _make_turn_not_found(turn_id)
        return turn

    # ending ------------------------------------------------------------------------------------------------------------

    async def cancel(self, caller: Principal, turn_id: str) -> Turn:
        """Cancel a turn. Idempotent. A queued turn never starts; a running one is asked to stop, and stopped if it does
        not."""
        await self.get(caller, turn_id)
        return await self._cancel_turn(turn_id)

    async def cancel_all(self, session_id: str) -> None:
        async with self._database.reading() as session:
            query = select(Turn.id).where(Turn.session_id == session_id, Turn.status.in_(OPEN_TURNS))
            found = list(await session.scalars(query.order_by(Turn.number.desc())))
        for turn_id in found:  # last first, so that none of them starts
            await self._cancel_turn(turn_id)

    async def stop_agent(self, session_id: str) -> None:
        """Cancel all turns of the session and end its agent."""
        await self.cancel_all(session_id)
        await self.end_agent(session_id)

    async def stop_over_budget(self, turn_id: str, message: str) -> None:
        """Stop a turn because its budget is used up."""
        with contextlib.suppress(NotFoundError):
            await self._cancel_turn(turn_id, TurnStatus.OVER_BUDGET, message, OVER_BUDGET)

    async def stop_failed(self, turn_id: str, fault: Fault) -> None:
        """Stop a turn because its model provider rejects its requests. The agent would retry for minutes."""
        with contextlib.suppress(NotFoundError):
            await self._cancel_turn(turn_id, TurnStatus.FAILED, fault.message, fault.code)

    async def add_notice(self, turn_id: str, code: str, message: str) -> None:
        """Add a message of the platform to the transcript of an open turn."""
        async with self._database.transaction() as tx:
            locked = await lock_turn(tx, turn_id)
            if locked is not None and not TurnStatus(locked.turn.status).is_final:
                await add_notice(locked, code, message)

    async def _cancel_turn(
        self,
        turn_id: str,
        status: TurnStatus = TurnStatus.CANCELLED,
        message: str | None = None,
        code: str | None = None,
    ) -> Turn:
        """Cancel a turn. `status` is its final status, with a sentence and a code unless a person cancelled it."""
        async with self._database.transaction() as tx:
            locked = await lock_turn(tx, turn_id)
            if locked is None:
                raise _make_turn_not_found(turn_id)
            run, turn = locked.run, locked.turn
            if TurnStatus(turn.status).is_final:
                return turn
            if message is not None and turn.cancel_at is None:
                turn.error, turn.error_code = message, code
            if turn.status == TurnStatus.QUEUED or turn.request is None or run is None:
                await finish_turn(locked, status, error=message, code=code)
            elif turn.cancel_at is None:
                turn.cancel_at = utc_now()
                queue_cancellation(tx, run)
                await cancel_pending(locked)
                await resume_turn(locked)
        self._ensure_runner(turn.session_id)
        return turn

    async def end_agent(self, session_id: str) -> None:
        """End the process of the session's agent, if there is one. Its current turn fails."""
        async with self._database.reading() as session:
            query = select(AgentRun.id).where(AgentRun.session_id == session_id, AgentRun.status.in_(LIVE_RUNS))
            if (await session.scalars(query)).first() is None:
                return
        runner = self._ensure_runner(session_id)
        if runner.ending is None:
            runner.ending = asyncio.get_running_loop().create_future()
        done = runner.ending
        runner.nudge()
        await asyncio.wait((done, self._stop), timeout=END_S, return_when=asyncio.FIRST_COMPLETED)

    async def end_leftovers(self, session_id: str) -> int:
        """End the processes that the session's agent left behind, except servers, and return how many. Wakes no
        sandbox."""
        async with self._database.reading() as session:
            run = await find_live_run(session, session_id)
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

    # lifecycle ---------------------------------------------------------------------------------------------------------

    async def recover(self) -> None:
        """Continue every session with an open turn or a live run of an earlier platform process."""
        async with self._database.reading() as session:
            turns = await session.scalars(select(Turn.session_id).where(Turn.status.in_(OPEN_TURNS)).distinct())
            open_ = set(turns)
            runs = await session.scalars(select(AgentRun.session_id).where(AgentRun.status.in_(LIVE_RUNS)).distinct())
            open_ |= set(runs)
        for session_id in sorted(open_):
            self._ensure_runner(session_id)

    def stop(self) -> None:
        """Release everybody who waits, because the platform is about to stop. Agents continue."""
        if not self._stop.done():
            self._stop.set_result(None)

    async def close(self) -> None:
        self.stop()
        await self.tasks.cancel()

    async def tidy(self, older_than: timedelta) -> None:
        """Delete the input and raw output of agents that ended longer ago. Messages stay."""
        query = select(AgentRun.id).where(AgentRun.ended_at < utc_now() - older_than)
        with_input = query.where(AgentRun.id.in_(select(AgentInput.run_id).distinct()))
        while True:
            async with self._database.reading() as session:
                found = list(await session.scalars(with_input.limit(500)))
            if not found:
                break
            for run_id in found:
                await self._files.remove(run_id)
            async with self._database.transaction() as tx:
                await tx.session.execute(delete(AgentInput).where(AgentInput.run_id.in_(found)))
        kept = await self._files.list_ids(RUN_PREFIX)
        async with self._database.reading() as session:
            known = set(await session.scalars(select(AgentRun.id)))
        for run_id in set(kept) - known:  # left over from deleted sessions
            await self._files.remove(run_id)

    async def purge(self, session_id: str) -> None:
        """End the turns and the process of a session that is being deleted, and delete the raw output of its agents."""
        await self.cancel_all(session_id)
        await self.end_agent(session_id)
        async with self._database.reading() as session:
            found = list(await session.scalars(select(AgentRun.id).where(AgentRun.session_id == session_id)))
        for run_id in found:
            await self._files.remove(run_id)

    def nudge(self, session_id: str) -> None:
        """Report that something was decided for this session elsewhere."""
        self._ensure_runner(session_id)

    def _ensure_runner(self, session_id: str) -> SessionRunner:
        known = self.runners.get(session_id)
        if known is not None and not known.has_ended:
            known.nudge()
            return known
        runner = self.runners[session_id] = SessionRunner(self._deps, session_id)

        def remove_runner(_: asyncio.Task[None]) -> None:
            if self.runners.get(session_id) is runner:
                del self.runners[session_id]

        self.tasks.spawn(runner.run()).add_done_callback(remove_runner)
        return runner

    async def after_resume(self, sandbox: Sandbox) -> None:
        """Continue the turn that waits for this sandbox."""
        self._check_sandbox(sandbox)

    async def after_end(self, sandbox: Sandbox) -> None:
        """Let the turn in this sandbox find out that it has ended."""
        self._check_sandbox(sandbox)

    def _check_sandbox(self, sandbox: Sandbox) -> None:
        if sandbox.session_id is not None and (known := self.runners.get(sandbox.session_id)) is not None:
            known.check_sandbox()

    async def after_fork(self, parent: Sandbox, begun: datetime, copy: Sandbox) -> None:
        """End the copies of the original's agents, whose turns nobody follows in the copy."""
        query = select(AgentRun.id).where(
            AgentRun.sandbox_id == parent.id, or_(AgentRun.ended_at.is_(None), AgentRun.ended_at >= begun)
        )
        async with self._database.reading() as session:
            found = list(await session.scalars(query))
        for run_id in found:
            assert copy.engine_id is not None
            await self._lifecycle.engine.commands.kill(copy.engine_id, run_id)

    async def before_pause(self, sandbox: Sandbox) -> None:
        """Tell the session's runner that the platform pauses the sandbox, and nobody else."""
        if sandbox.session_id is not None and (known := self.runners.get(sandbox.session_id)) is not None:
            known.paused_by_platform = True

    def _on_events(self, events: Sequence[Event]) -> None:
        for event in events:
            if event.kind.startswith("turn.") and (waiting := self._waiting.get(event.data.get("turnId", ""))):
                for news in waiting:
                    if not news.done():
                        news.set_result(None)

    async def _get_session(self, caller: Principal, session_id: str) -> Session:
        async with self._database.reading() as session:
            query = select(Session).where(Session.id == session_id, is_session_visible_to(caller))
            row = (await session.scalars(query)).first()
        if row is None:
            raise _make_session_not_found(session_id)
        return row


def make_title(parts: Parts) -> str | None:
    """Return the first line that a person wrote, shortened to a title; None if there is none."""
    texts = (part["text"] for part in parts if part["type"] == "text" and "source" not in part)
    lines = (make_one_line(line) for text in texts for line in text.splitlines())
    title = next((line for line in lines if line), None)
    if title is None or len(title) <= MAX_TITLE_CHARACTERS:
        return title
    return f"{title[: MAX_TITLE_CHARACTERS - 1].rstrip()}…"


def write_allowance(titles: Sequence[str]) -> str:
    """Return the prompt that tells an agent which denied actions are now allowed."""
    listed = "\n".join(f"- {' '.join(title.split())[:500]}" for title in titles)
    return f"You were denied permission before and are allowed to do this now:\n{listed}\nPlease continue your work."


def _make_session_not_found(session_id: str) -> NotFoundError:
    return NotFoundError(f"There is no session {session_id[:60]!r}.")


def _make_turn_not_found(turn_id: str) -> NotFoundError:
    return NotFoundError(f"There is no turn {turn_id[:60]!r}.")
