"""HTTP clients that send the requests of several users."""

from __future__ import annotations

from typing import Any

import httpx

from sandyard.kit.cookies import discard_cookies
from sandyard.kit.encodings import refuse_encodings
from sandyard.kit.paced_http import limit_responses


def open_shared_client(**options: Any) -> httpx.AsyncClient:
    """Return a client that stores no cookies, follows no redirects, refuses compressed responses and does not trust servers (see
    `limit_responses`). `options` are passed to httpx."""
    client = httpx.AsyncClient(follow_redirects=False, event_hooks={"response": [refuse_encodings]}, **options)
    return limit_responses(discard_cookies(client))
