"""Files of a running sandbox, streamed in both directions."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import TypeVar

import httpx
from e2b import AsyncSandbox, EntryInfo, FileType
from e2b.api import client_async
from e2b.envd.api import ENVD_API_FILE_DOWNLOAD_HTTP_VERSION, ENVD_API_FILES_ROUTE, ahandle_envd_api_exception

from sandyard.kit.errors import InvalidInputError
from sandyard.platform.domain.sandboxes.e2b.directory_pages import FileEntry, FilePage, read_page
from sandyard.platform.domain.sandboxes.e2b.errors import (
    EngineError,
    EngineInvalidError,
    FileMissingError,
    SandboxUnreachableError,
)
from sandyard.platform.domain.sandboxes.e2b.transport import EngineTransport, SandboxHandle

LISTINGS_AT_ONCE = 16
"""Maximum number of concurrent listings, because each can take `directory_pages.MAX_BYTES` of memory. It exceeds the limit of
one user, so that no user can block the others."""
PIECE = 1 << 20
"""Size of the pieces that `read_from` yields."""
_MISSING_STATUSES = (400, 404, 416)
"""Statuses if there is no such file, if it is not a regular file, or if it is shorter than the offset."""
_UNUSABLE_PATH = re.compile(
    "file name too long|permission denied|operation not permitted|not a directory|too many levels of symbolic links|"
    "invalid argument|read-only file system|device or resource busy|no such device",
    re.IGNORECASE,
)
"""Reasons in envd's internal errors that are due to the path."""

T = TypeVar("T")


class Files:
    """Files of sandboxes. FileMissingError and InvalidInputError name the path."""

    def __init__(self, transport: EngineTransport) -> None:
        self._transport = transport
        self._listings = asyncio.Semaphore(LISTINGS_AT_ONCE)

    async def read(self, engine_id: str, path: str) -> tuple[int | None, AsyncGenerator[bytes, None]]:
        """Return the size, if the engine reports it in advance, and the bytes.

        Read the iterator to its end or close it (`aclose`): until then it holds a connection.
        """
        reader = await self._call(
            engine_id, path, "read_file", lambda sandbox: sandbox.files.read(path, format="stream"), idempotent=True
        )
        headers = reader._response.headers
        length = headers.get("content-length", "")
        size = int(length) if length.isdigit() and "content-encoding" not in headers else None

        async def chunks() -> AsyncGenerator[bytes, None]:
            try:
                with self._transport.translate_errors():
                    async for chunk in reader:
                        yield chunk
            finally:
                await reader.aclose()

        return size, chunks()

    async def read_from(
        self, engine_id: str, path: str, offset: int, *, silence_s: float
    ) -> AsyncGenerator[bytes, None]:
        """Read a file as root, and yield its content from this offset to its current end. Read it to the end or close it.

        Raises FileMissingError if there is no content at the offset, and SandboxUnreachableError if nothing arrives for
        `silence_s`.
        """
        response = await self._transport.call_sandbox(
            "read_journal",
            engine_id,
            lambda handle: _request_range(handle, path, offset, silence_s),
            idempotent=True,
            attempts=1,
        )
        try:
            skip = _count_bytes_to_skip(response, offset)
            pieces, size = list[bytes](), 0
            chunks = response.aiter_bytes()
            while True:
                with self._transport.translate_errors():
                    chunk = await _next_chunk(chunks, silence_s)
                if chunk is not None and skip:
                    chunk, skip = chunk[skip:], max(0, skip - len(chunk))
                if chunk is not None:
                    pieces.append(chunk)
                    size += len(chunk)
                if size and (chunk is None or size >= PIECE):
                    yield b"".join(pieces) if len(pieces) > 1 else pieces[0]
                    pieces, size = [], 0
                if chunk is None:
                    return
        finally:
            await response.aclose()

    async def write(self, engine_id: str, path: str, chunks: AsyncIterator[bytes]) -> int:
        """Write a file and return the number of bytes.

        Creates missing directories and replaces an existing file. Never retried, because `chunks` can be read only
        once; an error of `chunks` is raised as it is.
        """
        written = 0
        failure: list[BaseException] = []

        async def count_bytes() -> AsyncIterator[bytes]:
            nonlocal written
            try:
                async for chunk in chunks:
                    written += len(chunk)
                    yield chunk
            except Exception as error:
                failure.append(error)
                raise

        async def write(sandbox: AsyncSandbox) -> None:
            try:
                await sandbox.files.write(path, count_bytes(), use_octet_stream=True)
            except Exception:
                if failure:
                    raise _SourceError from failure[0]
                raise

        try:
            await self._call(engine_id, path, "write_file", write, idempotent=False, attempts=1)
        except InvalidInputError as error:
            if failure:
                raise failure[0] from error
            raise
        return written

    async def list(self, engine_id: str, path: str, depth: int = 1, *, first: int = 0, limit: int = 1000) -> FilePage:
        """Return at most `limit` entries starting at number `first`."""
        async with self._listings:
            return await self._call(
                engine_id,
                path,
                "list_files",
                lambda sandbox: read_page(sandbox, path, depth, first, limit),
                idempotent=True,
            )

    async def stat(self, engine_id: str, path: str) -> FileEntry:
        found = await self._call(
            engine_id, path, "stat_file", lambda sandbox: sandbox.files.get_info(path), idempotent=True
        )
        return _to_entry(found)

    async def remove(self, engine_id: str, path: str) -> None:
        """Remove a file, or a directory with everything in it. Does nothing if it does not exist."""
        try:
            await self._call(
                engine_id, path, "remove_file", lambda sandbox: sandbox.files.remove(path), idempotent=True
            )
        except FileMissingError:
            return

    async def make_dir(self, engine_id: str, path: str) -> bool:
        """Create a directory and its parents. Returns False if it existed already."""
        return await self._call(
            engine_id, path, "make_dir", lambda sandbox: sandbox.files.make_dir(path), idempotent=True
        )

    async def _call(
        self,
        engine_id: str,
        path: str,
        verb: str,
        call: Callable[[AsyncSandbox], Awaitable[T]],
        *,
        idempotent: bool,
        attempts: int = 3,
    ) -> T:
        if not path or "\0" in path:
            raise InvalidInputError("The path is invalid: it is empty or contains a NUL character.")
        try:
            return await self._transport.call_sandbox(
                verb, engine_id, lambda handle: call(handle.sandbox), idempotent=idempotent, attempts=attempts
            )
        except FileMissingError:
            raise FileMissingError(f"There is no file or directory {path!r} in the sandbox.") from None
        except EngineInvalidError as error:
            raise InvalidInputError(f"Could not use the path {path!r}. {error.message}") from error
        except EngineError as error:
            reason = _UNUSABLE_PATH.search(error.message.replace(path, "")) if type(error) is EngineError else None
            if reason is None:
                raise
            raise InvalidInputError(f"Could not use the path {path[:300]!r}: {reason[0].lower()}.") from error


