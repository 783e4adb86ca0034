"""Random identifiers and secrets."""

from __future__ import annotations

import secrets
import threading
import time

from sandyard.kit.secret import Secret

ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"  # in sort order
_WIDTH = 10
_ROOM, _STRIDE = 36**_WIDTH, 1 << 24
_last, _lock = (0, 0), threading.Lock()
_LIMIT = 256 - 256 % len(ALPHABET)  # bytes at or above this are skipped: they would make some letters more likely


def random_id(prefix: str = "", length: int = 20) -> str:
    """Return `prefix` followed by `length` random lowercase letters and digits, suitable for host names, paths and URLs."""
    picked = ""
    while len(picked) < length:
        raw = secrets.token_bytes(length + 8)
        picked += "".join(ALPHABET[byte % len(ALPHABET)] for byte in raw if byte < _LIMIT)
    return prefix + picked[:length]


def ordered_id(prefix: str) -> str:
    """Return `prefix`, the time in milliseconds and ten random letters. Ids made by one process sort in the order they were made."""
    global _last  # noqa: PLW0603 - the next id must sort after the last one
    moment = time.time_ns() // 1_000_000
    with _lock:
        past, number = _last
        again = moment <= past  # in the same millisecond, or the clock was set back
        _last = (past, number + 1 + secrets.randbelow(_STRIDE)) if again else (moment, secrets.randbelow(_ROOM // 2))
        moment, number = _last
    return prefix + _to_base36(moment) + _to_base36(number)


def _to_base36(number: int) -> str:
    letters = ""
    for _ in range(_WIDTH):
        number, digit = divmod(number, 36)
        letters = _DIGITS[digit] + letters
    return letters


def random_secret(prefix: str = "", size: int = 32) -> Secret:
    """Return `prefix` followed by `size` random bytes in hexadecimal."""
    return Secret(prefix + secrets.token_hex(size))
