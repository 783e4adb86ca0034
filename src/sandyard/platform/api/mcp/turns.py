"""MCP tools: prompts to agents in sessions."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from sandyard.platform.api.mcp import transcript
from sandyard.platform.api.mcp.arguments import Paged, SessionId, id_field, wait_field
from sandyard.platform.api.mcp.asks import AskState, list_pending
from sandyard.platform.api.mcp.event_wait import wait_for_events
from sandyard.platform.api.mcp.tool import Call, Toolbox
from sandyard.platform.api.mcp.transcript import Transcript
from sandyard.platform.api.schema import Input, Model, example
from sandyard.platform.db import models
from sandyard.platform.db.models.message_parts import TextPart
from sandyard.platform.domain.agents.model import TurnStatus
from sandyard.platform.domain.events.model import EventFilter
from sandyard.platform.domain.paging import PageRequest

tools = Toolbox()
TurnId = Annotated[str, id_field("turn", "trn_00mwhnkzc0a1b2c3d4e5")]
MAX_MESSAGES = 100


class PromptSession(Input):
    model_config = example(sessionId="ses_00mwhnkz2f0a9s8d7f6g", text="Please fix the login.", waitSeconds=300)

    session_id: SessionId
    text: str = Field(min_length=1, max_length=200_000, description="The instructions for the agent.")
    model: str | None = Field(
        default=None, min_length=1, max_length=200, description="Applies from now on. Default: unchanged."
    )
    mode: str | None = Field(
        default=None, min_length=1, max_length=100, description="Applies from now on. Default: unchanged."
    )
    key: str | None = Field(
        default=None,
        min_length=1,
        max_length=60,
        pattern=r"^[A-Za-z0-9._-]+$",
        description="Idempotency key: a prompt sent again with the same key returns the same turn.",
    )
    wait_seconds: Annotated[float, wait_field(120)]


class TurnReference(Input):
    model_config = example(turnId="trn_00mwhnkzc0a1b2c3d4e5")

    turn_id: TurnId


class WaitForTurn(TurnReference):
    model_config = example(turnId="trn_00mwhnkzc0a1b2c3d4e5", waitSeconds=300)

    wait_seconds: Annotated[float, wait_field(120)]


class ReadSession(Paged):
    model_config = example(sessionId="ses_00mwhnkz2f0a9s8d7f6g")

    session_id: SessionId


class TurnState(Model):
    model_config = example(
        turnId="trn_00mwhnkzc0a1b2c3d4e5", sessionId="ses_00mwhnkz2f0a9s8d7f6g", status="completed", asks=[]
    )

    turn_id: str
    session_id: str
    status: TurnStatus = Field(
        description="queued, running: not finished; call wait_for_turn. waiting: see asks, call answer_ask. Any other status: finished."
    )
    stop_reason: str | None
    error: str | None
    asks: list[AskState] = Field(description="Open requests that the agent needs answered before it continues.")
    said: Transcript = Field(description="The messages of the turn so far, newest first.")


class TurnStatusReport(Model):
    turn_id: str
    session_id: str
    status: TurnStatus


@tools.add("prompt_session", title="Prompt a session's agent", limit="execute", waits=True)
async def prompt_session(call: Call, arguments: PromptSession) -> TurnState:
    """Send a prompt to a session's agent, and wait until it is done or needs an answer.

    The prompt is queued while the agent is working. If the time runs out first, the agent continues: call wait_for_turn to keep waiting.
    """
    key = None if arguments.key is None else f"mcp:{call.caller.user_id}:{arguments.session_id}:{arguments.key}"
    parts: list[TextPart] = [{"type": "text", "text": arguments.text}]
    with call.shield():
        turn = await call.services.turns.prompt(
            call.caller, arguments.session_id, parts, key=key, model=arguments.model, mode=arguments.mode
        )
    call.add_audit_detail(turn=turn.id)
    return await _wait_for_turn(call, turn, arguments.wait_seconds)


@tools.add("wait_for_turn", title="Wait for an agent", reads=True, waits=True)
async def wait_for_turn(call: Call, arguments: WaitForTurn) -> TurnState:
    """Wait until a session's agent has finished a prompt or needs an answer. With waitSeconds 0, returns the current state."""
    return await _wait_for_turn(
        call, await call.services.turns.get(call.caller, arguments.turn_id), arguments.wait_seconds
    )


@tools.add("cancel_turn", title="Stop an agent", repeats=True)
async def cancel_turn(call: Call, arguments: TurnReference) -> TurnStatusReport:
    """Cancel a turn. What the agent has done so far is kept.

    The agent is asked to stop, and killed if it does not. Use wait_for_turn to see when it has stopped.
    """
    turn = await call.services.turns.cancel(call.caller, arguments.turn_id)
    return TurnStatusReport(turn_id=turn.id, session_id=turn.session_id, status=TurnStatus(turn.status))


@tools.add("session_transcript", title="Read a session", reads=True)
async def session_transcript(call: Call, arguments: ReadSession) -> Transcript:
    """Read a session's transcript, newest first."""
    return transcript.get_page(
        await call.services.sessions.list_messages(call.caller, arguments.session_id, arguments.page)
    )


async def _wait_for_turn(call: Call, turn: models.Turn, seconds: float) -> TurnState:
    turns = call.services.turns
    turn = await wait_for_events(
        call,
        EventFilter(session_id=turn.session_id),
        lambda: turns.get(call.caller, turn.id),
        lambda turn_state: TurnStatus(turn_state.status).is_final or turn_state.status == TurnStatus.WAITING,
        lambda turn_state: f"The turn is {turn_state.status}.",
        seconds,
    )
    return await _make_turn_state(call, turn)


async def _make_turn_state(call: Call, turn: models.Turn) -> TurnState:
    rows = await call.services.sessions.list_messages(call.caller, turn.session_id, PageRequest(MAX_MESSAGES))
    asks = await list_pending(call, session_id=turn.session_id) if turn.status == TurnStatus.WAITING else []
    return TurnState(
        turn_id=turn.id,
        session_id=turn.session_id,
        status=TurnStatus(turn.status),
        stop_reason=turn.stop_reason,
        error=turn.error,
        asks=[ask for ask in asks if ask.turn_id == turn.id],
        said=transcript.get_turn(rows.items, turn.id),
    )
