"""The client side of the Agent Client Protocol: decide what to send to an agent next.

That is `initialize`, its session, its mode and model, and the prompt. Each step is decided in the transaction that saw
the reason for it, so that a crash never repeats a decision.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from sandyard.kit.text import make_storable
from sandyard.platform.db.database import Transaction
from sandyard.platform.db.models import AgentRun, Message, Session, Turn
from sandyard.platform.db.models.message_parts import MessagePart, TextPart
from sandyard.platform.domain.agents.acp.mcp import list_supported_servers
from sandyard.platform.domain.agents.acp.outbox import list_pending_methods, queue_request
from sandyard.platform.domain.agents.acp.transcript import limit_json, truncate
from sandyard.platform.domain.agents.errors import AgentProtocolError
from sandyard.platform.domain.agents.json_columns import (
    RunOptions,
    change_options,
    get_agent_capabilities,
    get_run_options,
)
from sandyard.platform.domain.agents.model import PLATFORM, RunStatus
from sandyard.platform.domain.agents.repository import get_session_fields, load_agent_settings
from sandyard.platform.domain.mcp_servers.model import make_fingerprint
from sandyard.platform.domain.mcp_servers.records import list_servers
from sandyard.platform.domain.sandboxes.model import utc_now

PROTOCOL_VERSION = 1
WAKING = "waking"
"""Error code of a turn that was stuck and is being interrupted, to be prompted to continue."""
CONTINUE = "You were interrupted because you had been silent for a long time. Look at the existing work, and continue."
SUMMARY_LIMIT, SUMMARY_PART_LIMIT, SUMMARY_MESSAGES = 24_000, 2_000, 400
"""Limits of the summary: characters in total and of one part, and messages."""
SUMMARY_HEAD = (
    "This conversation started earlier, and you do not remember it. The files are as they were left. A record of it follows, "
    "newest last; continue from there.\n\n"
)
SUMMARY_TAIL = "\n\nEnd of the record. What is asked of you now:\n"
_NEWEST = "msg_~"  # sorts after every message id
_SET_MODE, _SET_OPTION = "session/set_mode", "session/set_config_option"


class NextStep(StrEnum):
    """The next action after a message. RESTART: the process must be replaced, because the session has another agent now, or because
    this one can get its model, its MCP servers or the project's policy only at its start."""

    WAIT = "wait"
    WORK = "work"
    RESTART = "restart"


def send_initialize(tx: Transaction, run: AgentRun, version: str) -> None:
    """Queue `initialize`. The agent acts in its own sandbox, so it gets no files and terminals from the client."""
    queue_request(
        tx,
        run,
        "initialize",
        {
            "protocolVersion": PROTOCOL_VERSION,
            "clientCapabilities": {
                "fs": {"readTextFile": False, "writeTextFile": False},
                "terminal": False,
                "elicitation": {"form": {}},
            },
            "clientInfo": {"name": "sandyard", "title": "Sandyard", "version": version},
        },
    )


async def handle_initialized(tx: Transaction, run: AgentRun, result: dict[str, Any]) -> None:
    """Handle the answer to `initialize`. Raises AgentProtocolError if the agent uses another protocol version."""
    version = result.get("protocolVersion")
    if version != PROTOCOL_VERSION:
        raise AgentProtocolError(
            f"The agent uses version {make_storable(str(version))[:20]} of the Agent Client Protocol; the platform supports "
            f"version {PROTOCOL_VERSION}."
        )
    capabilities = result.get("agentCapabilities")
    run.capabilities = {
        "agent": limit_json(capabilities, 16_000) if isinstance(capabilities, dict) else {},
        "info": limit_json(result.get("agentInfo"), 2_000),
    }
    methods = result.get("authMethods")
    offered = [method.get("id") for method in methods if isinstance(method, dict)] if isinstance(methods, list) else []
    wanted = get_run_options(run).get("auth")
    if wanted is not None and wanted in offered:
        queue_request(tx, run, "authenticate", {"methodId": wanted})
    else:
        await open_session(tx, run)


