"""Queue lines for an agent within a transaction. The process that follows its run delivers them afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sandyard.platform.db.database import Transaction
from sandyard.platform.db.models import AgentInput, AgentRun
from sandyard.platform.domain.agents.acp import wire
from sandyard.platform.domain.agents.json_columns import change_options, get_run_options


def queue_request(tx: Transaction, run: AgentRun, method: str, params: Mapping[str, Any]) -> int:
    """Queue a request and return its number."""
    number = run.next_request
    run.next_request = number + 1
    change_options(run, {"pending": {**get_run_options(run).get("pending", {}), str(number): method}})
    _queue_line(tx, run, wire.encode_request(number, method, dict(params)))
    return number


def queue_cancellation(tx: Transaction, run: AgentRun) -> None:
    """Ask the agent to stop its prompt."""
    _queue_line(tx, run, wire.encode_notification("session/cancel", {"sessionId": run.acp_session}))


def queue_response(tx: Transaction, run: AgentRun, key: str, result: dict[str, Any]) -> None:
    """Answer the agent's request with this key."""
    _queue_line(tx, run, wire.encode_response(key, result))


def queue_error(tx: Transaction, run: AgentRun, key: str, code: int, message: str) -> None:
    """Reject the agent's request with this key."""
    _queue_line(tx, run, wire.encode_error(key, code, message))


def take_pending_request(run: AgentRun, number: int) -> str | None:
    """Remove the request with this number from the pending ones and return its method."""
    pending = dict(get_run_options(run).get("pending", {}))
    method = pending.pop(str(number), None)
    if method is not None:
        change_options(run, {"pending": pending})
    return method


def list_pending_methods(run: AgentRun) -> set[str]:
    return set(get_run_options(run).get("pending", {}).values())


def _queue_line(tx: Transaction, run: AgentRun, line: str) -> None:
    tx.add(AgentInput(run_id=run.id, position=run.sent, line=line))
    run.sent += len(line)
