"""Responses about repositories and Git operations."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from sandyard.platform.api.schema import Instant, Model, example
from sandyard.platform.domain.git.model import OperationKind, OperationStatus, Reason
from sandyard.platform.domain.repositories.model import Change


class OperationView(Model):
    model_config = example(
        id="gop_00mwhnkzc0a1b2c3d4e5",
        kind="push",
        status="completed",
        position=None,
        sandboxId="sbx_00mwhnkzb5gfh26ygacc",
        detail={
            "branch": "task-42",
            "commits": 3,
            "compareUrl": "https://sandyard.example.org/api/v1/projects/prj_0mh3k7a1x2abcdefghij/compare?base=main&head=task-42",
        },
    )

    id: str
    kind: OperationKind
    status: OperationStatus
    position: int | None = Field(
        description="Position in the repository's queue; 0 means it is next. Null if the operation is not queued."
    )
    sandbox_id: str | None
    session_id: str | None
    project_id: str | None
    detail: dict[str, Any] = Field(description="The result, depending on the kind: branch, commit, warnings and so on.")
    error: str | None = Field(description="Why the operation failed.")
    error_code: str | None
    attempts: int = Field(
        description="How many times the operation was started. More than 1 if the platform was restarted."
    )
    created_at: Instant
    started_at: Instant | None
    finished_at: Instant | None


class Person(Model):
    name: str
    email: str


class CommitView(Model):
    model_config = example(
        id="3f786850e387550fdab836ed7e6dc881de23001b",
        parents=["89e6c98d92887913cadf06b2adb97f26cde4849b"],
        subject="fix: the login works again",
    )

    id: str
    parents: list[str]
    author: Person
    committer: Person
    authored_at: Instant
    committed_at: Instant
    subject: str
    body: str


class History(Model):
    items: list[CommitView] = Field(description="The branch's own commits.")
    base: list[CommitView] = Field(
        default_factory=list,
        description="With `base=true`, on the last page: the newest commits of the base branch, up to the limit.",
    )


class StatusEntryView(Model):
    path: str
    index: Change | None = Field(description="The staged change.")
    worktree: Change | None = Field(description="The unstaged change.")
    old_path: str | None


class StatusView(Model):
    model_config = example(branch="task-42", head="3f786850e387550fdab836ed7e6dc881de23001b", clean=True, entries=[])

    branch: str | None = Field(description="Null if no branch is checked out.")
    head: str | None
    clean: bool
    entries: list[StatusEntryView]
    under_way: str | None = Field(description="`merge` or `rebase` if one is in progress.")
    truncated: bool = Field(description="True if there are more entries than listed.")
    live: bool = Field(description="False if the sandbox is not running; then this is the state saved at `asOf`.")
    as_of: Instant | None


class FileDiffView(Model):
    path: str
    change: Change
    old_path: str | None
    added: int | None = Field(description="Number of lines. Null for a binary file.")
    removed: int | None
    binary: bool
    patch: str | None = Field(description="Null if the patch was not requested, is binary or is too large.")
    truncated: bool = Field(description="True if the patch is too large to show.")
    old_mode: str | None
    new_mode: str | None


class DiffView(Model):
    model_config = example(base="main", head="task-42", files=[], added=0, removed=0, truncated=False)

    base: str
    head: str
    files: list[FileDiffView]
    added: int
    removed: int
    truncated: bool = Field(description="True if there are more files than listed.")


class Comparison(Model):
    commits: list[CommitView]
    diff: DiffView


class CheckoutView(Model):
    model_config = example(
        sandboxId="sbx_00mwhnkzb5gfh26ygacc", branch="task-42", baseBranch="main", folder="/home/user/workspace"
    )

    sandbox_id: str
    session_id: str | None
    project_id: str
    folder: str
    branch: str
    base_branch: str
    base_commit: str
    head: str = Field(description="The newest commit known to the platform.")
    pushed: str | None = Field(description="The last pushed commit. Null if nothing was pushed.")
    created_at: Instant
    updated_at: Instant


class CheckpointView(Model):
    model_config = example(id="chk_00mwhnkzc0a1b2c3d4e5", reason="pause", branch="task-42", changed=2)

    id: str
    project_id: str
    session_id: str | None
    sandbox_id: str
    reason: Reason
    commit: str
    head: str
    branch: str
    base_branch: str
    base_commit: str
    changed: int = Field(description="Number of uncommitted files.")
    created_at: Instant
