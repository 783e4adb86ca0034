"""What an agent asks, within a transaction: decided by the project's policy at once, or put to a person; closed by an answer, by
time, or by the end of its turn. Every decision is audited in the transaction that makes it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import ColumnElement, select
from sqlalchemy.ext.asyncio import AsyncSession

from sandyard.kit.ids import ordered_id
from sandyard.platform.db.database import Transaction
from sandyard.platform.db.models import AgentRun, Ask, Audit, Session, Turn
from sandyard.platform.domain.agents import wire
from sandyard.platform.domain.agents.model import AskKind, AskStatus, TurnStatus
from sandyard.platform.domain.agents.policy import Decision, Verdicts, choose
from sandyard.platform.domain.agents.rows import LIVE_RUNS, Scene, about, about_turn, agent_settings, say
from sandyard.platform.domain.agents.transcript import bounded, cut
from sandyard.platform.domain.sandboxes.model import utc_now
from sandyard.platform.domain.users.model import Principal

PERMISSION, QUESTION = "session/request_permission", "elicitation/create"
DETAIL_LIMIT = 64 << 10
OPTIONS = 50
PLATFORM = "platform"
SEND = "send"
OVERRULED = "overruled"
"""Who decided about a permission that the policy refused, and somebody has allowed since for the rest of its session."""
_NO_OPTION = {"outcome": {"outcome": "cancelled"}}


async def open_permission(scene: Scene, request: wire.Request, known: dict[str, Any], verdicts: Verdicts) -> Ask:
    """`known` is what the agent told of this tool call before. Raises UndecidedError, before anything is changed."""
    given = request.params.get("toolCall")
    told = {
        name: value for name, value in (given if isinstance(given, dict) else {}).items() if value or value is False
    }
    call = {**known, **told}  # what it leaves empty now it may have told before
    options = _options(request.params.get("options"))
    settings = (await agent_settings(scene.tx.session, scene.session.project_id)).permissions
    if settings.deny:  # else it would not ask before the next one, which may be denied
        options = [one for one in options if one["kind"] != "allow_always"]
        lifted = await overruled_patterns(scene.tx, scene.session.id)
        settings = settings.model_copy(update={"deny": [one for one in settings.deny if one not in lifted]})
    verdict = verdicts.get(settings, call)
    detail = {"toolCall": bounded(call, DETAIL_LIMIT), "options": options, "reason": verdict.reason}
    if verdict.pattern is not None:
        detail["pattern"] = verdict.pattern
    title = cut(str(call.get("title") or call.get("kind") or "The agent asks for permission"), 2000)
    ask = _draft(scene, request.key, AskKind.PERMISSION, title, detail)
    if verdict.decision is not None:
        close(scene.tx, scene.session, scene.run, ask, AskStatus.ANSWERED, by="policy", decision=verdict.decision)
        return ask
    _put_to_person(scene, ask, settings.timeout_seconds)
    return ask


async def open_question(scene: Scene, request: wire.Request) -> Ask:
    """A form. Only a person can fill it in."""
    settings = (await agent_settings(scene.tx.session, scene.session.project_id)).permissions
    detail = {"form": bounded(request.params.get("requestedSchema"), DETAIL_LIMIT), "options": []}
    title = cut(str(request.params.get("message") or "The agent asks a question"), 20_000)
    ask = _draft(scene, request.key, AskKind.QUESTION, title, detail)
    _put_to_person(scene, ask, settings.timeout_seconds)
    return ask


def open_stuck(scene: Scene, minutes: int) -> Ask:
    """The platform's own question: what shall become of an agent that seems to do nothing?"""
    options = [
        {"optionId": "continue", "name": "Let it continue", "kind": "allow_once"},
        {"optionId": "stop", "name": "Stop the turn", "kind": "reject_once"},
    ]
    key = json.dumps(f"{PLATFORM}:{scene.turn.id}:{utc_now().timestamp():.0f}")
    title = f"The agent has been silent and inactive for {minutes} minutes. Let it continue?"
    detail = {"by": PLATFORM, "options": options}
    ask = _draft(scene, key, AskKind.QUESTION, title, detail)
    _put_to_person(scene, ask, None)
    return ask


