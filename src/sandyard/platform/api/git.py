"""Git in a sandbox. Every change is an operation, which can be waited for and looked up."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Annotated, Any, Literal

from fastapi import Query, Request
from fastapi.responses import JSONResponse
from pydantic import Field, model_validator

from sandyard.platform.api.audit_middleware import add_audit_detail
from sandyard.platform.api.auth import Caller
from sandyard.platform.api.git_queries import Git, make_operation_view
from sandyard.platform.api.git_views import OperationView
from sandyard.platform.api.guard import body_limit
from sandyard.platform.api.limits import limit_rate
from sandyard.platform.api.refs import MAX_PATHS, Branch, RepositoryPaths, Revision, Tag
from sandyard.platform.api.revocation import run_until_revoked
from sandyard.platform.api.routers import api_router
from sandyard.platform.api.schema import Input, example
from sandyard.platform.api.sessions import Sessions
from sandyard.platform.db import models
from sandyard.platform.domain.git import service
from sandyard.platform.domain.git.model import OperationStatus
from sandyard.platform.domain.users.model import Principal

router = api_router("git")
Wait = Annotated[
    float,
    Query(
        ge=0,
        le=300,
        description="Seconds to wait for the operation to finish. After that, the response is 202 and the operation continues.",
    ),
]
Id = Annotated[str, Field(min_length=1, max_length=40)]
SANDBOX = "sbx_00mwhnkzb5gfh26ygacc"
MAX_MESSAGE = 20_000
WAIT_SECONDS = 120.0
_OPERATION_ROUTE: dict[str, Any] = {
    "dependencies": [limit_rate("execute")],
    "response_model": OperationView,
    "responses": {202: {"model": OperationView, "description": "The operation has not finished. Poll `Location`."}},
}


class InSandbox(Input):
    model_config = example(sandboxId=SANDBOX)

    sandbox_id: Id


class Clone(InSandbox):
    model_config = example(sandboxId=SANDBOX, projectId="prj_0mh3k7a1x2abcdefghij", baseBranch="main")

    project_id: Id | None = Field(
        None, description="Must be the sandbox's own project. Default: the sandbox's project."
    )
    base_branch: Branch | None = Field(None, description="Default: the project's base branch.")
    branch: Branch | None = Field(None, description="The branch to work on. Default: a new, unused name.")


class NewBranch(InSandbox):
    model_config = example(sandboxId=SANDBOX, name="task-42")

    name: Branch
    start: Revision | None = Field(None, description="The starting point of the branch. Default: the current commit.")


class Stage(InSandbox):
    model_config = example(sandboxId=SANDBOX, paths=["src/login.py"])

    paths: RepositoryPaths = Field(min_length=1)
    unstage: bool = Field(False, description="Unstage the paths instead.")


class NewCommit(InSandbox):
    model_config = example(sandboxId=SANDBOX, message="fix: the login works again")

    message: str = Field(min_length=1, max_length=MAX_MESSAGE)
    paths: RepositoryPaths = Field(default_factory=list, description="Commit only these paths.")
    everything: bool = Field(True, description="True: commit all changes. False: commit only staged changes.")


class Discard(InSandbox):
    model_config = example(sandboxId=SANDBOX, paths=["src/login.py"])

    paths: RepositoryPaths = Field(default_factory=list)
    everything: bool = False

    @model_validator(mode="after")
    def _one_way(self) -> Discard:
        if bool(self.paths) == self.everything:
            raise ValueError("Set either paths, or everything: true")
        return self


class Update(InSandbox):
    model_config = example(sandboxId=SANDBOX, how="rebase")

    how: Literal["rebase", "merge", "check", "agent", "give_up"] = Field(
        "rebase",
        description="check: only report whether there would be conflicts. agent: leave conflicts in the files for the agent to resolve. "
        "give_up: abort a merge or rebase in progress.",
    )
    source: Literal["base", "branch"] = Field(
        "base", description="base: update from the base branch. branch: pull changes that others pushed to this branch."
    )


class NewTag(InSandbox):
    model_config = example(sandboxId=SANDBOX, name="v1.2.0", message="The login works again.")

    name: Tag
    message: str | None = Field(None, min_length=1, max_length=MAX_MESSAGE)
    push: bool = False


class Restore(Input):
    model_config = example(checkpointId="chk_00mwhnkzc0a1b2c3d4e5")

    checkpoint_id: Id


async def _wait_and_respond(
    request: Request,
    caller: Principal,
    git: service.GitService,
    started: Awaitable[models.GitOperation],
    wait: float,
) -> JSONResponse:
    """Return the finished operation (200), or its current state after `wait` seconds (202).

    Raises the error of a failed operation. The operation continues if the client disconnects or the user loses access.
    """
    operation = await started
    add_audit_detail(request, target=operation.sandbox_id, operation=operation.id)
    operation_id = operation.id
    operation = await run_until_revoked(
        request,
        caller,
        lambda: git.get_operation(caller, operation_id),
        git.operations.wait(operation_id, wait),
    )
    if operation.status == OperationStatus.FAILED:
        git.operations.raise_failure(operation)
    is_finished = OperationStatus(operation.status).is_final
    view = make_operation_view(git, operation).model_dump(mode="json", by_alias=True)
    return JSONResponse(view, 200 if is_finished else 202, {"Location": f"/api/v1/git/operations/{operation.id}"})


@router.post("/git/clone", name="git.clone", **_OPERATION_ROUTE)
async def clone(request: Request, caller: Caller, git: Git, body: Clone, wait: Wait = WAIT_SECONDS) -> JSONResponse:
    """Clone the project's repository into the sandbox, on a new branch."""
    started = git.clone(
        caller, body.sandbox_id, project_id=body.project_id, base_branch=body.base_branch, branch=body.branch
    )
    return await _wait_and_respond(request, caller, git, started, wait)


