"""Types for volumes and their files."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from sandyard.kit.secret import Secret


@dataclass(frozen=True, slots=True)
class Volume:
    id: str
    name: str
    token: Secret  # grants access to its content only
    size_mb: int
    created_at: float


class EntryKind(enum.StrEnum):
    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Entry:
    """A file, directory or link. Times are seconds since the epoch; `mode` is permissions without the kind."""

    name: str
    path: str
    kind: EntryKind
    size: int
    mode: int
    uid: int
    gid: int
    atime: float
    mtime: float
    ctime: float
    target: str | None = None  # of a link


@dataclass(frozen=True, slots=True)
class Owner:
    """The owner and permissions for a file. None means the default."""

    uid: int | None = None
    gid: int | None = None
    mode: int | None = None
