"""Decide what to send to an agent next: `initialize`, its session, its mode and model, and the prompt.

Each step is decided in the transaction that saw the reason for it, so that a crash never repeats a decision.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from sqlalchemy import select

from sandyard.kit.text import storable
from sandyard.platform.db.database import Transaction
from sandyard.platform.db.models import AgentRun, Message, Session, Turn
from sandyard.platform.domain.agents import summary
from sandyard.platform.domain.agents.errors import AgentProtocolError
from sandyard.platform.domain.agents.model import PLATFORM, RunStatus
from sandyard.platform.domain.agents.rows import (
    ASKING_MODES,
    AUTH,
    FOLDER,
    FRESH,
    MCP,
    MCP_FINGERPRINT,
    MCP_MISSING,
    PROMPTED,
    STRICTNESS,
    about,
    agent_settings,
    ask,
    pending,
)
from sandyard.platform.domain.agents.transcript import bounded, cut
from sandyard.platform.domain.mcp_servers.model import make_fingerprint
from sandyard.platform.domain.mcp_servers.records import list_servers
from sandyard.platform.domain.sandboxes.model import utc_now

VERSION = 1
WAKING = "waking"
"""Error code of a turn that was stuck and is being interrupted, to be prompted to continue."""
GO_ON = "You were interrupted because you had been silent for a long time. Look at the existing work, and continue."
LEFT_OUT = "mcp_server_left_out"
_NEWEST = "msg_~"  # sorts after every message id
_MODE, _MODEL = "session/set_mode", "session/set_config_option"


class Next(StrEnum):
    """What happens next. RESTART: the process must be replaced, because the session has another agent now, or because
    this one can get its model, its MCP servers or the project's policy only at its start."""

    WAIT = "wait"
    WORK = "work"
    RESTART = "restart"


def greet(tx: Transaction, run: AgentRun, version: str) -> None:
    """Queue `initialize`. The agent acts in its own sandbox, so it gets no files and terminals from the client."""
    ask(
        tx,
        run,
        "initialize",
        {
            "protocolVersion": VERSION,
            "clientCapabilities": {
                "fs": {"readTextFile": False, "writeTextFile": False},
                "terminal": False,
                "elicitation": {"form": {}},
            },
            "clientInfo": {"name": "sandyard", "title": "Sandyard", "version": version},
        },
    )


async def greeted(tx: Transaction, run: AgentRun, result: dict[str, Any]) -> None:
    """Handle the answer to `initialize`. Raises AgentProtocolError if the agent uses another protocol version."""
    told = result.get("protocolVersion")
    if told != VERSION:
        raise AgentProtocolError(
            f"The agent uses version {storable(str(told))[:20]} of the Agent Client Protocol; the platform supports version {VERSION}."
        )
    capabilities = result.get("agentCapabilities")
    run.capabilities = {
        "agent": bounded(capabilities, 16_000) if isinstance(capabilities, dict) else {},
        "info": bounded(result.get("agentInfo"), 2_000),
    }
    methods = result.get("authMethods")
    offered = [one.get("id") for one in methods if isinstance(one, dict)] if isinstance(methods, list) else []
    wanted = run.options.get(AUTH)
    if wanted is not None and wanted in offered:
        ask(tx, run, "authenticate", {"methodId": wanted})
    else:
        await open_session(tx, run)


async def open_session(tx: Transaction, run: AgentRun, *, anew: bool = False) -> None:
    """Continue the earlier conversation if the agent supports it, or open a new one."""
    capabilities = _agent_capabilities(run)
    servers = [one for one in run.options.get(MCP, ()) if _supports_server(capabilities, one)]
    place: dict[str, Any] = {"cwd": run.options.get(FOLDER) or "/home/user", "mcpServers": servers}
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
            ask(tx, run, "session/resume" if resumes else "session/load", {"sessionId": before, **place})
            return
    run.acp_session = None
    ask(tx, run, "session/new", place)


def _agent_capabilities(run: AgentRun) -> dict[str, Any]:
    """Return `agentCapabilities` from the answer to `initialize`."""
    found = run.capabilities.get("agent")
    return found if isinstance(found, dict) else {}


def _supports_server(capabilities: dict[str, Any], server: dict[str, Any]) -> bool:
    """Return whether the agent supports this MCP server. Every agent supports commands."""
    over = capabilities.get("mcpCapabilities")
    return "type" not in server or (isinstance(over, dict) and over.get(server["type"]) is True)


def describe_left_out(run: AgentRun) -> str | None:
    """Name the MCP servers that the agent was not given, because it does not support them."""
    capabilities = _agent_capabilities(run)
    names = [one["name"] for one in run.options.get(MCP, ()) if not _supports_server(capabilities, one)]
    if not names:
        return None
    return f"This agent does not support MCP servers with a URL (mcpCapabilities.http). It continues without {', '.join(names)}."


def opened(tx: Transaction, session: Session, run: AgentRun, result: dict[str, Any], *, fresh: bool) -> None:
    """Record that the agent has opened its session."""
    if fresh:
        run.acp_session = storable(str(result.get("sessionId") or ""))[:300]
    kept = {name: value for name, value in run.options.items() if name not in (MCP, MCP_MISSING)}
    run.options = {**kept, FRESH: fresh, **session_options(result)}
    run.status = RunStatus.READY
    tx.emit("agent.ready", **about(session), runId=run.id, agent=run.agent, model=run.model, remembers=not fresh)


