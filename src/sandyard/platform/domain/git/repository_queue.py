"""Fair queue with one writer per repository at a time.

The requester that was served least recently comes first. Entries of equal rank are served in the order of their ids.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class _WaitingOperation:
    id: str
    requester: str
    turn: asyncio.Future[None]


@dataclass(slots=True)
class _Queue:
    current_id: str | None = None
    waiting: list[_WaitingOperation] = field(default_factory=list)
    served: dict[str, int] = field(default_factory=dict)
    """When each requester was served last, as an increasing number."""


class RepositoryQueue:
    """The queues of all repositories, in memory. Only the operations survive a restart, and they queue again in their original order."""

    def __init__(self) -> None:
        self._queues: dict[str, _Queue] = {}
        self._count = itertools.count(1)

    def enter(self, repository: str, *, id: str, requester: str) -> asyncio.Future[None]:
        """Join the queue. The future completes when it is this operation's turn, at once if the queue is empty.

        Call `leave` afterwards, also if the turn is no longer wanted. Each requester is served in turn, however many
        entries the others have.
        """
        queue = self._queues.setdefault(repository, _Queue())
        operation = _WaitingOperation(id, requester, asyncio.get_running_loop().create_future())
        queue.waiting.append(operation)
        if queue.current_id is None:
            self._serve_next(repository, queue)
        return operation.turn

    def leave(self, repository: str, id: str) -> None:
        """End the turn, or leave the queue before it."""
        queue = self._queues[repository]
        if queue.current_id == id:
            self._serve_next(repository, queue)
        else:
            queue.waiting = [operation for operation in queue.waiting if operation.id != id]

    @contextlib.asynccontextmanager
    async def wait_turn(self, repository: str, *, id: str, requester: str) -> AsyncIterator[None]:
        """Wait for the turn, and end it with the context. See `enter`."""
        turn = self.enter(repository, id=id, requester=requester)
        try:
            await turn
            yield
        finally:
            self.leave(repository, id)

    def _serve_next(self, repository: str, queue: _Queue) -> None:
        queue.current_id = None
        if not queue.waiting:
            del self._queues[repository]
            return
        operation = next(iter(_iterate_in_serving_order(queue)))
        queue.waiting.remove(operation)
        queue.current_id, queue.served[operation.requester] = operation.id, next(self._count)
        if not operation.turn.done():  # otherwise the waiter was cancelled and is about to leave
            operation.turn.set_result(None)

    def get_position(self, repository: str, id: str) -> int | None:
        """Return 0 if it is its turn, 1 if it is next, and None if it is not in the queue."""
        queue = self._queues.get(repository)
        if queue is None:
            return None
        if queue.current_id == id:
            return 0
        for position, operation in enumerate(_iterate_in_serving_order(queue), 1):
            if operation.id == id:
                return position
        return None


def _iterate_in_serving_order(queue: _Queue) -> Iterable[_WaitingOperation]:
    """Yield the entries in the order in which they will be served if no others join."""
    served, waiting = dict(queue.served), list(queue.waiting)
    now = max(served.values(), default=0)
    while waiting:
        first = min(waiting, key=lambda operation: (served.get(operation.requester, 0), operation.id))
        waiting.remove(first)
        now += 1
        served[first.requester] = now
        yield first
