"""Data types of git operations and of the checkouts that they work on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from sandyard.platform.db.models.git_details import PreparedCheckoutFields
from sandyard.platform.domain.repositories.model import Identity

CHECKOUT_FOLDER = "/home/user/workspace"
"""Path of the session's checkout inside its sandbox."""
PREPARED_BRANCH = "sandyard-prepared"
"""Branch of a checkout while it is being prepared. It has no database row and is never pushed."""


class OperationKind(StrEnum):
    CLONE = "clone"
    BRANCH = "branch"
    STAGE = "stage"
    COMMIT = "commit"
    DISCARD = "discard"
    PUSH = "push"
    UPDATE = "update"
    TAG = "tag"
    CHECKPOINT = "checkpoint"
    RESTORE = "restore"


class OperationStatus(StrEnum):
    """State of a Git operation. `queued`: the operation waits for its turn to write to the repository."""

    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"

    @property
    def is_final(self) -> bool:
        return self in (OperationStatus.COMPLETED, OperationStatus.FAILED)


class Reason(StrEnum):
    """The reason for a checkpoint."""

    ASKED = "asked"
    PAUSE = "pause"
    DESTROY = "destroy"
    PUSH = "push"
    UPDATE = "update"
    DISCARD = "discard"
    RESTORE = "restore"
    TURN = "turn"


@dataclass(frozen=True, slots=True)
class PreparedCheckout:
    """A checkout that came with the snapshot of a sandbox: `commit` of branch `base`, on no branch.

    `shallow` lists the commits where its history ends. `warnings` describe what the checkout lacks, one sentence each.
    """

    base: str
    commit: str
    shallow: Sequence[str] = ()
    warnings: Sequence[str] = ()

    def to_json(self) -> PreparedCheckoutFields:
        return {"base": self.base, "commit": self.commit, "shallow": self.shallow, "warnings": self.warnings}


@dataclass(frozen=True, slots=True)
class WorkTree:
    """A whole work tree stored as one commit.

    Its parents are HEAD and a commit of the index, as in git-stash. Ignored files are not included. `changed` counts
    the files that differ from HEAD. `skipped` lists files that could not be saved: unreadable files, very large
    untracked files, and repositories inside the repository.
    """

    commit: str
    head: str
    branch: str | None
    changed: int
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class UndoneChanges:
    """Changes of a program in a work tree that were reverted.

    `commit` is the work tree with those changes. `count` is the number of changed files; `paths` names some of them.
    """

    commit: str
    count: int
    paths: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CommitDraft:
    """A commit to create from the staged changes or, with `everything`, from all changes. `paths` limits it to these
    paths."""

    message: str
    author: Identity
    committer: Identity
    co_authors: Sequence[Identity] = field(default_factory=tuple)
    everything: bool = True
    paths: Sequence[str] = field(default_factory=tuple)
