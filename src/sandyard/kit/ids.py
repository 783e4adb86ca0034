"""Random identifiers and secrets."""

from __future__ import annotations

import secrets
import threading
import time

from sandyard.kit.secret import Secret

ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"  # in sort order
_WIDTH = 10
_NUMBER_LIMIT = 36**_WIDTH
_MAX_STEP = 1 << 24  # how much larger the number of the next id in the same millisecond is, at most
_last, _lock = (0, 0), threading.Lock()  # the time and number of the last id
_BYTE_LIMIT = 256 - 256 % len(ALPHABET)  # bytes at or above this are skipped: they would make some letters more likely


def make_random_id(prefix: str = "", length: int = 20) -> str:
    """Return `prefix` followed by `length` random lowercase letters and digits, suitable for host names, paths and URLs."""
    letters = ""
    while len(letters) < length:
        raw = secrets.token_bytes(length + 8)
        letters += "".join(ALPHABET[byte % len(ALPHABET)] for byte in raw if byte < _BYTE_LIMIT)
    return prefix + letters[:length]


def make_ordered_id(prefix: str) -> str:
    """Return `prefix`, the time in milliseconds and a random number, both in base 36. Ids of one process sort by creation."""
    global _last  # noqa: PLW0603 - the next id must sort after the last one
    moment = time.time_ns() // 1_000_000
    with _lock:
        last_moment, number = _last
        if moment <= last_moment:  # in the same millisecond, or the clock was set back
            _last = (last_moment, number + 1 + secrets.randbelow(_MAX_STEP))
        else:
            _last = (moment, secrets.randbelow(_NUMBER_LIMIT // 2))
        moment, number = _last
    return prefix + _to_base36(moment) + _to_base36(number)


def _to_base36(number: int) -> str:
    letters = ""
    for _ in range(_WIDTH):
        number, digit = divmod(number, 36)
        letters = _DIGITS[digit] + letters
    return letters


def make_random_secret(prefix: str = "", size: int = 32) -> Secret:
    """Return `prefix` followed by `size` random bytes in hexadecimal."""
    return Secret(prefix + secrets.token_hex(size))
