"""Restore a backup into an empty data directory: check it completely, unpack it into a staging directory, and move the result
into place."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import IO

from sandyard.cli.backup import databases
from sandyard.cli.backup.archive import READ_SIZE, ArchiveReader, BackupDamagedError, Manifest, Member
from sandyard.cli.backup.contents import (
    DUMP,
    PLATFORM_DATABASES,
    REPOSITORY_CONFIG,
    REPOSITORY_FOLDERS,
    is_kept,
    is_known,
)
from sandyard.cli.errors import CommandError
from sandyard.cli.output import format_size
from sandyard.cli.up.data_directory import RESTORE_FOLDER, DataDirectory
from sandyard.kit.age import Identity

IGNORED = {"up.lock", "lost+found"}
"""Names that a new data directory may contain."""
TOP_LEVEL = ("engine", "platform", "engine.key")
RESERVE_BYTES = 64 << 20
BLOCK_SIZE = 4096


def check_target(data: DataDirectory) -> None:
    """Raise CommandError unless the locked data directory is empty. Remove what an interrupted restore has left."""
    unfinished = data.path / RESTORE_FOLDER
    if unfinished.is_dir():
        for name in TOP_LEVEL:
            _remove(data.path / name)
        shutil.rmtree(unfinished)
    if found := sorted(path.name for path in data.path.iterdir() if path.name not in IGNORED):
        raise CommandError(
            f"{data.path} is not empty: it contains {', '.join(found[:5])}. A restore needs an empty data directory: move this one away, "
            "or choose another with --data-dir."
        )


def check_database(manifest: Manifest, database_url: str | None) -> None:
    """Raise CommandError if the settings do not fit the database of the backup."""
    if manifest.database == "sqlite" and database_url is not None:
        raise CommandError(
            "The backup contains a SQLite database. Unset SANDYARD_DATABASE_URL, and start Sandyard without it."
        )
    if manifest.database != "sqlite" and database_url is None:
        raise CommandError(
            "The backup is of an installation with PostgreSQL. Set SANDYARD_DATABASE_URL to the new database."
        )
    if manifest.database == "postgresql":
        assert database_url is not None
        databases.find_client("pg_restore")
        asyncio.run(databases.check_postgresql_is_empty(database_url))


def verify(
    file: IO[bytes], identities: Sequence[Identity], on_bytes: Callable[[int, str], None]
) -> tuple[Manifest, int]:
    """Read and check the whole backup. Return its manifest and how much disk space it needs. Raises BackupDamagedError and AgeError."""
    file.seek(0)
    archive = ArchiveReader(file, identities, on_bytes)
    size, names = 0, set[str]()
    for member in archive:
        _check_path(member.path)
        names.add(str(member.path))
        size += BLOCK_SIZE
        if member.content is not None:
            while piece := member.content.read(READ_SIZE):
                size += len(piece)
    needed = {"platform/platform.db"} if archive.manifest.database == "sqlite" else set()
    needed |= {DUMP} if archive.manifest.database == "postgresql" else set()
    if missing := needed - names:
        raise BackupDamagedError(f"The backup is incomplete: it has no {missing.pop()}.")
    return archive.manifest, size


def restore(
    file: IO[bytes],
    identities: Sequence[Identity],
    data: DataDirectory,
    database_url: str | None,
    *,
    size: int,
    on_bytes: Callable[[int, str], None],
) -> None:
    """Unpack a verified backup into the locked, empty data directory. If it fails, the directory is empty again."""
    free = shutil.disk_usage(data.path).free
    if free < size + RESERVE_BYTES:
        raise CommandError(
            f"The backup needs {format_size(size)}, and {data.path} has {format_size(free)} free. Free some space, or choose another "
            "disk with --data-dir."
        )
    staging = data.path / RESTORE_FOLDER
    staging.mkdir(mode=0o700)
    try:
        file.seek(0)
        archive = ArchiveReader(file, identities, on_bytes)
        for member in archive:
            _check_path(member.path)
            if is_kept(member.path):
                _unpack(member, staging)
        for name in PLATFORM_DATABASES:
            if (database := staging / "platform" / name).exists():
                databases.check_sqlite(database)
        if (database := staging / "engine/engine.db").exists():
            databases.check_sqlite(database)
            # the driver would trust their paths and process ids on this machine
            databases.remove_store_records(database)
        (staging / "platform").mkdir(mode=0o700, exist_ok=True)
        _configure_repositories(staging / "platform")
        if archive.manifest.database == "postgresql":
            assert database_url is not None
            databases.load_postgresql(database_url, staging / DUMP)
        os.sync()
        for name in TOP_LEVEL:
            if (staging / name).exists():
                (staging / name).rename(data.path / name)
    except BaseException:
        for name in TOP_LEVEL:
            _remove(data.path / name)
        raise
    finally:
        shutil.rmtree(staging)


def _check_path(path: PurePosixPath) -> None:
    """Raise BackupDamagedError for a file that no backup contains. The engine would mount its store, and trust files that name this
    machine's processes and directories."""
    if not is_known(path):
        raise BackupDamagedError(f"The backup contains {str(path)[:200]!r}, which does not belong there.")


def _unpack(member: Member, root: Path) -> None:
    """Write a file or a folder. It belongs to the user who restores: `sandyard up` later gives the platform's part to its user."""
    path = root / member.path
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if member.content is None:
        path.mkdir(exist_ok=True)
    else:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
            shutil.copyfileobj(member.content, file, READ_SIZE)
    path.chmod(member.mode & 0o700)
    os.utime(path, (member.mtime, member.mtime))


def _configure_repositories(platform: Path) -> None:
    """Write the configuration of each restored repository anew: that of a backup could name programs to run."""
    for folder in REPOSITORY_FOLDERS:
        for repository in (platform / folder).glob("*.git"):
            if repository.is_dir():
                (repository / "config").write_text(REPOSITORY_CONFIG)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
