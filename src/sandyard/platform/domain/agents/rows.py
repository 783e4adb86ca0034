"""Queries and helpers for the rows of agents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import bindparam, select
from sqlalchemy.ext.asyncio import AsyncSession

from sandyard.platform.db.database import Transaction
from sandyard.platform.db.models import AgentInput, AgentRun, Message, Project, Sandbox, Session, Turn
from sandyard.platform.domain.agents import wire
from sandyard.platform.domain.agents.model import OPEN_TURNS, RunStatus, TurnStatus
from sandyard.platform.domain.projects.model import AgentSettings, ProjectSettings

LIVE_RUNS = (RunStatus.STARTING, RunStatus.READY)
PENDING, FOLDER, AUTH, FRESH, SERVED, DELIVERED = "pending", "folder", "auth", "fresh", "served", "delivered"
STRICTNESS, ASKING_MODES, PROMPTED = "strictness", "askingModes", "prompted"
MCP, MCP_FINGERPRINT, MCP_MISSING = "mcpServers", "mcpFingerprint", "mcpMissing"
STARTUP = "startupOutput"
"""Keys in the options of a run:

- PENDING: our requests that the agent has not answered.
- FOLDER: its working folder.
- AUTH: the authentication method it requires.
- FRESH: it does not know the earlier conversation.
- SERVED: it reaches its model through our tunnel.
- DELIVERED: bytes of input that are certainly in its sandbox.
- STRICTNESS: strictness of the project's policy at its start.
- ASKING_MODES: its modes in which it asks.
- PROMPTED: position of its first prompt in its input.
- MCP, MCP_FINGERPRINT, MCP_MISSING: its MCP servers, a hash of them, and the commands of those that are not in the sandbox.
- STARTUP: its text before the first prompt, which people may see.
"""
HIDDEN = frozenset(
    (
        PENDING,
        FOLDER,
        AUTH,
        FRESH,
        SERVED,
        DELIVERED,
        STRICTNESS,
        ASKING_MODES,
        PROMPTED,
        MCP,
        MCP_FINGERPRINT,
        MCP_MISSING,
    )
)


@dataclass(slots=True)
class Scene:
    """A turn that is being changed in a transaction, with its session and run."""

    tx: Transaction
    session: Session
    run: AgentRun
    turn: Turn


async def locked(tx: Transaction, turn_id: str) -> tuple[Session, AgentRun | None, Turn] | None:
    """Return a turn with its session and run, with the turn and the run locked until the transaction ends."""
    while True:
        run_id = (await tx.session.scalars(select(Turn.run_id).where(Turn.id == turn_id))).first()
        async with tx.session.begin_nested() as held:
            run = await tx.session.get(AgentRun, run_id, with_for_update=True) if run_id is not None else None
            turn = await tx.session.get(Turn, turn_id, with_for_update=True, populate_existing=True)
            if turn is not None and turn.run_id != run_id:
                await held.rollback()  # its run has changed in between, and runs are locked before turns
                continue
        session = await tx.session.get(Session, turn.session_id) if turn is not None else None
        return None if turn is None or session is None else (session, run, turn)


def about(row: Session) -> dict[str, str | None]:
    """Return the references of an event about this session."""
    return {
        "owner_id": row.owner_id,
        "project_id": row.project_id,
        "task_id": row.task_id,
        "session_id": row.id,
        "sandbox_id": row.sandbox_id,
    }


def about_turn(turn: Turn) -> dict[str, Any]:
    return {
        "turnId": turn.id,
        "number": turn.number,
        "origin": turn.origin,
        "status": turn.status,
        "error": None if turn.error is None else turn.error[:1000],
        "errorCode": turn.error_code,
    }


async def open_turn(session: AsyncSession, session_id: str) -> Turn | None:
    """Return the current turn, or the one that is next."""
    query = select(Turn).where(Turn.session_id == session_id, Turn.status.in_(OPEN_TURNS))
    return (await session.scalars(query.order_by(Turn.number).limit(1))).first()


_OPEN_TURN = select(Turn.id).where(Turn.session_id == Session.id, Turn.status.in_(OPEN_TURNS)).order_by(Turn.number)
_LIVE_RUN = select(AgentRun.id).where(AgentRun.session_id == Session.id, AgentRun.status.in_(LIVE_RUNS))
_VIEW = (
    select(Session, Sandbox, Turn, AgentRun)
    .outerjoin(Sandbox, Sandbox.id == Session.sandbox_id)
    .outerjoin(Turn, Turn.id == _OPEN_TURN.limit(1).correlate(Session).scalar_subquery())
    .outerjoin(
        AgentRun, AgentRun.id == _LIVE_RUN.order_by(AgentRun.id.desc()).limit(1).correlate(Session).scalar_subquery()
    )
    .where(Session.id == bindparam("session_id"))
)


async def load_view(
    session: AsyncSession, session_id: str
) -> tuple[Session, Sandbox | None, Turn | None, AgentRun | None] | None:
    """Return a session with its sandbox, its open turn and its live run."""
    found = (await session.execute(_VIEW, {"session_id": session_id})).first()
    return None if found is None else (found[0], found[1], found[2], found[3])


async def turn_of(session: AsyncSession, run_id: str, *, to_change: bool = False) -> Turn | None:
    """Return the turn that this run works on."""
    busy = (TurnStatus.RUNNING, TurnStatus.WAITING)
    query = select(Turn).where(Turn.run_id == run_id, Turn.status.in_(busy))
    query = query.with_for_update() if to_change else query
    return (await session.scalars(query.order_by(Turn.number).limit(1))).first()


async def live_run(session: AsyncSession, session_id: str) -> AgentRun | None:
    query = select(AgentRun).where(AgentRun.session_id == session_id, AgentRun.status.in_(LIVE_RUNS))
    return (await session.scalars(query.order_by(AgentRun.id.desc()).limit(1))).first()


async def last_message(session: AsyncSession, session_id: str) -> str:
    """Return the id of the newest message of a session, or an empty string."""
    query = select(Message.id).where(Message.session_id == session_id).order_by(Message.id.desc()).limit(1)
    return (await session.scalars(query)).first() or ""


async def agent_settings(session: AsyncSession, project_id: str | None) -> AgentSettings:
    project = await session.get(Project, project_id) if project_id is not None else None
    return ProjectSettings.of(project).agent if project is not None else AgentSettings()


def say(tx: Transaction, run: AgentRun, line: str) -> None:
    """Queue a line for the agent in this transaction. Whoever follows the run delivers it afterwards."""
    tx.add(AgentInput(run_id=run.id, position=run.sent, line=line))
    run.sent += len(line)


def ask(tx: Transaction, run: AgentRun, method: str, params: Mapping[str, Any]) -> int:
    """Queue a request to the agent and return its number."""
    number = run.next_request
    run.next_request = number + 1
    pending = {**run.options.get(PENDING, {}), str(number): method}
    run.options = {**run.options, PENDING: pending}
    say(tx, run, wire.request(number, method, dict(params)))
    return number


def answered(run: AgentRun, number: int) -> str | None:
    """Remove the request with this number from the pending ones and return its method."""
    pending = dict(run.options.get(PENDING, {}))
    method = pending.pop(str(number), None)
    if method is not None:
        run.options = {**run.options, PENDING: pending}
    return method if isinstance(method, str) else None


def pending(run: AgentRun) -> set[str]:
    return set(run.options.get(PENDING, {}).values())
