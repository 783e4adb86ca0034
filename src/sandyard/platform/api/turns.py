"""Prompts to a session's agent, their results, and the agent's questions and permission requests."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Query, Request
from pydantic import Field

from sandyard.platform.api.audit_middleware import add_audit_detail
from sandyard.platform.api.auth import Caller
from sandyard.platform.api.dependencies import inject
from sandyard.platform.api.large_responses import limit_large_responses
from sandyard.platform.api.limits import limit_rate
from sandyard.platform.api.paging import Page, Paging
from sandyard.platform.api.routers import api_router
from sandyard.platform.api.schema import Input, Instant, Model, example, id_in_path
from sandyard.platform.api.sessions import SessionId
from sandyard.platform.db import models
from sandyard.platform.db.models.message_parts import TextPart
from sandyard.platform.domain.agents.json_columns import list_public_options
from sandyard.platform.domain.agents.model import AskKind, AskStatus, Origin, TurnStatus
from sandyard.platform.domain.agents.questions import service
from sandyard.platform.domain.agents.runner import turns
from sandyard.platform.domain.tasks import board

router = api_router("turns")
Turns = Annotated[turns.AgentTurns, inject("turns")]
Asks = Annotated[service.Asks, inject("asks")]
Tasks = Annotated[board.Tasks, inject("tasks")]
TurnId = Annotated[str, id_in_path("turn", "trn_00mwi1cctnrcrsa8m4re")]
AskId = Annotated[str, id_in_path("request", "ask_00mwi1cd0a1b2c3d4e5f")]
MAX_PROMPT = 200_000


class NewTurn(Input):
    model_config = example(text="Please fix the login.")

    text: str = Field(min_length=1, max_length=MAX_PROMPT)
    model: str | None = Field(None, min_length=1, max_length=200, description="Applies from this turn on.")
    mode: str | None = Field(None, min_length=1, max_length=100, description="Applies from this turn on.")
    key: str | None = Field(
        None,
        min_length=1,
        max_length=150,
        pattern=r"^[A-Za-z0-9._:-]+$",
        description="Idempotency key: a prompt sent again with the same key returns the same turn.",
    )


class TurnView(Model):
    model_config = example(
        id="trn_00mwi1cctnrcrsa8m4re", sessionId="ses_00mwhnkz2f0a9s8d7f6g", number=1, status="running"
    )

    id: str
    session_id: str
    number: int
    origin: Origin
    user_id: str | None
    prompt_id: str | None = Field(description="The message that started the turn.")
    model: str | None
    mode: str | None
    status: TurnStatus = Field(
        description="waiting: the agent is waiting for a person. over_budget: the turn was stopped because the budget is used up."
    )
    stop_reason: str | None = Field(description="As reported by the agent.")
    error: str | None
    error_code: str | None
    usage: dict[str, Any] = Field(
        description="models: counted by the platform. agent and context: reported by the agent."
    )
    queued_at: Instant
    started_at: Instant | None
    active_at: Instant | None = Field(description="When the agent was last active.")
    stuck_at: Instant | None = Field(description="When the agent began to look stuck. Null if it does not.")
    cancel_at: Instant | None = Field(description="When cancellation was requested.")
    finished_at: Instant | None

    @classmethod
    def from_row(cls, row: models.Turn) -> TurnView:
        return cls.model_validate(row)


class AgentStateView(Model):
    """The latest run of the session's agent."""

    model_config = example(agent="demo", status="ready", model=None)

    agent: str | None
    model: str | None
    mode: str | None
    status: Literal["none", "starting", "ready", "ended", "lost"]
    run_id: str | None
    sandbox_id: str | None
    capabilities: dict[str, Any] = Field(description="The capabilities the agent reported on connecting.")
    options: dict[str, Any] = Field(
        description="The agent's modes, models, commands and other options, as last reported."
    )
    exit_code: int | None
    error: str | None
    error_code: str | None
    started_at: Instant | None
    ended_at: Instant | None

    @classmethod
    def from_run(cls, session: models.Session, run: models.AgentRun | None) -> AgentStateView:
        if run is None:
            blank = dict.fromkeys(("run_id", "exit_code", "error", "error_code", "started_at", "ended_at"))
            return cls(
                agent=session.agent,
                model=session.model,
                mode=session.mode,
                status="none",
                sandbox_id=session.sandbox_id,
                capabilities={},
                options={},
                **blank,
            )
        options = list_public_options(run)
        return cls.model_validate(
            {
                "agent": run.agent,
                "model": run.model,
                "mode": options.get("currentMode") or session.mode,
                "status": run.status,
                "run_id": run.id,
                "sandbox_id": run.sandbox_id,
                "capabilities": run.capabilities,
                "options": options,
                **{name: getattr(run, name) for name in ("exit_code", "error", "error_code", "started_at", "ended_at")},
            }
        )


class AskView(Model):
    model_config = example(id="ask_00mwi1cd0a1b2c3d4e5f", kind="permission", title="rm -rf build", status="pending")

    id: str
    session_id: str
    turn_id: str | None
    kind: AskKind
    title: str
    detail: dict[str, Any] = Field(
        description="The `options` to choose from, the `toolCall`, or the `form` to fill in."
    )
    status: AskStatus
    answer: dict[str, Any] | None
    decided_by: str | None = Field(
        description="person, policy, timeout or cancel. overruled: denied by the policy and later allowed by a person."
    )
    user_id: str | None
    created_at: Instant
    expires_at: Instant | None = Field(description="When the request is denied automatically if nobody answers.")
    answered_at: Instant | None

    @classmethod
    def from_row(cls, row: models.Ask) -> AskView:
        return cls.model_validate(row)


