"""Encrypt and decrypt files in the age format, version 1 (https://c2sp.org/age), for X25519 keys and for passphrases.

A random file key is encrypted to each recipient in the header. The payload is encrypted with ChaCha20-Poly1305 in chunks of 64 KiB, each
authenticated with its position, so that files of any size are read and written as streams. The program `age` reads what this module
writes, and this module reads what `age` writes, except for its armored form and its other kinds of keys.
"""

from __future__ import annotations

import base64
import hmac
import io
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Any, Final, Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from sandyard.kit.errors import InvalidInputError, SandyardError
from sandyard.kit.secret import Secret

MAGIC: Final = b"age-encryption.org/v1"
RECIPIENT_PREFIX: Final = "age"
IDENTITY_PREFIX: Final = "AGE-SECRET-KEY-"
WORK_FACTOR: Final = 18
"""Base-2 logarithm of the scrypt parameter N: one second and 256 MiB of memory for each guess of a passphrase."""
MAX_WORK_FACTOR: Final = 22
_X25519_LABEL, _SCRYPT_LABEL = b"age-encryption.org/v1/X25519", b"age-encryption.org/v1/scrypt"
_KEY_SIZE, _FILE_KEY_SIZE, _NONCE_SIZE, _TAG_SIZE, _SALT_SIZE = 32, 16, 16, 16, 16
_CHUNK_SIZE = 64 * 1024
_LINE_SIZE = 64
_MAX_LINE_SIZE, _MAX_STANZAS, _MAX_BODY = 4096, 100, 64 * 1024
_NO_NONCE = bytes(12)
_BECH32 = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"
_BECH32_CHECKSUM_SIZE = 6


class AgeError(SandyardError):
    """The file cannot be decrypted."""

    code, status = "decryption_failed", 400


class NoMatchError(AgeError):
    """The file was encrypted for another key."""


@dataclass(frozen=True, slots=True)
class Stanza:
    """The file key, encrypted for one recipient."""

    arguments: tuple[str, ...]
    body: bytes


class Recipient(Protocol):
    """Somebody who can decrypt a file."""

    def wrap(self, file_key: bytes) -> Stanza:
        """Encrypt a file key."""


class Identity(Protocol):
    """A secret that decrypts files."""

    def unwrap(self, stanza: Stanza) -> bytes | None:
        """Return the file key, or None if the stanza is for another recipient. Raises AgeError if the stanza is not valid."""


class PublicKey:
    """The recipient `age1…`."""

    def __init__(self, key: X25519PublicKey) -> None:
        self._key = key

    @classmethod
    def parse(cls, text: str) -> PublicKey:
        """Raises InvalidInputError."""
        data = _decode_bech32(text.strip(), RECIPIENT_PREFIX)
        if data is None:
            raise InvalidInputError(f"{text.strip()[:80]!r} is not a public key of age. It starts with age1.")
        return cls(X25519PublicKey.from_public_bytes(data))

    def __str__(self) -> str:
        return _encode_bech32(RECIPIENT_PREFIX, self.raw)

    @property
    def raw(self) -> bytes:
        return self._key.public_bytes_raw()

    def wrap(self, file_key: bytes) -> Stanza:
        ephemeral = X25519PrivateKey.generate()
        share = ephemeral.public_key().public_bytes_raw()
        key = _derive_key(ephemeral.exchange(self._key), share + self.raw, _X25519_LABEL)
        return Stanza(("X25519", _encode_base64(share)), ChaCha20Poly1305(key).encrypt(_NO_NONCE, file_key, None))


