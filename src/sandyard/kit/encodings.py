"""Restrict the content encodings of HTTP responses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import httpx

COMPRESSIONS = ("gzip", "deflate", "br", "zstd")


def accept_encodings(*names: str) -> dict[str, list[Callable[[httpx.Response], Awaitable[None]]]]:
    """Return event hooks for a client that accepts uncompressed responses and these encodings. Others raise DecodingError before they are
    decoded, because nested encodings can turn a few bytes into gigabytes."""

    async def check(response: httpx.Response) -> None:
        encoding = response.headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("identity", *names):
            raise httpx.DecodingError(
                f"The response has the unsupported encoding {encoding[:60]!r}.", request=response.request
            )

    return {"response": [check]}
