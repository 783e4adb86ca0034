"""Password hashes, stored as `scrypt$N$r$p$salt$hash`, so that the parameters can be increased later."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets

from sandyard.kit.errors import InvalidInputError

MIN_LENGTH, MAX_LENGTH = 10, 1000
COST, _R, _P, _SIZE = 2**14, 8, 1, 32
_MEMORY = 64 * 1024 * 1024


def hash_password(password: str) -> str:
    """Hash a password. Takes about 50 ms of CPU: call it in a thread. Raises InvalidInputError for an invalid length."""
    if not MIN_LENGTH <= len(password) <= MAX_LENGTH:
        raise InvalidInputError(f"The password must have {MIN_LENGTH} to {MAX_LENGTH} characters.")
    salt = secrets.token_bytes(16)
    return f"scrypt${COST}${_R}${_P}${_encode(salt)}${_encode(_derive(password, salt, COST, _R, _P))}"


def check_password(password: str, stored: str | None) -> bool:
    """Check a password, in the same time for an unknown user (`stored` is None) as for a wrong password. Call it in a thread."""
    kind, n, r, p, salt, expected = (stored or _UNKNOWN_USER_HASH).split("$")
    assert kind == "scrypt", kind
    derived = _derive(password[:MAX_LENGTH], base64.b64decode(salt), int(n), int(r), int(p))
    return hmac.compare_digest(derived, base64.b64decode(expected)) and stored is not None


def _derive(password: str, salt: bytes, n: int, r: int, p: int) -> bytes:
    raw = password.encode(errors="surrogatepass")
    return hashlib.scrypt(raw, salt=salt, n=n, r=r, p=p, maxmem=_MEMORY, dklen=_SIZE)


def _encode(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


_UNKNOWN_USER_HASH = f"scrypt${COST}${_R}${_P}${_encode(bytes(16))}${_encode(bytes(_SIZE))}"
