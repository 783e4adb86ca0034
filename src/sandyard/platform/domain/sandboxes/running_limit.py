"""Limit the sandboxes that one user may have running. All users share the capacity of the engine."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator
from weakref import WeakValueDictionary

from sqlalchemy import func, select

from sandyard.platform.db.database import Database
from sandyard.platform.db.models import Sandbox
from sandyard.platform.domain.sandboxes.e2b import EngineQuotaError
from sandyard.platform.domain.sandboxes.model import Status


class RunningLimitError(EngineQuotaError):
    """The user has the maximum number of running sandboxes. Tasks wait, as they do while the engine is full."""

    code, status = "too_many_sandboxes", 429

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"The limit of {limit} running sandboxes per user is reached. Pause or delete a sandbox that you do not need now, or ask an "
            "administrator to raise SANDYARD_RUNNING_SANDBOXES_PER_USER."
        )


class RunningLimit:
    """Counts each owner's sandboxes that run or are being provisioned, without the platform's own. A limit of 0 means none.

    Sandboxes being started count by their id until their row says that they run. So concurrent requests cannot exceed the limit.
    """

    def __init__(self, database: Database, limit: int) -> None:
        self._database = database
        self._limit = limit
        self._starting: defaultdict[str, set[str]] = defaultdict(set)  # ids of sandboxes by owner
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @contextlib.asynccontextmanager
    async def start(self, row: Sandbox) -> AsyncIterator[None]:
        """Count the sandbox as running until the context ends, when its row must say so. Raises RunningLimitError."""
        if not self._limit or row.internal:
            yield
            return
        owner_id, sandbox_id = row.owner_id, row.id
        lock = self._locks.setdefault(owner_id, asyncio.Lock())
        async with lock:
            await self.check(owner_id)
            self._starting[owner_id].add(sandbox_id)
        try:
            yield
        finally:
            self._starting[owner_id].discard(sandbox_id)
            if not self._starting[owner_id]:
                del self._starting[owner_id]

    async def check(self, owner_id: str) -> None:
        """Raise RunningLimitError if the owner may start no other sandbox now."""
        if not self._limit:
            return
        starting = set(self._starting.get(owner_id, ()))
        query = select(func.count()).where(
            Sandbox.owner_id == owner_id,
            Sandbox.status.in_((Status.PROVISIONING, Status.RUNNING)),
            Sandbox.internal.is_(False),
            Sandbox.id.not_in(starting),
        )
        async with self._database.reading() as session:
            running = await session.scalar(query) or 0
        if running + len(starting) >= self._limit:
            raise RunningLimitError(self._limit)
