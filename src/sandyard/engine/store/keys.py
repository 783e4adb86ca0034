"""API keys. A key is created once, shown once and stored as a hash."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace

from sandyard.engine.store.database import Database, DatabaseUnavailableError
from sandyard.kit.clock import Clock, SystemClock
from sandyard.kit.errors import ConflictError, InvalidInputError, NotFoundError
from sandyard.kit.ids import make_random_id, make_random_secret
from sandyard.kit.secret import Secret

RECHECK_S = 0.25  # how long keys are checked without looking for changes by other processes
PREFIX = "e2b_"  # the key format that official clients expect
SECRET_BYTES = 20
MAX_LABEL = 100
_INDEX_BYTES = 8  # bytes of a hash used for the lookup; the whole hash is then compared in constant time


@dataclass(frozen=True, slots=True)
class ApiKey:
    id: str
    label: str
    hint: str  # the first characters, for recognising the key
    created_at: float


class ApiKeys:
    """The API keys of one engine.

    `check` answers from memory in microseconds. A key that another process (the CLI) created or revoked takes effect
    within RECHECK_S. Keys in `fixed` (from the command line) are valid as long as this object lives and are not stored.
    """

    def __init__(self, database: Database, fixed: Iterable[Secret] = (), clock: Clock | None = None) -> None:
        self._database = database
        self._clock = clock or SystemClock()
        self._fixed = _index(
            (_hash(secret.reveal()), ApiKey(f"fixed-{number}", "from the command line", "", 0.0))
            for number, secret in enumerate(fixed)
        )
        self._keys: dict[bytes, tuple[bytes, ApiKey]] = {}
        self._version: int | None = None
        self._checked_at = 0.0

    def create(self, label: str) -> tuple[ApiKey, Secret]:
        """Create a key. The returned secret is not available anywhere else. Raises ConflictError if the label is taken."""
        label = _validate_label(label)
        secret = make_random_secret(PREFIX, SECRET_BYTES)
        key = ApiKey(make_random_id("k", 12), label, _make_hint(secret), self._clock.now())
        with self._database.transaction():
            self._require_unused(label)
            self._database.execute(
                "INSERT INTO api_keys (id, label, hash, hint, created_at) VALUES (?, ?, ?, ?, ?)",
                (key.id, key.label, _hash(secret.reveal()), key.hint, key.created_at),
            )
        self._reload()
        return key, secret

    def list(self) -> list[ApiKey]:
        """Return the stored keys, oldest first."""
        rows = self._database.query("SELECT id, label, hint, created_at FROM api_keys ORDER BY created_at, id")
        return [ApiKey(*row) for row in rows]

    def rename(self, key_id: str, label: str) -> ApiKey:
        """Change a key's label. Raises NotFoundError if the key does not exist and ConflictError if another key has the
        label."""
        label = _validate_label(label)
        with self._database.transaction():
            key = next((key for key in self.list() if key.id == key_id), None)
            if key is None:
                raise NotFoundError(f"API key {key_id!r} not found.")
            if label != key.label:
                self._require_unused(label)
                self._database.execute("UPDATE api_keys SET label = ? WHERE id = ?", (label, key_id))
        self._reload()
        return replace(key, label=label)

    def revoke(self, id_or_label: str) -> ApiKey:
        """Revoke a key. A key may revoke itself. Raises NotFoundError if the key does not exist."""
        key = next((key for key in self.list() if id_or_label in {key.id, key.label}), None)
        if key is None:
            raise NotFoundError(f"API key {id_or_label!r} not found.")
        self._database.execute("DELETE FROM api_keys WHERE id = ?", (key.id,))
        self._reload()
        return key

    def check(self, candidate: str | None) -> ApiKey | None:
        """Return the key that matches, or None. The comparison takes the same time for every wrong key."""
        if not candidate:
            return None
        now = time.monotonic()
        if self._version is None or now - self._checked_at > RECHECK_S:
            self._checked_at = now
            with contextlib.suppress(DatabaseUnavailableError):  # the keys that were read last stay valid
                if self._database.get_data_version() != self._version:
                    self._reload()
        digest = _hash(candidate)
        entry = self._fixed.get(digest[:_INDEX_BYTES]) or self._keys.get(digest[:_INDEX_BYTES])
        return entry[1] if entry is not None and hmac.compare_digest(entry[0], digest) else None

    def _require_unused(self, label: str) -> None:
        if self._database.query("SELECT 1 FROM api_keys WHERE label = ?", (label,)):
            raise ConflictError(f"An API key with the label {label!r} already exists. Choose another label.")

    def _reload(self) -> None:
        self._version = self._database.get_data_version()
        rows = self._database.query("SELECT hash, id, label, hint, created_at FROM api_keys")
        self._keys = _index((row[0], ApiKey(*row[1:])) for row in rows)


def _index(keys: Iterable[tuple[bytes, ApiKey]]) -> dict[bytes, tuple[bytes, ApiKey]]:
    return {digest[:_INDEX_BYTES]: (digest, key) for digest, key in keys}


def _validate_label(text: str) -> str:
    label = text.strip()
    if not label or len(label) > MAX_LABEL or not label.isprintable():
        raise InvalidInputError(f"An API key's label must have 1 to {MAX_LABEL} printable characters.")
    return label


def _hash(secret: str) -> bytes:
    # A slow hash is not needed: a key has 160 random bits, so it cannot be guessed.
    return hashlib.sha256(secret.encode(errors="replace")).digest()


def _make_hint(secret: Secret) -> str:
    return secret.reveal()[: len(PREFIX) + 4] + "…"
