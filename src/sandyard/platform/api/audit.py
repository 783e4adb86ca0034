"""The audit log, for administrators."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Query, Request
from fastapi.responses import StreamingResponse

from sandyard.platform.api.audit_middleware import audited
from sandyard.platform.api.auth import AdminCaller, AdminStreamCaller
from sandyard.platform.api.dependencies import inject
from sandyard.platform.api.paging import Page, Paging
from sandyard.platform.api.revocation import end_when_revoked
from sandyard.platform.api.routers import api_router
from sandyard.platform.api.schema import Instant, Model, Moment, example
from sandyard.platform.domain.audit import service
from sandyard.platform.domain.audit.service import AuditQuery

router = api_router("audit")
Audit = Annotated[service.Audit, inject("audit")]
_EXAMPLE: dict[str, Any] = {
    "seq": 42,
    "at": "2026-01-31T10:00:00.000Z",
    "userId": "usr_0mh3k7a1x2abcdefghij",
    "userName": "maria",
    "means": "token:tok_0mh3k7a1x2abcdefghij",
    "action": "sandbox.execute",
    "target": "sbx_0mh3k7a1x2abcdefghij",
    "outcome": "ok",
    "requestId": "req_5v0c9k2m8d1x7q4z3b6n",
    "address": "127.0.0.1",
    "detail": {},
}


class AuditView(Model):
    model_config = example(**_EXAMPLE)

    seq: int
    at: Instant
    user_id: str | None
    user_name: str | None
    means: str | None
    action: str
    target: str | None
    outcome: str
    request_id: str | None
    address: str | None
    detail: dict[str, Any]


async def _make_query(
    user_id: Annotated[str | None, Query(alias="userId", max_length=40)] = None,
    action: Annotated[str | None, Query(max_length=60, examples=["sandbox.execute"])] = None,
    target: Annotated[str | None, Query(max_length=300)] = None,
    since: Annotated[Moment | None, Query(description="Only entries at or after this time.")] = None,
    until: Annotated[Moment | None, Query(description="Only entries before this time.")] = None,
) -> AuditQuery:
    return AuditQuery(user_id, action, target, since, until)


Filters = Annotated[AuditQuery, Depends(_make_query)]


@router.get("/audit", name="audit.list")
async def list_audit(caller: AdminCaller, filters: Filters, page: Paging, audit: Audit) -> Page[AuditView]:
    return Page[AuditView].from_listing(await audit.list(caller, filters, page), AuditView.model_validate)


@router.get(
    "/audit/export",
    name="audit.export",
    response_class=StreamingResponse,
    responses={200: {"description": "One JSON object per line.", "content": {"application/x-ndjson": {}}}},
)
@audited
async def export_audit(
    request: Request, caller: AdminStreamCaller, filters: Filters, audit: Audit
) -> StreamingResponse:
    """Export all matching entries as a stream, newest first. It ends early when you are no longer an administrator."""

    async def check_access() -> None:
        caller.require_admin()  # a changed role is detected with the token and the account

    lines = end_when_revoked(request, caller, check_access, await audit.export(caller, filters))
    headers = {"Content-Disposition": 'attachment; filename="audit.ndjson"'}
    return StreamingResponse(lines, media_type="application/x-ndjson", headers=headers)