def open_feedback(tx: Transaction, session: Session, title: str, feedback: dict[str, Any]) -> Ask:
    """The platform's own question: shall the agent get words that it does not get by itself? `feedback` is kept with it. It belongs to
    no turn, and waits until it is answered or withdrawn."""
    options = [
        {"optionId": SEND, "name": "Send to the agent", "kind": "allow_once"},
        {"optionId": "decline", "name": "Do not send", "kind": "reject_once"},
    ]
    ask_id = ordered_id("ask_")
    ask = Ask(
        id=ask_id,
        session_id=session.id,
        request=json.dumps(f"{PLATFORM}:{ask_id}"),
        kind=AskKind.QUESTION,
        title=title,
        detail={"by": PLATFORM, "options": options, "feedback": feedback},
        status=AskStatus.PENDING,
        created_at=utc_now(),
    )
    tx.add(ask)
    tx.emit("ask.created", **about(session), **_about(ask))
    return ask


async def pending_feedback(tx: Transaction, session_id: str) -> list[Ask]:
    """What `open_feedback` has asked and nobody has answered."""
    query = select(Ask).where(Ask.session_id == session_id, Ask.run_id.is_(None), Ask.status == AskStatus.PENDING)
    return list(await tx.session.scalars(query.order_by(Ask.id).with_for_update()))


async def refused_permissions(session: AsyncSession, *which: ColumnElement[bool]) -> list[Ask]:
    """What agents wanted to do and nobody has decided about: the project's policy refused it, or the time for an answer was over.
    Oldest first."""
    query = select(Ask).where(Ask.kind == AskKind.PERMISSION, Ask.decided_by.in_(("policy", "timeout")), *which)
    found = await session.scalars(query.order_by(Ask.id))
    return [ask for ask in found if (ask.answer or {}).get("decision") == "reject"]


def message_key(ask: Ask) -> str:
    """The key of the turn that tells the agent what to do instead of what it was refused."""
    return f"{ask.id}:message"


async def turn_instead(session: AsyncSession, turn_id: str) -> Turn | None:
    """The last turn by which somebody told the agent what to do instead of what it was refused in this one."""
    query = select(Ask).where(Ask.turn_id == turn_id, Ask.kind == AskKind.PERMISSION, Ask.decided_by == "person")
    keys = [message_key(ask) for ask in await session.scalars(query)]
    if not keys:
        return None
    found = await session.scalars(select(Turn).where(Turn.key.in_(keys)).order_by(Turn.number.desc()).limit(1))
    return found.first()


def describe_refusal(asks: Sequence[Ask]) -> str:
    """A sentence that names the last of them."""
    last = asks[-1]
    title = cut(" ".join(last.title.split()), 300)
    more = len({ask.title for ask in asks}) - 1
    others = "" if not more else f" ({more} more)"
    if last.decided_by == "timeout":
        return f"The agent was denied permission for “{title}”{others}, because nobody answered in time."
    return f"The agent was denied permission for “{title}”{others}. {last.detail.get('reason') or ''}".rstrip()


async def overruled_patterns(tx: Transaction, session_id: str) -> set[str]:
    """Patterns that the project denies, and somebody has allowed for this session."""
    query = select(Ask.detail).where(Ask.session_id == session_id, Ask.decided_by == OVERRULED)
    return {detail["pattern"] for detail in await tx.session.scalars(query) if "pattern" in detail}


def overrule(tx: Transaction, session: Session, ask: Ask, caller: Principal) -> None:
    """From now on the session's agent may do what the pattern denies that this was refused for."""
    ask.decided_by, ask.user_id = OVERRULED, caller.user_id
    tx.emit("ask.overruled", **about(session), **_about(ask), decidedBy=OVERRULED, pattern=ask.detail["pattern"])
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


def _draft(scene: Scene, key: str, kind: AskKind, title: str, detail: dict[str, Any]) -> Ask:
    ask = Ask(
        id=ordered_id("ask_"),
        session_id=scene.session.id,
        turn_id=scene.turn.id,
        run_id=scene.run.id,
        request=key,
        kind=kind,
        title=title,
        detail=detail,
        status=AskStatus.PENDING,
        created_at=utc_now(),
    )
    scene.tx.add(ask)
    return ask