class _SourceError(InvalidInputError):
    """The data to write could not be read."""


def _to_entry(found: EntryInfo) -> FileEntry:
    kinds = {FileType.FILE: "file", FileType.DIR: "dir", FileType.SYMLINK: "symlink"}
    return FileEntry(
        name=found.name,
        path=found.path,
        kind=kinds.get(found.type, "other") if found.type else "other",
        size=found.size,
        mode=found.mode,
        owner=found.owner,
        group=found.group,
        modified_at=found.modified_time,
        symlink_target=found.symlink_target,
    )


async def _next_chunk(chunks: AsyncIterator[bytes], silence_s: float) -> bytes | None:
    try:
        async with asyncio.timeout(silence_s):
            return await anext(chunks, None)
    except TimeoutError:
        raise SandboxUnreachableError("The sandbox did not respond in time.") from None


def _count_bytes_to_skip(response: httpx.Response, offset: int) -> int:
    """Return how many bytes precede the offset in the response: none, unless a server on the way does not support ranges."""
    if response.status_code != httpx.codes.PARTIAL_CONTENT:
        return offset
    if not response.headers.get("content-range", "").startswith(f"bytes {offset}-"):
        raise EngineError("The sandbox sent another part of a file than requested.")
    return 0


async def _request_range(handle: SandboxHandle, path: str, offset: int, silence_s: float) -> httpx.Response:
    sandbox = handle.sandbox
    client = client_async.get_envd_api(
        sandbox.connection_config,
        sandbox.envd_api_url,
        for_streaming=True,
        http_version=ENVD_API_FILE_DOWNLOAD_HTTP_VERSION,
    )
    request = client.build_request(
        "GET",
        ENVD_API_FILES_ROUTE,
        params={"path": path, "username": "root"},
        headers={"Range": f"bytes={offset}-", "Accept-Encoding": "identity"},
        timeout=None,
    )
    async with asyncio.timeout(silence_s):
        response = await client.send(request, stream=True)
    if response.status_code in _MISSING_STATUSES:
        await response.aclose()
        raise FileMissingError
    if error := await ahandle_envd_api_exception(response):
        await response.aclose()
        raise error
    return response
