"""The operations on the files of volumes, as the driver contract defines them. All of them run in threads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from sandyard.engine.contract import FileEntry, FileOwner
from sandyard.engine.drivers.volume_files.content import Content
from sandyard.engine.drivers.volume_files.download import Download
from sandyard.engine.drivers.volume_files.upload import Upload

T = TypeVar("T")

THREADS = 8


class VolumeThreads:
    """A separate thread pool for volumes: their files may be slow, and waiting for them must not block other work."""

    def __init__(self) -> None:
        self._executor: ThreadPoolExecutor | None = None

    async def run(self, work: Callable[[], T], *, undo: Callable[[T], object] | None = None) -> T:
        """Run the work in a thread. It runs to completion even if the caller is cancelled; `undo` then gets its
        result."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(THREADS, "volumes")
        done = self._executor.submit(work)
        try:
            return await asyncio.shield(asyncio.wrap_future(done))
        except asyncio.CancelledError:
            if undo is not None:
                done.add_done_callback(lambda ended: ended.exception() is None and undo(ended.result()))
            raise

    def close(self) -> None:
        """Let running work complete. Idempotent."""
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=False)


class LocalVolumeFiles:
    """Implements `contract.VolumeFiles` for a directory, which itself must not be writable by any sandbox."""

    def __init__(self, threads: VolumeThreads, folder: Path) -> None:
        self._threads = threads
        self._content = Content(folder)

    async def stat(self, path: str) -> FileEntry:
        return await self._threads.run(lambda: self._content.stat(path))

    async def list(self, path: str, depth: int = 1) -> Sequence[FileEntry]:
        return await self._threads.run(lambda: self._content.list(path, depth))

    async def make_dir(self, path: str, owner: FileOwner, *, force: bool) -> FileEntry:
        return await self._threads.run(lambda: self._content.make_dir(path, owner, force=force))

    async def change(self, path: str, owner: FileOwner) -> FileEntry:
        return await self._threads.run(lambda: self._content.change(path, owner))

    async def remove(self, path: str) -> None:
        await self._threads.run(lambda: self._content.remove(path))

    async def open(self, path: str) -> LocalFileReader:
        download = await self._threads.run(lambda: Download.begin(self._content, path), undo=Download.close)
        return LocalFileReader(self._threads, download)

    async def write(
        self, path: str, chunks: AsyncIterable[bytes], owner: FileOwner, *, force: bool, reserve: int = 0
    ) -> FileEntry:
        upload = await self._threads.run(
            lambda: Upload.begin(self._content, path, owner, force=force, reserve=reserve), undo=Upload.abandon
        )
        try:
            async for chunk in chunks:
                await self._threads.run(lambda data=chunk: upload.write(data))  # type: ignore[misc]
            return await self._threads.run(upload.finish)
        finally:
            await self._threads.run(upload.abandon)


class LocalFileReader:
    """Implements `contract.FileReader`."""

    def __init__(self, threads: VolumeThreads, download: Download) -> None:
        self.size = download.size
        self._threads = threads
        self._download = download

    async def read(self, max_bytes: int) -> bytes:
        return await self._threads.run(lambda: self._download.read(max_bytes))

    async def close(self) -> None:
        await self._threads.run(self._download.close)
