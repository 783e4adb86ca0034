"""Random tokens, cookies and keys, of which only the SHA-256 hash is stored."""

from __future__ import annotations

import hashlib
import re

from sandyard.kit.ids import make_random_id
from sandyard.kit.secret import Secret

TOKEN = re.compile(r"sy_[a-z0-9]{40}")
HINT_LENGTH = 8


def make_token() -> Secret:
    """Return `sy_` and 40 letters: 206 bits, so that no slow hash is needed."""
    return Secret(make_random_id("sy_", 40))


def make_value() -> Secret:
    """Return the value of a cookie, the key of a login, or a ticket."""
    return Secret(make_random_id("", 43))


def compute_digest(value: str) -> str:
    """Return the hash. Lookups by it are safe against timing attacks, because an attacker cannot choose the hash."""
    return hashlib.sha256(value.encode(errors="surrogatepass")).hexdigest()
