"""The Connect service `filesystem.Filesystem`, without its watchers. Like envd, it accesses files as root, not as the
request's user, who only owns what is created."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import posixpath
import stat
from collections.abc import Iterator
from typing import Any

from sandyard.engine.guest.files import entries, trees
from sandyard.engine.guest.sandbox import PathError, Sandbox
from sandyard.engine.guest.users import User
from sandyard.engine.guest.wire import protojson
from sandyard.engine.guest.wire.connect import RpcError
from sandyard.engine.guest.wire.http1 import Request

_FAIR_SHARE = 256  # entries after which other tasks get a turn
MAX_ENTRIES = 100_000
MAX_RESPONSE_BYTES = 64 << 20  # for one response; 100,000 entries with usual names have 23 MiB
TOO_MANY_ENTRIES = (
    f"{{path}} has more than {MAX_ENTRIES:,} entries, or their names are too long: list a smaller directory or depth, "
    "or run a command such as `find`"
)
FIRST_HEADER, LIMIT_HEADER = "x-sandyard-list-first", "x-sandyard-list-limit"
"""Headers with which the platform requests a page. With a limit, the response is `{"next":NUMBER,"entries":[…]}`, where
NUMBER is the number of the first entry on the next page, or null."""
PAGE_BYTES = 4 << 20

Message = protojson.Message


class FilesystemService:
    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    async def stat(self, request: Request, message: Message) -> Message:
        path, _user = self._resolve_path(request, message, "path")
        return {"entry": self._describe(path)}

    async def make_dir(self, request: Request, message: Message) -> Message:
        path, user = self._resolve_path(request, message, "path")
        host = self._sandbox.to_host_path(path)
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
        self._ensure_directory(host, user)
        return {"entry": self._describe(path)}

    async def move(self, request: Request, message: Message) -> Message:
        source, user = self._resolve_path(request, message, "source")
        destination, _ = self._resolve_path(request, message, "destination")
        origin, target = self._sandbox.to_host_path(source), self._sandbox.to_host_path(destination)
        self._describe(source)  # before directories are created for a missing source
        self._ensure_directory(posixpath.dirname(target.rstrip("/")) or "/", user)
        try:
            os.rename(origin, target)
        except FileNotFoundError:
            raise RpcError("not_found", f"source file not found: {source}") from None
        except OSError as error:
            raise RpcError("internal", f"error renaming: {error.strerror}") from None
        return {"entry": self._describe(destination)}

    async def remove(self, request: Request, message: Message) -> Message:
        """Remove an entry with everything below it. Succeeds if it does not exist."""
        path, _user = self._resolve_path(request, message, "path")
        try:
            for count, _ in enumerate(trees.remove(self._sandbox.to_host_path(path)), 1):
                if count % _FAIR_SHARE == 0:
                    await asyncio.sleep(0)
        except OSError as error:
            where = self._sandbox.to_sandbox_path(str(error.filename or path))
            reason = f"error removing file or directory: {error.strerror}: {where}"
            raise RpcError("internal", reason) from None
        return {}

    async def list_dir(self, request: Request, message: Message) -> bytes:
        """List the entries of a directory in the order of their names, each directory followed by its contents, down to
        `depth` levels."""
        path, _user = self._resolve_path(request, message, "path")
        depth = protojson.get_uint32(message, "depth") or 1
        try:
            if not stat.S_ISDIR(os.stat(self._sandbox.to_host_path(path)).st_mode):
                raise RpcError("invalid_argument", f"path is not a directory: {path}")
            first, limit = _parse_header_number(request, FIRST_HEADER), _parse_header_number(request, LIMIT_HEADER)
            return await self.list_directory(path, depth, first or 0, limit)
        except FileNotFoundError:
            raise RpcError("not_found", f"path not found: {path}") from None
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise RpcError("failed_precondition", f'cyclic symlink or chain >255 links at "{path}"') from None
            raise RpcError("internal", f"error reading directory {path}: {error.strerror}") from None

    async def list_directory(self, path: str, depth: int, first: int = 0, limit: int | None = None) -> bytes:
        """Return the encoded response. With `limit`, it is a page that starts at entry number `first` and has `limit`
        entries, or fewer if they exceed PAGE_BYTES. Raises RpcError if there are more than MAX_ENTRIES."""
        self._sandbox.accounts.refresh()
        # Each entry is encoded at once, because the objects would need ten times the memory.
        count, encoded = 0, bytearray()
        stop = MAX_ENTRIES if limit is None else min(first + limit, MAX_ENTRIES)
        max_bytes = MAX_RESPONSE_BYTES if limit is None else PAGE_BYTES
        above: list[Iterator[tuple[str, os.stat_result]]] = []  # directories that are not finished yet
        current = self._scan(path.rstrip("/"))
        while True:
            for child, status in current:
                if count == stop or len(encoded) > max_bytes:
                    if limit is None or not encoded:
                        raise RpcError("failed_precondition", TOO_MANY_ENTRIES.format(path=path))
                    return b'{"next":%d,"entries":[' % count + encoded + b"]}"
                if count >= first:
                    if encoded:
                        encoded += b","
                    encoded += protojson.render(entries.describe_status(self._sandbox, child, status))
                count += 1
                if count % _FAIR_SHARE == 0:
                    await asyncio.sleep(0)
                if len(above) + 1 < depth and stat.S_ISDIR(status.st_mode):
                    with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
                        inner = self._scan(child)
                        above.append(current)
                        current = inner
                        break
            else:
                if not above:
                    return (b'{"entries":[' if limit is None else b'{"next":null,"entries":[') + encoded + b"]}"
                current = above.pop()

    def _scan(self, path: str) -> Iterator[tuple[str, os.stat_result]]:
        """Return an iterator over (path, status) of a directory's entries, in the order of their names. The names are read
        before it returns."""
        fd = self._sandbox.open_directory(self._sandbox.to_host_path(path or "/"))
        try:
            names = sorted(os.listdir(fd), key=os.fsencode)
        finally:
            os.close(fd)

        def each() -> Iterator[tuple[str, os.stat_result]]:
            for name in names:
                child = f"{path}/{name}"
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    yield child, os.lstat(self._sandbox.to_host_path(child))

        return each()

    # shared ----------------------------------------------------------------------------------------------------------

    def _resolve_path(self, request: Request, message: Message, field: str) -> tuple[str, User]:
        user = self._sandbox.get_rpc_user(request)
        try:
            return self._sandbox.resolve(protojson.get_text(message, field), user), user
        except PathError as error:
            raise RpcError("invalid_argument", str(error)) from None

    def _describe(self, path: str) -> dict[str, Any]:
        try:
            return entries.describe(self._sandbox, path)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise RpcError("not_found", f"file not found: {path}: {error.strerror}") from None
        except OSError as error:
            raise RpcError("internal", f"error getting file info: {error.strerror}") from None

    def _ensure_directory(self, host: str, user: User) -> None:
        try:
            self._sandbox.ensure_directory(host, user)
        except OSError as error:
            where = self._sandbox.to_sandbox_path(str(error.filename or host))
            raise RpcError("internal", f"failed to create directory: {error.strerror}: {where}") from None


def _parse_header_number(request: Request, name: str) -> int | None:
    text = request.headers.get(name, "")
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise RpcError("invalid_argument", f"header {name}: not a number")
    return int(text)
