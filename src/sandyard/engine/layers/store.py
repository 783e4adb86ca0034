"""The place of published layers: a directory, or a bucket in S3 (`s3.py`).

Objects never change. Keys: `blobs/<sha256>` (packed layers), `snapshots/<id>.json` (manifests), `store.json` (identifies
the store).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol, TypeVar

from sandyard.kit.errors import InvalidInputError, NoSpaceError, NotFoundError, SandyardError, UnreachableError
from sandyard.kit.tasks import run_uninterrupted

T = TypeVar("T")

BLOBS, SNAPSHOTS, IDENTITY = "blobs/", "snapshots/", "store.json"
MAX_DOCUMENT_BYTES = 4 << 20
S3_PREFIX = "s3://"
_CHUNK = 1 << 20
_PARTIAL = ".partial-"
_PARTIAL_AGE_S = 24 * 3600
_KEY_PATTERN = re.compile(r"store\.json|blobs/[0-9a-f]{64}|snapshots/[A-Za-z0-9][A-Za-z0-9_-]{0,63}\.json")


class StoreFullError(NoSpaceError):
    """The layer store has no space left."""


class AccessDeniedError(SandyardError):
    """The layer store refuses access."""

    code, status = "layer_store_access_denied", 502


@dataclass(frozen=True, slots=True)
class StoredObject:
    """`modified` is the time of the last `put` or `refresh`, by the store's clock."""

    key: str
    size: int
    modified: float


class LayerStore(Protocol):
    """Raises NotFoundError (no such object), UnreachableError (the store is away), StoreFullError, AccessDeniedError, or
    SandyardError. Cancellable: what was cancelled leaves no partial object."""

    location: str  # for people, without credentials

    async def put_file(self, key: str, source: Path) -> None:
        """Store a file, unless there is such an object. It is complete or does not exist, whatever crashes."""
        ...

    async def put_document(self, key: str, content: bytes) -> None:
        """Store a small document; replaces an existing one."""
        ...

    async def get_document(self, key: str) -> bytes: ...

    def open_file(self, key: str, spool: Path, size: int) -> AbstractAsyncContextManager[int]:
        """Provide the object as an open file while the context lasts. `spool` is a folder for a temporary copy. Raises
        InvalidInputError if it has another size."""
        ...

    async def find(self, key: str) -> StoredObject | None: ...

    async def refresh(self, key: str) -> None:
        """Set the object's date to now."""
        ...

    def list(self, prefix: str) -> AsyncIterator[StoredObject]: ...

    async def delete(self, key: str) -> None:
        """Delete an object. Idempotent."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class S3Options:
    """What the location does not say. None: from boto3's own configuration, such as AWS_… variables."""

    endpoint: str | None = None
    region: str | None = None
    access_key: str | None = None
    secret_key: str | None = None


def check_size(key: str, actual: int, expected: int) -> None:
    """Raise InvalidInputError if an object has another size than expected."""
    if actual != expected:
        raise InvalidInputError(
            f"The object {key} in the layer store is damaged: it has {actual} bytes, not {expected}."
        )


