"""The place of published layers: a directory, or a bucket in S3 (`s3.py`).

Objects never change. Keys: `blobs/<sha256>` (packed layers), `snapshots/<id>.json` (manifests), `store.json` (identifies
the store).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import io
import os
import re
import stat
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol, TypeVar

from sandyard.engine.layers.threads import StoreThreads
from sandyard.kit.errors import InvalidInputError, NoSpaceError, NotFoundError, SandyardError, UnreachableError
from sandyard.kit.openat2 import open_without_links

T = TypeVar("T")

BLOBS, SNAPSHOTS, IDENTITY = "blobs/", "snapshots/", "store.json"
MAX_DOCUMENT_BYTES, MAX_IDENTITY_BYTES = 4 << 20, 4096
MAX_OBJECTS = 1_000_000
"""Maximum number of objects to list. Others may write to a store, and the list is kept in memory."""
S3_PREFIX = "s3://"
_CHUNK = 1 << 20
_PARTIAL = ".partial-"
_PARTIAL_AGE_S = 24 * 3600
_CANCEL_SECONDS = 10.0  # how long a cancelled call waits until its partial file is removed
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
    """Raises NotFoundError (no such object), UnreachableError (the store is unreachable), StoreFullError, AccessDeniedError, or
    SandyardError. Cancellable: what was cancelled leaves no partial object."""

    location: str  # for people, without credentials

    async def put_file(self, key: str, source: Path) -> None:
        """Store a file, unless there is such an object. After a crash it is complete or does not exist."""
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
    """Options that are not part of the location. None: from boto3's own configuration, such as AWS_… variables."""

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


def get_max_bytes(key: str) -> int:
    """Return how many bytes a document may have."""
    return MAX_IDENTITY_BYTES if key == IDENTITY else MAX_DOCUMENT_BYTES


def check_document(key: str, content: bytes) -> bytes:
    """Return the content. Raises InvalidInputError if it is too large."""
    if len(content) > get_max_bytes(key):
        raise InvalidInputError(f"The object {key} in the layer store is damaged: it is larger than any engine stores.")
    return content


def is_key(key: str) -> bool:
    """Return whether an engine may have stored an object with this key."""
    return _KEY_PATTERN.fullmatch(key) is not None


def check_count(location: str, count: int) -> None:
    """Raise InvalidInputError if a list is too long."""
    if count >= MAX_OBJECTS:
        raise InvalidInputError(
            f"The layer store {location} has more than {MAX_OBJECTS:,} objects, which is too many to list."
        )


