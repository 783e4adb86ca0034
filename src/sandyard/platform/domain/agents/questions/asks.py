"""Create and close the permission requests and questions of agents, within a transaction.

A request is decided by the project's policy at once, or put to a person. It is closed by an answer, by its timeout, or
by the end of its turn. Every decision is audited in the transaction that makes it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from sandyard.kit.ids import make_ordered_id
from sandyard.platform.db.database import Transaction
from sandyard.platform.db.models import AgentRun, Ask, Audit, Session, Turn
from sandyard.platform.db.models.message_parts import ToolCallFields
from sandyard.platform.domain.agents.acp import wire
from sandyard.platform.domain.agents.acp.outbox import queue_response
from sandyard.platform.domain.agents.acp.transcript import limit_json, truncate
from sandyard.platform.domain.agents.json_columns import (
    AskAnswer,
    AskDetail,
    AskOption,
    Feedback,
    get_answer,
    get_ask_detail,
)
from sandyard.platform.domain.agents.model import LIVE_RUNS, PLATFORM, AskKind, AskStatus, TurnStatus
from sandyard.platform.domain.agents.questions.policy import Decision, Verdicts, find_option
from sandyard.platform.domain.agents.repository import (
    LockedTurn,
    RunningTurn,
    get_session_fields,
    get_turn_fields,
    load_agent_settings,
)
from sandyard.platform.domain.sandboxes.model import utc_now
from sandyard.platform.domain.users.model import Principal

PERMISSION_METHOD, QUESTION_METHOD = "session/request_permission", "elicitation/create"
DETAIL_LIMIT = 64 << 10
MAX_OPTIONS = 50
MAX_PENDING = 100
"""Maximum number of requests of a turn that wait for an answer."""
SEND = "send"
OVERRULED = "overruled"
"""`decided_by` of a permission that the policy denied and that somebody has since allowed for the rest of the session."""
_NO_OPTION = {"outcome": {"outcome": "cancelled"}}


async def open_permission(
    running: RunningTurn, request: wire.Request, known: ToolCallFields, verdicts: Verdicts
) -> Ask:
    """Create a permission request, and close it if the policy decides it.

    `known` is what the agent reported about this tool call earlier. Raises UndecidedError before anything is changed.
    """
    given = request.params.get("toolCall")
    reported = {
        name: value for name, value in (given if isinstance(given, dict) else {}).items() if value or value is False
    }
    call: dict[str, Any] = {**known, **reported}  # an empty field may have been reported earlier
    options = _parse_options(request.params.get("options"))
    settings = (await load_agent_settings(running.tx.session, running.session)).permissions
    if settings.deny:  # with allow_always the agent would not ask before the next call, which may be denied
        options = [option for option in options if option["kind"] != "allow_always"]
        lifted = await list_overruled_patterns(running.tx, running.session.id)
        settings = settings.model_copy(update={"deny": [pattern for pattern in settings.deny if pattern not in lifted]})
    verdict = verdicts.get(settings, call)
    detail: AskDetail = {
        "toolCall": limit_json(call, DETAIL_LIMIT),
        "options": options,
        "reason": verdict.reason,
    }
    if verdict.pattern is not None:
        detail["pattern"] = verdict.pattern
    title = truncate(str(call.get("title") or call.get("kind") or "The agent asks for permission"), 2000)
    ask = _create_ask(running, request.key, AskKind.PERMISSION, title, detail)
    if verdict.decision is not None:
        close_ask(
            running.tx, running.session, running.run, ask, AskStatus.ANSWERED, by="policy", decision=verdict.decision
        )
        return ask
    _ask_person(running, ask, settings.timeout_seconds)
    return ask


async def open_question(running: RunningTurn, request: wire.Request) -> Ask:
    """Create a question with a form. Only a person can answer it."""
    settings = (await load_agent_settings(running.tx.session, running.session)).permissions
    detail: AskDetail = {"form": limit_json(request.params.get("requestedSchema"), DETAIL_LIMIT), "options": []}
    title = truncate(str(request.params.get("message") or "The agent asks a question"), 20_000)
    ask = _create_ask(running, request.key, AskKind.QUESTION, title, detail)
    _ask_person(running, ask, settings.timeout_seconds)
    return ask


def open_stuck_question(running: RunningTurn, minutes: int) -> Ask:
    """Create the platform's own question about an inactive agent: let it continue, or stop the turn."""
    options: list[AskOption] = [
        {"optionId": "continue", "name": "Let it continue", "kind": "allow_once"},
        {"optionId": "stop", "name": "Stop the turn", "kind": "reject_once"},
    ]
    key = json.dumps(f"{PLATFORM}:{running.turn.id}:{utc_now().timestamp():.0f}")
    title = f"The agent has been silent and inactive for {minutes} minutes. Let it continue?"
    detail: AskDetail = {"by": PLATFORM, "options": options}
    ask = _create_ask(running, key, AskKind.QUESTION, title, detail)
    _ask_person(running, ask, None)
    return ask


