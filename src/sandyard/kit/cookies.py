"""HTTP clients that do not store cookies."""

from __future__ import annotations

from http.cookiejar import DefaultCookiePolicy

import httpx


def discard_cookies(client: httpx.AsyncClient) -> httpx.AsyncClient:
    """Make the client ignore `Set-Cookie` and return it. A client shared by several users would otherwise send one user's cookie with
    another user's request."""
    client.cookies.jar.set_policy(DefaultCookiePolicy(allowed_domains=[]))
    return client
