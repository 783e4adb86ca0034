"""Encrypt and decrypt bytes in the age format."""

from __future__ import annotations

import io

from sandyard.kit.age import DecryptingReader, EncryptingWriter, Identity, Recipient

CHUNK = 64 * 1024


def encrypt(data: bytes, *recipients: Recipient, piece: int = 50_000) -> bytes:
    target = io.BytesIO()
    with EncryptingWriter(target, recipients) as writer:
        for at in range(0, len(data), piece):
            writer.write(data[at : at + piece])
    return target.getvalue()


def decrypt(data: bytes, *identities: Identity) -> bytes:
    return io.BufferedReader(DecryptingReader(io.BytesIO(data), identities)).read()