class DirectoryStore:
    """A directory, which may be a mounted network file system. It must exist."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.location = str(path)

    async def put_file(self, key: str, source: Path) -> None:
        await self._put(key, source)

    async def put_document(self, key: str, content: bytes) -> None:
        await self._put(key, content)

    async def _put(self, key: str, source: Path | bytes) -> None:
        cancelled = threading.Event()
        work = asyncio.ensure_future(self._run(lambda: self._write(key, source, cancelled)))
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            cancelled.set()
            with contextlib.suppress(SandyardError):
                await work
            raise

    def _write(self, key: str, source: Path | bytes, cancelled: threading.Event) -> None:
        target = self._find_path(key)
        if isinstance(source, Path) and target.exists():
            return
        partial = target.parent / f"{_PARTIAL}{uuid.uuid4().hex}"
        if not target.parent.is_dir() and self.path.is_dir():
            target.parent.mkdir(mode=0o700, exist_ok=True)
        try:
            with partial.open("xb") as file:
                os.fchmod(file.fileno(), 0o600)
                if isinstance(source, bytes):
                    file.write(source)
                else:
                    _copy(source, file, cancelled)
                file.flush()
                os.fsync(file.fileno())
            partial.rename(target)
        except BaseException:
            with contextlib.suppress(OSError):
                partial.unlink()
            raise
        _sync_directory(target.parent)

    async def get_document(self, key: str) -> bytes:
        def read() -> bytes:
            with self._find_path(key).open("rb") as file:
                return file.read(MAX_DOCUMENT_BYTES)

        return await self._run(read)

    @asynccontextmanager
    async def open_file(self, key: str, spool: Path, size: int) -> AsyncIterator[int]:
        fd = await self._run(lambda: os.open(self._find_path(key), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW))
        try:
            check_size(key, os.fstat(fd).st_size, size)
            yield fd
        finally:
            os.close(fd)

    async def find(self, key: str) -> StoredObject | None:
        def stat() -> StoredObject:
            status = self._find_path(key).stat()
            return StoredObject(key, status.st_size, status.st_mtime)

        try:
            return await self._run(stat)
        except NotFoundError:
            return None

    async def refresh(self, key: str) -> None:
        await self._run(lambda: os.utime(self._find_path(key)))

    async def list(self, prefix: str) -> AsyncIterator[StoredObject]:
        for stored in await self._run(lambda: list(self._scan(prefix))):
            yield stored

    def _scan(self, prefix: str) -> Iterator[StoredObject]:
        """Yield the objects, and remove what killed engines left incomplete a day ago."""
        if not self.path.is_dir():
            raise FileNotFoundError(errno.ENOENT, "the directory does not exist", str(self.path))
        folder = self.path / prefix
        if not folder.is_dir():
            return
        for entry in os.scandir(folder):
            with contextlib.suppress(FileNotFoundError):  # deleted by another engine
                status = entry.stat(follow_symlinks=False)
                if entry.name.startswith(_PARTIAL):
                    if status.st_mtime < time.time() - _PARTIAL_AGE_S:
                        Path(entry.path).unlink()
                elif _KEY_PATTERN.fullmatch(prefix + entry.name):
                    yield StoredObject(prefix + entry.name, status.st_size, status.st_mtime)

    async def delete(self, key: str) -> None:
        await self._run(lambda: self._find_path(key).unlink(missing_ok=True))

    async def close(self) -> None:
        """Do nothing: there is no connection."""

    def _find_path(self, key: str) -> Path:
        if not _KEY_PATTERN.fullmatch(key):
            raise InvalidInputError(f"{key[:200]!r} is not the name of an object in a layer store.")
        return self.path / key

    async def _run(self, work: Callable[[], T]) -> T:
        try:
            return await run_uninterrupted(asyncio.to_thread(work))
        except OSError as error:
            raise self._translate(error) from error

    def _translate(self, error: OSError) -> SandyardError:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return StoreFullError(f"The layer store {self.path} is full. Free some space in it.")
        if error.errno == errno.ENOENT:
            if self.path.is_dir():
                return NotFoundError(f"The layer store {self.path} does not have {Path(str(error.filename)).name}.")
            return UnreachableError(f"The layer store {self.path} does not exist. Create the directory, or mount it.")
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            reason = f"{error.strerror}. Let the engine's user write to it"
            return AccessDeniedError(f"The layer store {self.path} refuses access: {reason}.")
        return UnreachableError(f"The layer store {self.path} does not work: {error.strerror or error}.")


def _copy(source: Path, target: BinaryIO, cancelled: threading.Event) -> None:
    with source.open("rb") as content:
        while data := content.read(_CHUNK):
            if cancelled.is_set():
                raise OSError(errno.ECANCELED, "cancelled")
            target.write(data)


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
