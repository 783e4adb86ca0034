"""Transfer files to and from a sandbox, with limits and without leaving anything there if that fails."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from sandyard.kit.ids import make_random_id
from sandyard.platform.domain.git.checkout.program_runner import ProgramRunner
from sandyard.platform.domain.repositories.errors import TooMuchError

_CHUNK_BYTES = 1 << 20


async def upload(runner: ProgramRunner, file: str, offset: int = 0) -> str:
    """Upload the file from that offset on and return its path in the sandbox.

    The path is unguessable, so that no file can already be there.
    """
    path = f"/tmp/.sandyard-bundle-{make_random_id()}"  # noqa: S108 - in the sandbox
    try:
        await runner.engine.files.write(runner.engine_id, path, _read_chunks(Path(file), offset))
    except BaseException:
        await remove_in_sandbox(runner, path)
        raise
    return path


async def download(runner: ProgramRunner, path: str, into: Path, limit: int) -> None:
    """Download at most `limit` bytes, whatever size the sandbox reports. Leaves no file if it fails."""
    _, chunks = await runner.engine.files.read(runner.engine_id, path)
    received = 0
    try:
        file = await asyncio.to_thread(into.open, "wb")
        try:
            async for chunk in chunks:
                received += len(chunk)
                if received > limit:
                    raise make_too_much_error(limit)
                await asyncio.to_thread(file.write, chunk)
        finally:
            await asyncio.to_thread(file.close)
    except BaseException:
        await asyncio.to_thread(into.unlink, missing_ok=True)
        raise
    finally:
        await chunks.aclose()


async def remove_in_sandbox(runner: ProgramRunner, path: str) -> None:
    """Remove a file in the sandbox, even if the caller is cancelled. If the sandbox is gone, so is the file."""
    with contextlib.suppress(Exception):
        await asyncio.shield(asyncio.ensure_future(runner.engine.files.remove(runner.engine_id, path)))


async def _read_chunks(path: Path, offset: int) -> AsyncIterator[bytes]:
    file = await asyncio.to_thread(path.open, "rb")
    try:
        file.seek(offset)
        while chunk := await asyncio.to_thread(file.read, _CHUNK_BYTES):
            yield chunk
    finally:
        await asyncio.to_thread(file.close)


def make_too_much_error(limit: int) -> TooMuchError:
    return TooMuchError(
        f"There is more than {limit / (1 << 20):g} MiB to transfer from the sandbox. Check the changes for large files, and "
        "ignore or remove them."
    )