class PrivateKey:
    """The identity `AGE-SECRET-KEY-1…`."""

    def __init__(self, key: X25519PrivateKey) -> None:
        self._key = key

    @classmethod
    def generate(cls) -> PrivateKey:
        return cls(X25519PrivateKey.generate())

    @classmethod
    def parse(cls, text: str) -> PrivateKey:
        """Raises InvalidInputError, without the text."""
        data = _decode_bech32(text.strip(), IDENTITY_PREFIX)
        if data is None:
            raise InvalidInputError("This is not a secret key of age. It starts with AGE-SECRET-KEY-1.")
        return cls(X25519PrivateKey.from_private_bytes(data))

    @property
    def text(self) -> Secret:
        return Secret(_encode_bech32(IDENTITY_PREFIX, self._key.private_bytes_raw()))

    @property
    def public_key(self) -> PublicKey:
        return PublicKey(self._key.public_key())

    def unwrap(self, stanza: Stanza) -> bytes | None:
        if stanza.arguments[0] != "X25519":
            return None
        if len(stanza.arguments) != 2 or len(stanza.body) != _FILE_KEY_SIZE + _TAG_SIZE:
            raise AgeError("The file's header is damaged: a recipient has a wrong size.")
        share = _decode_base64(stanza.arguments[1], _KEY_SIZE)
        try:
            shared = self._key.exchange(X25519PublicKey.from_public_bytes(share))
        except ValueError:
            raise AgeError("The file's header is damaged: a recipient is not a valid key.") from None
        return _unwrap(_derive_key(shared, share + self.public_key.raw, _X25519_LABEL), stanza)


class Passphrase:
    """A passphrase, as the only recipient of a file and as an identity."""

    def __init__(self, text: Secret, work_factor: int | None = None) -> None:
        self._text = text
        self._work_factor = WORK_FACTOR if work_factor is None else work_factor

    def wrap(self, file_key: bytes) -> Stanza:
        salt = secrets.token_bytes(_SALT_SIZE)
        key = self._derive_key(salt, self._work_factor)
        arguments = ("scrypt", _encode_base64(salt), str(self._work_factor))
        return Stanza(arguments, ChaCha20Poly1305(key).encrypt(_NO_NONCE, file_key, None))

    def unwrap(self, stanza: Stanza) -> bytes | None:
        if stanza.arguments[0] != "scrypt":
            return None
        if len(stanza.arguments) != 3 or len(stanza.body) != _FILE_KEY_SIZE + _TAG_SIZE:
            raise AgeError("The file's header is damaged: the passphrase's part has a wrong size.")
        salt = _decode_base64(stanza.arguments[1], _SALT_SIZE)
        if not re.fullmatch(r"[1-9][0-9]?", stanza.arguments[2], re.ASCII):
            raise AgeError("The file's header is damaged: the work factor is not a number.")
        work_factor = int(stanza.arguments[2])
        if work_factor > MAX_WORK_FACTOR:
            raise AgeError(
                f"The file's passphrase has a work factor of {work_factor}; {MAX_WORK_FACTOR} is the most that is read."
            )
        return _unwrap(self._derive_key(salt, work_factor), stanza)

    def _derive_key(self, salt: bytes, work_factor: int) -> bytes:
        function = Scrypt(salt=_SCRYPT_LABEL + salt, length=_KEY_SIZE, n=2**work_factor, r=8, p=1)
        return function.derive(self._text.reveal().encode())


class EncryptingWriter(io.RawIOBase):
    """A stream that writes an encrypted file to `target`. The file is complete after `close`, which leaves `target` open."""

    def __init__(self, target: IO[bytes], recipients: Sequence[Recipient]) -> None:
        if any(isinstance(recipient, Passphrase) for recipient in recipients) and len(recipients) > 1:
            raise InvalidInputError("A passphrase cannot be combined with other recipients.")
        if not recipients:
            raise InvalidInputError("No recipient: specify a public key or a passphrase.")
        file_key = secrets.token_bytes(_FILE_KEY_SIZE)
        header = _format_header([recipient.wrap(file_key) for recipient in recipients])
        nonce = secrets.token_bytes(_NONCE_SIZE)
        target.write(header + b" " + _encode_base64(_authenticate(file_key, header)).encode() + b"\n" + nonce)
        self._target = target
        self._cipher = ChaCha20Poly1305(_derive_key(file_key, nonce, b"payload"))
        self._counter = 0
        self._pending = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        view = memoryview(data).cast("B")
        self._pending += view
        while len(self._pending) > _CHUNK_SIZE:  # a full chunk may be the last one, which is marked
            self._write_chunk(bytes(self._pending[:_CHUNK_SIZE]), last=False)
            del self._pending[:_CHUNK_SIZE]
        return len(view)

    def close(self) -> None:
        if not self.closed:
            try:
                self._write_chunk(bytes(self._pending), last=True)
            finally:
                super().close()

    def abandon(self) -> None:
        """Close without completing the file."""
        super().close()

    def _write_chunk(self, chunk: bytes, *, last: bool) -> None:
        self._target.write(self._cipher.encrypt(_make_chunk_nonce(self._counter, last=last), chunk, None))
        self._counter += 1


