"""Handle the timeouts of a turn: unanswered requests and inactive agents."""

from __future__ import annotations

from sqlalchemy import select

from sandyard.kit.clock import get_time
from sandyard.platform.db.models import Ask, Sandbox, Session, Turn
from sandyard.platform.domain.agents import asking, steps, wire
from sandyard.platform.domain.agents.model import AskKind, AskStatus, TurnStatus
from sandyard.platform.domain.agents.policy import Decision
from sandyard.platform.domain.agents.ports import Desk
from sandyard.platform.domain.agents.rows import Scene, about, about_turn, agent_settings, locked, say
from sandyard.platform.domain.agents.stuck import Watch
from sandyard.platform.domain.sandboxes.model import utc_now


async def expire(desk: Desk, turn_id: str) -> bool:
    """Deny the requests that nobody answered in time. Returns whether there were any."""
    query = select(Ask.id).where(
        Ask.turn_id == turn_id, Ask.status == AskStatus.PENDING, Ask.expires_at < get_time(desk.clock)
    )
    async with desk.database.reading() as session:
        if (await session.scalars(query)).first() is None:
            return False
    async with desk.database.transaction() as tx:
        found = await locked(tx, turn_id)
        if found is None:
            return False
        row, run, turn = found
        for ask_id in list(await tx.session.scalars(query)):
            ask = await tx.session.get(Ask, ask_id)
            if ask is not None:
                refused: Decision | None = "reject" if ask.kind == AskKind.PERMISSION else None
                asking.close(tx, row, run, ask, AskStatus.EXPIRED, by="timeout", decision=refused)
        await asking.go_on(tx, row, turn)
    return True


async def watch(desk: Desk, watch: Watch, sandbox: Sandbox, turn: Turn) -> bool:
    """Check whether the agent is stuck, and if so act as the project's settings say. Returns whether it is stuck."""
    async with desk.database.reading() as session:
        row = await session.get(Session, turn.session_id)
        settings = await agent_settings(session, row.project_id if row is not None else None)
    if sandbox.engine_id is None:
        return False
    if not await watch.stuck(desk.lifecycle.engine, sandbox.engine_id, settings.stuck_minutes):
        return False
    async with desk.database.transaction() as tx:
        found = await locked(tx, turn.id)
        if found is None or found[1] is None:
            return False
        row, run, known = found
        if run is None or known.status != TurnStatus.RUNNING or known.request is None or known.stuck_at is not None:
            return False
        known.stuck_at = utc_now()
        tx.emit("turn.stuck", **about(row), **about_turn(known), whenStuck=settings.when_stuck)
        if settings.when_stuck == "ask":
            asking.open_stuck(Scene(tx, row, run, known), settings.stuck_minutes)
        elif settings.when_stuck in ("wake", "stop"):
            if settings.when_stuck == "wake":
                known.error_code = steps.WAKING
            else:
                known.cancel_at = utc_now()
            say(tx, run, wire.notice("session/cancel", {"sessionId": run.acp_session}))
    return True
