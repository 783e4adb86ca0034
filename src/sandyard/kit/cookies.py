"""HTTP clients that keep no cookies."""

from __future__ import annotations

from http.cookiejar import DefaultCookiePolicy

import httpx


def discard_cookies(client: httpx.AsyncClient) -> httpx.AsyncClient:
    """Have the client ignore `Set-Cookie`: one that serves several people would send the cookie of one with the request of another.
    Returns the client."""
    client.cookies.jar.set_policy(DefaultCookiePolicy(allowed_domains=[]))
    return client
