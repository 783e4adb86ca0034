"""Collect the contents of a backup while the engine and the platform are running.

The order makes the copy consistent. The workflow database must not be newer than the platform's database, which must not be newer than the
files it refers to. So the databases are copied first, as of one instant, and the files last. Output files only grow, and git objects never
change.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from sandyard import __version__
from sandyard.cli.backup import databases
from sandyard.cli.backup.archive import DATA, ArchiveWriter, Manifest
from sandyard.cli.backup.contents import DUMP, ENGINE_ENTRIES, PLATFORM_DATABASES, REPOSITORY_FOLDERS, is_kept
from sandyard.cli.errors import CommandError
from sandyard.cli.up.data_directory import DataDirectory
from sandyard.kit.errors import ConflictError

STAGING = "backup.tmp"
MAX_OBJECT_PASSES = 20


class Sources(NamedTuple):
    """The data to back up."""

    data: DataDirectory
    database_url: str | None
    """The URL of PostgreSQL, or None for SQLite in the data directory."""
    dump: bool
    """Whether PostgreSQL is part of the backup."""


class Found(NamedTuple):
    """A file or a folder below a directory."""

    path: str
    """Relative to that directory."""
    status: os.stat_result
    descriptor: int | None
    """The file, opened for reading. None for a folder."""


def check_sources(sources: Sources) -> None:
    """Raise CommandError if there is nothing to back up, or if a required program is missing."""
    data = sources.data
    if not data.platform.is_dir():
        raise CommandError(f"{data.path} is not the data directory of `sandyard up`. Choose it with --data-dir.")
    if sources.database_url is None and not (data.platform / "platform.db").exists():
        raise CommandError(
            f"There is no database in {data.platform}. If it is in PostgreSQL, set SANDYARD_DATABASE_URL as for `sandyard up`."
        )
    if sources.dump:
        databases.find_client("pg_dump")


def estimate_size(data: DataDirectory) -> int:
    """Return the approximate number of bytes to read."""
    total = 0
    for folder, _, files in os.walk(data.platform):
        for name in files:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(folder, name)).st_size  # noqa: PTH118 - faster
    return total


def write_backup(sources: Sources, archive: ArchiveWriter, on_bytes: Callable[[int, str], None]) -> Manifest:
    """Write everything into the archive. The caller finishes it."""
    data = sources.data
    kind = "sqlite" if sources.database_url is None else "postgresql" if sources.dump else "none"
    has_engine = (data.engine / "engine.db").exists()
    manifest = Manifest(datetime.now(UTC).isoformat(timespec="seconds"), __version__, kind, has_engine)
    archive.add_manifest(manifest)
    with _staging(data.path) as staging:
        if kind == "postgresql":
            assert sources.database_url is not None
            databases.dump_postgresql(sources.database_url, staging / DUMP)
            _add(archive, staging / DUMP, DUMP)
        _add_databases(archive, data.platform, staging, on_bytes)
        _add_if_present(archive, data.path / "engine.key", "engine.key")
        _add_platform_files(archive, data.platform)
        for name in REPOSITORY_FOLDERS:
            _add_repositories(archive, data.platform / name, f"platform/{name}")
        if has_engine:
            (copy,) = databases.copy_sqlite([data.engine / "engine.db"], staging, on_bytes)
            databases.remove_store_records(copy)
            _add(archive, copy, "engine/engine.db")
            for name in ENGINE_ENTRIES:
                _add_if_present(archive, data.engine / name, f"engine/{name}")
    return manifest


@contextlib.contextmanager
def _staging(data_dir: Path) -> Iterator[Path]:
    """Create a directory for copies of databases, on the disk of the data directory, and remove it at the end."""
    lock = os.open(data_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    folder = data_dir / STAGING
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConflictError(f"Another backup of {data_dir} is running.") from None
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)


def _add_databases(archive: ArchiveWriter, platform: Path, staging: Path, on_bytes: Callable[[int, str], None]) -> None:
    for copy in databases.copy_sqlite([platform / name for name in PLATFORM_DATABASES], staging, on_bytes):
        _add(archive, copy, f"platform/{copy.name}")
        copy.unlink()


def _add_platform_files(archive: ArchiveWriter, root: Path) -> None:
    """Add everything except databases and repositories."""
    others = {*PLATFORM_DATABASES, *REPOSITORY_FOLDERS}
    for found in _walk(root, lambda path: path in others or not _is_kept("platform", path)):
        _add_found(archive, found, f"platform/{found.path}" if found.path else "platform")


def _add_repositories(archive: ArchiveWriter, root: Path, root_name: str) -> None:
    """Add the repositories, the refs of each before the objects that the refs name.

    Git may pack objects in the meantime, which moves them to a new file, so the files are listed again until there are no new ones.
    It may also move branches into `packed-refs`, so that file is read after the branches.
    """
    if not root.is_dir():
        return
    for found in _walk(root, lambda path: path.endswith(".git") or not _is_kept(root_name, path)):
        _add_found(archive, found, f"{root_name}/{found.path}" if found.path else root_name)
    for repository in sorted(root.glob("*.git")):
        name = f"{root_name}/{repository.name}"
        for found in _walk(repository, partial(_is_added_later, name)):
            _add_found(archive, found, f"{name}/{found.path}" if found.path else name)
        _add_if_present(archive, repository / "packed-refs", f"{name}/packed-refs")
        _add_objects(archive, repository / "objects", f"{name}/objects")


def _is_kept(folder: str, path: str) -> bool:
    return is_kept(PurePosixPath(folder, path))


def _is_added_later(repository: str, path: str) -> bool:
    """Return whether this file or directory of a repository is not added with the refs."""
    return path in {"objects", "packed-refs"} or path.endswith(".lock") or not _is_kept(repository, path)


def _add_objects(archive: ArchiveWriter, objects: Path, name: str) -> None:
    folders, files = set[str](), set[str]()
    for _ in range(MAX_OBJECT_PASSES):
        before = len(files)
        for found in _walk(
            objects, lambda path: path in files or _is_temporary_object(path) or not _is_kept(name, path)
        ):
            known = folders if found.descriptor is None else files
            if found.path not in known:
                known.add(found.path)
                _add_found(archive, found, f"{name}/{found.path}" if found.path else name)
        if len(files) == before:
            return
    raise CommandError(f"The repository {objects.parent} kept changing during the backup. Try again later.")


def _is_temporary_object(path: str) -> bool:
    """Return whether git is still writing this file below `objects`, or the directory is a quarantine."""
    name = path.rpartition("/")[2]
    return name.startswith(("tmp_", ".tmp-", "incoming-")) or name.endswith(".lock")


def _add_if_present(archive: ArchiveWriter, path: Path, name: str) -> None:
    if path.is_dir() and not path.is_symlink():
        for found in _walk(path, lambda path: False):
            _add_found(archive, found, f"{name}/{found.path}" if found.path else name)
    elif os.path.lexists(path):
        with contextlib.suppress(FileNotFoundError):
            _add(archive, path, name)


def _add(archive: ArchiveWriter, path: Path, name: str) -> None:
    descriptor = _open(str(path), None, str(path))
    if descriptor is not None:
        try:
            archive.add_file(f"{DATA}/{name}", descriptor)
        finally:
            os.close(descriptor)


def _add_found(archive: ArchiveWriter, found: Found, name: str) -> None:
    if found.descriptor is None:
        archive.add_folder(f"{DATA}/{name}", found.status)
    else:
        archive.add_file(f"{DATA}/{name}", found.descriptor)


def _walk(root: Path, is_skipped: Callable[[str], bool]) -> Iterator[Found]:
    """Yield the root, with an empty path, and everything below it. Files that disappear in the meantime are left out.

    Raises CommandError if there is a symbolic link, because its target would be missing in the backup.
    """
    _check_is_no_link(str(root), None, str(root))
    for folder, folders, files, descriptor in os.fwalk(root, follow_symlinks=False):
        relative = os.path.relpath(folder, root)
        prefix = "" if relative == "." else f"{relative}/"
        yield Found(prefix.rstrip("/"), os.fstat(descriptor), None)
        folders[:] = sorted(name for name in folders if not is_skipped(f"{prefix}{name}"))
        for name in folders:
            _check_is_no_link(name, descriptor, f"{folder}/{name}")
        for name in sorted(files):
            if is_skipped(f"{prefix}{name}"):
                continue
            with contextlib.suppress(FileNotFoundError):
                file = _open(name, descriptor, f"{folder}/{name}")
                if file is not None:
                    try:
                        yield Found(f"{prefix}{name}", os.fstat(file), file)
                    finally:
                        os.close(file)


def _open(name: str, folder: int | None, shown: str) -> int | None:
    """Open a regular file. Returns None for a socket or a pipe."""
    _check_is_no_link(name, folder, shown)
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return None
        raise
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    return None


def _check_is_no_link(name: str, folder: int | None, shown: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise CommandError(
                f"{shown} is a symbolic link, which a backup does not follow. Mount its target there instead."
            )
