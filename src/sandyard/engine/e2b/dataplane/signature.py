"""Signed file URLs: `v1_` + base64(sha256(path:operation:user:token[:expiration])), without padding.

A signature does not contain the sandbox, and a hash cannot be searched by one of its parts. So for a URL without a
sandbox the tokens of all sandboxes are tried, in a way that cannot be abused: the part before the token is hashed once,
each token costs one short hash, signatures that were found are cached, and clients that keep guessing are refused.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import time
from collections import OrderedDict
from collections.abc import Iterable

from sandyard.engine.e2b.dataplane.target import SignedFile
from sandyard.kit.errors import FullError, UnauthenticatedError
from sandyard.kit.secret import Secret

MAX_CACHED = 1024
TOKENS_PER_SLICE = 2000
"""Tokens tried before other tasks get a turn: about a millisecond."""
GUESSES_BURST = 50.0
GUESSES_PER_SECOND = 5.0


def sign(file: SignedFile, token: str) -> str:
    """Return the correct signature."""
    return _finish_signature(_hash_prefix(file), file, token)


def verify(file: SignedFile, token: Secret) -> None:
    """Check the signature. Raises UnauthenticatedError with envd's own words."""
    if not hmac.compare_digest(sign(file, token.reveal()).encode(), file.signature.encode(errors="replace")):
        raise UnauthenticatedError("invalid signature")
    if file.expires is not None and int(file.expires) < time.time():
        raise UnauthenticatedError("signature is already expired")


class SignatureIndex:
    """Finds the sandbox that a URL was signed for."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._guesses: OrderedDict[str, tuple[float, float]] = OrderedDict()

    async def find(self, file: SignedFile, client: str, tokens: Iterable[tuple[str, Secret]]) -> str:
        """Return the id in `tokens` whose token created this signature. Raises UnauthenticatedError, or FullError for a
        client that guesses. Call `verify` afterwards: this does not check the expiration."""
        key = (file.signature, file.path)
        if key in self._known:
            self._known.move_to_end(key)
            return self._known[key]
        if self._get_credit(client) < 1:
            raise FullError(
                "Too many file URLs with a wrong signature were requested from your address. Try again in a few seconds."
            )
        prefix, signature = _hash_prefix(file), file.signature.encode(errors="replace")
        for number, (sandbox_id, token) in enumerate(tokens, 1):
            if hmac.compare_digest(_finish_signature(prefix, file, token.reveal()).encode(), signature):
                self._known[key] = sandbox_id
                if len(self._known) > MAX_CACHED:
                    self._known.popitem(last=False)
                return sandbox_id
            if number % TOKENS_PER_SLICE == 0:
                await asyncio.sleep(0)
        self._guesses[client] = (self._get_credit(client) - 1, time.monotonic())
        self._guesses.move_to_end(client)
        if len(self._guesses) > MAX_CACHED:
            self._guesses.popitem(last=False)
        raise UnauthenticatedError("invalid signature")

    def forget(self, sandbox_id: str) -> None:
        """Remove a sandbox that has ended."""
        for key in [key for key, known in self._known.items() if known == sandbox_id]:
            del self._known[key]

    def _get_credit(self, client: str) -> float:
        left, since = self._guesses.get(client, (GUESSES_BURST, time.monotonic()))
        return min(GUESSES_BURST, left + (time.monotonic() - since) * GUESSES_PER_SECOND)


def _hash_prefix(file: SignedFile) -> hashlib._Hash:
    return hashlib.sha256(f"{file.path}:{file.operation}:{file.user}:".encode(errors="surrogatepass"))


def _finish_signature(prefix: hashlib._Hash, file: SignedFile, token: str) -> str:
    digest = prefix.copy()
    digest.update(token.encode() if file.expires is None else f"{token}:{file.expires}".encode())
    return "v1_" + base64.b64encode(digest.digest()).rstrip(b"=").decode()
