"""Record how turns and runs end, within a transaction."""

from __future__ import annotations

from sqlalchemy import String, cast, or_, select

from sandyard.kit.text import make_storable
from sandyard.platform.db.database import Transaction
from sandyard.platform.db.models import AgentRun, Ask, Message, Session, Turn
from sandyard.platform.db.models.message_parts import NoticePart
from sandyard.platform.db.models.sessions import TurnUsage
from sandyard.platform.domain.agents.acp.client import WAKING
from sandyard.platform.domain.agents.acp.transcript import OPEN_CALLS, next_message_id, to_event_part, truncate
from sandyard.platform.domain.agents.errors import AgentDiedError, AgentFailedError, PermissionRefusedError
from sandyard.platform.domain.agents.model import RunStatus, TurnStatus
from sandyard.platform.domain.agents.questions.asks import (
    cancel_pending,
    describe_denial,
    find_replacement_turn,
    list_denied_permissions,
)
from sandyard.platform.domain.agents.repository import (
    LockedTurn,
    RunningTurn,
    find_last_message_id,
    get_session_fields,
    get_turn_fields,
)
from sandyard.platform.domain.models.faults import FAULT_CODES, Fault
from sandyard.platform.domain.sandboxes.model import utc_now

OVER_BUDGET, REPLACED = "over_budget", "replaced"
"""Error codes for a requested end: of a turn over its budget, and of a run that is replaced by another one."""
_GAVE_UP = "The agent ended its turn because permission was denied. Tell it what to do instead, or allow more in the project's permissions."
_REFUSED = "The agent refused to continue."
_LIMIT_NOTICES = {
    "max_tokens": "The agent stopped: its model reached the output limit.",
    "max_turn_requests": "The agent stopped: it reached the limit of model requests per turn.",
}


async def finish_turn(
    locked: LockedTurn,
    status: TurnStatus,
    *,
    stop_reason: str | None = None,
    error: str | None = None,
    code: str | None = None,
    usage: TurnUsage | None = None,
) -> None:
    """End a turn with this status. Idempotent: a turn that is over is not changed."""
    tx, session, turn = locked.tx, locked.session, locked.turn
    if TurnStatus(turn.status).is_final:
        return
    await cancel_pending(locked)
    turn.status, turn.stop_reason = status, stop_reason
    turn.error = None if error is None else truncate(make_storable(error), 8000)
    turn.error_code = code
    turn.finished_at, turn.stuck_at = utc_now(), None
    turn.usage = {**turn.usage, **(usage or {})}
    if error is not None:
        await add_notice(locked, code or str(status), error)
    await _close_calls(locked, get_closed_call_status(status))
    tx.emit(
        f"turn.{status}",
        **get_session_fields(session),
        **get_turn_fields(turn),
        stopReason=stop_reason,
        usage=turn.usage,
    )


def get_closed_call_status(status: TurnStatus) -> str:
    """Return the status of tool calls that were open when a turn ended with this status."""
    return "failed" if status is TurnStatus.FAILED else "cancelled"


async def _close_calls(locked: LockedTurn, status: str) -> None:
    """Set the status of the turn's open tool calls."""
    tx, session, turn = locked.tx, locked.session, locked.turn
    await tx.session.flush()
    stored = cast(Message.parts, String)
    query = select(Message).where(Message.turn_id == turn.id, Message.role == "agent")
    query = query.where(or_(*(stored.contains(f'"{open_}"', autoescape=True) for open_ in OPEN_CALLS)))
    for row in await tx.session.scalars(query.order_by(Message.id)):
        part = row.parts[0] if row.parts else None
        if part is None or part["type"] != "tool_call" or part["status"] not in OPEN_CALLS:
            continue
        row.parts, row.updated_at = [{**part, "status": status}], utc_now()
        tx.emit(
            "message.updated",
            **get_session_fields(session),
            messageId=row.id,
            turnId=turn.id,
            part=to_event_part(row.parts[0]),
        )


