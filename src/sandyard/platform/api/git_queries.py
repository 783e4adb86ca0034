"""Read operations, checkouts, history and diffs. Nothing here resumes a sandbox."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from sandyard.platform.api.auth import Caller
from sandyard.platform.api.dependencies import inject
from sandyard.platform.api.git_views import (
    CheckoutView,
    CheckpointView,
    CommitView,
    Comparison,
    DiffView,
    History,
    OperationView,
    StatusView,
)
from sandyard.platform.api.large_responses import limit_large_responses
from sandyard.platform.api.paging import Page, Paging
from sandyard.platform.api.projects import ProjectId
from sandyard.platform.api.refs import Against, RepositoryPath, Revision
from sandyard.platform.api.routers import api_router
from sandyard.platform.api.sandboxes import SandboxId
from sandyard.platform.api.schema import id_in_path
from sandyard.platform.api.sessions import SessionId, Sessions
from sandyard.platform.db import models
from sandyard.platform.domain.git import service

router = api_router("git")
Git = Annotated[service.GitService, inject("git")]
OperationId = Annotated[str, id_in_path("operation", "gop_00mwhnkzc0a1b2c3d4e5")]
Patches = Annotated[bool, Query(description="Include the changed lines.")]
IdQuery = Annotated[str | None, Query(max_length=40)]


def make_operation_view(git: service.GitService, row: models.GitOperation) -> OperationView:
    fields = {name: getattr(row, name) for name in OperationView.model_fields if name != "position"}
    return OperationView(**fields, position=git.operations.get_position(row.id))


@router.get("/git/operations", name="git.operations")
async def operations(
    caller: Caller,
    git: Git,
    page: Paging,
    sandbox_id: Annotated[IdQuery, Query(alias="sandboxId")] = None,
    session_id: Annotated[IdQuery, Query(alias="sessionId")] = None,
    project_id: Annotated[IdQuery, Query(alias="projectId")] = None,
) -> Page[OperationView]:
    """List operations, newest first."""
    found = await git.list_operations(caller, page, sandbox_id=sandbox_id, session_id=session_id, project_id=project_id)
    return Page.from_listing(found, lambda row: make_operation_view(git, row))


@router.get("/git/operations/{operation_id}", name="git.operation", dependencies=[limit_large_responses()])
async def operation(caller: Caller, git: Git, operation_id: OperationId) -> OperationView:
    return make_operation_view(git, await git.get_operation(caller, operation_id))


@router.get("/git/{sandbox_id}", name="git.checkout")
async def checkout(caller: Caller, git: Git, sandbox_id: SandboxId) -> CheckoutView:
    """Get the repository and branch checked out in the sandbox. Does not resume the sandbox."""
    return CheckoutView.model_validate(await git.get_checkout(caller, sandbox_id))


@router.get("/git/{sandbox_id}/history", name="git.history", dependencies=[limit_large_responses(slow=True)])
async def history(
    caller: Caller,
    git: Git,
    sandbox_id: SandboxId,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    skip: Annotated[int, Query(ge=0, le=1_000_000)] = 0,
    base: Annotated[bool, Query(description="Also return commits of the base branch.")] = False,
) -> History:
    """List commits, newest first."""
    found = await git.list_commits(caller, sandbox_id, limit=limit, skip=skip)
    remaining = limit - len(found)
    earlier = await git.list_base_commits(caller, sandbox_id, limit=remaining) if base and remaining else []
    return History(
        items=[CommitView.model_validate(commit) for commit in found],
        base=[CommitView.model_validate(commit) for commit in earlier],
    )


@router.get("/git/{sandbox_id}/status", name="git.status", dependencies=[limit_large_responses(slow=True)])
async def status(caller: Caller, git: Git, sandbox_id: SandboxId) -> StatusView:
    """List changes since the last commit."""
    return StatusView.model_validate(await git.get_status(caller, sandbox_id))


@router.get("/git/{sandbox_id}/diff", name="git.diff", dependencies=[limit_large_responses(slow=True)])
async def diff(
    caller: Caller,
    git: Git,
    sandbox_id: SandboxId,
    against: Annotated[
        Against, Query(description="base: all changes of the branch. head: uncommitted changes. Or a commit.")
    ] = "base",
    path: Annotated[list[RepositoryPath], Query(max_length=1000, description="Only these paths.")] = [],  # noqa: B006 - FastAPI copies
    patches: Patches = True,
) -> DiffView:
    """Get the diff, file by file. Files that are too large to show are marked as truncated."""
    return DiffView.model_validate(await git.get_diff(caller, sandbox_id, against=against, paths=path, patches=patches))


@router.get("/sessions/{session_id}/checkpoints", name="checkpoint.list")
async def checkpoints(
    caller: Caller, git: Git, sessions: Sessions, session_id: SessionId, page: Paging
) -> Page[CheckpointView]:
    """List checkpoints, newest first. Restore one with POST /git/restore."""
    await sessions.get(caller, session_id)
    return Page.from_listing(await git.list_checkpoints(caller, session_id, page), CheckpointView.model_validate)


@router.get("/projects/{project_id}/compare", name="project.compare", dependencies=[limit_large_responses(slow=True)])
async def compare(
    caller: Caller,
    git: Git,
    project_id: ProjectId,
    base: Annotated[Revision, Query(examples=["main"])],
    head: Annotated[Revision, Query(examples=["task-42"])],
    patches: Patches = True,
) -> Comparison:
    """Compare two revisions: the changes that are in `head` but not in `base`, from the platform's copy of the repository."""
    commits, changes = await git.compare(caller, project_id, base, head, patches=patches)
    return Comparison(
        commits=[CommitView.model_validate(commit) for commit in commits], diff=DiffView.model_validate(changes)
    )
