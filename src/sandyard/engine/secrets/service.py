"""The engine's secrets: all operations for protocols, and `reveal`, the only access to a value, for `outbound` alone.

A value is encrypted with a key in the data directory before it is stored, and bound to its secret and version: rows
that are swapped do not decrypt. Only the current version is kept, because no API returns older ones.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sandyard.engine.store.database import Database, Row
from sandyard.kit.clock import Clock, SystemClock
from sandyard.kit.errors import ConflictError, InvalidInputError, NotFoundError, SandyardError
from sandyard.kit.ids import make_random_id
from sandyard.kit.logging import get_logger
from sandyard.kit.secret import Secret
from sandyard.kit.vault import RETIRE_AFTER_S, KeyState, Vault, VaultError, describe_keys

log = get_logger(__name__)

PREFIX = "sec_"
TIDY_INTERVAL_S = 600.0
MAX_NAME_LENGTH, MAX_VALUE_BYTES = 255, 32 << 10
MAX_METADATA_ENTRIES, MAX_METADATA_KEY_BYTES, MAX_METADATA_VALUE_BYTES, MAX_METADATA_BYTES = 32, 128, 1024, 8192
_FORBIDDEN_IN_NAME = re.compile(r"[{}\x00-\x1f\x7f-\x9f]")
_COLUMNS = "seq, id, name, version, metadata, created_at, updated_at"


@dataclass(frozen=True, slots=True)
class SecretInfo:
    """Everything the API returns about a secret."""

    id: str
    name: str
    version: int
    metadata: Mapping[str, str]
    created_at: float
    updated_at: float


@dataclass(frozen=True, slots=True)
class SecretPage:
    items: tuple[SecretInfo, ...]
    next_cursor: str | None = None


class Secrets:
    """The stored secrets. All methods run in the event loop's thread and take microseconds; writing is asynchronous."""

    def __init__(self, database: Database, key_file: Path, clock: Clock | None = None) -> None:
        self._database = database
        self._vault = Vault(key_file)
        self._clock = clock or SystemClock()

    async def create(self, name: str, value: Secret, metadata: Mapping[str, str] | None = None) -> SecretInfo:
        """Create a secret. Names are case-insensitive: `Key` and `key` are the same. Raises ConflictError if the name
        is taken."""
        name, now = _normalize_name(name), self._clock.now()
        stored = _encode_metadata(metadata or {})
        _check_value(value)
        secret_id = make_random_id(PREFIX)
        sealed = self._vault.seal(value, secret_id, "1")
        with self._database.transaction():
            if self._find(name) is not None:
                raise ConflictError(f"A secret named {name!r} already exists. Update it or choose another name.")
            self._database.insert(
                "INSERT INTO secrets (id, name, version, metadata, created_at, updated_at, sealed) "
                "VALUES (?, ?, 1, ?, ?, ?, ?)",
                (secret_id, name, stored, now, now, sealed),
            )
        await self._database.flush()
        log.info("secret_created", secret=secret_id)
        return self.get(secret_id)

    async def update(self, reference: str, value: Secret, metadata: Mapping[str, str] | None = None) -> SecretInfo:
        """Store a new version, used from the next request on. Metadata is kept if None. Raises NotFoundError."""
        _check_value(value)
        stored = None if metadata is None else _encode_metadata(metadata)
        with self._database.transaction():
            before = self.get(reference)
            version = before.version + 1
            self._database.execute(
                "UPDATE secrets SET version = ?, sealed = ?, updated_at = ?, metadata = coalesce(?, metadata) "
                "WHERE id = ?",
                (
                    version,
                    self._vault.seal(value, before.id, str(version)),
                    self._clock.now(),
                    stored,
                    before.id,
                ),
            )
        await self._database.flush()
        log.info("secret_updated", secret=before.id, version=version)
        return self.get(before.id)

    async def delete(self, reference: str) -> None:
        """Delete a secret. Requests that need it are refused from now on. Raises NotFoundError."""
        secret = self.get(reference)
        self._database.execute("DELETE FROM secrets WHERE id = ?", (secret.id,))
        await self._database.flush()
        log.info("secret_deleted", secret=secret.id)

    def get(self, reference: str) -> SecretInfo:
        """Return a secret by id or name. Raises NotFoundError."""
        row = self._find(reference)
        if row is None:
            raise NotFoundError(f"Secret {reference[:100]!r} not found.")
        return _decode_info(row)

    def list(self, limit: int, cursor: str | None = None) -> SecretPage:
        """Return a page of secrets, newest first. Raises InvalidInputError for a bad cursor."""
        if cursor is not None and not re.fullmatch(r"\d{1,18}", cursor):
            raise InvalidInputError("nextToken is not valid: use one from a previous response.")
        rows = self._database.query(
            f"SELECT {_COLUMNS} FROM secrets WHERE seq < ? ORDER BY seq DESC LIMIT ?",  # noqa: S608
            (int(cursor) if cursor else 1 << 62, limit + 1),
        )
        more = len(rows) > limit
        return SecretPage(tuple(map(_decode_info, rows[:limit])), str(rows[limit - 1][0]) if more else None)

    def reveal(self, name: str) -> Secret:
        """Return the current value, for requests that leave the engine on the owner's behalf. Raises NotFoundError, or
        VaultError if it cannot be decrypted."""
        rows = self._database.query("SELECT id, version, sealed FROM secrets WHERE name = ?", (name.lower(),))
        if not rows:
            raise NotFoundError(f"secret {name[:100]!r} not found.")
        secret_id, version, sealed = rows[0]
        return self._vault.open(sealed, secret_id, str(version))

    # The key ----------------------------------------------------------------------------------------------------------

    def describe_keys(self) -> KeyState:
        """Return the keys, and how many values each has encrypted."""
        return describe_keys(self._vault, (row[0] for row in self._database.query("SELECT sealed FROM secrets")))

    async def rotate_key(self) -> KeyState:
        """Encrypt all values with a new key. The old one stays in the file for a day, for backups that are being written."""
        self._vault.rotate()
        await self.reseal()
        return self.describe_keys()

    async def reseal(self) -> None:
        """Encrypt values with the newest key that are encrypted with an older one."""
        with self._database.transaction():
            for secret_id, version, sealed in self._database.query("SELECT id, version, sealed FROM secrets"):
                if self._vault.is_current(sealed):
                    continue
                with contextlib.suppress(VaultError):  # its key is lost, so it cannot be read anyway
                    value = self._vault.open(sealed, secret_id, str(version))
                    self._database.execute(
                        "UPDATE secrets SET sealed = ? WHERE id = ?",
                        (self._vault.seal(value, secret_id, str(version)), secret_id),
                    )
        await self._database.flush()

    async def tidy_keys(self) -> None:
        """Remove old keys a day after a rotation, and finish a rotation that a crash has interrupted."""
        if len(self._vault.list_key_ids()) < 2:
            return
        await self.reseal()
        state = self.describe_keys()
        if not state.has_old_values and self._clock.now() - state.changed_at > RETIRE_AFTER_S:
            self._vault.retire()

    async def tidy_keys_regularly(self) -> None:
        while True:
            try:
                await self.tidy_keys()
            except SandyardError as error:
                log.warning("key_not_retired", reason=error.message)
            await self._clock.sleep(TIDY_INTERVAL_S)

    def _find(self, reference: str) -> Row | None:
        column = "id" if reference.startswith(PREFIX) else "name"
        key = reference if column == "id" else reference.lower()
        rows = self._database.query(f"SELECT {_COLUMNS} FROM secrets WHERE {column} = ?", (key,))  # noqa: S608
        return rows[0] if rows else None


