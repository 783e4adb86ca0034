"""Limit the sandboxes that the platform uses at the same time for one user's preparations. They do not count as the user's own."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from sandyard.platform.domain.sandboxes.e2b import EngineQuotaError

MAX_WAITING = 50
"""How many preparations of a user may wait."""


class TooManyPreparationsError(EngineQuotaError):
    """Too many of the user's preparations are waiting. Try again later."""

    code, status = "too_many_preparations", 429

    def __init__(self, waiting: int) -> None:
        super().__init__(f"{waiting} preparations of this user are waiting already. Try again when some have finished.")


@dataclass(slots=True, eq=False)
class Ticket:
    """A place in the queue of one user. Call `leave` at the end."""

    user_id: str
    _limit: UserLimit
    _started: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def must_wait(self) -> bool:
        return not self._started.is_set()

    def start(self) -> None:
        self._started.set()

    async def wait(self) -> None:
        """Wait until this is one of the first in the queue, who may work."""
        await self._started.wait()

    def leave(self) -> None:
        """Leave the queue, so that another may work. Idempotent."""
        self._limit.remove(self)


class UserLimit:
    """`limit` of each user's tickets may work at the same time. The others wait in the order in which they were requested."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._queues: dict[str, list[Ticket]] = {}

    def enter(self, user_id: str, *, max_waiting: int | None = MAX_WAITING) -> Ticket:
        """Join the user's queue. Raises TooManyPreparationsError if `max_waiting` wait already (None: any number may)."""
        queue = self._queues.get(user_id, [])
        waiting = max(0, len(queue) - self.limit)
        if max_waiting is not None and len(queue) >= self.limit and waiting >= max_waiting:
            raise TooManyPreparationsError(waiting)
        ticket = Ticket(user_id, self)
        self._queues.setdefault(user_id, queue).append(ticket)
        self._start_first(queue)
        return ticket

    def remove(self, ticket: Ticket) -> None:
        queue = self._queues.get(ticket.user_id, [])
        if ticket in queue:
            queue.remove(ticket)
            self._start_first(queue)
        if not queue:
            self._queues.pop(ticket.user_id, None)

    def _start_first(self, queue: list[Ticket]) -> None:
        for ticket in queue[: self.limit]:
            ticket.start()
