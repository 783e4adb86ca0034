"""Files of a running sandbox, streamed both ways."""

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
"""Each may hold `listing.MOST_BYTES`. More than one person may have under way, so that nobody takes them all."""

T = TypeVar("T")


class Files:
    """FileMissingError and InvalidInputError name the path."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._listings = asyncio.Semaphore(LISTINGS_AT_ONCE)

    async def read(self, engine_id: str, path: str) -> tuple[int | None, AsyncIterator[bytes]]:
        """The size, where the engine tells it before, and the bytes. The iterator is to be read to its end or closed
        (`aclose`): until then it holds a connection."""
        reader = await self._at(
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
        """How many bytes were written. Makes missing directories, replaces what was there. Never repeated, because
        `chunks` is used up; an error of `chunks` is raised as it is."""
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
            await self._at(engine_id, path, "write_file", write, idempotent=False, attempts=1)
        except InvalidInputError as error:
            if failure:
                raise failure[0] from error
            raise
        return written

    async def list(self, engine_id: str, path: str, depth: int, first: int, limit: int) -> FilePage:
        """At most `limit` entries, from the one with number `first` on."""
        async with self._listings:
            return await self._at(
                engine_id,
                path,
                "list_files",
                lambda sandbox: read_page(sandbox, path, depth, first, limit),
                idempotent=True,
            )

    async def stat(self, engine_id: str, path: str) -> FileEntry:
        found = await self._at(
            engine_id, path, "stat_file", lambda sandbox: sandbox.files.get_info(path), idempotent=True
        )
        return _entry(found)

    async def remove(self, engine_id: str, path: str) -> None:
        """A directory goes with all that is in it. Nothing happens where there is nothing."""
        try:
            await self._at(engine_id, path, "remove_file", lambda sandbox: sandbox.files.remove(path), idempotent=True)
        except FileMissingError:
            return

    async def make_dir(self, engine_id: str, path: str) -> bool:
        """With those above it. False: it was there."""
        return await self._at(
            engine_id, path, "make_dir", lambda sandbox: sandbox.files.make_dir(path), idempotent=True
        )

    async def _at(
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


def _entry(found: EntryInfo) -> FileEntry:
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
