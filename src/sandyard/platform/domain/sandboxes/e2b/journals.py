"""Read the end of a file in a running sandbox as raw bytes, with envd's `GET /files` and a range."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import httpx
from e2b.api import client_async
from e2b.envd.api import ENVD_API_FILE_DOWNLOAD_HTTP_VERSION, ENVD_API_FILES_ROUTE, ahandle_envd_api_exception

from sandyard.platform.domain.sandboxes.e2b.errors import (
    EngineError,
    FileMissingError,
    SandboxUnreachableError,
    translate,
)
from sandyard.platform.domain.sandboxes.e2b.gate import Gate, Handle

PIECE = 1 << 20
"""Size of the pieces to yield."""
_MISSING_STATUSES = (400, 404, 416)
"""There is no such file, it is not a regular file, or it is shorter."""


async def read_from(
    gate: Gate, engine_id: str, path: str, offset: int, *, silence_s: float
) -> AsyncGenerator[bytes, None]:
    """Yield the file's content from this offset to its current end. Read it to the end or close it.

    Raises FileMissingError if there is nothing, and SandboxUnreachableError if the sandbox is silent for `silence_s`.
    """
    response = await gate.inside(
        "read_journal",
        engine_id,
        lambda handle: _open(handle, path, offset, silence_s),
        idempotent=True,
        attempts=1,
    )
    try:
        skip = _bytes_before(response, offset)
        pieces, size = list[bytes](), 0
        chunks = response.aiter_bytes()
        while True:
            async with asyncio.timeout(silence_s):
                chunk = await anext(chunks, None)
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
    except TimeoutError:
        raise SandboxUnreachableError("The sandbox did not respond in time.") from None
    except Exception as error:
        raise translate(error, gate.config.api_key) from error
    finally:
        await response.aclose()


def _bytes_before(response: httpx.Response, offset: int) -> int:
    """Return how many bytes to skip: all before the offset, if a server on the way does not support ranges."""
    if response.status_code != httpx.codes.PARTIAL_CONTENT:
        return offset
    if not response.headers.get("content-range", "").startswith(f"bytes {offset}-"):
        raise EngineError("The sandbox sent another part of a file than requested.")
    return 0


async def _open(handle: Handle, path: str, offset: int, silence_s: float) -> httpx.Response:
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