class DirectoryStore:
    """A directory, which may be a mounted network file system. It must exist. Others may write to it, so no link in it is followed, and
    nothing but regular files is opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.location = str(path)
        self._threads = StoreThreads(self.location)

    async def put_file(self, key: str, source: Path) -> None:
        await self._put(key, source, (await asyncio.to_thread(source.stat)).st_size)

    async def put_document(self, key: str, content: bytes) -> None:
        await self._put(key, content, len(content))

    async def _put(self, key: str, source: Path | bytes, size: int) -> None:
        cancelled = threading.Event()
        work = asyncio.ensure_future(self._run(lambda: self._write(key, source, cancelled), size=size))
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            cancelled.set()
            await asyncio.wait((work,), timeout=_CANCEL_SECONDS)
            if work.done():
                work.exception()
            raise

    def _write(self, key: str, source: Path | bytes, cancelled: threading.Event) -> None:
        name = self._check_key(key).rpartition("/")[2]
        with self._open_folder(key, create=True) as folder:
            if isinstance(source, Path) and _exists(folder, name):
                return
            partial = f"{_PARTIAL}{uuid.uuid4().hex}"
            try:
                fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
                with os.fdopen(fd, "wb") as file:
                    os.fchmod(fd, 0o600)
                    if isinstance(source, bytes):
                        file.write(source)
                    else:
                        _copy(source, file, cancelled)
                    file.flush()
                    os.fsync(fd)
                os.rename(partial, name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(partial, dir_fd=folder)
                raise
            os.fsync(folder)

    async def get_document(self, key: str) -> bytes:
        def read() -> bytes:
            with os.fdopen(self._open_object(key), "rb") as file:
                return check_document(key, file.read(get_max_bytes(key) + 1))

        return await self._run(read)

    @asynccontextmanager
    async def open_file(self, key: str, spool: Path, size: int) -> AsyncIterator[int]:
        def open_object() -> tuple[io.FileIO, int]:
            # closed with the last reference, also if its reader is gone
            file = io.FileIO(self._open_object(key))
            return file, os.fstat(file.fileno()).st_size

        file, found = await self._run(open_object)
        with file:
            check_size(key, found, size)
            yield file.fileno()

    async def find(self, key: str) -> StoredObject | None:
        def stat() -> StoredObject:
            fd = self._open_object(key)
            try:
                status = os.fstat(fd)
            finally:
                os.close(fd)
            return StoredObject(key, status.st_size, status.st_mtime)

        try:
            return await self._run(stat)
        except NotFoundError:
            return None

    async def refresh(self, key: str) -> None:
        def touch() -> None:
            fd = self._open_object(key)
            try:
                os.utime(fd)
            finally:
                os.close(fd)

        await self._run(touch)

    async def list(self, prefix: str) -> AsyncIterator[StoredObject]:
        for stored in await self._run(lambda: list(self._scan(prefix))):
            yield stored

    def _scan(self, prefix: str) -> Iterator[StoredObject]:
        """Yield the objects, and remove what killed engines left incomplete a day ago."""
        with self._open_root() as root:
            try:
                folder = open_without_links(root, prefix.rstrip("/"), os.O_RDONLY | os.O_DIRECTORY)
            except FileNotFoundError:
                return
            try:
                with os.scandir(folder) as entries:
                    for count, entry in enumerate(entries):
                        check_count(self.location, count)
                        with contextlib.suppress(FileNotFoundError):  # deleted by another engine
                            if (stored := _examine(prefix, entry, folder)) is not None:
                                yield stored
            finally:
                os.close(folder)

    async def delete(self, key: str) -> None:
        def unlink() -> None:
            name = self._check_key(key).rpartition("/")[2]
            with contextlib.suppress(FileNotFoundError), self._open_folder(key) as folder:
                os.unlink(name, dir_fd=folder)

        await self._run(unlink)

    async def close(self) -> None:
        """Do nothing: there is no connection."""

    def _check_key(self, key: str) -> str:
        if not is_key(key):
            raise InvalidInputError(f"{key[:200]!r} is not the name of an object in a layer store.")
        return key

    @contextlib.contextmanager
    def _open_folder(self, key: str, *, create: bool = False) -> Iterator[int]:
        """Yield the directory of a key or prefix."""
        name = key.rpartition("/")[0]
        with self._open_root() as root:
            if name and create:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o700, dir_fd=root)
            folder = open_without_links(root, name or ".", os.O_RDONLY | os.O_DIRECTORY)
            try:
                yield folder
            finally:
                os.close(folder)

    @contextlib.contextmanager
    def _open_root(self) -> Iterator[int]:
        try:
            root = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except NotADirectoryError as error:
            raise FileNotFoundError(errno.ENOENT, "it is not a directory", str(self.path)) from error
        try:
            yield root
        finally:
            os.close(root)

    def _open_object(self, key: str) -> int:
        """Open an object for reading. Raises InvalidInputError for what no engine has stored, such as a link or a pipe."""
        with self._open_folder(self._check_key(key)) as folder:
            fd = open_without_links(folder, key.rpartition("/")[2], os.O_RDONLY | os.O_NONBLOCK)
        if stat.S_ISREG(os.fstat(fd).st_mode):
            return fd
        os.close(fd)
        raise InvalidInputError(f"The object {key} in the layer store {self.path} is not a regular file.")

    async def _run(self, work: Callable[[], T], *, size: int = 0) -> T:
        def call() -> T:
            try:
                return work()
            except OSError as error:
                raise self._translate(error) from error

        return await self._threads.run(call, size=size)

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
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.ENOTDIR, errno.EISDIR):
            name = str(error.filename or "an object")[:200]
            return InvalidInputError(
                f"{name} in the layer store {self.path} is a link or no regular file, which is not used."
            )
        return UnreachableError(f"The layer store {self.path} does not work: {error.strerror or error}.")


def _examine(prefix: str, entry: os.DirEntry[str], folder: int) -> StoredObject | None:
    """Return the object of an entry of a directory. Remove it if it was left incomplete a day ago."""
    status = entry.stat(follow_symlinks=False)
    if entry.name.startswith(_PARTIAL):
        if status.st_mtime < time.time() - _PARTIAL_AGE_S:
            os.unlink(entry.name, dir_fd=folder)
    elif is_key(prefix + entry.name) and stat.S_ISREG(status.st_mode):
        return StoredObject(prefix + entry.name, status.st_size, status.st_mtime)
    return None


def _exists(folder: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _copy(source: Path, target: BinaryIO, cancelled: threading.Event) -> None:
    with source.open("rb") as content:
        while data := content.read(_CHUNK):
            if cancelled.is_set():
                raise OSError(errno.ECANCELED, "cancelled")
            target.write(data)
