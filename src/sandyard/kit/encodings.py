"""Compressed HTTP responses: which ones a client accepts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import httpx

COMPRESSIONS = ("gzip", "deflate", "br", "zstd")


def accept_encodings(*names: str) -> dict[str, list[Callable[[httpx.Response], Awaitable[None]]]]:
    """Event hooks for a client that accepts uncompressed responses and those with one of these encodings. Others are refused before
    they are decoded, with DecodingError: an encoding within an encoding turns a few bytes into gigabytes."""

    async def check(response: httpx.Response) -> None:
        encoding = response.headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("identity", *names):
            raise httpx.DecodingError(f"The response has the encoding {encoding[:60]!r}.", request=response.request)

    return {"response": [check]}
