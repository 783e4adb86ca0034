"""Parse received data in short slices, so that many tiny pieces from one connection do not delay all the others.

An HTTP chunk or a WebSocket frame costs the same whether it carries one byte or a million. A single read may contain tens of
thousands of them, which is more work than the event loop should do at once.

Forwarding takes turns too (`take_turn`). They are shared equally between users and sandboxes, not between connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from weakref import WeakKeyDictionary

PARTS = 128
"""After how many parts (chunks, frames) a connection yields to others."""
TURN_SECONDS, REST_SECONDS = 0.002, 0.002
"""How long connections with work left are served at a time, and how long the loop is then free for everything else."""
PIECES = 16
"""How many pieces all owners together may forward between two pauses."""


class PacedInput:
    """The unparsed input of a connection. Reading is paused while there is any.

    `parse` parses the next piece of at most `slice_bytes` and returns how many parts it contained. Nothing is parsed while `wanted` returns
    false, and nothing is read while `may_read` (default: `wanted`) returns false. Call `resume` when one of them may return true again.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        parse: Callable[[bytes], int],
        *,
        slice_bytes: int,
        wanted: Callable[[], bool] = lambda: True,
        may_read: Callable[[], bool] | None = None,
    ) -> None:
        self._transport = transport
        self.parse = parse
        self._slice_bytes = slice_bytes
        self._wanted = wanted
        self._may_read = may_read or wanted
        self._waiting = b""
        self._position = 0
        self._end_callback: Callable[[], None] | None = None
        self.queued = False  # by _ParseQueue

    @property
    def busy(self) -> bool:
        """Whether data is waiting to be parsed."""
        return bool(self._waiting)

    def receive(self, data: bytes) -> None:
        """Parse the received data, as much as fits in one turn. The rest is scheduled."""
        if self._waiting:
            self._waiting = self._waiting[self._position :] + data
            self._position = 0
            self.pause_reading()
            return
        self._waiting = data
        if self.take_turn():
            _get_parse_queue().add(self)

    def resume(self) -> None:
        """Resume parsing and reading, if `wanted` and `may_read` allow it."""
        if self._waiting:
            _get_parse_queue().add(self)
        else:
            self._resume_reading()

    def end(self, callback: Callable[[], None]) -> None:
        """Handle the end of the input. Call `callback` once everything is parsed: immediately if nothing is waiting."""
        if self._waiting:
            self._end_callback = callback
            _get_parse_queue().add(self)
        else:
            callback()

    def drop(self) -> None:
        """Discard unparsed data."""
        self._waiting, self._position = b"", 0

    def abort(self) -> None:
        self.drop()
        self._transport.abort()

    def take_turn(self) -> bool:
        """Parse until PARTS is exceeded. Return whether more can be parsed now."""
        parts = 0
        while self._waiting and parts < PARTS and self._wanted():
            piece = self._waiting[self._position : self._position + self._slice_bytes]
            self._position += len(piece)
            if self._position >= len(self._waiting):
                self.drop()
            parts += self.parse(piece)
        if self._waiting or not self._wanted():
            self.pause_reading()
            return bool(self._waiting) and self._wanted()
        if self._end_callback is not None:
            callback, self._end_callback = self._end_callback, None
            callback()
        else:
            self._resume_reading()
        return False

    def pause_reading(self) -> None:
        if not self._transport.is_closing() and self._transport.is_reading():
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._may_read() and not self._transport.is_closing() and not self._transport.is_reading():
            self._transport.resume_reading()


class _ParseQueue:
    """A round-robin queue of the connections of one event loop that have more to parse."""

    def __init__(self) -> None:
        self._queue: deque[PacedInput] = deque()
        self._scheduled = False

    def add(self, paced_input: PacedInput) -> None:
        """Add a connection to the queue. Idempotent."""
        if paced_input.queued:
            return
        paced_input.queued = True
        self._queue.append(paced_input)
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        loop = asyncio.get_running_loop()
        until = time.perf_counter() + TURN_SECONDS
        while self._queue:
            paced_input = self._queue.popleft()
            paced_input.queued = False
            try:
                more = paced_input.take_turn()
            except Exception as error:  # like the loop when `data_received` fails
                loop.call_exception_handler({"message": "Could not parse received data.", "exception": error})
                paced_input.abort()
                continue
            if more and not paced_input.queued:
                paced_input.queued = True
                self._queue.append(paced_input)
            if time.perf_counter() >= until:
                break
        self._scheduled = bool(self._queue)
        if self._scheduled:
            loop.call_later(REST_SECONDS, self._run)