async def open_session(tx: Transaction, run: AgentRun, *, anew: bool = False) -> None:
    """Continue the earlier conversation if the agent supports it, or open a new one."""
    capabilities = get_agent_capabilities(run)
    folder = get_run_options(run).get("folder") or "/home/user"
    place: dict[str, Any] = {"cwd": folder, "mcpServers": list_supported_servers(run)}
    of_sessions = capabilities.get("sessionCapabilities")
    resumes = isinstance(of_sessions, dict) and of_sessions.get("resume") is not None
    if not anew and (resumes or capabilities.get("loadSession") is True):
        query = select(AgentRun.acp_session).where(
            AgentRun.session_id == run.session_id,
            AgentRun.agent == run.agent,
            AgentRun.id != run.id,
            AgentRun.acp_session.is_not(None),
        )
        before = (await tx.session.scalars(query.order_by(AgentRun.id.desc()).limit(1))).first()
        if before is not None:
            run.acp_session = before
            queue_request(tx, run, "session/resume" if resumes else "session/load", {"sessionId": before, **place})
            return
    run.acp_session = None
    queue_request(tx, run, "session/new", place)


def record_session_opened(
    tx: Transaction, session: Session, run: AgentRun, result: dict[str, Any], *, fresh: bool
) -> None:
    """Record that the agent has opened its session."""
    if fresh:
        run.acp_session = make_storable(str(result.get("sessionId") or ""))[:300]
    kept = {name: value for name, value in run.options.items() if name not in ("mcpServers", "mcpMissing")}
    run.options = {**kept, "fresh": fresh, **parse_session_options(result)}
    run.status = RunStatus.READY
    tx.emit(
        "agent.ready",
        **get_session_fields(session),
        runId=run.id,
        agent=run.agent,
        model=run.model,
        remembers=not fresh,
    )


def parse_session_options(result: dict[str, Any]) -> RunOptions:
    found: RunOptions = {}
    modes = result.get("modes")
    if isinstance(modes, dict):
        available = modes.get("availableModes")
        found["modes"] = [
            {"id": truncate(str(mode.get("id")), 100), "name": truncate(str(mode.get("name") or mode.get("id")), 200)}
            for mode in (available if isinstance(available, list) else [])[:50]
            if isinstance(mode, dict)
        ]
        found["currentMode"] = truncate(str(modes.get("currentModeId") or ""), 100)
    if isinstance(result.get("configOptions"), list):
        found["configOptions"] = limit_json(result["configOptions"], 64 << 10)
    return found


async def advance(tx: Transaction, session: Session, run: AgentRun, turn: Turn) -> NextStep:
    """Take the next step of a turn that has not been prompted, if the agent is ready for it."""
    if (
        run.status != RunStatus.READY
        or turn.request is not None
        or turn.cancel_at is not None
        or list_pending_methods(run)
    ):
        return NextStep.WAIT
    strictness = (await load_agent_settings(tx.session, session)).permissions.strictness
    servers = make_fingerprint(await list_servers(tx.session, session.project_id))
    options = get_run_options(run)
    had = (run.agent, options.get("strictness", "none"), options.get("mcpFingerprint", ""))
    if (session.agent or run.agent, strictness, servers) != had:
        return NextStep.RESTART
    if turn.model is not None and turn.model != run.model:
        choice = _find_choice(run, "model", turn.model)
        if choice is None:
            return NextStep.RESTART
        run.model = turn.model
        if choice[1] is not None:
            queue_request(
                tx, run, _SET_OPTION, {"sessionId": run.acp_session, "configId": choice[0], "value": choice[1]}
            )
            return NextStep.WORK
    wanted = turn.mode if strictness == "none" else _select_asking_mode(run, turn.mode)
    if wanted is not None and wanted != get_run_options(run).get("currentMode") and _set_mode(tx, run, wanted):
        return NextStep.WORK
    await _send_prompt(tx, session, run, turn)
    return NextStep.WORK


def _select_asking_mode(run: AgentRun, wanted: str | None) -> str | None:
    """Return the wanted mode if the agent asks in it, or the first mode in which it does."""
    asking = get_run_options(run).get("askingModes")
    if asking is None or wanted in asking:
        return wanted
    return asking[0] if asking else None


def _set_mode(tx: Transaction, run: AgentRun, mode: str) -> bool:
    """Request a change of the mode. Returns False if there is no such mode, or if it is set already."""
    if any(known["id"] == mode for known in get_run_options(run).get("modes", ())):
        queue_request(tx, run, _SET_MODE, {"sessionId": run.acp_session, "modeId": mode})
        change_options(run, {"currentMode": mode})
        return True
    choice = _find_choice(run, "mode", mode)
    if choice is None or choice[1] is None:
        return False
    queue_request(tx, run, _SET_OPTION, {"sessionId": run.acp_session, "configId": choice[0], "value": choice[1]})
    change_options(run, {"currentMode": mode})
    return True


