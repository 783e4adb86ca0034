"""Test the age format against the test vectors of its specification.

`age_vectors.json` holds those of https://c2sp.org/CCTV/age for X25519 keys, passphrases and streams.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import zlib
from pathlib import Path
from typing import Any

import pytest

from sandyard.kit.age import (
    AgeError,
    EncryptingWriter,
    Identity,
    NoMatchError,
    Passphrase,
    PrivateKey,
    PublicKey,
    is_encrypted,
)
from sandyard.kit.errors import InvalidInputError
from sandyard.kit.secret import Secret
from tests.harness.age import CHUNK, decrypt, encrypt

VECTORS: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("age_vectors.json").read_text())
FAST = 10


@pytest.mark.parametrize("name", VECTORS)
def test_vectors_of_the_specification(name: str) -> None:
    vector = VECTORS[name]
    data = base64.b64decode(vector["file"])
    data = zlib.decompress(data) if vector["zlib"] else data
    identities: list[Identity] = [PrivateKey.parse(text) for text in vector["identities"]]
    identities += [Passphrase(Secret(text)) for text in vector["passphrases"]]
    if vector["expect"] == "success":
        assert hashlib.sha256(decrypt(data, *identities)).hexdigest() == vector["payload"]
        return
    with pytest.raises(NoMatchError if vector["expect"] == "no match" else AgeError):
        decrypt(data, *identities)


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 3 * CHUNK + 17])
def test_a_file_of_any_size_is_restored(size: int) -> None:
    key, other = PrivateKey.generate(), PrivateKey.generate()
    data = bytes(number * 7 % 251 for number in range(size))
    encrypted = encrypt(data, key.public_key, other.public_key)
    assert is_encrypted(encrypted)
    assert decrypt(encrypted, key) == decrypt(encrypted, other) == data


def test_every_change_is_detected() -> None:
    key = PrivateKey.generate()
    encrypted = encrypt(b"x" * 20, key.public_key)
    for position in range(len(encrypted)):
        changed = bytearray(encrypted)
        changed[position] ^= 1
        with pytest.raises(AgeError):
            decrypt(bytes(changed), key)
    for size in range(len(encrypted)):
        with pytest.raises(AgeError):
            decrypt(encrypted[:size], key)


def test_an_abandoned_file_is_incomplete() -> None:
    key, target = PrivateKey.generate(), io.BytesIO()
    writer = EncryptingWriter(target, [key.public_key])
    writer.write(bytes(3 * CHUNK))
    writer.abandon()
    with pytest.raises(AgeError, match="incomplete"):
        decrypt(target.getvalue(), key)


def test_a_passphrase_is_the_only_recipient() -> None:
    passphrase = Passphrase(Secret("correct horse"), FAST)
    encrypted = encrypt(b"data", passphrase)
    assert decrypt(encrypted, passphrase) == b"data"
    with pytest.raises(NoMatchError, match="not with this one"):
        decrypt(encrypted, Passphrase(Secret("wrong horse")))
    with pytest.raises(NoMatchError, match="passphrase"):
        decrypt(encrypted, PrivateKey.generate())
    with pytest.raises(NoMatchError, match="secret key"):
        decrypt(encrypt(b"data", PrivateKey.generate().public_key), passphrase)
    for recipients in ((passphrase, PrivateKey.generate().public_key), (passphrase, passphrase), ()):
        with pytest.raises(InvalidInputError):
            encrypt(b"data", *recipients)


def test_keys_have_a_text_form() -> None:
    key = PrivateKey.generate()
    text = key.text.reveal()
    assert text.startswith("AGE-SECRET-KEY-1")
    assert PrivateKey.parse(f"{text}\n").public_key.raw == key.public_key.raw
    assert PublicKey.parse(str(key.public_key)).raw == key.public_key.raw
    for wrong in ("", "age1", str(key.public_key)[:-1] + "b", str(key.public_key).upper(), text, "age1" + "q" * 58):
        with pytest.raises(InvalidInputError, match="not a public key"):
            PublicKey.parse(wrong)
    for wrong in ("", text.lower(), text[:-1] + ("Q" if text[-1] != "Q" else "P"), str(key.public_key)):
        with pytest.raises(InvalidInputError, match="not a secret key") as raised:
            PrivateKey.parse(wrong)
        assert not wrong or wrong not in raised.value.message
