"""MCP tools: questions and permission requests of agents."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from sandyard.platform.api.mcp.arguments import AskId, Paged, SessionId, TaskId
from sandyard.platform.api.mcp.tool import Call, Toolbox
from sandyard.platform.api.schema import Input, Instant, Model, example
from sandyard.platform.db import models
from sandyard.platform.domain.agents.model import AskKind, AskStatus
from sandyard.platform.domain.paging import PageRequest

tools = Toolbox()
MAX_TITLE_LENGTH, MAX_FORM_LENGTH = 4_000, 16_000
MAX_PENDING = 20


class ListAsks(Paged):
    model_config = example(taskId="tsk_00mwhnkzc0a1b2c3d4e5", status="pending")

    task_id: TaskId | None = Field(default=None, description="Only those of this task.")
    session_id: SessionId | None = Field(default=None, description="Only those of this session.")
    status: AskStatus | None = Field(
        default=AskStatus.PENDING, description="pending: those waiting for an answer. null: all."
    )


class AnswerAsk(Input):
    model_config = example(askId="ask_00mwhnkzc0a1b2c3d4e5", decision="allow")

    ask_id: AskId
    option_id: str | None = Field(default=None, max_length=300, description="One of the request's options.")
    decision: Literal["allow", "allow_always", "reject", "reject_always"] | None = Field(
        default=None, description="Instead of an option: the option with this meaning."
    )
    content: dict[str, Any] | None = Field(
        default=None,
        max_length=200,
        description="The answer to a question with a form, by field.",
        examples=[{"answer": "yes"}],
    )
    message: str | None = Field(
        default=None,
        min_length=1,
        max_length=50_000,
        description="With a denied permission: what the agent should do instead.",
    )


class Option(Model):
    option_id: str
    name: str
    kind: str = Field(description="allow_once, allow_always, reject_once or reject_always.")


class AskState(Model):
    model_config = example(
        id="ask_00mwhnkzc0a1b2c3d4e5",
        sessionId="ses_00mwhnkz2f0a9s8d7f6g",
        kind="permission",
        status="pending",
        title="rm -rf build",
    )

    id: str
    session_id: str
    turn_id: str | None
    kind: AskKind = Field(
        description="permission: the agent wants to do something. question: the agent wants to know something."
    )
    status: AskStatus
    title: str
    options: list[Option]
    form: Any = Field(
        default=None, description="For a question: the JSON schema of its answer. Null if it is too large to show here."
    )
    answer: dict[str, Any] | None
    created_at: Instant
    expires_at: Instant | None = Field(description="When it is denied automatically if nobody answers.")

    @classmethod
    def from_row(cls, row: models.Ask) -> AskState:
        form = row.detail.get("form")
        return cls(
            id=row.id,
            session_id=row.session_id,
            turn_id=row.turn_id,
            kind=AskKind(row.kind),
            status=AskStatus(row.status),
            title=row.title[:MAX_TITLE_LENGTH],
            options=[Option.model_validate(option) for option in row.detail.get("options") or []],
            form=form if form is None or len(str(form)) <= MAX_FORM_LENGTH else None,
            answer=row.answer,
            created_at=row.created_at,
            expires_at=row.expires_at,
        )


class AskList(Model):
    items: list[AskState]
    next_cursor: str | None


@tools.add("list_asks", title="List agents' requests", reads=True)
async def list_asks(call: Call, arguments: ListAsks) -> AskList:
    """List the questions and permission requests of agents, newest first. An agent waits until its request is answered."""
    found = await call.services.asks.list(
        call.caller, arguments.page, session_id=arguments.session_id, task_id=arguments.task_id, status=arguments.status
    )
    return AskList(items=[AskState.from_row(row) for row in found.items], next_cursor=found.next_cursor)


@tools.add("answer_ask", title="Answer an agent")
async def answer_ask(call: Call, arguments: AnswerAsk) -> AskState:
    """Answer a question or permission request with one of optionId, decision or content. The agent continues immediately.

    You answer on behalf of your token's owner: do not allow what they would not allow.
    """
    row = await call.services.asks.answer(
        call.caller,
        arguments.ask_id,
        option_id=arguments.option_id,
        decision=arguments.decision,
        content=arguments.content,
        message=arguments.message,
    )
    call.add_audit_detail(decision=arguments.decision, option=arguments.option_id)
    return AskState.from_row(row)


async def list_pending(call: Call, *, task_id: str | None = None, session_id: str | None = None) -> list[AskState]:
    """Return the newest pending requests of a task or session, for the results of other tools."""
    found = await call.services.asks.list(
        call.caller, PageRequest(MAX_PENDING), task_id=task_id, session_id=session_id, status=AskStatus.PENDING
    )
    return [AskState.from_row(row) for row in found.items]
