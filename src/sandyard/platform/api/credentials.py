"""Credentials of a project's repository and forge. They can be written, tested and listed as hints, but never read."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

from fastapi import Path, Query, Request
from pydantic import Field

from sandyard.kit.errors import SandyardError
from sandyard.platform.api.audit_middleware import add_audit_detail
from sandyard.platform.api.auth import Caller
from sandyard.platform.api.credential_input import CredentialChanges
from sandyard.platform.api.dependencies import inject
from sandyard.platform.api.large_responses import limit_remote_requests
from sandyard.platform.api.limits import limit_rate
from sandyard.platform.api.projects import ProjectId, Projects
from sandyard.platform.api.routers import api_router
from sandyard.platform.api.schema import Instant, Model, example
from sandyard.platform.domain.forge import access as forge
from sandyard.platform.domain.forge import connection_test
from sandyard.platform.domain.projects import credentials as domain
from sandyard.platform.domain.projects.credentials import CredentialInfo

router = api_router("projects")
Credentials = Annotated[domain.Credentials, inject("credentials")]
Access = Annotated[forge.ForgeAccess, inject("access")]
ConnectionTests = Annotated[connection_test.ConnectionTests, inject("connection_tests")]
Kind = Annotated[str, Path(max_length=40, examples=["token"], description="token, ssh_key, app or webhook_secret.")]


class CredentialView(Model):
    model_config = example(
        kind="token", hint="…wxyz", createdAt="2026-01-31T10:00:00.000Z", updatedAt="2026-01-31T10:00:00.000Z"
    )

    kind: Literal["token", "ssh_key", "app", "webhook_secret"]
    hint: str = Field(description="The end of a token, or the fingerprint of a key.")
    created_at: Instant
    updated_at: Instant


class CredentialList(Model):
    items: list[CredentialView]

    @classmethod
    def from_infos(cls, infos: list[CredentialInfo]) -> CredentialList:
        return cls(items=[CredentialView.model_validate(info) for info in infos])


@router.get("/projects/{project_id}/credentials", name="credential.list")
async def list_(caller: Caller, project_id: ProjectId, credentials: Credentials) -> CredentialList:
    """List the stored credentials. No endpoint returns their values."""
    return CredentialList.from_infos(await credentials.list(caller, project_id))


@router.put(
    "/projects/{project_id}/credentials",
    name="credential.put",
    dependencies=[limit_rate("create"), limit_remote_requests()],
)
async def put(
    caller: Caller,
    project_id: ProjectId,
    body: CredentialChanges,
    request: Request,
    projects: Projects,
    credentials: Credentials,
    tests: ConnectionTests,
    test: Annotated[bool, Query(description="Test the connection first, and store nothing if the test fails.")] = False,
) -> CredentialList:
    """Store all given credentials, or none. Returns all stored credentials."""
    add_audit_detail(request, kinds=sorted(body.model_fields_set - {"username"}))
    if test:
        project = await projects.get_changeable(caller, project_id)
        await tests.check_draft(project, await asyncio.to_thread(body.make_drafts))
    stored = await credentials.put(caller, project_id, **body.to_arguments())
    if test:
        await projects.record_connection_error(project_id, None)
    return CredentialList.from_infos(stored)


@router.delete("/projects/{project_id}/credentials/{kind}", name="credential.delete", status_code=204)
async def delete(caller: Caller, project_id: ProjectId, kind: Kind, credentials: Credentials) -> None:
    await credentials.remove(caller, project_id, kind)


class FindingView(Model):
    model_config = example(what="read", ok=True, detail="3 branches")

    what: str
    ok: bool
    detail: str
    field: str | None = Field(
        default=None,
        description="The field to correct: `token`, `repository` or `baseBranch`. Null if it is none of these.",
    )


class BudgetView(Model):
    """The forge's API rate limit."""

    limit: int
    remaining: int
    low: bool = Field(description="True if fewer than 100 requests are left.")
    resets_at: Instant


class ConnectionReport(Model):
    ok: bool
    findings: list[FindingView]
    budget: BudgetView | None = Field(description="Null if the forge has no rate limit or did not report it.")


@router.post(
    "/projects/{project_id}/test", name="project.test", dependencies=[limit_rate("execute"), limit_remote_requests()]
)
async def test(
    caller: Caller, project_id: ProjectId, projects: Projects, access: Access, tests: ConnectionTests
) -> ConnectionReport:
    """Test read access, push access and API access to the repository. Changes nothing there."""
    project = await projects.get(caller, project_id)
    findings = await tests.check(caller, project_id)
    try:
        budget = await access.get_budget(project)
    except SandyardError:
        budget = None  # the findings report what is wrong
    return ConnectionReport(
        ok=all(finding.ok for finding in findings),
        findings=[FindingView.model_validate(finding) for finding in findings],
        budget=None if budget is None else BudgetView.model_validate(budget),
    )
