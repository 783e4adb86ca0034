"""Queries for the rows of agents, and the fields of events about them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import bindparam, select
from sqlalchemy.ext.asyncio import AsyncSession

from sandyard.platform.db.database import Transaction
from sandyard.platform.db.models import AgentRun, Message, Sandbox, Session, Turn
from sandyard.platform.domain.agents.model import LIVE_RUNS, OPEN_TURNS, TurnStatus
from sandyard.platform.domain.projects.inheritance import find_project
from sandyard.platform.domain.projects.model import AgentSettings, ProjectSettings


@dataclass(frozen=True, slots=True)
class LockedTurn:
    """A turn that is being changed in a transaction, with its session, and its run if it has one."""

    tx: Transaction
    session: Session
    run: AgentRun | None
    turn: Turn


@dataclass(frozen=True, slots=True)
class RunningTurn(LockedTurn):
    """A locked turn that certainly has a run."""

    run: AgentRun


@dataclass(frozen=True, slots=True)
class SessionState:
    """A session with its sandbox, its open turn and its live run."""

    session: Session
    sandbox: Sandbox | None
    turn: Turn | None
    run: AgentRun | None


async def lock_turn(tx: Transaction, turn_id: str) -> LockedTurn | None:
    """Lock a turn and its run until the transaction ends."""
    while True:
        run_id = (await tx.session.scalars(select(Turn.run_id).where(Turn.id == turn_id))).first()
        async with tx.session.begin_nested() as held:
            run = await tx.session.get(AgentRun, run_id, with_for_update=True) if run_id is not None else None
            turn = await tx.session.get(Turn, turn_id, with_for_update=True, populate_existing=True)
            if turn is not None and turn.run_id != run_id:
                await held.rollback()  # its run has changed in between, and runs are locked before turns
                continue
        session = await tx.session.get(Session, turn.session_id) if turn is not None else None
        return None if turn is None or session is None else LockedTurn(tx, session, run, turn)


def get_session_fields(row: Session) -> dict[str, str | None]:
    """Return the references of an event about this session."""
    return {
        "owner_id": row.owner_id,
        "project_id": row.project_id,
        "task_id": row.task_id,
        "session_id": row.id,
        "sandbox_id": row.sandbox_id,
    }


def get_turn_fields(turn: Turn) -> dict[str, Any]:
    """Return the data of an event about this turn."""
    return {
        "turnId": turn.id,
        "number": turn.number,
        "origin": turn.origin,
        "status": turn.status,
        "error": None if turn.error is None else turn.error[:1000],
        "errorCode": turn.error_code,
    }


async def find_open_turn(session: AsyncSession, session_id: str) -> Turn | None:
    """Return the current turn, or the one that is next."""
    query = select(Turn).where(Turn.session_id == session_id, Turn.status.in_(OPEN_TURNS))
    return (await session.scalars(query.order_by(Turn.number).limit(1))).first()


_OPEN_TURN = select(Turn.id).where(Turn.session_id == Session.id, Turn.status.in_(OPEN_TURNS)).order_by(Turn.number)
_LIVE_RUN = select(AgentRun.id).where(AgentRun.session_id == Session.id, AgentRun.status.in_(LIVE_RUNS))
_SESSION_STATE = (
    select(Session, Sandbox, Turn, AgentRun)
    .outerjoin(Sandbox, Sandbox.id == Session.sandbox_id)
    .outerjoin(Turn, Turn.id == _OPEN_TURN.limit(1).correlate(Session).scalar_subquery())
    .outerjoin(
        AgentRun, AgentRun.id == _LIVE_RUN.order_by(AgentRun.id.desc()).limit(1).correlate(Session).scalar_subquery()
    )
    .where(Session.id == bindparam("session_id"))
)


async def load_session_state(session: AsyncSession, session_id: str) -> SessionState | None:
    found = (await session.execute(_SESSION_STATE, {"session_id": session_id})).first()
    return None if found is None else SessionState(*found)


async def find_turn_of_run(session: AsyncSession, run_id: str, *, for_update: bool = False) -> Turn | None:
    """Return the turn that this run works on."""
    busy = (TurnStatus.RUNNING, TurnStatus.WAITING)
    query = select(Turn).where(Turn.run_id == run_id, Turn.status.in_(busy))
    query = query.with_for_update() if for_update else query
    return (await session.scalars(query.order_by(Turn.number).limit(1))).first()


async def find_live_run(session: AsyncSession, session_id: str) -> AgentRun | None:
    query = select(AgentRun).where(AgentRun.session_id == session_id, AgentRun.status.in_(LIVE_RUNS))
    return (await session.scalars(query.order_by(AgentRun.id.desc()).limit(1))).first()


async def find_last_message_id(session: AsyncSession, session_id: str) -> str:
    """Return the id of the newest message of a session, or an empty string."""
    query = select(Message.id).where(Message.session_id == session_id).order_by(Message.id.desc()).limit(1)
    return (await session.scalars(query)).first() or ""


async def load_agent_settings(session: AsyncSession, row: Session | None) -> AgentSettings:
    """Return the settings that apply to the session's agent."""
    project = await find_project(session, row) if row is not None else None
    return ProjectSettings.from_project(project).agent if project is not None else AgentSettings()
