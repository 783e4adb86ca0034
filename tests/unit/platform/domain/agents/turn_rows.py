"""Rows of turns."""

from __future__ import annotations

from sandyard.platform.db.database import Database
from sandyard.platform.db.models import AgentRun, Sandbox, Session, Turn, User
from sandyard.platform.domain.sandboxes.model import utc_now


async def create_turn(database: Database) -> None:
    """Create a queued turn and a process that could start it."""
    now = utc_now()
    async with database.transaction() as tx:
        tx.add(User(id="u", name="u", role="member", created_at=now))
        await tx.session.flush()
        tx.add(Session(id="s", owner_id="u", title="", template="base", created_at=now, updated_at=now))
        await tx.session.flush()
        tx.add(
            Sandbox(
                id="b", owner_id="u", session_id="s", template="base", idempotency_key="b", status="running",
                idle_seconds=1, created_at=now,
            )
        )  # fmt: skip
        await tx.session.flush()
        tx.add(AgentRun(id="r", session_id="s", sandbox_id="b", agent="a", status="ready", started_at=now))
        tx.add(Turn(id="t", session_id="s", number=1, origin="person", status="queued", queued_at=now))
