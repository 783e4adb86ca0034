"""The Connect service `filesystem.Filesystem`, but for its watchers. Paths are the sandbox's; the agent acts as root,
as envd does."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import posixpath
import stat
from typing import Any

from sandyard.engine.guest.files import entries
from sandyard.engine.guest.sandbox import PathError, Sandbox
from sandyard.engine.guest.users import User
from sandyard.engine.guest.wire import protojson
from sandyard.engine.guest.wire.connect import RpcError
from sandyard.engine.guest.wire.http1 import Request

_FAIR_SHARE = 256  # entries after which others get their turn

Message = protojson.Message


class FilesystemService:
    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    async def stat(self, request: Request, message: Message) -> Message:
        path, _user = self._path(request, message, "path")
        return {"entry": self._entry(path)}

    async def make_dir(self, request: Request, message: Message) -> Message:
        path, user = self._path(request, message, "path")
        host = self._sandbox.host(path)
        try:
            mode = os.stat(host).st_mode
        except FileNotFoundError:
            pass
        except OSError as error:
            raise RpcError("internal", f"error getting file info: {error.strerror}") from None
        else:
            if stat.S_ISDIR(mode):
                raise RpcError("already_exists", f"directory already exists: {path}")
            raise RpcError("invalid_argument", f"path already exists but it is not a directory: {path}")
        self._ensure(host, user)
        return {"entry": self._entry(path)}

    async def move(self, request: Request, message: Message) -> Message:
        source, user = self._path(request, message, "source")
        destination, _ = self._path(request, message, "destination")
        origin, target = self._sandbox.host(source), self._sandbox.host(destination)
        self._entry(source)  # before directories are made for what is not there
        self._ensure(posixpath.dirname(target.rstrip("/")) or "/", user)
        try:
            os.rename(origin, target)
        except FileNotFoundError:
            raise RpcError("not_found", f"source file not found: {source}") from None
        except OSError as error:
            raise RpcError("internal", f"error renaming: {error.strerror}") from None
        return {"entry": self._entry(destination)}

    async def remove(self, request: Request, message: Message) -> Message:
        """Remove whatever is there, with all below it. What is not there is removed already."""
        path, _user = self._path(request, message, "path")
        try:
            await _remove_all(self._sandbox.host(path))
        except OSError as error:
            where = self._sandbox.guest(str(error.filename or path))
            reason = f"error removing file or directory: {error.strerror}: {where}"
            raise RpcError("internal", reason) from None
        return {}

    async def list_dir(self, request: Request, message: Message) -> Message:
        """Entries in the order of their names, each directory followed by what is in it, down to `depth` levels."""
        path, _user = self._path(request, message, "path")
        depth = protojson.uint32(message, "depth") or 1
        host = self._sandbox.host(path)
        try:
            if not stat.S_ISDIR(os.stat(host).st_mode):
                raise RpcError("invalid_argument", f"path is not a directory: {path}")
            found: list[dict[str, Any]] = []
            await self._walk(path.rstrip("/"), depth, found)
        except FileNotFoundError:
            raise RpcError("not_found", f"path not found: {path}") from None
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise RpcError("failed_precondition", f'cyclic symlink or chain >255 links at "{path}"') from None
            raise RpcError("internal", f"error reading directory {path}: {error.strerror}") from None
        return {"entries": found}

    async def _walk(self, path: str, depth: int, found: list[dict[str, Any]]) -> None:
        fd = self._sandbox.open_directory(self._sandbox.host(path or "/"))
        try:
            names = sorted(os.listdir(fd), key=os.fsencode)
        finally:
            os.close(fd)
        for name in names:
            child = f"{path}/{name}"
            try:
                status = os.lstat(self._sandbox.host(child))
            except FileNotFoundError:
                continue
            found.append(entries.describe_status(self._sandbox, child, status))
            if len(found) % _FAIR_SHARE == 0:
                await asyncio.sleep(0)
            if depth > 1 and stat.S_ISDIR(status.st_mode):
                with contextlib.suppress(FileNotFoundError, PermissionError):
                    await self._walk(child, depth - 1, found)

    # shared ----------------------------------------------------------------------------------------------------------

    def _path(self, request: Request, message: Message, field: str) -> tuple[str, User]:
        user = self._sandbox.rpc_user(request)
        try:
            return self._sandbox.resolve(protojson.text(message, field), user), user
        except PathError as error:
            raise RpcError("invalid_argument", str(error)) from None

    def _entry(self, path: str) -> dict[str, Any]:
        try:
            return entries.describe(self._sandbox, path)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise RpcError("not_found", f"file not found: {path}: {error.strerror}") from None
        except OSError as error:
            raise RpcError("internal", f"error getting file info: {error.strerror}") from None

    def _ensure(self, host: str, user: User) -> None:
        try:
            self._sandbox.ensure_directory(host, user)
        except OSError as error:
            where = self._sandbox.guest(str(error.filename or host))
            raise RpcError("internal", f"failed to create directory: {error.strerror}: {where}") from None


async def _remove_all(path: str) -> None:
    """rm -rf that lets others have their turn. Never follows a link out of the tree."""
    path = path.rstrip("/") or "/"
    try:
        os.unlink(path)
    except (FileNotFoundError, NotADirectoryError):
        return
    except (IsADirectoryError, PermissionError):
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            raise
    else:
        return
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        await _empty(fd, path)
    finally:
        os.close(fd)
    with contextlib.suppress(FileNotFoundError):
        os.rmdir(path)


async def _empty(directory: int, path: str) -> None:
    for count, name in enumerate(os.listdir(directory)):
        if count % _FAIR_SHARE == _FAIR_SHARE - 1:
            await asyncio.sleep(0)
        try:
            os.unlink(name, dir_fd=directory)
            continue
        except FileNotFoundError:
            continue
        except (IsADirectoryError, PermissionError) as error:
            if not stat.S_ISDIR(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
                raise OSError(error.errno, error.strerror, f"{path}/{name}") from None
        child = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        try:
            await _empty(child, f"{path}/{name}")
        finally:
            os.close(child)
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(name, dir_fd=directory)