class ForwardingLimiter:
    """Lets PIECES pass, then none for REST_SECONDS. All owners with pieces have an equal share of PIECES.

    A share is kept for its owner until the end of the period, because a single connection asks for its next turn only after it has forwarded
    the last piece. What is left then is given to those who wait.
    """

    def __init__(self) -> None:
        self._remaining = self._share = PIECES
        self._passed: Counter[str] = Counter()  # by owner, in this period
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # by owner, the next to be served first
        self._resting = False

    async def wait_for_turn(self, owner: str) -> None:
        if self._remaining and owner not in self._waiting and self._passed[owner] < self._share:
            self._count(owner)
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append(turn)
        await turn

    def _count(self, owner: str) -> None:
        self._remaining -= 1
        self._passed[owner] += 1
        if not self._resting:
            self._resting = True
            asyncio.get_running_loop().call_soon(self._rest)

    def _rest(self) -> None:
        """End the period in REST_SECONDS. Called after the first pieces were forwarded: on a busy machine this may have taken longer."""
        asyncio.get_running_loop().call_later(REST_SECONDS, self._begin_period)

    def _begin_period(self) -> None:
        owners = self._passed.keys() | self._waiting.keys()
        for _ in self._serve_waiting(self._remaining, each=self._remaining):
            pass  # belongs to the last period
        self._remaining, self._share = PIECES, max(1, PIECES // len(owners))
        self._passed.clear()
        for owner in self._serve_waiting(PIECES, each=self._share):
            self._count(owner)
        self._resting = bool(self._passed)
        if self._resting:
            asyncio.get_running_loop().call_soon(self._rest)

    def _serve_waiting(self, turns: int, *, each: int) -> Iterator[str]:
        """Let at most `turns` waiting pieces pass, `each` of an owner, round-robin. Yield the owner of each."""
        for _ in range(each):
            for owner in list(self._waiting):
                if not turns:
                    return
                if self._serve_next(owner):
                    turns -= 1
                    yield owner

    def _serve_next(self, owner: str) -> bool:
        """Let the owner's next piece pass and move the owner to the end. Return False if nobody is waiting."""
        queue = self._waiting.pop(owner)
        while queue:
            turn = queue.popleft()
            if not turn.done():  # otherwise the waiter was cancelled
                turn.set_result(None)
                if queue:
                    self._waiting[owner] = queue
                return True
        return False


def set_turn_owner(owner: str) -> None:
    """Count the turns of this task, and of tasks that it starts, for this owner: the id of a user or of a sandbox."""
    _OWNER.set(owner)


@contextlib.contextmanager
def count_turns_for(owner: str) -> Iterator[None]:
    """Count the turns in this block, and in tasks started in it, for this owner: the id of a user or of a sandbox."""
    before = _OWNER.set(owner)
    try:
        yield
    finally:
        _OWNER.reset(before)


async def take_turn(kind: str = "other") -> None:
    """Call before forwarding a piece of a stream. Returns immediately unless very many pieces are being forwarded.

    Owners (see `count_turns_for`) share the turns equally, however many each of them asks for. Work without an owner is counted by its kind.
    """
    await _LIMITERS.setdefault(asyncio.get_running_loop(), ForwardingLimiter()).wait_for_turn(_OWNER.get() or kind)


_OWNER: ContextVar[str | None] = ContextVar("turn_owner", default=None)
_LIMITERS: WeakKeyDictionary[asyncio.AbstractEventLoop, ForwardingLimiter] = WeakKeyDictionary()
_PARSE_QUEUES: WeakKeyDictionary[asyncio.AbstractEventLoop, _ParseQueue] = WeakKeyDictionary()


def _get_parse_queue() -> _ParseQueue:
    return _PARSE_QUEUES.setdefault(asyncio.get_running_loop(), _ParseQueue())