def _put_to_person(scene: Scene, ask: Ask, seconds: int | None) -> None:
    tx, session, turn = scene.tx, scene.session, scene.turn
    ask.expires_at = None if seconds is None else ask.created_at + timedelta(seconds=seconds)
    tx.emit("ask.created", **about(session), **_about(ask))
    if turn.status != TurnStatus.WAITING:
        turn.status = TurnStatus.WAITING
        tx.emit("turn.waiting", **about(session), **about_turn(turn), askId=ask.id)


def close(
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
    """The answer goes to the agent, if it still lives. Neither a decision nor content: it is cancelled."""
    answer, result = _result(ask, decision, option_id, content)
    ask.status, ask.answer, ask.decided_by = status, answer, by
    ask.user_id = caller.user_id if caller else None
    ask.answered_at = utc_now()
    if ask.detail.get("by") != PLATFORM and run is not None and run.status in LIVE_RUNS:
        say(tx, run, wire.answer(ask.request, result))
    tx.emit(f"ask.{status}", **about(session), **_about(ask), answer=bounded(answer, 4000), decidedBy=by)
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
                "answer": bounded(answer, 2000),
                "title": ask.title[:300],
                "sessionId": session.id,
                "turnId": ask.turn_id,
                "reason": ask.detail.get("reason"),
            },
        )
    )


def _result(
    ask: Ask, decision: Decision | None, option_id: str | None, content: dict[str, Any] | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is remembered, and what the agent is told."""
    if ask.kind == AskKind.QUESTION and ask.detail.get("by") != PLATFORM:
        if content is not None:
            return {"action": "accept", "content": content}, {"action": "accept", "content": content}
        action = "cancel" if decision is None else "decline"
        return {"action": action}, {"action": action}
    options: list[dict[str, Any]] = ask.detail.get("options") or []
    option = next((one for one in options if option_id is not None and one["optionId"] == option_id), None)
    if option is None and decision is not None:
        option = choose(options, decision)
    if option is None:
        return {"outcome": "cancelled", "decision": decision}, _NO_OPTION
    told = {"outcome": {"outcome": "selected", "optionId": option["optionId"]}}
    return {"outcome": "selected", "optionId": option["optionId"], "kind": option["kind"], "decision": decision}, told


async def pending_of(tx: Transaction, turn: Turn) -> list[Ask]:
    query = select(Ask).where(Ask.turn_id == turn.id, Ask.status == AskStatus.PENDING).order_by(Ask.id)
    return list(await tx.session.scalars(query))


async def withdraw_stuck(tx: Transaction, session: Session, run: AgentRun, turn: Turn) -> None:
    """It does something again, so nobody has to say whether it shall."""
    for ask in await pending_of(tx, turn):
        if ask.detail.get("by") == PLATFORM:
            close(tx, session, run, ask, AskStatus.CANCELLED, by="cancel")
    await go_on(tx, session, turn)


async def cancel_all(tx: Transaction, session: Session, run: AgentRun | None, turn: Turn) -> None:
    """Nobody waits for these any more."""
    for ask in await pending_of(tx, turn):
        close(tx, session, run, ask, AskStatus.CANCELLED, by="cancel")


async def go_on(tx: Transaction, session: Session, turn: Turn) -> None:
    """Call it when an ask was closed: without another one the turn goes on."""
    await tx.session.flush()
    if turn.status == TurnStatus.WAITING and not await pending_of(tx, turn):
        turn.status = TurnStatus.RUNNING
        turn.active_at = utc_now()
        turn.stuck_at = None
        tx.emit("turn.resumed", **about(session), **about_turn(turn))


def _options(given: Any) -> list[dict[str, Any]]:
    return [
        {
            "optionId": one["optionId"][:300],
            "name": cut(str(one.get("name") or ""), 300),
            "kind": str(one.get("kind"))[:40],
        }
        for one in (given if isinstance(given, list) else [])[:OPTIONS]
        if isinstance(one, dict) and isinstance(one.get("optionId"), str)
    ]


def _about(ask: Ask) -> dict[str, Any]:
    return {
        "askId": ask.id,
        "turnId": ask.turn_id,
        "askKind": ask.kind,
        "title": ask.title[:1000],
        "options": ask.detail.get("options", [])[:10],
    }
