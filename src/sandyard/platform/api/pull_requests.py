"""Open, list, refresh and merge pull requests."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path, Query, Request
from fastapi.responses import JSONResponse
from pydantic import Field

from sandyard.platform.api.audit_middleware import add_audit_detail
from sandyard.platform.api.auth import Caller
from sandyard.platform.api.dependencies import inject
from sandyard.platform.api.git import SANDBOX, Id
from sandyard.platform.api.large_responses import limit_large_responses, limit_remote_requests
from sandyard.platform.api.limits import limit_rate
from sandyard.platform.api.paging import Page, Paging
from sandyard.platform.api.refs import Branch
from sandyard.platform.api.routers import api_router
from sandyard.platform.api.schema import Input, Instant, Model, example, id_in_path
from sandyard.platform.api.sessions import SessionId
from sandyard.platform.db import models
from sandyard.platform.domain.forge import service
from sandyard.platform.domain.forge.model import Checks, ForgeKind, MergeMethod, PullState, Review

router = api_router("pull requests")
PullRequests = Annotated[service.PullRequests, inject("pull_requests")]
Number = Annotated[int, Path(ge=1, le=2**31 - 1, examples=[17], description="The pull request's number on the forge.")]
PullRequestId = Annotated[str, id_in_path("pull request", "pul_00mwhnkzc0a1b2c3d4e5")]
TaskId = Annotated[str, id_in_path("task", "tsk_0mh3k7a1x2abcdefghij")]
ProjectFilter = Annotated[
    str | None,
    Query(
        alias="projectId",
        max_length=40,
        description="Required only if two of your projects have a pull request with this number.",
    ),
]
Name = Annotated[str, Field(min_length=1, max_length=100)]
MAX_BODY = 60_000
_CHANGE_ROUTE: dict[str, Any] = {"dependencies": [limit_rate("execute"), limit_remote_requests()]}


class PullRequestView(Model):
    model_config = example(
        id="pul_00mwhnkzc0a1b2c3d4e5",
        projectId="prj_0mh3k7a1x2abcdefghij",
        forge="github",
        number=17,
        url="https://github.com/example/website/pull/17",
        title="fix: the login works again",
        state="open",
        review="approved",
        checks="passing",
    )

    id: str
    project_id: str
    session_id: str | None
    task_id: str | None
    sandbox_id: str | None
    forge: ForgeKind
    number: int | None = Field(
        description="Null on a plain remote, which has no pull requests: compare the branch at `url`."
    )
    url: str
    title: str
    state: PullState
    draft: bool
    head_branch: str
    base_branch: str
    head_commit: str | None
    mergeable: bool | None = Field(description="Null until the forge has determined it.")
    review: Review
    checks: Checks
    detail: dict[str, Any] = Field(
        description="`runs`: check runs. `remarks`: comments by people and checks. `labels`: its labels."
    )
    created_at: Instant
    updated_at: Instant
    looked_at: Instant | None = Field(description="When the forge was last queried.")
    merged_at: Instant | None
    closed_at: Instant | None
    branch_deleted_at: Instant | None


class NewPullRequest(Input):
    model_config = example(sandboxId=SANDBOX, title="fix: the login works again", draft=False)

    sandbox_id: Id
    title: str | None = Field(
        None, min_length=1, max_length=250, description="Default: generated from the commits or the task."
    )
    body: str | None = Field(
        None, max_length=MAX_BODY, description="Markdown. Default: generated from the commits and the task."
    )
    draft: bool | None = Field(None, description="Default: the project's setting.")
    labels: list[Name] = Field(default_factory=list, max_length=50)
    reviewers: list[Name] = Field(default_factory=list, max_length=15)
    assignees: list[Name] = Field(default_factory=list, max_length=10)
    base: Branch | None = Field(None, description="The branch to merge into. Default: the checkout's base branch.")


class InProject(Input):
    model_config = example(projectId="prj_0mh3k7a1x2abcdefghij")

    project_id: Id | None = Field(
        default=None, description="Required only if two of your projects have a pull request with this number."
    )


class MergeOptions(Input):
    model_config = example(method="squash")

    method: MergeMethod | None = Field(default=None, description="Default: the project's setting.")
    head_commit: str | None = Field(
        default=None,
        pattern=r"^([0-9a-f]{40}|[0-9a-f]{64})$",
        description="The reviewed commit. If the branch has moved since, nothing is merged. Default: the commit last shown here.",
    )


class Merge(InProject, MergeOptions):
    model_config = example(projectId="prj_0mh3k7a1x2abcdefghij", method="squash")


NO_PROJECT, DEFAULT_MERGE, DEFAULT_MERGE_OPTIONS = InProject(), Merge(), MergeOptions()


@router.post(
    "/github/pull-requests",
    name="pull_request.open",
    response_model=PullRequestView,
    status_code=201,
    responses={
        200: {"model": PullRequestView, "description": "The branch already had a pull request, which was updated."}
    },
    **_CHANGE_ROUTE,
)
async def open_(request: Request, caller: Caller, pulls: PullRequests, body: NewPullRequest) -> JSONResponse:
    """Push unpushed commits, and open a pull request for the branch or update the existing one."""
    add_audit_detail(request, target=body.sandbox_id)
    row, created = await pulls.open(caller, **dict(body))
    add_audit_detail(request, pull_request=row.id)
    view = PullRequestView.model_validate(row).model_dump(mode="json", by_alias=True)
    return JSONResponse(view, 201 if created else 200)


@router.get("/github/pull-requests", name="pull_request.list")
async def list_(
    caller: Caller,
    pulls: PullRequests,
    page: Paging,
    project_id: Annotated[str | None, Query(alias="projectId", max_length=40)] = None,
    state: PullState | None = None,
) -> Page[PullRequestView]:
    """List pull requests of projects and sessions you may see, newest first."""
    found = await pulls.list(caller, page, project_id=project_id, state=state)
    return Page.from_listing(found, PullRequestView.model_validate)


@router.get("/github/pull-requests/{number}", name="pull_request.get", dependencies=[limit_large_responses(slow=True)])
async def get(
    caller: Caller,
    pulls: PullRequests,
    number: Number,
    project_id: ProjectFilter = None,
    refresh: Annotated[bool, Query(description="Query the forge first.")] = False,
) -> PullRequestView:
    """Get a pull request by its number on the forge."""
    return PullRequestView.model_validate(await pulls.get(caller, project_id, number, refresh=refresh))


@router.post("/github/pull-requests/{number}/merge", name="pull_request.merge", **_CHANGE_ROUTE)
async def merge(
    request: Request, caller: Caller, pulls: PullRequests, number: Number, body: Merge = DEFAULT_MERGE
) -> PullRequestView:
    """Merge a pull request. Does nothing if it is already merged."""
    row = await _get_row(request, pulls, caller, number, body)
    return PullRequestView.model_validate(await pulls.merge(caller, row.id, body.method, head_commit=body.head_commit))


@router.post("/github/pull-requests/{number}/ready", name="pull_request.ready", **_CHANGE_ROUTE)
async def ready(
    request: Request, caller: Caller, pulls: PullRequests, number: Number, body: InProject = NO_PROJECT
) -> PullRequestView:
    """Mark a draft as ready for review."""
    row = await _get_row(request, pulls, caller, number, body)
    return PullRequestView.model_validate(await pulls.mark_ready(caller, row.id))


@router.post("/github/pull-requests/{number}/close", name="pull_request.close", **_CHANGE_ROUTE)
async def close(
    request: Request, caller: Caller, pulls: PullRequests, number: Number, body: InProject = NO_PROJECT
) -> PullRequestView:
    """Close a pull request without merging it."""
    row = await _get_row(request, pulls, caller, number, body)
    return PullRequestView.model_validate(await pulls.close(caller, row.id))


@router.post("/github/pull-requests/{number}/refresh", name="pull_request.refresh", **_CHANGE_ROUTE)
async def refresh(
    request: Request, caller: Caller, pulls: PullRequests, number: Number, body: InProject = NO_PROJECT
) -> PullRequestView:
    """Refresh the pull request from the forge. Changes are published as events."""
    row = await _get_row(request, pulls, caller, number, body)
    return PullRequestView.model_validate(await pulls.refresh(row))


@router.get("/pull-requests/{pull_request_id}", name="pull_request.get_by_id", dependencies=[limit_large_responses()])
async def get_by_id(caller: Caller, pulls: PullRequests, pull_request_id: PullRequestId) -> PullRequestView:
    """Get a pull request, or a branch that was pushed to a remote without pull requests."""
    return PullRequestView.model_validate(await pulls.get_by_id(caller, pull_request_id))


@router.post("/pull-requests/{pull_request_id}/merge", name="pull_request.merge_by_id", **_CHANGE_ROUTE)
async def merge_by_id(
    request: Request,
    caller: Caller,
    pulls: PullRequests,
    pull_request_id: PullRequestId,
    body: MergeOptions = DEFAULT_MERGE_OPTIONS,
) -> PullRequestView:
    """Merge a pull request. Does nothing if it is already merged.

    On a remote without pull requests, the pushed branch is merged into its base here and the base is pushed. A base that is checked out in a
    work tree of the remote is rejected (`branch_checked_out`).
    """
    add_audit_detail(request, target=pull_request_id)
    merged = await pulls.merge(caller, pull_request_id, body.method, head_commit=body.head_commit)
    return PullRequestView.model_validate(merged)


@router.post("/pull-requests/{pull_request_id}/refresh", name="pull_request.refresh_by_id", **_CHANGE_ROUTE)
async def refresh_by_id(
    request: Request, caller: Caller, pulls: PullRequests, pull_request_id: PullRequestId
) -> PullRequestView:
    """Refresh from the forge, or check whether the remote's branch was merged. Changes are published as events."""
    add_audit_detail(request, target=pull_request_id)
    return PullRequestView.model_validate(await pulls.refresh(await pulls.get_by_id(caller, pull_request_id)))


@router.get("/tasks/{task_id}/pull-request", name="task.pull_request", dependencies=[limit_large_responses()])
async def get_for_task(caller: Caller, pulls: PullRequests, task_id: TaskId) -> PullRequestView:
    """Get the task's newest pull request."""
    return PullRequestView.model_validate(await pulls.get_for_task(caller, task_id))


@router.get("/sessions/{session_id}/pull-request", name="session.pull_request", dependencies=[limit_large_responses()])
async def get_for_session(caller: Caller, pulls: PullRequests, session_id: SessionId) -> PullRequestView:
    """Get the session's newest pull request."""
    return PullRequestView.model_validate(await pulls.get_for_session(caller, session_id))


async def _get_row(
    request: Request, pulls: service.PullRequests, caller: Caller, number: int, body: InProject
) -> models.PullRequest:
    row = await pulls.get(caller, body.project_id, number)
    add_audit_detail(request, target=row.id, number=number, project=row.project_id)
    return row
