"""Encrypt stored secrets: AES-256-GCM with keys in a file that only its owner can read.

Stored bytes: a version (1), the key's id (8), the nonce (12), then the ciphertext with its tag. The storage location is authenticated
too, so that a value copied to another row cannot be decrypted there.

The file has one key per line, the newest first: it encrypts, and the others only decrypt what they have encrypted. A
change of the file takes effect in all processes at once.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import json
import os
import secrets
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
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


RETIRE_AFTER_S = 24 * 3600
"""How long an old key stays in the file after a rotation. A backup copies the database before the key file, so the file must still have
the keys of values that were encrypted again in between."""


@dataclass(frozen=True, slots=True)
class KeyState:
    """The keys of a vault, newest first, with the numbers of values that each has encrypted. `unknown`: values of keys that are
    not in the file."""

    keys: Sequence[tuple[str, int]]
    unknown: int
    changed_at: float

    @property
    def has_old_values(self) -> bool:
        """Whether an older key than the newest is still needed."""
        return any(count for _, count in self.keys[1:])


@dataclass(frozen=True, slots=True)
class _Key:
    id: bytes
    cipher: AESGCM
    derivation: bytes


class Vault:
    """Encrypts with a key that is created on first use. All processes on one database need the same key file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._keys: tuple[_Key, ...] = ()
        self._stamp: tuple[int, int] | None = None

    def seal(self, value: Secret, *location: str) -> bytes:
        """Encrypt a value for a storage location. Blocks for a moment when the keys are read."""
        key = self._load_keys()[0]
        nonce = secrets.token_bytes(_NONCE_SIZE)
        body = key.cipher.encrypt(nonce, value.reveal().encode(), _encode_location(location))
        return bytes([_VERSION]) + key.id + nonce + body

    def open(self, stored: bytes, *location: str) -> Secret:
        """Decrypt a value. Raises VaultError if its key is not in the file, or it was encrypted for another location."""
        keys = self._load_keys()
        head = 1 + _ID_SIZE
        if len(stored) < head + _NONCE_SIZE or stored[0] != _VERSION:
            raise VaultError("A stored secret has a format that this version does not support.")
        key = next((key for key in keys if key.id == stored[1:head]), None)
        if key is None:
            raise VaultError(f"A secret was encrypted with a different key than the one in {self._path}.")
        nonce, body = stored[head : head + _NONCE_SIZE], stored[head + _NONCE_SIZE :]
        try:
            return Secret(key.cipher.decrypt(nonce, body, _encode_location(location)).decode())
        except InvalidTag:
            raise VaultError("A stored secret was changed or copied from another location.") from None

    def is_current(self, stored: bytes) -> bool:
        """Return whether a value was encrypted with the newest key."""
        return stored[1 : 1 + _ID_SIZE] == self._load_keys()[0].id

    def derive(self, purpose: str) -> bytes:
        """Return a key for another purpose. It stays the same until the next rotation. The vault's own key cannot be computed
        from it."""
        return self.derive_all(purpose)[0]

    def derive_all(self, purpose: str) -> Sequence[bytes]:
        """Return the keys that `derive` returns now and returned before, as far as the file still has their keys. Newest first."""
        return [hmac.new(key.derivation, purpose.encode(), "sha256").digest() for key in self._load_keys()]

    # Rotation -------------------------------------------------------------------------------------------------------------

    def list_key_ids(self) -> Sequence[str]:
        """Return the ids of the keys, the newest first."""
        return [key.id.hex() for key in self._load_keys()]

    def get_changed_at(self) -> float:
        """Return when the newest key was created or an old one removed, in seconds since the epoch."""
        self._load_keys()
        return self._path.stat().st_mtime

    def rotate(self) -> str:
        """Create a key, which encrypts from now on, and return its id. Older keys still decrypt."""
        with self._lock_file():
            keys = self._read_key_file() or [self._create_key_file()]
            self._write_key_file([secrets.token_bytes(_KEY_SIZE), *keys])
        log.info("key_rotated", path=str(self._path))
        return self.list_key_ids()[0]

    def retire(self) -> int:
        """Remove all keys but the newest, and return how many. What they have encrypted can no longer be decrypted."""
        with self._lock_file():
            keys = self._read_key_file() or []
            if len(keys) > 1:
                self._write_key_file(keys[:1])
                log.info("keys_retired", path=str(self._path), count=len(keys) - 1)
        return max(len(keys) - 1, 0)

    @contextlib.contextmanager
    def _lock_file(self) -> Iterator[None]:
        """Let only one process change the file. Its directory is locked, because the file itself is replaced."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _load_keys(self) -> tuple[_Key, ...]:
        """Return the keys, read again if the file has changed."""
        stamp = self._get_stamp()
        if not self._keys or (stamp is not None and stamp != self._stamp):
            keys = self._read_key_file() or [self._create_key_file()]
            self._stamp = stamp or self._get_stamp()
            self._keys = tuple(
                _Key(
                    hashlib.sha256(b"sandyard key id\0" + key).digest()[:_ID_SIZE],
                    AESGCM(key),
                    hmac.new(key, b"sandyard derived keys", "sha256").digest(),
                )
                for key in keys
            )
        return self._keys

    def _get_stamp(self) -> tuple[int, int] | None:
        try:
            status = self._path.stat()
        except OSError:  # keys in memory stay in use; without them, reading the file reports the error
            return None
        return status.st_ino, status.st_mtime_ns

    def _read_key_file(self) -> list[bytes] | None:
        try:
            lines = self._path.read_text("ascii").split()
            mode = self._path.stat().st_mode
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise VaultError(f"Could not read the key file {self._path}: {error}") from error
        if mode & 0o077:
            log.warning("key_file_readable_by_others", path=str(self._path), mode=oct(mode & 0o777))
        try:
            keys = [bytes.fromhex(line) for line in lines]
        except ValueError:
            keys = []
        if not keys or any(len(key) != _KEY_SIZE for key in keys):
            raise VaultError(f"The key file {self._path} does not contain a key of 64 hexadecimal digits.")
        return keys

    def _create_key_file(self) -> bytes:
        """Create the key file atomically, and return its key. If two processes do so at once, both use the same key."""
        temporary = self._write_temporary_file([secrets.token_bytes(_KEY_SIZE)])
        try:
            with contextlib.suppress(FileExistsError):
                self._path.hardlink_to(temporary)
                log.info("key_file_created", path=str(self._path))
        finally:
            temporary.unlink()
        keys = self._read_key_file()
        assert keys is not None, "the key file was just created"
        return keys[0]

    def _write_key_file(self, keys: Sequence[bytes]) -> None:
        """Replace the key file. A crash leaves the old or the new one."""
        temporary = self._write_temporary_file(keys)
        status = self._path.stat()
        os.chown(temporary, status.st_uid, status.st_gid)
        temporary.replace(self._path)
        descriptor = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)  # before anything is encrypted with a new key
        finally:
            os.close(descriptor)

    def _write_temporary_file(self, keys: Sequence[bytes]) -> Path:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._path.with_name(f"{self._path.name}.{secrets.token_hex(6)}")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write("".join(f"{key.hex()}\n" for key in keys))
            file.flush()
            os.fsync(file.fileno())
        return temporary


def _encode_location(location: tuple[str, ...]) -> bytes:
    return json.dumps(location).encode()


def describe_keys(vault: Vault, values: Iterable[bytes]) -> KeyState:
    """Return how many of these encrypted values belong to each key of the vault."""
    counts = Counter(value[1 : 1 + _ID_SIZE].hex() for value in values)
    keys = [(key, counts.pop(key, 0)) for key in vault.list_key_ids()]
    return KeyState(keys, sum(counts.values()), vault.get_changed_at())