def session_options(result: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    modes = result.get("modes")
    if isinstance(modes, dict):
        available = modes.get("availableModes")
        found["modes"] = [
            {"id": cut(str(one.get("id")), 100), "name": cut(str(one.get("name") or one.get("id")), 200)}
            for one in (available if isinstance(available, list) else [])[:50]
            if isinstance(one, dict)
        ]
        found["currentMode"] = cut(str(modes.get("currentModeId") or ""), 100)
    if isinstance(result.get("configOptions"), list):
        found["configOptions"] = bounded(result["configOptions"], 64 << 10)
    return found


async def advance(tx: Transaction, session: Session, run: AgentRun, turn: Turn) -> Next:
    """Take the next step of a turn that has not been prompted, if the agent is ready for it."""
    if run.status != RunStatus.READY or turn.request is not None or turn.cancel_at is not None or pending(run):
        return Next.WAIT
    strictness = (await agent_settings(tx.session, session.project_id)).permissions.strictness
    servers = make_fingerprint(await list_servers(tx.session, session.project_id))
    had = (run.agent, run.options.get(STRICTNESS, "none"), run.options.get(MCP_FINGERPRINT, ""))
    if (session.agent or run.agent, strictness, servers) != had:
        return Next.RESTART
    if turn.model is not None and turn.model != run.model:
        choice = _find_choice(run, "model", turn.model)
        if choice is None:
            return Next.RESTART
        run.model = turn.model
        if choice[1] is not None:
            ask(tx, run, _MODEL, {"sessionId": run.acp_session, "configId": choice[0], "value": choice[1]})
            return Next.WORK
    wanted = turn.mode if strictness == "none" else _select_asking_mode(run, turn.mode)
    if wanted is not None and wanted != run.options.get("currentMode") and _set_mode(tx, run, wanted):
        return Next.WORK
    await _send_prompt(tx, session, run, turn)
    return Next.WORK


def _select_asking_mode(run: AgentRun, wanted: str | None) -> str | None:
    """Return the wanted mode if the agent asks in it, or the first mode in which it does."""
    asking: list[str] | None = run.options.get(ASKING_MODES)
    if asking is None or wanted in asking:
        return wanted
    return asking[0] if asking else None


def _set_mode(tx: Transaction, run: AgentRun, mode: str) -> bool:
    """Request a change of the mode. Returns False if there is no such mode, or if it is set already."""
    known = run.options.get("modes")
    if any(one["id"] == mode for one in known or ()):
        ask(tx, run, _MODE, {"sessionId": run.acp_session, "modeId": mode})
        run.options = {**run.options, "currentMode": mode}
        return True
    choice = _find_choice(run, "mode", mode)
    if choice is None or choice[1] is None:
        return False
    ask(tx, run, _MODEL, {"sessionId": run.acp_session, "configId": choice[0], "value": choice[1]})
    run.options = {**run.options, "currentMode": mode}
    return True


def _find_choice(run: AgentRun, category: str, wanted: str) -> tuple[str, str | None] | None:
    """Return the agent's option to set and the value for it. The value is None if the option has it already."""
    options = run.options.get("configOptions")
    for option in options if isinstance(options, list) else ():
        if not isinstance(option, dict) or option.get("category") != category or not isinstance(option.get("id"), str):
            continue
        given = option.get("options")
        flat = [two for one in (given if isinstance(given, list) else ()) if isinstance(one, dict)
                for two in (one["options"] if isinstance(one.get("options"), list) else [one])]  # fmt: skip
        for one in flat:
            value = one.get("value") if isinstance(one, dict) else None
            if isinstance(value, str) and (wanted in (value, one.get("name")) or value.endswith(f"/{wanted}")):
                return option["id"], None if value == option.get("currentValue") else value
    return None


def _content_block(run: AgentRun, part: dict[str, Any]) -> dict[str, Any]:
    """Return a content block. Agents with the capability `_meta.sandyard.sources` are told which blocks no person
    wrote."""
    block = {"type": "text", "text": part["text"]}
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
    parts: list[Any] = message.parts if message is not None else []
    blocks = [_content_block(run, part) for part in parts if part.get("type") == "text"]
    before = turn.prompt_id or _NEWEST
    if turn.error_code == WAKING:
        blocks, before = [_content_block(run, {"text": GO_ON, "source": PLATFORM})], _NEWEST
        turn.error_code = None
    if run.options.get(FRESH):
        told = await summary.of_session(tx.session, session.id, before)
        if told is not None:
            blocks.insert(0, _content_block(run, {"text": told, "source": PLATFORM}))
            tx.emit("agent.reminded", **about(session), runId=run.id, turnId=turn.id)
        run.options = {**run.options, FRESH: False}
    if PROMPTED not in run.options:
        run.options = {**run.options, PROMPTED: run.sent}
    turn.request = ask(tx, run, "session/prompt", {"sessionId": run.acp_session, "prompt": blocks})
    turn.active_at = utc_now()
