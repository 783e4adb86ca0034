"""Restrict the content encodings of HTTP responses."""

from __future__ import annotations

import httpx


async def refuse_encodings(response: httpx.Response) -> None:
    """Raise DecodingError for a compressed response before it is decoded, because a few bytes can turn into gigabytes. A hook for clients
    that request uncompressed responses."""
    if response.headers.get("content-encoding", "identity").strip().lower() != "identity":
        # does not quote the header, which may repeat a secret
        raise httpx.DecodingError(
            "The response is compressed, although an uncompressed one was requested", request=response.request
        )