async def finish_answered_turn(
    running: RunningTurn, stop_reason: str, usage: TurnUsage, fault: Fault | None = None
) -> None:
    """End a turn that the agent has ended.

    `fault` is the last error of its model provider, if the agent has done nothing since.
    """
    tx, turn = running.tx, running.turn
    status, error, code = TurnStatus.COMPLETED, None, None
    if turn.cancel_at is not None:
        status, error, code = _resolve_stop(turn)
    elif stop_reason == "cancelled":  # not on request: some agents do so when permission is denied
        status, error, code = TurnStatus.FAILED, _GAVE_UP, "agent_gave_up"
        if await find_replacement_turn(tx.session, turn.id) is not None:
            status, error, code = TurnStatus.CANCELLED, None, None  # somebody has told it what to do instead
        elif denied := await list_denied_permissions(tx.session, Ask.turn_id == turn.id):
            error, code = describe_denial(denied), PermissionRefusedError.code
    elif stop_reason == "refusal":
        status, error, code = TurnStatus.FAILED, _REFUSED, "agent_refused"
    elif stop_reason in _LIMIT_NOTICES:
        await add_notice(running, stop_reason, _LIMIT_NOTICES[stop_reason])
    elif fault is not None:  # some agents end the turn as if it were completed
        status, error, code = TurnStatus.FAILED, fault.message, fault.code
    await finish_turn(running, status, stop_reason=stop_reason, error=error, code=code, usage=usage)


async def finish_rejected_turn(running: RunningTurn, words: str, usage: TurnUsage, fault: Fault | None) -> None:
    """End a turn whose prompt the agent answered with an error. `fault` is the last error of its model provider."""
    turn = running.turn
    if turn.cancel_at is not None:
        status, error, code = _resolve_stop(turn)
    elif fault is not None:
        status, error, code = TurnStatus.FAILED, fault.message, fault.code
    else:
        status, code = TurnStatus.FAILED, AgentFailedError.code
        error = f"The agent returned an error: {words}"
    await finish_turn(running, status, error=error, code=code, usage=usage)


def _resolve_stop(turn: Turn) -> tuple[TurnStatus, str | None, str | None]:
    """Return status, error and code of a turn that was asked to stop."""
    if turn.error_code == OVER_BUDGET:
        return TurnStatus.OVER_BUDGET, turn.error, OVER_BUDGET
    if turn.error_code in FAULT_CODES:
        return TurnStatus.FAILED, turn.error, turn.error_code
    return TurnStatus.CANCELLED, None, None


async def finish_run(
    tx: Transaction,
    session: Session,
    run: AgentRun,
    turn: Turn | None,
    *,
    status: RunStatus,
    exit_code: int | None = None,
    error: str | None = None,
    code: str | None = None,
    stderr: str = "",
    usage: TurnUsage | None = None,
) -> None:
    """Record the end of a process, and finish or requeue the turn it worked on. Idempotent.

    `error` is None if the process ended by itself.
    """
    if run.status in (RunStatus.ENDED, RunStatus.LOST):
        return
    wanted = run.error_code if run.error_code == REPLACED else None
    run.status, run.exit_code, run.ended_at = status, exit_code, utc_now()
    run.error, run.error_code = None if error is None else truncate(make_storable(error), 8000), wanted or code
    tx.emit(
        "agent.ended",
        **get_session_fields(session),
        runId=run.id,
        exitCode=exit_code,
        error=run.error and run.error[:1000],
    )
    if turn is None or TurnStatus(turn.status).is_final:
        return
    locked = LockedTurn(tx, session, run, turn)
    if turn.cancel_at is not None:
        stopped, error, why = _resolve_stop(turn)
        await finish_turn(locked, stopped, error=error, code=why, usage=usage)
    elif turn.error_code == WAKING or wanted is not None:
        await cancel_pending(locked)
        turn.run_id = turn.request = turn.stuck_at = None  # the next process starts its own timeouts
        turn.status = TurnStatus.RUNNING
    else:
        message = error or f"The agent's process ended unexpectedly with exit code {exit_code}."
        tail = make_storable(stderr).strip()
        message = f"{message} Its error output ended with:\n{tail[-2000:]}" if tail else message
        await finish_turn(locked, TurnStatus.FAILED, error=message, code=code or AgentDiedError.code, usage=usage)


async def add_notice(locked: LockedTurn, code: str, text: str) -> None:
    """Add a message of the platform to the transcript."""
    tx, session, turn = locked.tx, locked.session, locked.turn
    part: NoticePart = {"type": "notice", "code": code, "text": truncate(make_storable(text), 8000)}
    await tx.session.flush()
    message = Message(
        id=next_message_id(await find_last_message_id(tx.session, session.id)),
        session_id=session.id,
        turn_id=turn.id,
        role="system",
        parts=[part],
        created_at=utc_now(),
    )
    tx.add(message)
    tx.emit(
        "message.created",
        **get_session_fields(session),
        messageId=message.id,
        role="system",
        by=None,
        turnId=turn.id,
        part=to_event_part(part),
    )
