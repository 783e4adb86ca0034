"""A temporary copy of an SQLite database, on which something can be tried first."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path

from sandyard.kit.errors import NoSpaceError, SandyardError

SIZES = 2
"""Free space that is needed, in sizes of the database: for the copy, and for what is changed in it."""
MIB = 1 << 20


@contextlib.contextmanager
def make_temporary_copy(database: Path) -> Iterator[Path]:
    """Yield a consistent copy of a database, which may be in use, and remove the copy at the end.

    It is in a directory next to the database, because /tmp is often small. One process at a time may do this: what a killed one left
    behind is removed. Raises NoSpaceError if the disk has no room for it, and SandyardError if the database is damaged.
    """
    prefix = f".{database.name}-copy-"
    for leftover in database.parent.glob(f"{prefix}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=database.parent) as folder:
        copy = Path(folder) / database.name
        _copy(database, copy)
        yield copy


def _copy(database: Path, copy: Path) -> None:
    with (
        contextlib.closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=rw", uri=True)) as source,
        contextlib.closing(sqlite3.connect(copy)) as target,
    ):
        _check_space(database, source)
        source.backup(target)
        found = target.execute("PRAGMA quick_check(1)").fetchone()[0]
    if found != "ok":
        raise SandyardError(f"The database {database} is damaged: {found}. Restore a backup.")


def _check_space(database: Path, connection: sqlite3.Connection) -> None:
    (pages,), (page_size,) = (connection.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "page_size"))
    needed, free = pages * page_size * SIZES, shutil.disk_usage(database.parent).free
    if free < needed:
        raise NoSpaceError(
            f"A temporary copy of {database} needs {needed // MIB + 1} MiB on its disk, which has {free // MIB} MiB left. Free some space."
        )