def open_feedback_question(tx: Transaction, session: Session, title: str, feedback: Feedback) -> Ask:
    """Create the platform's own question: should this feedback be sent to the agent?

    `feedback` is stored with the question. The question belongs to no turn, and stays open until it is answered or
    withdrawn.
    """
    options: list[AskOption] = [
        {"optionId": SEND, "name": "Send to the agent", "kind": "allow_once"},
        {"optionId": "decline", "name": "Do not send", "kind": "reject_once"},
    ]
    detail: AskDetail = {"by": PLATFORM, "options": options, "feedback": feedback}
    ask_id = make_ordered_id("ask_")
    ask = Ask(
        id=ask_id,
        session_id=session.id,
        request=json.dumps(f"{PLATFORM}:{ask_id}"),
        kind=AskKind.QUESTION,
        title=title,
        detail={**detail},
        status=AskStatus.PENDING,
        created_at=utc_now(),
    )
    tx.add(ask)
    tx.emit("ask.created", **get_session_fields(session), **_get_event_fields(ask))
    return ask


async def list_pending_feedback(tx: Transaction, session_id: str) -> list[Ask]:
    """Return the unanswered questions created by `open_feedback_question`, locked for update."""
    query = select(Ask).where(Ask.session_id == session_id, Ask.run_id.is_(None), Ask.status == AskStatus.PENDING)
    return list(await tx.session.scalars(query.order_by(Ask.id).with_for_update()))


async def list_denied_permissions(session: AsyncSession, *which: ColumnElement[bool]) -> list[Ask]:
    """Return the permission requests that no person decided: denied by the project's policy or expired. Oldest first."""
    query = select(Ask).where(Ask.kind == AskKind.PERMISSION, Ask.decided_by.in_(("policy", "timeout")), *which)
    found = await session.scalars(query.order_by(Ask.id))
    return [ask for ask in found if get_answer(ask).get("decision") == "reject"]


def make_replacement_turn_key(ask: Ask) -> str:
    """Return the key of the turn that tells the agent what to do instead of the denied action."""
    return f"{ask.id}:message"


async def find_replacement_turn(session: AsyncSession, turn_id: str) -> Turn | None:
    """Return the last turn in which somebody told the agent what to do instead of an action denied in this turn."""
    query = select(Ask).where(Ask.turn_id == turn_id, Ask.kind == AskKind.PERMISSION, Ask.decided_by == "person")
    keys = [make_replacement_turn_key(ask) for ask in await session.scalars(query)]
    if not keys:
        return None
    found = await session.scalars(select(Turn).where(Turn.key.in_(keys)).order_by(Turn.number.desc()).limit(1))
    return found.first()


def describe_denial(asks: Sequence[Ask]) -> str:
    """Describe the last of these denied requests in a sentence."""
    last = asks[-1]
    title = truncate(" ".join(last.title.split()), 300)
    more = len({ask.title for ask in asks}) - 1
    others = "" if not more else f" ({more} more)"
    if last.decided_by == "timeout":
        return f"The agent was denied permission for “{title}”{others}, because nobody answered in time."
    return f"The agent was denied permission for “{title}”{others}. {get_ask_detail(last).get('reason') or ''}".rstrip()


