"""Audit middleware: every request that changes something is recorded before its response is sent.

Also recorded: WebSockets when they are opened, and routes marked with `@audited`. Not recorded: requests rejected for missing authentication
or rate limits, and rejected webhooks, because anyone can send an unlimited number of those. Of a user's other refused requests, those
beyond a limit are counted in one entry per minute.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sandyard.kit.logging import get_logger
from sandyard.platform.api.auth import SAFE_METHODS

log = get_logger(__name__)
F = TypeVar("F", bound=Callable[..., Any])
_AUDITED = "__sandyard_audited__"
_AUDITS_ITSELF = "__sandyard_audits_itself__"
_START_MESSAGES = frozenset(
    ("http.response.start", "websocket.accept", "websocket.close", "websocket.http.response.start")
)
_UNRECORDED_OUTCOMES = frozenset(("rate_limited", "method_not_allowed"))


def audited(endpoint: F) -> F:
    """Mark a read-only route that is recorded anyway, such as a download."""
    setattr(endpoint, _AUDITED, True)
    return endpoint


def audits_itself(endpoint: F) -> F:
    """Mark a route that writes its own audit entries."""
    setattr(endpoint, _AUDITS_ITSELF, True)
    return endpoint


def add_audit_detail(connection: HTTPConnection, *, target: str | None = None, **detail: Any) -> None:
    """Add details to the request's audit entry. `target` replaces the id in the path, which a creating request lacks."""
    if target is not None:
        connection.state.audit_target = target
    connection.state.audit_detail = {**getattr(connection.state, "audit_detail", {}), **detail}


class AuditMiddleware:
    """Records requests in the audit log."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        recorded = False

        async def reply(message: Message) -> None:
            nonlocal recorded
            if not recorded and message["type"] in _START_MESSAGES:
                recorded = True
                await _record(scope, message.get("status", 200))
            await send(message)

        try:
            await self._app(scope, receive, reply)
        except BaseException as error:  # also if cancelled: the requested work may still continue
            if not recorded:
                failed = isinstance(error, Exception) and not isinstance(error, ClientDisconnect)
                scope["state"].setdefault("problem_code", None if failed else "interrupted")
                await asyncio.shield(_record(scope, 500))
            raise


async def _record(scope: Scope, status: int) -> None:
    route = scope.get("route")
    name = getattr(route, "name", None)
    if name is None or not _is_audited(scope):
        return
    state = scope["state"]
    outcome = state.get("problem_code") or ("ok" if status < 400 else "internal" if status == 500 else str(status))
    if outcome in _UNRECORDED_OUTCOMES or (outcome == "unauthenticated" and name != "login.create"):
        return
    if outcome != "ok" and name.startswith("webhook."):
        return
    ids = [str(value) for value in scope.get("path_params", {}).values()]
    detail = dict(state.get("audit_detail", {}))
    if len(ids) > 1:
        detail["also"] = ids[1:]
    client = scope.get("client")
    try:
        await scope["app"].state.services.audit.record(
            state.get("principal"),
            action=name,
            target=state.get("audit_target") or (ids[0] if ids else None),
            outcome=outcome,
            request_id=state.get("request_id"),
            address=client[0] if client else None,
            detail=detail,
            refused=_is_refusal(scope, status, outcome),
        )
    except Exception as error:
        log.error("audit_failed", exc=error, action=name, outcome=outcome)  # noqa: TRY400 - `exc` logs the traceback


def _is_refusal(scope: Scope, status: int, outcome: str) -> bool:
    """Return whether the request or WebSocket was refused, instead of failing on the way or being interrupted."""
    return outcome != "ok" and (400 <= status < 500 or (scope["type"] == "websocket" and status < 400))


def _is_audited(scope: Scope) -> bool:
    if getattr(scope.get("endpoint"), _AUDITS_ITSELF, False):
        return False
    if scope["type"] == "websocket" or scope["method"] not in SAFE_METHODS:
        return True
    return getattr(scope.get("endpoint"), _AUDITED, False)
