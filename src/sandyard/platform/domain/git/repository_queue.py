"""Fair queue with one writer per repository at a time.

The requester that was served least recently comes first. Entries of equal rank are served in the order of their arrival.
An entry that takes longer than EXCLUSIVE_S continues, but from then on only entries of its own requester wait for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field

EXCLUSIVE_S = 30.0
"""How long others wait for one entry. Remotes refuse a push that would overwrite another one, so going on without it loses nothing."""


def make_mirror_key(project_id: str) -> str:
    """Return the key of the queue for a project's mirror, which other projects do not wait for. No repository has this key."""
    return f"mirror {project_id}"


@dataclass(slots=True)
class _WaitingOperation:
    id: str
    requester: str
    turn: asyncio.Future[None]


@dataclass(slots=True)
class _Queue:
    current_id: str | None = None
    timer: asyncio.TimerHandle | None = None
    """Ends the time in which all others wait for the current operation."""
    overdue: dict[str, str] = field(default_factory=dict)
    """Requesters, by id, of operations that continue after that time."""
    waiting: list[_WaitingOperation] = field(default_factory=list)
    served: dict[str, int] = field(default_factory=dict)
    """When each requester was served last, as an increasing number."""


class RepositoryQueue:
    """The queues of all repositories, in memory. After a restart, the operations queue again in the order of their requests."""

    def __init__(self, exclusive_s: float = EXCLUSIVE_S) -> None:
        self._exclusive_s = exclusive_s
        self._queues: dict[str, _Queue] = {}
        self._count = itertools.count(1)

    def enter(self, repository: str, *, id: str, requester: str) -> asyncio.Future[None]:
        """Join the queue. The future completes when it is this operation's turn, at once if the queue is empty.

        Call `leave` afterwards, also if the turn is no longer wanted. Each requester is served in turn, however many
        entries the others have, and has one turn at a time. Pass the owner of the project, who cannot be exchanged at will.
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
        elif queue.overdue.pop(id, None) is not None:
            if queue.current_id is None:
                self._serve_next(repository, queue)
        else:
            queue.waiting = [operation for operation in queue.waiting if operation.id != id]

    @contextlib.asynccontextmanager
    async def wait_turn(self, repository: str, *, id: str, requester: str) -> AsyncIterator[bool]:
        """Wait for the turn, and end it with the context, which is whether there was a wait. See `enter`."""
        turn = self.enter(repository, id=id, requester=requester)
        waits = not turn.done()
        try:
            await turn
            yield waits
        finally:
            self.leave(repository, id)

    def _serve_next(self, repository: str, queue: _Queue) -> None:
        if queue.timer is not None:
            queue.timer.cancel()
        queue.current_id = queue.timer = None
        busy = set(queue.overdue.values())
        operation = next(
            (waiting for waiting in _iterate_in_serving_order(queue) if waiting.requester not in busy), None
        )
        if operation is None:
            if not queue.waiting and not queue.overdue:
                del self._queues[repository]
            return
        queue.waiting.remove(operation)
        queue.current_id, queue.served[operation.requester] = operation.id, next(self._count)
        queue.timer = asyncio.get_running_loop().call_later(
            self._exclusive_s, self._end_exclusive_time, repository, queue, operation
        )
        if not operation.turn.done():  # otherwise the waiter was cancelled and is about to leave
            operation.turn.set_result(None)

    def _end_exclusive_time(self, repository: str, queue: _Queue, operation: _WaitingOperation) -> None:
        queue.overdue[operation.id] = operation.requester
        self._serve_next(repository, queue)

    def get_position(self, repository: str, id: str) -> int | None:
        """Return 0 if it is its turn, 1 if it is next, and None if it is not in the queue."""
        queue = self._queues.get(repository)
        if queue is None:
            return None
        if queue.current_id == id or id in queue.overdue:
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
        first = min(waiting, key=lambda operation: served.get(operation.requester, 0))  # the earliest of equals
        waiting.remove(first)
        now += 1
        served[first.requester] = now
        yield first
