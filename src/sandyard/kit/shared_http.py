"""HTTP clients that send the requests of several people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import httpx

from sandyard.kit.cookies import discard_cookies
from sandyard.kit.encodings import accept_encodings


def open_shared_client(*, encodings: Sequence[str] = (), **options: Any) -> httpx.AsyncClient:
    """Return a client that keeps no cookies, follows no redirects and refuses responses in other encodings. `options`: httpx's own."""
    return discard_cookies(
        httpx.AsyncClient(follow_redirects=False, event_hooks=accept_encodings(*encodings), **options)
    )
