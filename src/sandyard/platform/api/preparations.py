"""Prepared snapshots, from which a project's sessions start."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Annotated, Any, Literal

from fastapi import Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import Field

from sandyard.platform.api.audit_middleware import add_audit_detail
from sandyard.platform.api.auth import Caller
from sandyard.platform.api.dependencies import inject
from sandyard.platform.api.large_responses import limit_large_responses
from sandyard.platform.api.limits import limit_rate
from sandyard.platform.api.paging import Page, Paging
from sandyard.platform.api.projects import ProjectId, Projects
from sandyard.platform.api.refs import Branch
from sandyard.platform.api.revocation import run_until_revoked
from sandyard.platform.api.routers import api_router
from sandyard.platform.api.schema import Input, Instant, Model, example, id_in_path
from sandyard.platform.db import models
from sandyard.platform.db.models import PreparationStatus
from sandyard.platform.domain.agents.catalogue import AgentCatalogue
from sandyard.platform.domain.preparations import service

router = api_router("preparations")
Preparations = Annotated[service.Preparations, inject("preparations")]
Agents = Annotated[AgentCatalogue, inject("agents")]
PreparationId = Annotated[str, id_in_path("preparation", "prp_00mwhnkz2f0a9s8d7f6g")]
Wait = Annotated[
    float,
    Query(
        ge=0,
        le=300,
        description="Seconds to wait for it to finish. After that, the response is 202 and the preparation continues.",
    ),
]


class PreparedCommand(Model):
    source: str = Field(
        description="Where the command comes from: a file of the repository, or the project's settings."
    )
    command: str
    command_id: str
    exit_code: int | None
    seconds: float


class PreparationView(Model):
    model_config = example(
        id="prp_00mwhnkz2f0a9s8d7f6g",
        projectId="prj_0mh3k7a1x2abcdefghij",
        status="ready",
        agent="opencode",
        template="base",
        baseBranch="main",
        baseCommit="4c2f6e0c9d1b4a53a7d8f9e0b1c2d3e4f5a6b7c8",
        step="ready",
        sources=[".sandyard/setup.sh"],
        warnings=[],
    )

    id: str
    project_id: str
    status: Literal["preparing", "ready", "failed"]
    agent: str | None
    template: str
    base_branch: str
    base_commit: str
    sandbox_id: str | None = Field(description="The sandbox used for the preparation.")
    step: str | None = Field(description="The current or last step.")
    sources: list[str] = Field(description="Where the commands come from.")
    commands: list[PreparedCommand]
    warnings: list[str] = Field(
        description="Problems that did not stop the preparation: unsupported settings, files missing from the checkout, changes made by "
        "the setup."
    )
    agents_md: bool = Field(description="Whether the repository has an AGENTS.md.")
    shallow: bool
    seconds: float | None = Field(description="How long the preparation took.")
    error: str | None
    error_code: str | None
    created_at: Instant
    finished_at: Instant | None
    used_at: Instant | None

    @classmethod
    def from_row(cls, row: models.Preparation) -> PreparationView:
        detail = row.detail
        details: dict[str, Any] = {
            "step": detail.get("step"),
            "sources": detail.get("sources", []),
            "commands": [PreparedCommand.model_validate(entry) for entry in detail.get("commands", [])],
            "warnings": [*detail.get("warnings", []), *detail.get("lacks", [])],
            "agents_md": bool(detail.get("agentsMd")),
            "shallow": bool(detail.get("shallow")),
            "seconds": detail.get("seconds"),
        }
        return cls(**{name: getattr(row, name) for name in cls.model_fields if name not in details}, **details)


class NewPreparation(Input):
    model_config = example(agent="opencode", baseBranch="main")

    agent: str | None = Field(
        None, min_length=1, max_length=100, description="Default: the project's agent, or the platform's default agent."
    )
    base_branch: Branch | None = Field(None, description="Default: the project's base branch.")


_PREPARATION_ROUTE: dict[str, Any] = {
    "dependencies": [limit_rate("create")],
    "response_model": PreparationView,
    "responses": {202: {"model": PreparationView, "description": "The preparation is in progress. Poll `Location`."}},
}


@router.get("/projects/{project_id}/preparations", name="preparation.list")
async def list_(
    caller: Caller, preparations: Preparations, project_id: ProjectId, page: Paging
) -> Page[PreparationView]:
    """List preparations, newest first."""
    return Page.from_listing(await preparations.list(caller, project_id, page), PreparationView.from_row)


@router.post("/projects/{project_id}/preparations", name="preparation.create", **_PREPARATION_ROUTE)
async def create(
    request: Request,
    caller: Caller,
    preparations: Preparations,
    projects: Projects,
    agents: Agents,
    project_id: ProjectId,
    body: NewPreparation,
    wait: Wait = 0,
) -> JSONResponse:
    """Prepare the newest commit of the branch, unless that is already done. Retries a preparation whose setup failed."""
    project = await projects.get(caller, project_id)
    name = body.agent or await agents.find_default_agent(project)
    profile = await agents.profile(caller.user_id, name)
    row = await preparations.start(caller, project, base_branch=body.base_branch, profile=profile, again=True)
    add_audit_detail(request, target=row.id)
    if row.status != PreparationStatus.READY and wait > 0:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait):
                preparation_id = row.id
                row = await run_until_revoked(
                    request,
                    caller,
                    lambda: preparations.get(caller, preparation_id),
                    preparations.wait(preparation_id),
                )
    if row.status != PreparationStatus.READY:
        row = await preparations.get(caller, row.id)
    view = PreparationView.from_row(row).model_dump(mode="json", by_alias=True)
    is_finished = row.status != PreparationStatus.PREPARING
    return JSONResponse(view, 200 if is_finished else 202, {"Location": f"/api/v1/preparations/{row.id}"})


@router.get("/preparations/{preparation_id}", name="preparation.get", dependencies=[limit_large_responses()])
async def get(caller: Caller, preparations: Preparations, preparation_id: PreparationId) -> PreparationView:
    return PreparationView.from_row(await preparations.get(caller, preparation_id))


@router.delete("/preparations/{preparation_id}", name="preparation.delete", status_code=204)
async def delete(caller: Caller, preparations: Preparations, preparation_id: PreparationId) -> Response:
    """Delete a preparation and its snapshot. Sessions started from it are not affected."""
    await preparations.delete(caller, preparation_id)
    return Response(status_code=204)
