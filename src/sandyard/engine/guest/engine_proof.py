"""Proof that a TCP connection comes from the engine, because every program in the sandbox can connect to the agent.

Each connection starts with a proof that its sender knows a secret of this sandbox. A program that sees the packets (in
gVisor, every program can) can't use a proof again: it applies to one source port, for a short time, and once.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import struct
import time
from collections import deque

SECRET_BYTES = 32
_HEAD = struct.Struct("!d16s")  # time, a random number
_SIGNATURE_BYTES = 32
PROOF_BYTES = _HEAD.size + _SIGNATURE_BYTES
_VALID_S = 300.0  # engine and agent have the same clock, but a connection may wait while the sandbox is paused


def make_proof(secret: bytes, port: int) -> bytes:
    """Return the proof for a connection from the source port `port`."""
    head = _HEAD.pack(time.time(), os.urandom(16))
    return head + _sign(secret, head, port)


class ProofChecker:
    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._used: set[bytes] = set()
        self._by_age: deque[tuple[float, bytes]] = deque()

    def accept(self, proof: bytes, port: int) -> bool:
        """Return whether the proof is valid for a connection from the source port `port`, and invalidate it."""
        head = proof[: _HEAD.size]
        if not hmac.compare_digest(proof[_HEAD.size :], _sign(self._secret, head, port)):
            return False
        now = time.time()
        while self._by_age and not abs(now - self._by_age[0][0]) <= _VALID_S:
            self._used.discard(self._by_age.popleft()[1])
        if head in self._used or not abs(now - _HEAD.unpack(head)[0]) <= _VALID_S:
            return False
        self._used.add(head)
        self._by_age.append((_HEAD.unpack(head)[0], head))
        return True


def _sign(secret: bytes, head: bytes, port: int) -> bytes:
    return hashlib.blake2b(head + struct.pack("!H", port), key=secret, digest_size=_SIGNATURE_BYTES).digest()
