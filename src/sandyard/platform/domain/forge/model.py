"""Pull requests, whatever forge they are on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum


class ForgeKind(StrEnum):
    GITHUB = "github"
    PLAIN = "plain"


class PullState(StrEnum):
    """`pushed`: a plain remote has no pull requests; the branch is there to be compared."""

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
    """A pull request to be opened, or brought up to date. What is None or empty is left as it is on one that exists."""

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
    """Something a person or a check said. `kind`: review, comment, line_comment or check. `id` is the forge's, unique within its
    kind. `association` is what the forge calls the author's relation to the repository; it proves nothing. `may_write`: whether the
    forge says that the author may write to the repository; None: nobody asked."""

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
    """A pull request as the forge says it is."""

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
    """What was asked for and could not be done, or could not be seen; in sentences."""
    body: str | None = None
    """As it is on the forge now ("" when it is empty there): `find` and `pull` say it, so that only our part of it is ever changed.
    None: nobody looked."""


@dataclass(frozen=True, slots=True)
class Permissions:
    """What the project's credential may do with the repository, as far as the forge says it beforehand."""

    push: bool
    pull_requests: bool
    archived: bool
    default_branch: str | None


@dataclass(frozen=True, slots=True)
class Budget:
    """Requests left until `resets_at`, as the forge last said."""

    limit: int
    remaining: int
    resets_at: datetime

    @property
    def low(self) -> bool:
        return self.remaining < 100


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing a connection test looked at. `field`: what of a new project is to be corrected: token, repository or baseBranch."""

    what: str
    ok: bool
    detail: str
    field: str | None = None
