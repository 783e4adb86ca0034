"""Encrypt stored secrets: AES-256-GCM with a key in a file that only its owner can read.

Stored bytes: a version (1), the key's id (8), the nonce (12), then the ciphertext with its tag. The storage location is authenticated
too, so that a value copied to another row cannot be decrypted there.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from sandyard.kit.errors import SandyardError
from sandyard.kit.logging import get_logger
from sandyard.kit.secret import Secret

log = get_logger(__name__)
_VERSION, _KEY_SIZE, _ID_SIZE, _NONCE_SIZE = 1, 32, 8, 12


class VaultError(SandyardError):
    """A secret could not be decrypted: the key file is missing or is a different one, or the stored value was changed."""

    code, status = "vault", 500


class Vault:
    """Encrypts with a key that is created on first use. All processes on one database need the same key file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._loaded: tuple[bytes, AESGCM] | None = None
        self._derivation: bytes | None = None

    def seal(self, value: Secret, *location: str) -> bytes:
        """Encrypt a value for a storage location. Blocks for a moment when the key is first read."""
        key_id, cipher = self._load_key()
        nonce = secrets.token_bytes(_NONCE_SIZE)
        body = cipher.encrypt(nonce, value.reveal().encode(), _encode_location(location))
        return bytes([_VERSION]) + key_id + nonce + body

    def open(self, stored: bytes, *location: str) -> Secret:
        """Decrypt a value. Raises VaultError if it was encrypted with another key or for another location."""
        key_id, cipher = self._load_key()
        head = 1 + _ID_SIZE
        if len(stored) < head + _NONCE_SIZE or stored[0] != _VERSION:
            raise VaultError("A stored secret has a format that this version does not support.")
        if stored[1:head] != key_id:
            raise VaultError(f"A secret was encrypted with a different key than the one in {self._path}.")
        nonce, body = stored[head : head + _NONCE_SIZE], stored[head + _NONCE_SIZE :]
        try:
            return Secret(cipher.decrypt(nonce, body, _encode_location(location)).decode())
        except InvalidTag:
            raise VaultError("A stored secret was changed or copied from another location.") from None

    def derive(self, purpose: str) -> bytes:
        """Return a key for another purpose. Always the same for one purpose. The vault's own key cannot be computed from it."""
        self._load_key()
        assert self._derivation is not None
        return hmac.new(self._derivation, purpose.encode(), "sha256").digest()

    def _load_key(self) -> tuple[bytes, AESGCM]:
        if self._loaded is None:
            key = self._read_key_file() or self._create_key_file()
            self._derivation = hmac.new(key, b"sandyard derived keys", "sha256").digest()
            self._loaded = (hashlib.sha256(b"sandyard key id\0" + key).digest()[:_ID_SIZE], AESGCM(key))
        return self._loaded

    def _read_key_file(self) -> bytes | None:
        try:
            text = self._path.read_text("ascii").strip()
            mode = self._path.stat().st_mode
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise VaultError(f"Could not read the key file {self._path}: {error}") from error
        if mode & 0o077:
            log.warning("key_file_readable_by_others", path=str(self._path), mode=oct(mode & 0o777))
        try:
            key = bytes.fromhex(text)
        except ValueError:
            key = b""
        if len(key) != _KEY_SIZE:
            raise VaultError(f"The key file {self._path} does not contain a key of 64 hexadecimal digits.")
        return key

    def _create_key_file(self) -> bytes:
        """Create the key file atomically. If two processes do so at once, both use the same key."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._path.with_name(f"{self._path.name}.{secrets.token_hex(6)}")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(secrets.token_hex(_KEY_SIZE) + "\n")
                file.flush()
                os.fsync(file.fileno())
            with contextlib.suppress(FileExistsError):
                self._path.hardlink_to(temporary)
                log.info("key_file_created", path=str(self._path))
        finally:
            temporary.unlink()
        key = self._read_key_file()
        assert key is not None, "the key file was just created"
        return key


def _encode_location(location: tuple[str, ...]) -> bytes:
    return json.dumps(location).encode()