def _normalize_name(name: str) -> str:
    lower = name.lower()
    if (
        not _count_bytes(name)
        or len(name) > MAX_NAME_LENGTH
        or _FORBIDDEN_IN_NAME.search(name)
        or lower.startswith(PREFIX)
    ):
        raise InvalidInputError(
            f"A secret's name must have 1 to {MAX_NAME_LENGTH} characters, no braces and no control characters, and must not start "
            f"with {PREFIX}, which is reserved for ids."
        )
    return lower


def _check_value(value: Secret) -> None:
    if not 0 < _count_bytes(value.reveal()) <= MAX_VALUE_BYTES:
        raise InvalidInputError(f"A secret's value must have 1 to {MAX_VALUE_BYTES} bytes.")


def _encode_metadata(metadata: Mapping[str, str]) -> str:
    sizes = [(_count_bytes(key), _count_bytes(value)) for key, value in metadata.items()]
    if len(sizes) > MAX_METADATA_ENTRIES or sum(map(sum, sizes)) > MAX_METADATA_BYTES:
        raise InvalidInputError(
            f"A secret's metadata may have at most {MAX_METADATA_ENTRIES} entries and {MAX_METADATA_BYTES} bytes."
        )
    if any(not key or key > MAX_METADATA_KEY_BYTES or value > MAX_METADATA_VALUE_BYTES for key, value in sizes):
        raise InvalidInputError(
            f"A key in a secret's metadata must have 1 to {MAX_METADATA_KEY_BYTES} bytes and a value at most {MAX_METADATA_VALUE_BYTES}."
        )
    return json.dumps(dict(metadata))


def _count_bytes(text: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        raise InvalidInputError("The secret contains an unpaired surrogate. Send it as UTF-8.") from None


def _decode_info(row: Row) -> SecretInfo:
    _, secret_id, name, version, metadata, created_at, updated_at = row
    return SecretInfo(secret_id, name, version, json.loads(metadata), created_at, updated_at)