class DecryptingReader(io.RawIOBase):
    """A stream that reads an encrypted file. Every byte that it returns is authenticated.

    Raises NoMatchError if no identity fits, and AgeError if the file is damaged or incomplete.
    """

    def __init__(self, source: IO[bytes], identities: Sequence[Identity]) -> None:
        self._source = source
        stanzas, header, code = _read_header(source)
        file_key = _find_file_key(stanzas, identities)
        if not hmac.compare_digest(_authenticate(file_key, header), code):
            raise AgeError("The file's header was changed.")
        nonce = source.read(_NONCE_SIZE)
        if len(nonce) != _NONCE_SIZE:
            raise AgeError("The file is incomplete.")
        self._cipher = ChaCha20Poly1305(_derive_key(file_key, nonce, b"payload"))
        self._counter = 0
        self._ahead = source.read(1)
        self._chunk = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        view = memoryview(buffer).cast("B")
        if not self._chunk and (self._ahead or not self._counter):
            self._chunk = memoryview(self._read_chunk())
        size = min(len(view), len(self._chunk))
        view[:size] = self._chunk[:size]
        self._chunk = self._chunk[size:]
        return size

    def _read_chunk(self) -> bytes:
        sealed = self._ahead + self._source.read(_CHUNK_SIZE + _TAG_SIZE - len(self._ahead))
        self._ahead = self._source.read(1)
        last = not self._ahead
        if len(sealed) < _TAG_SIZE:
            raise AgeError("The file is incomplete.")
        try:
            chunk = self._cipher.decrypt(_make_chunk_nonce(self._counter, last=last), sealed, None)
        except InvalidTag:
            raise AgeError("The file is incomplete or damaged.") from None
        if not chunk and self._counter:
            raise AgeError("The file is damaged: it ends with an empty chunk.")
        self._counter += 1
        return chunk


def is_encrypted(start: bytes) -> bool:
    """Return whether a file that starts with these bytes is in the age format."""
    return start.startswith(MAGIC + b"\n")


def _find_file_key(stanzas: Sequence[Stanza], identities: Sequence[Identity]) -> bytes:
    if len(stanzas) > 1 and any(stanza.arguments[0] == "scrypt" for stanza in stanzas):
        raise AgeError("The file's header is damaged: it has a passphrase and other recipients.")
    for identity in identities:
        for stanza in stanzas:
            if (file_key := identity.unwrap(stanza)) is not None:
                return file_key
    if stanzas[0].arguments[0] == "scrypt":
        raise NoMatchError("The file is encrypted with a passphrase, and not with this one.")
    raise NoMatchError("The file is encrypted to a public key whose secret key was not given.")


def _unwrap(key: bytes, stanza: Stanza) -> bytes | None:
    try:
        return ChaCha20Poly1305(key).decrypt(_NO_NONCE, stanza.body, None)
    except InvalidTag:
        return None


def _format_header(stanzas: Sequence[Stanza]) -> bytes:
    """Return the header up to and including the three hyphens, which is what its authentication code covers."""
    lines = [MAGIC.decode()]
    for stanza in stanzas:
        lines.append(" ".join(("->", *stanza.arguments)))
        body = _encode_base64(stanza.body)
        # the last line is always shorter than a full one, and may be empty
        lines += [body[at : at + _LINE_SIZE] for at in range(0, len(body) + 1, _LINE_SIZE)]
    return "\n".join([*lines, "---"]).encode()


