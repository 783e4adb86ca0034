"""Timeouts of a turn: asks that nobody answers, and agents that have been silent and inactive for minutes.

Activity is measured by the CPU use of the whole sandbox, so a busy server in it counts as work. If the engine does not
report CPU use, only the silence counts, and must last twice as long.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlalchemy import select

from sandyard.kit.clock import Clock, get_time
from sandyard.kit.errors import SandyardError
from sandyard.platform.db.models import Ask, Sandbox, Session, Turn
from sandyard.platform.domain.agents.acp.client import WAKING
from sandyard.platform.domain.agents.acp.outbox import queue_cancellation
from sandyard.platform.domain.agents.model import AskKind, AskStatus, TurnStatus
from sandyard.platform.domain.agents.questions.asks import close_ask, open_stuck_question, resume_turn
from sandyard.platform.domain.agents.questions.policy import Decision
from sandyard.platform.domain.agents.repository import (
    RunningTurn,
    get_session_fields,
    get_turn_fields,
    load_agent_settings,
    lock_turn,
)
from sandyard.platform.domain.agents.runner.deps import AgentRunnerDeps
from sandyard.platform.domain.sandboxes.e2b import SandboxEngine
from sandyard.platform.domain.sandboxes.model import utc_now

BUSY_PERCENT = 1.0
CHECK_EVERY_S = 15.0
UNKNOWN_FACTOR = 2


@dataclass(slots=True)
class InactivityWatch:
    """Watch one turn. Times are those of `clock`."""

    clock: Clock
    since: float = field(init=False)
    checked_at: float = field(init=False, default=0.0)
    known: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self.since = self.clock.now()

    def record_output(self) -> None:
        self.since = self.clock.now()

    @property
    def is_due(self) -> bool:
        """Whether the agent has been silent for a while, and has not been checked for as long."""
        return self.clock.now() - max(self.since, self.checked_at) >= CHECK_EVERY_S

    async def is_stuck(self, engine: SandboxEngine, engine_id: str, minutes: int) -> bool:
        """Return whether the agent is stuck by now. Asks the engine."""
        now, limit = self.clock.now(), minutes * 60
        self.checked_at = now
        try:
            usage = await engine.get_usage(engine_id)
        except SandyardError:
            return False  # unknown
        self.known = usage is not None and usage.cpu_percent is not None
        if usage is not None and usage.cpu_percent is not None and usage.cpu_percent >= BUSY_PERCENT:
            self.since = now
            return False
        return now - self.since >= limit * (1 if self.known else UNKNOWN_FACTOR)


async def expire_asks(deps: AgentRunnerDeps, turn_id: str) -> bool:
    """Deny the requests that nobody answered in time. Returns whether there were any."""
    query = select(Ask.id).where(
        Ask.turn_id == turn_id, Ask.status == AskStatus.PENDING, Ask.expires_at < get_time(deps.clock)
    )
    async with deps.database.reading() as session:
        if (await session.scalars(query)).first() is None:
            return False
    async with deps.database.transaction() as tx:
        locked = await lock_turn(tx, turn_id)
        if locked is None:
            return False
        for ask_id in list(await tx.session.scalars(query)):
            ask = await tx.session.get(Ask, ask_id)
            if ask is not None:
                refused: Decision | None = "reject" if ask.kind == AskKind.PERMISSION else None
                close_ask(tx, locked.session, locked.run, ask, AskStatus.EXPIRED, by="timeout", decision=refused)
        await resume_turn(locked)
    return True


async def check_activity(deps: AgentRunnerDeps, watch: InactivityWatch, sandbox: Sandbox, turn: Turn) -> bool:
    """Check whether the agent is stuck, and if so act as the project's settings say. Returns whether it is stuck."""
    async with deps.database.reading() as session:
        row = await session.get(Session, turn.session_id)
        settings = await load_agent_settings(session, row)
    if sandbox.engine_id is None:
        return False
    if not await watch.is_stuck(deps.lifecycle.engine, sandbox.engine_id, settings.stuck_minutes):
        return False
    async with deps.database.transaction() as tx:
        locked = await lock_turn(tx, turn.id)
        if locked is None or locked.run is None:
            return False
        known = locked.turn
        if known.status != TurnStatus.RUNNING or known.request is None or known.stuck_at is not None:
            return False
        known.stuck_at = utc_now()
        tx.emit(
            "turn.stuck", **get_session_fields(locked.session), **get_turn_fields(known), whenStuck=settings.when_stuck
        )
        if settings.when_stuck == "ask":
            open_stuck_question(RunningTurn(tx, locked.session, locked.run, known), settings.stuck_minutes)
        elif settings.when_stuck in ("wake", "stop"):
            if settings.when_stuck == "wake":
                known.error_code = WAKING
            else:
                known.cancel_at = utc_now()
            queue_cancellation(tx, locked.run)
    return True
