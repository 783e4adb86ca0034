"""Test an agent: start a session, send a short prompt, and measure each step."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Protocol

from sqlalchemy import select

from sandyard.kit.errors import NotFoundError, SandyardError
from sandyard.kit.ids import make_ordered_id
from sandyard.kit.logging import get_logger
from sandyard.kit.tasks import TaskSet
from sandyard.platform.db.database import Database
from sandyard.platform.db.models import Message, Session, Setting, Turn, User
from sandyard.platform.db.models.message_parts import MessagePart
from sandyard.platform.domain.agents.catalogue import AgentCatalogue
from sandyard.platform.domain.agents.installation import INSTALLED
from sandyard.platform.domain.agents.model import Origin, TurnStatus
from sandyard.platform.domain.agents.profiles.model import Profile
from sandyard.platform.domain.events.feed import Feed
from sandyard.platform.domain.events.model import EventFilter, EventView
from sandyard.platform.domain.paging import Listing, PageRequest
from sandyard.platform.domain.sandboxes.commands import StoppingError
from sandyard.platform.domain.users.model import Principal

log = get_logger(__name__)
LONGEST_S = 1800.0
QUESTION = "This is a test of your connection. Use no tools and change nothing. Answer with the single word: ready"
DEMO_QUESTION = "say: ready"
_SETTING_PREFIX = "agent_trial:"
_ANSWER_LIMIT = 500
_EVENT_LIMIT = 5000


class TrialSessions(Protocol):
    """The part of `sessions.service.Sessions` that trials need."""

    async def create(
        self, principal: Principal, *, title: str, agent: str | None, model: str | None, session_id: str | None
    ) -> tuple[Session, object]: ...
    async def get(self, principal: Principal, session_id: str) -> Session: ...
    async def list_messages(self, principal: Principal, session_id: str, page: PageRequest) -> Listing[Message]: ...
    async def delete(self, principal: Principal, session_id: str) -> object: ...


class TrialTurns(Protocol):
    """The part of `runner.turns.AgentTurns` that trials need."""

    async def prompt(
        self,
        caller: Principal,
        session_id: str,
        parts: list[MessagePart],
        *,
        key: str | None = None,
        origin: Origin = Origin.PERSON,
    ) -> Turn: ...
    async def wait(self, turn_id: str) -> Turn: ...
    async def cancel_all(self, session_id: str) -> None: ...
    async def end_agent(self, session_id: str) -> None: ...


@dataclass(frozen=True, slots=True)
class TrialStep:
    """A step: sandbox, install, start or answer. `ok` is False if the trial failed before the step was completed."""

    name: str
    seconds: float
    ok: bool


@dataclass(frozen=True, slots=True)
class Trial:
    """The result of a trial. The session `session_id` has been deleted; its events still exist."""

    agent: str
    session_id: str
    ok: bool
    steps: tuple[TrialStep, ...]
    answer: str | None = None
    error: str | None = None
    error_code: str | None = None


class TrialModels(Protocol):
    async def require_model(self, project_id: str | None, profile: Profile, model: str | None) -> None: ...


class Trials:
    """Run trials. Each is recorded before it starts, so that `recover` can clean up after a crash."""

    def __init__(
        self,
        database: Database,
        feed: Feed,
        agents: AgentCatalogue,
        sessions: TrialSessions,
        turns: TrialTurns,
        *,
        models: TrialModels,
    ) -> None:
        self._database = database
        self._feed = feed
        self._agents = agents
        self._sessions = sessions
        self._turns = turns
        self._models = models
        self._tasks = TaskSet("trials")

    async def begin(self, caller: Principal, name: str, *, model: str | None = None) -> tuple[str, asyncio.Task[Trial]]:
        """Start a trial and return the id of its session and its task.

        The trial continues if nobody waits for it. Its end is reported by the event `agent.tested` of that session.
        Raises NotFoundError.
        """
        await self._agents.get(caller, name)
        profile = await self._agents.profile(caller.user_id, name)
        session_id = make_ordered_id("ses_")
        async with self._database.transaction() as tx:
            tx.add(Setting(name=_SETTING_PREFIX + session_id, value=caller.user_id))
        return session_id, self._tasks.spawn(self._run_and_report(caller, profile, session_id, model))

    async def wait(self, trying: asyncio.Task[Trial]) -> Trial:
        """Return the result of a trial. Cancelling this call does not end the trial. Raises StoppingError if the
        platform stops first."""
        await asyncio.wait((trying,))
        if trying.cancelled():
            raise StoppingError("The platform is stopping. The test was cancelled.")
        return trying.result()

    async def recover(self) -> None:
        """Clean up trials that an earlier platform process did not finish, without a result."""
        async with self._database.reading() as session:
            noted = list(await session.scalars(select(Setting).where(Setting.name.startswith(_SETTING_PREFIX))))
            owners = {setting.value: await session.get(User, setting.value) for setting in noted}
        for setting in noted:
            owner, session_id = owners[setting.value], setting.name.removeprefix(_SETTING_PREFIX)
            caller = Principal(setting.value, owner.name if owner else "", "member", "trial")
            self._tasks.spawn(self._abandon(caller, session_id))

    async def close(self) -> None:
        await self._tasks.cancel()

    async def _run_and_report(self, caller: Principal, profile: Profile, session_id: str, model: str | None) -> Trial:
        try:
            result = await self._run_trial(caller, profile, session_id, model)
        except StoppingError:
            raise  # the next platform process cleans up
        except Exception:
            words = "Internal error; see the platform's log."
            await self._clean_up(
                caller, Trial(profile.name, session_id, ok=False, steps=(), error=words, error_code="internal")
            )
            raise
        await self._clean_up(caller, result)
        return result

    async def _run_trial(self, caller: Principal, profile: Profile, session_id: str, model: str | None) -> Trial:
        error: SandyardError | None = None
        turn: Turn | None = None
        try:
            # fail before a sandbox is created and the agent installed
            await self._models.require_model(None, profile, model)
            async with asyncio.timeout(LONGEST_S):
                await self._sessions.create(
                    caller,
                    title=f"Test of {profile.title}"[:300],
                    agent=profile.name,
                    model=model,
                    session_id=session_id,
                )
                text = DEMO_QUESTION if profile.demo else QUESTION
                turn = await self._turns.prompt(
                    caller,
                    session_id,
                    [{"type": "text", "text": text}],
                    key=f"trial-{session_id}",
                    origin=Origin.TEST,
                )
                turn = await self._turns.wait(turn.id)
        except StoppingError:
            raise
        except TimeoutError:
            error = SandyardError(f"{profile.title} did not respond within {LONGEST_S / 60:g} min.")
        except SandyardError as failure:
            error = failure
        return await self._build_result(caller, profile, session_id, turn, error)

    async def _build_result(
        self, caller: Principal, profile: Profile, session_id: str, turn: Turn | None, error: SandyardError | None
    ) -> Trial:
        events = await self._feed.list_after(caller, EventFilter(session_id=session_id), limit=_EVENT_LIMIT)
        answer = await self._read_answer(caller, session_id)
        completed = turn is not None and turn.status == TurnStatus.COMPLETED
        ok = error is None and completed and bool(answer)
        words, code = (error.message, error.code) if error else (None, None)
        if not ok and words is None and turn is not None:
            words = turn.error or (
                f"{profile.title} ended its turn without an answer." if completed else f"The turn was {turn.status}."
            )
            code = turn.error_code or "agent_failed"
        return Trial(profile.name, session_id, ok, tuple(measure_steps(events, ok=ok)), answer, words, code)

    async def _read_answer(self, caller: Principal, session_id: str) -> str | None:
        with contextlib.suppress(NotFoundError):
            page = await self._sessions.list_messages(caller, session_id, PageRequest(limit=100))
            texts = [
                part["text"]
                for message in reversed(page.items)
                if message.role == "agent"
                for part in message.parts
                if part["type"] == "text"
            ]
            return "".join(texts).strip()[:_ANSWER_LIMIT] or None
        return None

    async def _clean_up(self, caller: Principal, result: Trial) -> None:
        """Delete the session, then the record of the trial, and emit the event."""
        cleared = True
        try:
            await self._turns.cancel_all(result.session_id)
            await self._turns.end_agent(result.session_id)
            await self._sessions.delete(caller, result.session_id)
        except NotFoundError:
            pass
        except SandyardError as error:  # the record stays, and `recover` tries again
            cleared = False
            log.warning("trial_not_cleared", session=result.session_id, reason=error.message)
        async with self._database.transaction() as tx:
            note = await tx.session.get(Setting, _SETTING_PREFIX + result.session_id)
            if note is not None and cleared:
                await tx.session.delete(note)
            tx.emit(
                "agent.tested",
                owner_id=caller.user_id,
                session_id=result.session_id,
                agent=result.agent,
                ok=result.ok,
                steps=[{"name": step.name, "seconds": step.seconds, "ok": step.ok} for step in result.steps],
                answer=result.answer,
                error=result.error and result.error[:2000],
                errorCode=result.error_code,
            )

    async def _abandon(self, caller: Principal, session_id: str) -> None:
        agent = ""
        with contextlib.suppress(NotFoundError):
            agent = (await self._sessions.get(caller, session_id)).agent or ""
        error = "The platform was restarted during the test. Start it again."
        await self._clean_up(
            caller, Trial(agent, session_id, ok=False, steps=(), error=error, error_code="interrupted")
        )


def measure_steps(events: Iterable[EventView], *, ok: bool) -> list[TrialStep]:
    """Return the duration of each step from the events of a trial's session, oldest first. The last step failed unless
    `ok`."""
    times: list[datetime] = []
    marks: dict[str, datetime] = {}
    installing = False
    for event in events:
        times.append(event.at)
        if event.kind == "agent.installing":
            installing = True
        if (name := _completed_step(event)) is not None:
            marks.setdefault(name, event.at)
    steps: list[TrialStep] = []
    if not times:
        return steps
    before = times[0]
    for name in ("sandbox", "install", "start", "answer"):
        if name == "install" and not installing:
            continue
        at = max(marks.get(name, times[-1]), before)
        steps.append(TrialStep(name, round((at - before).total_seconds(), 3), name in marks))
        if name not in marks:
            break
        before = at
    if not ok:
        steps[-1] = replace(steps[-1], ok=False)
    return steps


def _completed_step(event: EventView) -> str | None:
    """Return the step that this event completes."""
    if event.kind == "agent.installing":
        return "install" if str(event.data.get("what", "")).endswith(INSTALLED) else None
    if event.kind == "message.created":
        return "answer" if event.data.get("role") == "agent" else None
    return {"sandbox.running": "sandbox", "agent.ready": "start"}.get(event.kind)