class Answer(Input):
    model_config = example(decision="allow")

    option_id: str | None = Field(None, min_length=1, max_length=300, description="One of the agent's own options.")
    decision: Literal["allow", "allow_always", "reject", "reject_always"] | None = Field(
        None, description="The option with this meaning, whatever the agent calls it."
    )
    content: dict[str, Any] | None = Field(None, max_length=200, description="The values of a form.")
    message: str | None = Field(
        None,
        min_length=1,
        max_length=MAX_PROMPT,
        description="With a denied permission: what the agent should do instead. It becomes the session's next turn.",
    )


class AllowOptions(Input):
    model_config = example(resume=True)

    resume: bool = Field(
        default=True,
        description="Continue the session's failed task attempt, or notify its agent, unless it is already working.",
    )


@router.post("/sessions/{session_id}/turns", name="turn.create", status_code=202, dependencies=[limit_rate("execute")])
async def create(request: Request, caller: Caller, service: Turns, session_id: SessionId, body: NewTurn) -> TurnView:
    """Send a prompt to the session's agent. It is queued while the agent works on another prompt."""
    parts: list[TextPart] = [{"type": "text", "text": body.text}]
    key = None if body.key is None else f"{session_id}:{body.key}"
    turn = await service.prompt(caller, session_id, parts, key=key, model=body.model, mode=body.mode)
    add_audit_detail(request, turn=turn.id)
    return TurnView.from_row(turn)


@router.get("/sessions/{session_id}/turns", name="turn.list")
async def list_(caller: Caller, service: Turns, session_id: SessionId, page: Paging) -> Page[TurnView]:
    """List turns, newest first."""
    return Page.from_listing(await service.list(caller, session_id, page), TurnView.from_row)


@router.get("/sessions/{session_id}/agent", name="session.agent", dependencies=[limit_large_responses()])
async def agent(caller: Caller, service: Turns, session_id: SessionId) -> AgentStateView:
    """Get the state of the session's agent and its options. Does not resume it."""
    return AgentStateView.from_run(*await service.get_agent_run(caller, session_id))


@router.get("/turns/{turn_id}", name="turn.get", dependencies=[limit_large_responses()])
async def get(caller: Caller, service: Turns, turn_id: TurnId) -> TurnView:
    return TurnView.from_row(await service.get(caller, turn_id))


@router.post("/turns/{turn_id}/cancel", name="turn.cancel", status_code=202)
async def cancel(caller: Caller, service: Turns, turn_id: TurnId) -> TurnView:
    """Cancel a turn. A queued turn never starts. A running agent is asked to stop, and killed if it does not."""
    return TurnView.from_row(await service.cancel(caller, turn_id))


@router.post("/turns/{turn_id}/retry", name="turn.retry", status_code=202, dependencies=[limit_rate("execute")])
async def retry(request: Request, caller: Caller, service: Turns, turn_id: TurnId) -> TurnView:
    """Send the same prompt as a new turn."""
    turn = await service.retry(caller, turn_id)
    add_audit_detail(request, turn=turn.id)
    return TurnView.from_row(turn)


@router.get("/asks", name="ask.list")
async def list_asks(
    caller: Caller,
    service: Asks,
    page: Paging,
    session_id: Annotated[str | None, Query(alias="sessionId", max_length=40)] = None,
    task_id: Annotated[str | None, Query(alias="taskId", max_length=40)] = None,
    status: AskStatus | None = None,
) -> Page[AskView]:
    """List the permission requests and questions of agents, newest first."""
    found = await service.list(caller, page, session_id=session_id, task_id=task_id, status=status)
    return Page.from_listing(found, AskView.from_row)


@router.get("/asks/{ask_id}", name="ask.get", dependencies=[limit_large_responses()])
async def get_ask(caller: Caller, service: Asks, ask_id: AskId) -> AskView:
    return AskView.from_row(await service.get(caller, ask_id))


@router.post("/asks/{ask_id}/answer", name="ask.answer", dependencies=[limit_rate("execute")])
async def answer(request: Request, caller: Caller, service: Asks, ask_id: AskId, body: Answer) -> AskView:
    """Answer with one of optionId, decision or content. The agent continues; its sandbox is resumed if it is paused."""
    ask = await service.answer(
        caller,
        ask_id,
        option_id=body.option_id,
        decision=body.decision,
        content=body.content,
        message=body.message,
    )
    add_audit_detail(request, session=ask.session_id, decision=body.decision, option=body.option_id)
    return AskView.from_row(ask)


@router.post("/asks/{ask_id}/allow", name="ask.allow", dependencies=[limit_rate("execute")])
async def allow(
    request: Request, caller: Caller, service: Asks, prompts: Turns, cards: Tasks, ask_id: AskId, body: AllowOptions
) -> AskView:
    """Allow what the project's policy denied, for the rest of the session, and continue.

    Applies to requests with `decidedBy: policy`, with the `pattern` in their detail. Only for the project's owner and administrators.
    """
    ask = await service.allow(caller, ask_id)
    add_audit_detail(request, session=ask.session_id, pattern=ask.detail.get("pattern"))
    if body.resume and not await cards.resume_allowed(caller, ask.session_id, [ask.title]):
        await prompts.resume_allowed(caller, ask.session_id, [ask.title])
    return AskView.from_row(ask)
