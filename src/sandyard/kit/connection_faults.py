"""Why a request got no answer, in a sentence for people."""

from __future__ import annotations

import httpx

_NO_SERVER = ("all connection attempts failed", "connection refused", "no route to host", "name or service not known")


def describe_unreachable(name: str, url: str, error: Exception) -> str:
    """`name` is what people call the server. The library's own words are kept only where they say more, as about a certificate."""
    words = str(error).strip().rstrip(".")
    if isinstance(error, httpx.ConnectError) and (not words or any(one in words.lower() for one in _NO_SERVER)):
        return f"{name} could not be reached: no server answers at {url}."
    return f"{name} could not be reached at {url}: {words or type(error).__name__}."
