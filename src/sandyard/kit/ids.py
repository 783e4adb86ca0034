"""Random names: short ones for things, long ones for secrets."""

from __future__ import annotations

import secrets
import time

from sandyard.kit.secret import Secret

ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"  # in the order in which they sort
_LIMIT = 256 - 256 % len(ALPHABET)  # bytes at or above this would make some letters likelier than others


def random_id(prefix: str = "", length: int = 20) -> str:
    """`prefix` followed by `length` random lowercase letters and digits: fit for host names, paths and URLs."""
    picked = ""
    while len(picked) < length:
        raw = secrets.token_bytes(length + 8)
        picked += "".join(ALPHABET[byte % len(ALPHABET)] for byte in raw if byte < _LIMIT)
    return prefix + picked[:length]


def ordered_id(prefix: str) -> str:
    """`prefix`, the time in milliseconds and ten random letters: of two ids, the one made later sorts behind."""
    moment, letters = time.time_ns() // 1_000_000, ""
    for _ in range(10):
        moment, digit = divmod(moment, 36)
        letters = _DIGITS[digit] + letters
    return prefix + letters + random_id(length=10)


def random_secret(prefix: str = "", size: int = 32) -> Secret:
    """`prefix` followed by `size` random bytes in hexadecimal."""
    return Secret(prefix + secrets.token_hex(size))
