"""The target file of an upload. It is written in place, as envd does: watchers see it change, an existing file keeps
its inode, mode and links, and on a full disk it can still be overwritten with less. Unlike with envd, an existing file
is changed only when the upload is complete, and a failed upload of a new file leaves nothing."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import posixpath
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any

from sandyard.engine.guest.files import metadata
from sandyard.engine.guest.files.spool import Spool
from sandyard.engine.guest.sandbox import NotAFileError, Sandbox
from sandyard.engine.guest.users import User
from sandyard.engine.guest.wire.http1 import HttpError

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_NO_RANGE_COPY = frozenset({errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})
_BAD_PATH = frozenset({errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL, errno.ENXIO})


class Target:
    """Use it as a context manager, and call `finish` at the end. Leaving it with an exception removes a new file, and
    keeps an existing one that was not yet changed. `body_length` is the length of the request's body, if known."""

    def __init__(
        self, sandbox: Sandbox, path: str, user: User, file_metadata: Mapping[str, str], body_length: int | None
    ) -> None:
        self._sandbox = sandbox
        self._user = user
        self._path = path
        self._host = sandbox.to_host_path(path)
        self._metadata = file_metadata
        self._body_length = body_length
        self._is_new = False
        try:
            sandbox.ensure_directory(posixpath.dirname(self._host) or "/", user)
        except OSError as error:
            raise self._make_http_error(error, "error ensuring directories") from None
        self._spool: Spool | None = None
        self._fd = self._open(sandbox)
        if self._is_new:
            try:
                self._prepare()
            except HttpError:
                self._discard()
                raise
        else:
            self._spool = Spool(sandbox, posixpath.dirname(os.path.realpath(self._host)))

    def _prepare(self) -> None:
        """Empty the file and set its owner and metadata. From then on, a failure of the upload removes it."""
        if self._metadata:
            metadata.check_support(self._fd)
        self._spool = None  # the existing content is about to be lost
        try:
            if not self._is_new:
                os.ftruncate(self._fd, 0)  # before anything else, because watchers of envd see the write first
            self._sandbox.set_owner(self._fd, self._user)
            metadata.replace(self._fd, self._metadata, is_new=self._is_new)
        except OSError as error:
            raise self._make_http_error(error, "error preparing file") from None

    def _open(self, sandbox: Sandbox) -> int:
        try:
            try:
                return sandbox.open_file(self._host, os.O_WRONLY)
            except FileNotFoundError:
                self._is_new = True
                return sandbox.open_file(self._host, os.O_WRONLY | os.O_CREAT)
        except IsADirectoryError:
            raise HttpError(400, f"path is a directory: {self._path}") from None
        except NotAFileError:
            raise HttpError(400, f"path is not a regular file: {self._path}") from None
        except OSError as error:
            if error.errno in _FULL:
                raise HttpError(507, f"not enough inodes available: {error.strerror}") from None
            raise self._make_http_error(error, "error opening file") from None

    def write(self, data: memoryview) -> None:
        """Write all data. Raises HttpError 507 if the disk is full."""
        try:
            if self._spool is not None:
                data = self._keep_aside(self._spool, data)
            while data:
                data = data[os.write(self._fd, data) :]
        except OSError as error:
            raise self._make_http_error(error, "error writing file") from None

    def _keep_aside(self, spool: Spool, data: memoryview) -> memoryview:
        """Add data to the spool. If that fails, start to overwrite the file, and return the data still to be written there.

        Raises OSError on a full disk if the new content may be larger than the existing one, because it would not fit.
        """
        size = spool.size
        try:
            spool.write(data)
        except OSError as error:
            will_fit = self._body_length is not None and self._body_length <= os.fstat(self._fd).st_size
            if error.errno in _FULL and not will_fit:
                raise
            stored = spool.size - size
            for _ in self._replace(spool):
                pass
            return data[stored:]
        return data[:0]

    async def finish(self) -> None:
        """Replace the content of an existing file with the uploaded one."""
        if self._spool is not None:
            for _ in self._replace(self._spool):
                await asyncio.sleep(0)

    def _replace(self, spool: Spool) -> Iterator[None]:
        try:
            self._prepare()
            yield from spool.move(self.write, self.copy_from)
        finally:
            spool.close()

    def copy_from(self, fd: int, count: int) -> int:
        """Append up to `count` next bytes of an open file, inside the kernel if possible. Return their number, 0 at its end."""
        try:
            try:
                return os.copy_file_range(fd, self._fd, count)
            except OSError as error:
                if error.errno not in _NO_RANGE_COPY:
                    raise
            data = os.read(fd, min(count, 1 << 20))
        except OSError as error:
            raise self._make_http_error(error, "error composing file") from None
        self.write(memoryview(data))
        return len(data)

    def get_info(self) -> dict[str, Any]:
        """Return the description of the file for the client."""
        info: dict[str, Any] = {"path": self._path, "name": posixpath.basename(self._path), "type": "file"}
        if self._metadata:
            info["metadata"] = dict(self._metadata)
        return info

    def __enter__(self) -> Target:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._discard()
            return
        try:
            os.close(self._fd)
        except OSError as error:
            raise self._make_http_error(error, "error writing file") from None

    def _discard(self) -> None:
        """Keep a file that is unchanged; otherwise remove it. A link stays in place, and its target is emptied."""
        if self._spool is not None:
            self._spool.close()
            os.close(self._fd)
            return
        with contextlib.suppress(OSError):
            opened, named = os.fstat(self._fd), os.lstat(self._host)
            if (opened.st_dev, opened.st_ino) == (named.st_dev, named.st_ino):
                os.unlink(self._host)
            else:
                os.ftruncate(self._fd, 0)
        os.close(self._fd)

    def _make_http_error(self, error: OSError, what: str) -> HttpError:
        if error.errno in _FULL:
            attempt = f"attempted to write {self._body_length} bytes: " if self._body_length else ""
            return HttpError(507, f"{attempt}not enough disk space available")
        return HttpError(400 if error.errno in _BAD_PATH else 500, f"{what}: {error.strerror}: {self._path}")
