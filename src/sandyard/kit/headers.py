"""Headers of HTTP that are between two neighbours, and nobody else's."""

from __future__ import annotations

HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
"""What a proxy does not pass on, in lower case."""
