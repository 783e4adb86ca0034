"""Rotate the key that encrypts stored secrets, while the platform runs.

A new key encrypts from then on, everything that is stored is encrypted with it, and older keys still decrypt. They are removed a
day later, when nothing needs them: no stored value, no agent that was started with a capability derived from them, and no backup, which
copies the database before the key file.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import func, inspect, select, update

from sandyard.kit.clock import Clock
from sandyard.kit.logging import get_logger
from sandyard.kit.vault import RETIRE_AFTER_S, KeyState, Vault, VaultError, describe_keys
from sandyard.platform.db.database import Database
from sandyard.platform.db.models import AgentRun
from sandyard.platform.domain.secrets.inventory import SEALED_COLUMNS, SealedColumn

log = get_logger(__name__)
_ROWS = 200  # encrypted again in one transaction


class EncryptionKeys:
    """The keys in the platform's key file."""

    def __init__(self, database: Database, vault: Vault, clock: Clock) -> None:
        self._database = database
        self._vault = vault
        self._clock = clock
        self._lock = asyncio.Lock()

    async def describe(self) -> KeyState:
        """Return the keys, and how many stored values each has encrypted."""
        values = [value async for _, rows in self._read_rows() for value in rows]
        return await asyncio.to_thread(describe_keys, self._vault, values)

    async def rotate(self) -> KeyState:
        """Create a key and encrypt everything with it. If this is interrupted, `tidy` continues."""
        async with self._lock:
            await asyncio.to_thread(self._vault.rotate)
            count = await self._reseal()
        log.info("secrets_resealed", count=count)
        return await self.describe()

    async def tidy(self) -> None:
        """Finish an interrupted rotation, and remove old keys once nothing needs them."""
        if len(await asyncio.to_thread(self._vault.list_key_ids)) < 2:
            return
        async with self._lock:
            await self._reseal()
            state = await self.describe()
            if state.has_old_values or self._clock.now() - state.changed_at < RETIRE_AFTER_S:
                return
            since = datetime.fromtimestamp(state.changed_at, UTC)
            running = select(func.count()).where(AgentRun.ended_at.is_(None), AgentRun.started_at < since)
            async with self._database.reading() as session:
                if await session.scalar(running):
                    return  # their capabilities are derived from an older key
            await asyncio.to_thread(self._vault.retire)

    async def _reseal(self) -> int:
        """Encrypt values with the newest key. Skip values that are changed in the meantime."""
        count = 0
        for column in SEALED_COLUMNS:
            count += await self._reseal_column(column)
        return count

    async def _reseal_column(self, column: SealedColumn) -> int:
        keys = inspect(column.model).primary_key
        async with self._database.reading() as session:
            ids = (await session.execute(select(*keys).where(column.value.is_not(None)))).all()
        count = 0
        for start in range(0, len(ids), _ROWS):
            async with self._database.reading() as session:
                found = [await session.get(column.model, tuple(row_id)) for row_id in ids[start : start + _ROWS]]
            rows = [row for row in found if row is not None and getattr(row, column.column) is not None]
            changes = await asyncio.to_thread(self._seal_again, column, rows)
            async with self._database.transaction() as tx:
                for row, value in changes:
                    same = (key == getattr(row, key.key) for key in keys)
                    before = column.value == getattr(row, column.column)
                    await tx.session.execute(update(column.model).where(*same, before).values({column.column: value}))
            count += len(changes)
        return count

    def _seal_again(self, column: SealedColumn, rows: Sequence[Any]) -> list[tuple[Any, bytes]]:
        """Return the values of rows encrypted with the newest key, without those that already are or whose key is lost."""
        changes = []
        for row in rows:
            before, location = getattr(row, column.column), column.get_location(row)
            if self._vault.is_current(before):
                continue
            try:
                changes.append((row, self._vault.seal(self._vault.open(before, *location), *location)))
            except VaultError as error:
                log.warning("secret_not_resealed", location=":".join(location), reason=error.message)
        return changes

    async def _read_rows(self) -> AsyncIterator[tuple[SealedColumn, list[bytes]]]:
        for column in SEALED_COLUMNS:
            async with self._database.reading() as session:
                yield column, list(await session.scalars(select(column.value).where(column.value.is_not(None))))
