"""Files of a running sandbox, streamed in both directions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from e2b import AsyncSandbox, EntryInfo, FileType

from sandyard.kit.errors import InvalidInputError
from sandyard.platform.domain.sandboxes.e2b.errors import (
    EngineInvalidError,
    FileMissingError,
    translate,
)
from sandyard.platform.domain.sandboxes.e2b.gate import Gate
from sandyard.platform.domain.sandboxes.e2b.listing import FileEntry, FilePage, read_page

LISTINGS_AT_ONCE = 16
"""Each may hold `listing.MOST_BYTES`. The number exceeds what one person may run at once, so that nobody can use them
all."""

T = TypeVar("T")


class Files:
    """Files of sandboxes. FileMissingError and InvalidInputError name the path."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._listings = asyncio.Semaphore(LISTINGS_AT_ONCE)

    async def read(self, engine_id: str, path: str) -> tuple[int | None, AsyncIterator[bytes]]:
        """Return the size, if the engine reports it in advance, and the bytes.

        Read the iterator to its end or close it (`aclose`): until then it holds a connection.
        """
        reader = await self._call(
            engine_id, path, "read_file", lambda sandbox: sandbox.files.read(path, format="stream"), idempotent=True
        )
        headers = reader._response.headers
        length = headers.get("content-length", "")
        size = int(length) if length.isdigit() and "content-encoding" not in headers else None

        async def chunks() -> AsyncIterator[bytes]:
            try:
                async for chunk in reader:
                    yield chunk
            except Exception as error:
                raise translate(error, self._gate.config.api_key) from error
            finally:
                await reader.aclose()

        return size, chunks()

    async def write(self, engine_id: str, path: str, chunks: AsyncIterator[bytes]) -> int:
        """Write a file and return the number of bytes.

        Creates missing directories and replaces an existing file. Never retried, because `chunks` can be read only
        once; an error of `chunks` is raised as it is.
        """
        written = 0
        failure: list[BaseException] = []

        async def counted() -> AsyncIterator[bytes]:
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
                await sandbox.files.write(path, counted(), use_octet_stream=True)
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

    async def list(self, engine_id: str, path: str, depth: int, first: int, limit: int) -> FilePage:
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
            return await self._gate.inside(
                verb, engine_id, lambda handle: call(handle.sandbox), idempotent=idempotent, attempts=attempts
            )
        except FileMissingError:
            raise FileMissingError(f"There is no file or directory {path!r} in the sandbox.") from None
        except EngineInvalidError as error:
            raise InvalidInputError(f"Not possible with {path!r}. {error.message}") from error


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
