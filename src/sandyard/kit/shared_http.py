"""HTTP clients that send the requests of several users."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import httpx

from sandyard.kit.cookies import discard_cookies
from sandyard.kit.encodings import accept_encodings


def open_shared_client(*, encodings: Sequence[str] = (), **options: Any) -> httpx.AsyncClient:
    """Return a client that stores no cookies, follows no redirects and refuses other encodings. `options` are passed to httpx."""
    return discard_cookies(
        httpx.AsyncClient(follow_redirects=False, event_hooks=accept_encodings(*encodings), **options)
    )
