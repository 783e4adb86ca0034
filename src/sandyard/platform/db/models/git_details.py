"""Types of the JSON columns of git operations and pull requests. Keys and values are as they are stored; the API shows most of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypedDict

from sandyard.platform.db.models.message_parts import ConflictingFile


class PreparedCheckoutFields(TypedDict):
    """A `git.model.PreparedCheckout`."""

    base: str
    commit: str
    shallow: Sequence[str]
    warnings: Sequence[str]


class OperationArguments(TypedDict, total=False):
    """`GitOperation.arguments`: those of the request, and those that a handler has stored for a run after a crash."""

    prepared: PreparedCheckoutFields  # clone, restore
    checkpointId: str  # restore
    baseBranch: str | None  # clone
    branch: str | None
    """The requested name. None means that one is chosen."""
    chosen: str
    """The name of the new branch. Stored by the handler, like `base` and `commit`."""
    base: str
    commit: str
    name: str  # branch, tag
    start: str | None  # branch
    copyOf: str
    """Branch: the sandbox of which this one is a copy. The name is chosen then."""
    paths: list[str]  # stage, discard, commit
    unstage: bool  # stage
    everything: bool  # discard, commit
    message: str | None  # commit, tag: None only for a tag
    before: str  # commit: HEAD before it, stored by the handler
    how: str  # update: a `git.service.UpdateMethod`
    source: str  # update: base or branch
    push: bool  # tag
    reason: str  # checkpoint: a `git.model.Reason`


class OperationFailure(TypedDict):
    """The error's HTTP status and extra fields."""

    status: int
    extra: dict[str, Any]


class OperationDetail(TypedDict, total=False):
    """`GitOperation.detail`: the result, depending on the kind."""

    failure: OperationFailure
    branch: str  # clone, restore, branch, push
    baseBranch: str  # clone
    commit: str  # all except branch, stage and discard
    folder: str  # clone
    shallow: bool
    prepared: str
    """The commit of the checkout that the sandbox had from its snapshot."""
    warnings: list[str]  # clone, discard, checkpoint
    checkpointId: str  # restore, discard, checkpoint
    changed: int  # restore, checkpoint: number of uncommitted files
    commits: int  # push
    compareUrl: str
    upToDate: bool
    conflicts: list[ConflictingFile]  # push, update
    conflictCount: int
    ended: bool  # update: whether there was a merge or rebase to abort
    source: str
    behind: int
    ahead: int
    head: str
    tag: str  # tag
    pushed: bool
    paths: int  # stage
    discarded: list[str]  # discard
    count: int


class CheckRunFields(TypedDict):
    """A `forge.model.CheckRun`."""

    name: str
    status: str
    conclusion: str | None
    url: str | None
    summary: str | None


class StoredRemark(TypedDict):
    """A `forge.model.Remark`."""

    kind: str
    id: str
    author: str
    text: str
    at: str
    state: str | None
    path: str | None
    line: int | None
    url: str | None
    association: str | None
    may_write: bool | None


class PullRequestDetail(TypedDict, total=False):
    """`PullRequest.detail`: what is shown besides the columns."""

    runs: list[CheckRunFields]
    remarks: list[StoredRemark]
    labels: list[str]
    warnings: list[str]


class ReportedNews(TypedDict, total=False):
    """`PullRequest.told`: what has been emitted as events already, and what the next update has to know."""

    remarks: list[str]
    """`kind:id` of each."""
    forgotten: dict[str, int]
    """By kind, the newest id that was removed from `remarks`. Remarks up to it were reported."""
    passed: str | None
    """The commit whose checks were reported as passing."""
    updatedAt: str
    """The forge's time of the last applied response."""
    words: str
    """The body that was given when it was opened."""
    branch: Literal["kept"]
    """The branch has moved on after the merge, so it is not deleted."""