@router.post("/git/branch", name="git.branch", **_OPERATION_ROUTE)
async def branch(
    request: Request, caller: Caller, git: Git, body: NewBranch, wait: Wait = WAIT_SECONDS
) -> JSONResponse:
    """Create a branch and switch to it."""
    return await _wait_and_respond(
        request, caller, git, git.create_branch(caller, body.sandbox_id, name=body.name, start=body.start), wait
    )


@router.post("/git/stage", name="git.stage", **_OPERATION_ROUTE)
@body_limit(values=2 * MAX_PATHS)
async def stage(request: Request, caller: Caller, git: Git, body: Stage, wait: Wait = WAIT_SECONDS) -> JSONResponse:
    return await _wait_and_respond(
        request, caller, git, git.stage(caller, body.sandbox_id, body.paths, unstage=body.unstage), wait
    )


@router.post("/git/commit", name="git.commit", **_OPERATION_ROUTE)
@body_limit(values=2 * MAX_PATHS)
async def commit(
    request: Request, caller: Caller, git: Git, body: NewCommit, wait: Wait = WAIT_SECONDS
) -> JSONResponse:
    """Create a commit.

    A message that does not follow the project's convention is rejected with a `suggestion` that does.
    """
    started = git.commit(caller, body.sandbox_id, message=body.message, paths=body.paths, everything=body.everything)
    return await _wait_and_respond(request, caller, git, started, wait)


@router.post("/git/discard", name="git.discard", **_OPERATION_ROUTE)
@body_limit(values=2 * MAX_PATHS)
async def discard(request: Request, caller: Caller, git: Git, body: Discard, wait: Wait = WAIT_SECONDS) -> JSONResponse:
    """Restore files to their state in the last commit."""
    started = git.discard(caller, body.sandbox_id, paths=body.paths, everything=body.everything)
    return await _wait_and_respond(request, caller, git, started, wait)


@router.post("/git/push", name="git.push", **_OPERATION_ROUTE)
async def push(request: Request, caller: Caller, git: Git, body: InSandbox, wait: Wait = WAIT_SECONDS) -> JSONResponse:
    """Push the branch to the remote, never with force. Idempotent."""
    return await _wait_and_respond(request, caller, git, git.push(caller, body.sandbox_id), wait)


@router.post("/git/update", name="git.update", **_OPERATION_ROUTE)
async def update(request: Request, caller: Caller, git: Git, body: Update, wait: Wait = WAIT_SECONDS) -> JSONResponse:
    """Update the branch from its base branch. If there are conflicts, the error lists the `files` and nothing is changed."""
    return await _wait_and_respond(
        request, caller, git, git.update(caller, body.sandbox_id, how=body.how, source=body.source), wait
    )


@router.post("/git/tag", name="git.tag", **_OPERATION_ROUTE)
async def tag(request: Request, caller: Caller, git: Git, body: NewTag, wait: Wait = WAIT_SECONDS) -> JSONResponse:
    started = git.create_tag(caller, body.sandbox_id, name=body.name, message=body.message, push=body.push)
    return await _wait_and_respond(request, caller, git, started, wait)


@router.post("/git/checkpoint", name="git.checkpoint", **_OPERATION_ROUTE)
async def checkpoint(
    request: Request, caller: Caller, git: Git, body: InSandbox, wait: Wait = WAIT_SECONDS
) -> JSONResponse:
    """Save the state of all files, committed or not. This happens automatically before every pause and push."""
    return await _wait_and_respond(request, caller, git, git.checkpoint(caller, body.sandbox_id), wait)


@router.post("/git/restore", name="git.restore", **_OPERATION_ROUTE)
async def restore(
    request: Request, caller: Caller, git: Git, sessions: Sessions, body: Restore, wait: Wait = WAIT_SECONDS
) -> JSONResponse:
    """Create a new sandbox for the checkpoint's session, with all files restored."""
    return await _wait_and_respond(request, caller, git, sessions.restore(caller, body.checkpoint_id), wait)