def _find_choice(run: AgentRun, category: str, wanted: str) -> tuple[str, str | None] | None:
    """Return the agent's option to set and the value for it. The value is None if the option has it already."""
    options = get_run_options(run).get("configOptions")
    for option in options if isinstance(options, list) else ():
        if not isinstance(option, dict) or option.get("category") != category or not isinstance(option.get("id"), str):
            continue
        given = option.get("options")
        groups = [group for group in (given if isinstance(given, list) else ()) if isinstance(group, dict)]
        choices = [choice for group in groups
                   for choice in (group["options"] if isinstance(group.get("options"), list) else [group])]  # fmt: skip
        for choice in choices:
            value = choice.get("value") if isinstance(choice, dict) else None
            if isinstance(value, str) and (wanted in (value, choice.get("name")) or value.endswith(f"/{wanted}")):
                return option["id"], None if value == option.get("currentValue") else value
    return None


def _make_content_block(run: AgentRun, part: TextPart) -> dict[str, Any]:
    """Return a content block. Agents with the capability `_meta.sandyard.sources` are told which blocks no person
    wrote."""
    block: dict[str, Any] = {"type": "text", "text": part["text"]}
    if "source" in part and _supports_sources(run):
        block["_meta"] = {"sandyard": {"source": part["source"], "about": part.get("about")}}
    return block


def _supports_sources(run: AgentRun) -> bool:
    found: Any = run.capabilities
    for name in ("agent", "_meta", "sandyard", "sources"):
        found = found.get(name) if isinstance(found, dict) else None
    return found is True


async def _send_prompt(tx: Transaction, session: Session, run: AgentRun, turn: Turn) -> None:
    message = await tx.session.get(Message, turn.prompt_id) if turn.prompt_id is not None else None
    parts = message.parts if message is not None else []
    blocks = [_make_content_block(run, part) for part in parts if part["type"] == "text"]
    before = turn.prompt_id or _NEWEST
    if turn.error_code == WAKING:
        blocks, before = [_make_content_block(run, {"type": "text", "text": CONTINUE, "source": PLATFORM})], _NEWEST
        turn.error_code = None
    if get_run_options(run).get("fresh"):
        summary = await _summarize_conversation(tx.session, session.id, before)
        if summary is not None:
            blocks.insert(0, _make_content_block(run, {"type": "text", "text": summary, "source": PLATFORM}))
            tx.emit("agent.reminded", **get_session_fields(session), runId=run.id, turnId=turn.id)
        change_options(run, {"fresh": False})
    if "prompted" not in get_run_options(run):
        change_options(run, {"prompted": run.sent})
    turn.request = queue_request(tx, run, "session/prompt", {"sessionId": run.acp_session, "prompt": blocks})
    turn.active_at = utc_now()


async def _summarize_conversation(session: AsyncSession, session_id: str, before: str) -> str | None:
    """Summarize the messages before this one. Returns None if there are none."""
    query = select(Message).where(Message.session_id == session_id, Message.id < before)
    found = list(await session.scalars(query.order_by(Message.id.desc()).limit(SUMMARY_MESSAGES)))
    return write_summary([(row.role, row.parts) for row in reversed(found)])


def write_summary(messages: list[tuple[str, list[MessagePart]]]) -> str | None:
    """Write as many of the last messages as fit into the limit."""
    lines: list[str] = []
    room = SUMMARY_LIMIT
    for role, parts in reversed(messages):
        written = [line for part in parts if (line := _summarize_part(role, part))]
        size = sum(len(line) + 1 for line in written)
        if size > room:
            lines.append("(Earlier messages are left out.)")
            break
        room -= size
        lines.extend(reversed(written))
    return SUMMARY_HEAD + "\n".join(reversed(lines)) + SUMMARY_TAIL if lines else None


def _summarize_part(role: str, part: MessagePart) -> str | None:
    if part["type"] == "text":
        return f"{'User' if role == 'user' else 'You'}: {truncate(part['text'], SUMMARY_PART_LIMIT)}"
    if part["type"] == "tool_call":
        return f"You did: {truncate(part['title'] or part['kind'], 300)} ({part['status']})"
    return None
