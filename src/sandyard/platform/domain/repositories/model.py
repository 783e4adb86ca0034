"""Data types of repositories: what is read from one and what is needed to access its remote."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from sandyard.kit.secret import Secret


@dataclass(frozen=True, slots=True)
class Identity:
    name: str
    email: str

    def __str__(self) -> str:
        return f"{self.name} <{self.email}>"


@dataclass(frozen=True, slots=True)
class Credential:
    """Credentials for a remote. They are given only to git on the platform's machine."""

    token: Secret | None = None
    username: str = "x-access-token"
    ssh_key: Secret | None = None


class Progress(Protocol):
    """Callback that receives a description of the current step and, where git reports it, the percentage (0 to 100)."""

    def __call__(self, what: str, percent: int | None = None) -> None: ...


def ignore_progress(what: str, percent: int | None = None) -> None:
    """Ignore progress reports."""


# results of reads -----------------------------------------------------------------------------------------------------


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
    """A changed file. `index` is its staged change, `worktree` its change that is not staged yet."""

    path: str
    index: Change | None = None
    worktree: Change | None = None
    old_path: str | None = None


@dataclass(frozen=True, slots=True)
class Status:
    """State of a work tree.

    `under_way` is `merge` or `rebase` if one is in progress. `live` is False if the sandbox is paused; the status is
    then the last one saved, at `as_of`.
    """

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
    """Changes to one file. `patch` is None for binary files and for files that are too large to show (`truncated`)."""

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
    """Difference between two commits. `truncated`: there are more files than are listed."""

    base: str
    head: str
    files: tuple[FileDiff, ...]
    added: int = 0
    removed: int = 0
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class Conflict:
    """One file that both sides changed. `kind` is git's name for the conflict: content, add/add, modify/delete,
    rename/delete, …."""

    path: str
    kind: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Conflicts:
    """The first files in conflict, and the `total` number of them."""

    files: tuple[Conflict, ...] = ()
    total: int = 0

    def __bool__(self) -> bool:
        return self.total > 0


@dataclass(frozen=True, slots=True)
class PackIndex:
    """Index of the pack at the end of a bundle, with the offset of the pack and its git name.

    A reader that trusts the creator of the index need not examine the pack itself.
    """

    path: str
    offset: int
    pack: str


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle file on the platform's machine. `shallow` lists the commits whose parents it omits."""

    path: str
    size: int
    shallow: tuple[str, ...] = ()
    index: PackIndex | None = None


class RepositoryReader(Protocol):
    """A repository in which git can run read-only commands: a mirror, or the checkout in a sandbox.

    Arguments are passed as they are, without a shell. Raises GitFailedError if git fails. Output beyond `limit` bytes
    is dropped.
    """

    async def read(self, *arguments: str, limit: int = ...) -> tuple[bytes, bool]:
        """Return git's output and whether it was truncated."""
        ...
