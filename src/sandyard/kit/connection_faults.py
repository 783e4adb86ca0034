"""Describe connection failures in a readable sentence."""

from __future__ import annotations

import httpx

_NO_SERVER = ("all connection attempts failed", "connection refused", "no route to host", "name or service not known")


def describe_unreachable(name: str, url: str, error: Exception) -> str:
    """Return why a server could not be reached. `name` is the server's display name. The library's message is kept only if it adds
    something, for example about a certificate."""
    words = str(error).strip().rstrip(".")
    if isinstance(error, httpx.ConnectError) and (not words or any(one in words.lower() for one in _NO_SERVER)):
        return f"{name} could not be reached: no server is listening at {url}."
    return f"{name} could not be reached at {url}: {words or type(error).__name__}."