async def list_overruled_patterns(tx: Transaction, session_id: str) -> set[str]:
    """Return the patterns that the project denies and somebody has allowed for this session."""
    query = select(Ask.detail).where(Ask.session_id == session_id, Ask.decided_by == OVERRULED)
    return {detail["pattern"] for detail in await tx.session.scalars(query) if "pattern" in detail}


def overrule(tx: Transaction, session: Session, ask: Ask, caller: Principal) -> None:
    """Allow the session's agent everything that the pattern denies for which this request was denied."""
    ask.decided_by, ask.user_id = OVERRULED, caller.user_id
    tx.emit(
        "ask.overruled",
        **get_session_fields(session),
        **_get_event_fields(ask),
        decidedBy=OVERRULED,
        pattern=ask.detail["pattern"],
    )
    tx.add(
        Audit(
            at=utc_now(),
            user_id=caller.user_id,
            user_name=caller.name,
            means=caller.means,
            action="ask.overruled",
            target=ask.id,
            outcome="ok",
            detail={"title": ask.title[:300], "pattern": ask.detail["pattern"], "sessionId": session.id},
        )
    )


def _create_ask(running: RunningTurn, key: str, kind: AskKind, title: str, detail: AskDetail) -> Ask:
    ask = Ask(
        id=make_ordered_id("ask_"),
        session_id=running.session.id,
        turn_id=running.turn.id,
        run_id=running.run.id,
        request=key,
        kind=kind,
        title=title,
        detail={**detail},
        status=AskStatus.PENDING,
        created_at=utc_now(),
    )
    running.tx.add(ask)
    return ask


def _ask_person(running: RunningTurn, ask: Ask, seconds: int | None) -> None:
    tx, session, turn = running.tx, running.session, running.turn
    ask.expires_at = None if seconds is None else ask.created_at + timedelta(seconds=seconds)
    tx.emit("ask.created", **get_session_fields(session), **_get_event_fields(ask))
    if turn.status != TurnStatus.WAITING:
        turn.status = TurnStatus.WAITING
        tx.emit("turn.waiting", **get_session_fields(session), **get_turn_fields(turn), askId=ask.id)


def close_ask(
    tx: Transaction,
    session: Session,
    run: AgentRun | None,
    ask: Ask,
    status: AskStatus,
    *,
    by: str,
    decision: Decision | None = None,
    option_id: str | None = None,
    content: dict[str, Any] | None = None,
    caller: Principal | None = None,
) -> None:
    """Close a request and send the answer to the agent if it is still running.

    Without a decision and without content, the request is cancelled.
    """
    answer, result = _build_result(ask, decision, option_id, content)
    ask.status, ask.answer, ask.decided_by = status, {**answer}, by
    ask.user_id = caller.user_id if caller else None
    ask.answered_at = utc_now()
    if not is_platform_question(ask) and run is not None and run.status in LIVE_RUNS:
        queue_response(tx, run, ask.request, result)
    tx.emit(
        f"ask.{status}",
        **get_session_fields(session),
        **_get_event_fields(ask),
        answer=limit_json(answer, 4000),
        decidedBy=by,
    )
    tx.add(
        Audit(
            at=ask.answered_at,
            user_id=caller.user_id if caller else None,
            user_name=caller.name if caller else None,
            means=caller.means if caller else by,
            action="ask.decided",
            target=ask.id,
            outcome="ok",
            detail={
                "decidedBy": by,
                "answer": limit_json(answer, 2000),
                "title": ask.title[:300],
                "sessionId": session.id,
                "turnId": ask.turn_id,
                "reason": get_ask_detail(ask).get("reason"),
            },
        )
    )


