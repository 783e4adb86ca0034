"""The words of git as the platform uses them: what it reads out of a repository, and what it does to one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from sandyard.kit.secret import Secret

FOLDER = "/home/user/workspace"
"""Where a session finds its checkout."""
PREPARED = "sandyard-prepared"
"""The branch of a checkout that is nobody's yet, while it is made. It is in no row, and never pushed."""


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
    """`queued`: it waits for its turn to write to the repository."""

    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"

    @property
    def over(self) -> bool:
        return self in (OperationStatus.COMPLETED, OperationStatus.FAILED)


class Reason(StrEnum):
    """Why a checkpoint was made."""

    ASKED = "asked"
    PAUSE = "pause"
    DESTROY = "destroy"
    PUSH = "push"
    UPDATE = "update"
    DISCARD = "discard"
    RESTORE = "restore"
    TURN = "turn"


@dataclass(frozen=True, slots=True)
class Identity:
    name: str
    email: str

    def __str__(self) -> str:
        return f"{self.name} <{self.email}>"


@dataclass(frozen=True, slots=True)
class Credential:
    """What opens a remote. It goes to git on the platform's machine and never further."""

    token: Secret | None = None
    username: str = "x-access-token"
    ssh_key: Secret | None = None


class Progress(Protocol):
    """Called with what is being done, in words, and how far it is (0 to 100) where git says that."""

    def __call__(self, what: str, percent: int | None = None) -> None: ...


def no_progress(what: str, percent: int | None = None) -> None:
    """Nobody listens."""


# what is read ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Commit:
    id: str
    parents: tuple[str, ...]
    author: Identity
    committer: Identity
    authored_at: datetime
    committed_at: datetime
    subject: str
    body: str


class Change(StrEnum):
    ADDED = "added"
    MODIFIED = "modified"
    DELETED = "deleted"
    RENAMED = "renamed"
    COPIED = "copied"
    TYPE = "type_changed"
    UNTRACKED = "untracked"
    CONFLICTED = "conflicted"


@dataclass(frozen=True, slots=True)
class StatusEntry:
    """`index` is what the next commit has of it, `worktree` what it does not have yet."""

    path: str
    index: Change | None = None
    worktree: Change | None = None
    old_path: str | None = None


@dataclass(frozen=True, slots=True)
class Status:
    """`under_way`: merge or rebase, when one was begun and has not ended. `live` is False when the sandbox sleeps and this is how
    it was kept last, at `as_of`."""

    branch: str | None
    head: str | None
    entries: tuple[StatusEntry, ...]
    under_way: str | None = None
    truncated: bool = False
    live: bool = True
    as_of: datetime | None = None

    @property
    def clean(self) -> bool:
        return not self.entries


@dataclass(frozen=True, slots=True)
class FileDiff:
    """`patch` is None for a binary file, and for one that was too large to show (`truncated`)."""

    path: str
    change: Change
    old_path: str | None = None
    added: int | None = None
    removed: int | None = None
    binary: bool = False
    patch: str | None = None
    truncated: bool = False
    old_mode: str | None = None
    new_mode: str | None = None


@dataclass(frozen=True, slots=True)
class Diff:
    """`truncated`: there are more files than are told."""

    base: str
    head: str
    files: tuple[FileDiff, ...]
    added: int = 0
    removed: int = 0
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class Conflict:
    """One file that two sides have changed. `kind`: content, add/add, modify/delete, rename/delete, …, as git calls it."""

    path: str
    kind: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Conflicts:
    """The first of the `total` files in conflict."""

    files: tuple[Conflict, ...] = ()
    total: int = 0

    def __bool__(self) -> bool:
        return self.total > 0


@dataclass(frozen=True, slots=True)
class PackIndex:
    """The index of the pack that a bundle ends with: where that begins, and what git calls it. Whoever trusts who made it needs no
    other look at the pack."""

    path: str
    offset: int
    pack: str


@dataclass(frozen=True, slots=True)
class Bundle:
    """A file on the platform's machine. `shallow` are the commits whose parents it leaves out."""

    path: str
    size: int
    shallow: tuple[str, ...] = ()
    index: PackIndex | None = None


@dataclass(frozen=True, slots=True)
class Prepared:
    """A checkout that a sandbox has from the snapshot it was made of: `commit` of branch `base`, on no branch. `shallow`:
    where its history ends. `warnings`: what it lacks, in sentences."""

    base: str
    commit: str
    shallow: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkTree:
    """All of a work tree in one commit, whose parents are HEAD and a commit of the index, as git-stash has them; what is
    ignored is not in it. `changed` counts files that differ from HEAD. `skipped` are files that could not be kept: those nobody
    may read, untracked ones that are very large, and repositories inside the repository."""

    commit: str
    head: str
    branch: str | None
    changed: int
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Undone:
    """What a program had changed in a work tree, and no longer has. `commit` is the work tree with those changes; `count` files
    were changed, of which a few are named in `paths`."""

    commit: str
    count: int
    paths: tuple[str, ...] = ()


class Place(Protocol):
    """Somewhere git can be run for reading: a mirror, or the checkout in a sandbox. Arguments are given as they are and pass no
    shell. Raises GitFailedError when git says no; more than `limit` bytes are cut off."""

    async def read(self, *arguments: str, limit: int = ...) -> tuple[bytes, bool]:
        """What git wrote, and whether some of it was cut off."""
        ...


@dataclass(frozen=True, slots=True)
class CommitDraft:
    """A commit to be made of what is staged, or of everything. `paths`: of these alone."""

    message: str
    author: Identity
    committer: Identity
    co_authors: Sequence[Identity] = field(default_factory=tuple)
    everything: bool = True
    paths: Sequence[str] = field(default_factory=tuple)