def _read_header(source: IO[bytes]) -> tuple[list[Stanza], bytes, bytes]:
    """Return the recipients, the authenticated bytes and their authentication code."""
    if _read_line(source) != MAGIC.decode():
        raise AgeError("The file is not in the age format, version 1.")
    stanzas: list[Stanza] = []
    while (line := _read_line(source)).startswith("-> "):
        arguments = line.removeprefix("-> ").split(" ")
        if not all(re.fullmatch(r"[!-~]+", argument) for argument in arguments) or len(stanzas) >= _MAX_STANZAS:
            raise AgeError("The file's header is damaged.")
        body = ""
        while len(part := _read_line(source)) == _LINE_SIZE:
            body += part
            if len(body) > _MAX_BODY:
                raise AgeError("The file's header is damaged: a recipient is too long.")
        stanzas.append(Stanza(tuple(arguments), _decode_base64(body + part)))
        if len(part) > _LINE_SIZE:
            raise AgeError("The file's header is damaged: a line is too long.")
    if not stanzas or not line.startswith("--- "):
        raise AgeError("The file's header is damaged.")
    return stanzas, _format_header(stanzas), _decode_base64(line.removeprefix("--- "), SHA256.digest_size)


def _read_line(source: IO[bytes]) -> str:
    line = source.readline(_MAX_LINE_SIZE)
    if not line.endswith(b"\n"):
        raise AgeError("The file is not in the age format, or its header is incomplete.")
    try:
        return line[:-1].decode("ascii")
    except UnicodeDecodeError:
        raise AgeError("The file is not in the age format, or its header is damaged.") from None


def _authenticate(file_key: bytes, header: bytes) -> bytes:
    return hmac.digest(_derive_key(file_key, b"", b"header"), header, "sha256")


def _derive_key(secret: bytes, salt: bytes, label: bytes) -> bytes:
    return HKDF(algorithm=SHA256(), length=_KEY_SIZE, salt=salt, info=label).derive(secret)


def _make_chunk_nonce(counter: int, *, last: bool) -> bytes:
    return counter.to_bytes(11, "big") + bytes([last])


def _encode_base64(data: bytes) -> str:
    return base64.b64encode(data).decode().rstrip("=")


def _decode_base64(text: str, size: int | None = None) -> bytes:
    """Decode base64 without padding. Accepts only the one encoding that `_encode_base64` returns."""
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except ValueError:
        data = None
    if data is None or _encode_base64(data) != text or size not in {None, len(data)}:
        raise AgeError("The file's header is damaged: it contains invalid base64.")
    return data


def _compute_bech32_checksum(prefix: str, values: Sequence[int]) -> int:
    checksum = 1
    for value in [*(ord(letter) >> 5 for letter in prefix), 0, *(ord(letter) & 31 for letter in prefix), *values]:
        top = checksum >> 25
        checksum = (checksum & 0x1FFFFFF) << 5 ^ value
        for bit, term in enumerate((0x3B6A57B2, 0x26508E6D, 0x1EA119FA, 0x3D4233DD, 0x2A1462B3)):
            checksum ^= term if top >> bit & 1 else 0
    return checksum


def _encode_bech32(prefix: str, data: bytes) -> str:
    """Encode a key, in the case of its prefix."""
    bits = int.from_bytes(data, "big") << (-len(data) * 8 % 5)
    count = -(-len(data) * 8 // 5)
    values = [bits >> 5 * at & 31 for at in reversed(range(count))]
    checksum = _compute_bech32_checksum(prefix.lower(), [*values, *[0] * _BECH32_CHECKSUM_SIZE]) ^ 1
    values += [checksum >> 5 * at & 31 for at in reversed(range(_BECH32_CHECKSUM_SIZE))]
    text = f"{prefix}1{''.join(_BECH32[value] for value in values)}"
    return text.upper() if prefix.isupper() else text


def _decode_bech32(text: str, prefix: str) -> bytes | None:
    """Return the key of 32 bytes, or None if the text is not one with this prefix."""
    if text != (text.upper() if prefix.isupper() else text.lower()):
        return None
    found, separator, encoded = text.lower().rpartition("1")
    values = [_BECH32.find(letter) for letter in encoded]
    if not separator or found != prefix.lower() or -1 in values or len(values) <= _BECH32_CHECKSUM_SIZE:
        return None
    if _compute_bech32_checksum(found, values) != 1:
        return None
    bits = 0
    for value in values[:-_BECH32_CHECKSUM_SIZE]:
        bits = bits << 5 | value
    excess = (len(values) - _BECH32_CHECKSUM_SIZE) * 5 - _KEY_SIZE * 8
    if not 0 <= excess < 5 or bits & (1 << excess) - 1:
        return None
    return (bits >> excess).to_bytes(_KEY_SIZE, "big")
