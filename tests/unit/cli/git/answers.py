"""Responses of the server about git operations and checkouts, for tests that need particular ones."""

from __future__ import annotations

from typing import Any

from tests.unit.cli.server import Reply

SESSION, SANDBOX = "ses_1", "sbx_1"


def operation(kind: str = "push", status: str = "completed", **more: Any) -> dict[str, Any]:
    return {
        "id": "gop_1",
        "kind": kind,
        "status": status,
        "position": None,
        "sandboxId": SANDBOX,
        "sessionId": SESSION,
        "projectId": "prj_1",
        "detail": {},
        "error": None,
        "errorCode": None,
        "attempts": 1,
        **more,
    }


def session() -> Reply:
    return Reply(200, {"id": SESSION, "sandboxId": SANDBOX})


def operation_event(kind: str, *, operation_id: str = "gop_1", **data: Any) -> tuple[str, str, Any]:
    """Return an event of an operation, in the form of the event stream."""
    return "7", kind, {"seq": 7, "kind": kind, "sandboxId": SANDBOX, "data": {"operationId": operation_id, **data}}
