"""Pull requests on any forge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum


class ForgeKind(StrEnum):
    GITHUB = "github"
    PLAIN = "plain"


class PullState(StrEnum):
    """`pushed`: a plain remote has no pull requests; the branch can be compared."""

    OPEN = "open"
    CLOSED = "closed"
    MERGED = "merged"
    PUSHED = "pushed"


class Review(StrEnum):
    NONE = "none"
    COMMENTED = "commented"
    APPROVED = "approved"
    CHANGES_REQUESTED = "changes_requested"


class Checks(StrEnum):
    NONE = "none"
    PENDING = "pending"
    PASSING = "passing"
    FAILING = "failing"


class MergeMethod(StrEnum):
    SQUASH = "squash"
    MERGE = "merge"
    REBASE = "rebase"


@dataclass(frozen=True, slots=True)
class PullDraft:
    """A pull request to open or update. None and empty fields are not changed on an existing one."""

    head: str
    base: str
    title: str | None = None
    body: str | None = None
    draft: bool | None = None
    labels: Sequence[str] = field(default_factory=tuple)
    reviewers: Sequence[str] = field(default_factory=tuple)
    assignees: Sequence[str] = field(default_factory=tuple)


@dataclass(frozen=True, slots=True)
class CheckRun:
    name: str
    status: str  # queued, in_progress, completed
    conclusion: str | None = None
    url: str | None = None
    summary: str | None = None


@dataclass(frozen=True, slots=True)
class Remark:
    """A statement of a person or a check. `kind`: review, comment, line_comment or check.

    `id` is the forge's, unique within its kind. `association` is the author's relation to the repository as named by the forge, which proves
    nothing. `may_write`: whether the author has write access according to the forge; None if it was not checked.
    """

    kind: str
    id: str
    author: str
    text: str
    at: datetime
    state: str | None = None
    path: str | None = None
    line: int | None = None
    url: str | None = None
    association: str | None = None
    may_write: bool | None = None


@dataclass(frozen=True, slots=True)
class Pull:
    """A pull request as reported by the forge."""

    number: int | None
    url: str
    title: str
    state: PullState
    draft: bool
    head: str
    base: str
    head_commit: str | None
    mergeable: bool | None = None
    review: Review = Review.NONE
    checks: Checks = Checks.NONE
    runs: tuple[CheckRun, ...] = ()
    remarks: tuple[Remark, ...] = ()
    labels: tuple[str, ...] = ()
    merged_at: datetime | None = None
    closed_at: datetime | None = None
    updated_at: datetime | None = None
    warnings: tuple[str, ...] = ()
    """Requested changes that failed, and data that could not be read, as sentences."""
    body: str | None = None
    """The current body on the forge ("" if empty), so that only our part of it is changed. Set by `find` and `get_pull`; otherwise None."""


@dataclass(frozen=True, slots=True)
class Permissions:
    """The project credential's permissions on the repository, as far as the forge reports them."""

    push: bool
    pull_requests: bool
    archived: bool
    default_branch: str | None


@dataclass(frozen=True, slots=True)
class Budget:
    """Requests left until `resets_at`, as last reported by the forge."""

    limit: int
    remaining: int
    resets_at: datetime

    @property
    def low(self) -> bool:
        return self.remaining < 100


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of a connection test. `field`: the field to correct: token, repository or baseBranch."""

    what: str
    ok: bool
    detail: str
    field: str | None = None