def _build_result(
    ask: Ask, decision: Decision | None, option_id: str | None, content: dict[str, Any] | None
) -> tuple[AskAnswer, dict[str, Any]]:
    """Return the answer to store and the result to send to the agent."""
    if ask.kind == AskKind.QUESTION and not is_platform_question(ask):
        if content is not None:
            return {"action": "accept", "content": content}, {"action": "accept", "content": content}
        action = "cancel" if decision is None else "decline"
        return {"action": action}, {"action": action}
    options = get_ask_detail(ask).get("options") or []
    option = next(
        (candidate for candidate in options if option_id is not None and candidate["optionId"] == option_id), None
    )
    if option is None and decision is not None:
        option = find_option(options, decision)
    if option is None:
        return {"outcome": "cancelled", "decision": decision}, _NO_OPTION
    result = {"outcome": {"outcome": "selected", "optionId": option["optionId"]}}
    return {"outcome": "selected", "optionId": option["optionId"], "kind": option["kind"], "decision": decision}, result


async def list_pending(tx: Transaction, turn: Turn) -> list[Ask]:
    return list(await tx.session.scalars(select(Ask).where(*_pending(turn)).order_by(Ask.id)))


async def count_pending(tx: Transaction, turn: Turn) -> int:
    return await tx.session.scalar(select(func.count(Ask.id)).where(*_pending(turn))) or 0


def _pending(turn: Turn) -> list[ColumnElement[bool]]:
    """Return the conditions for pending requests of a turn. They include the session, so that the database can use its index."""
    return [Ask.session_id == turn.session_id, Ask.turn_id == turn.id, Ask.status == AskStatus.PENDING]


async def withdraw(running: RunningTurn, key: str) -> None:
    """Cancel the request with this key, because the agent has withdrawn it."""
    query = select(Ask).where(Ask.run_id == running.run.id, Ask.request == key, Ask.status == AskStatus.PENDING)
    ask = (await running.tx.session.scalars(query)).first()
    if ask is None or ask.turn_id != running.turn.id:
        return
    close_ask(running.tx, running.session, running.run, ask, AskStatus.CANCELLED, by="cancel")
    await resume_turn(running)


async def withdraw_stuck_question(locked: LockedTurn) -> None:
    """Cancel the question about an inactive agent, because it is active again."""
    for ask in await list_pending(locked.tx, locked.turn):
        if is_platform_question(ask):
            close_ask(locked.tx, locked.session, locked.run, ask, AskStatus.CANCELLED, by="cancel")
    await resume_turn(locked)


async def cancel_pending(locked: LockedTurn) -> None:
    """Cancel all pending requests of a turn."""
    for ask in await list_pending(locked.tx, locked.turn):
        close_ask(locked.tx, locked.session, locked.run, ask, AskStatus.CANCELLED, by="cancel")


async def resume_turn(locked: LockedTurn) -> None:
    """Resume the turn if no request is pending. Call this after closing a request."""
    tx, turn = locked.tx, locked.turn
    await tx.session.flush()
    if turn.status == TurnStatus.WAITING and not await count_pending(tx, turn):
        turn.status = TurnStatus.RUNNING
        turn.active_at = utc_now()
        turn.stuck_at = None
        tx.emit("turn.resumed", **get_session_fields(locked.session), **get_turn_fields(turn))


def _parse_options(given: Any) -> list[AskOption]:
    return [
        {
            "optionId": option["optionId"][:300],
            "name": truncate(str(option.get("name") or ""), 300),
            "kind": str(option.get("kind"))[:40],
        }
        for option in (given if isinstance(given, list) else [])[:MAX_OPTIONS]
        if isinstance(option, dict) and isinstance(option.get("optionId"), str)
    ]


def is_platform_question(ask: Ask) -> bool:
    """Return whether the platform itself asks, and not the agent."""
    return get_ask_detail(ask).get("by") == PLATFORM


def _get_event_fields(ask: Ask) -> dict[str, Any]:
    return {
        "askId": ask.id,
        "turnId": ask.turn_id,
        "askKind": ask.kind,
        "title": ask.title[:1000],
        "options": get_ask_detail(ask).get("options", [])[:10],
    }
