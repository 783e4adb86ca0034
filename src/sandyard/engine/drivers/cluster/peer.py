"""A control connection: calls in both directions, as frames of JSON with their length in front.

A call is `{"i": number, "v": verb, "a": arguments}`, its result `{"i": number, "r": result}` or `{"i": number, "e": error}`,
and `{"c": number}` cancels it. Calls are answered in any order. A frame that cannot be read ends the connection, and a
connection that ends fails all calls.
"""

from __future__ import annotations

import asyncio
import json
import struct
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

from sandyard.engine.drivers.cluster.codec import decode_error, encode_error
from sandyard.engine.drivers.cluster.reading_budget import ReadingBudget
from sandyard.kit.bounded_json import TooManyValuesError, count_values
from sandyard.kit.errors import BusyError, SandyardError, UnreachableError
from sandyard.kit.logging import get_logger
from sandyard.kit.tasks import end_tasks

log = get_logger(__name__)

MAX_FRAME = 64 << 20  # the handles of 100,000 sandboxes
MAX_ANSWER, MAX_ANSWER_VALUES = 16 << 20, 300_000
"""The largest frame of a host, in bytes and in JSON values, while one of LARGE_ANSWERS is expected: the conditions of 100,000 sandboxes."""
MAX_HOST_FRAME, MAX_HOST_VALUES = 4 << 20, 100_000
"""The largest other frame of a host. The largest is a poll with the measurements of its sandboxes: 10 values and 200 bytes for each."""
LARGE_ANSWERS = frozenset({"open", "change_volume"})
"""Calls whose answers may have the size of MAX_ANSWER: all sandboxes of a host, and lists of files."""
MAX_HOST_CALLS = 1000
"""How many calls of a host may be in progress."""
CALL_CPU_S = 1e-4
"""The processor time that a call of a host is counted with, besides that for reading it."""
TURN_S = 0.005
"""How long frames of a host are read before others have a turn."""
CANCEL_S = 30.0  # how long a cancelled call may take to be undone
_LENGTH = struct.Struct("!I")

Handler = Callable[[str, Mapping[str, Any]], Awaitable[Any]]
Undo = Callable[[Any], Awaitable[None]]


class Peer(asyncio.Protocol):
    """One end of a control connection. `handle` answers the calls of the other end. `name` is the other end, for messages.
    If it is a host, it has a budget: what it may send, how fast, and how many of its calls may be in progress are limited more."""

    def __init__(self, name: str, handle: Handler, *, budget: ReadingBudget | None = None) -> None:
        self.name = name
        self._handle = handle
        self._budget = budget
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._is_paused = False
        self._count = 0
        self._large: set[int] = set()  # those of `_calls` that may have large answers
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._lost: str | None = None
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Why the connection ended."""

    # The protocol -----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._budget is not None and (delay := self._budget.get_delay()) > 0:
            self._pause(delay)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._budget is not None:
            self._budget.charge(size=len(data))
        if not self._is_paused:
            self._read_frames()
        elif self._transport is not None:  # it was resumed by those who had the connection before
            self._transport.pause_reading()

    def _read_frames(self) -> None:
        """Read the frames that have arrived: of a host not more than its budget allows, and not longer than one turn."""
        offset, turn_ends_at = 0, time.monotonic() + TURN_S
        while (end := self._find_end(offset)) is not None:
            frame = bytes(self._received[offset + _LENGTH.size : end])
            offset = end
            if self._budget is None:
                self._read_frame(frame)
                continue
            with self._budget.measure():
                self._read_frame(frame)
            if time.monotonic() > turn_ends_at or self._budget.get_delay() > 0:
                break
        del self._received[:offset]
        if self._budget is None or self._lost is not None:
            return
        delay = self._budget.get_delay()
        if delay > 0 or self._find_end(0) is not None:
            self._pause(delay)

    def _find_end(self, start: int) -> int | None:
        """Return where the frame that starts here ends, or None if it is incomplete. Closes the connection if it is too large."""
        if self._lost is not None or len(self._received) - start < _LENGTH.size:
            return None
        (size,) = _LENGTH.unpack_from(self._received, start)
        largest, _ = self._get_limits()
        if size > largest:
            self.close(f"it sent a frame of {size} bytes, and {largest} are allowed")
            return None
        end: int = start + _LENGTH.size + size
        return end if len(self._received) >= end else None

    def _get_limits(self) -> tuple[int, int | None]:
        """Return how many bytes and how many values the next frame may have."""
        if self._budget is None:
            return MAX_FRAME, None
        if self._large:
            self._large = {number for number in self._large if number in self._calls}
        return (MAX_ANSWER, MAX_ANSWER_VALUES) if self._large else (MAX_HOST_FRAME, MAX_HOST_VALUES)

    def _read_frame(self, frame: bytes) -> None:
        _, values = self._get_limits()
        try:
            if values is not None:
                count_values(frame, values)
            self._receive(json.loads(frame))
        except TooManyValuesError as error:
            self.close(f"it sent a frame that is too large: {error}")
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            self.close("it sent a frame that cannot be read")

    def _pause(self, seconds: float) -> None:
        """Read nothing for some time. Idempotent while reading is paused."""
        if self._transport is not None:
            self._transport.pause_reading()
        if not self._is_paused:
            self._is_paused = True
            asyncio.get_running_loop().call_later(seconds, self._resume)

    def _resume(self) -> None:
        self._is_paused = False
        self._read_frames()
        if not self._is_paused and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self._end(str(error) if error is not None else "the connection was closed")

    def close(self, reason: str) -> None:
        """End the connection. Idempotent."""
        self._end(reason)
        if self._transport is not None:
            self._transport.abort()

    def _end(self, reason: str) -> None:
        if self._lost is not None:
            return
        self._lost = reason
        if not self.ended.done():
            self.ended.set_result(reason)
        calls, self._calls = self._calls, {}
        for call in calls.values():
            if not call.done():
                call.set_exception(self._make_error())
                call.exception()  # its caller may be gone
        for task in self._tasks.values():
            task.cancel()

    def _make_error(self) -> UnreachableError:
        return UnreachableError(f"{self.name} cannot be reached: {self._lost}.")

    async def end_handlers(self) -> None:
        """Cancel the calls of the other end that are still being handled, and wait until they have ended."""
        await end_tasks(*self._tasks.values())

    def _send(self, message: Mapping[str, Any]) -> None:
        frame = json.dumps(message, separators=(",", ":")).encode()
        if len(frame) > MAX_FRAME:
            raise SandyardError(f"A message to {self.name} has {len(frame)} bytes, and {MAX_FRAME} are allowed.")
        if self._lost is not None or self._transport is None:
            return
        self._transport.write(_LENGTH.pack(len(frame)) + frame)
        if self._transport.get_write_buffer_size() > 2 * MAX_FRAME:
            self.close("it does not read what it is sent")

    def _receive(self, message: Mapping[str, Any]) -> None:
        if "v" in message:
            number, verb = int(message["i"]), str(message["v"])
            if number in self._tasks:
                raise ValueError("a call has the number of another one")
            if self._budget is not None:
                self._budget.charge(cpu_s=CALL_CPU_S)
            if self._budget is not None and len(self._tasks) >= MAX_HOST_CALLS:
                self._send({"i": number, "e": encode_error(BusyError("Too many calls are in progress."))})
                return
            task = asyncio.ensure_future(self._serve(number, verb, message["a"]))
            self._tasks[number] = task
            task.add_done_callback(lambda ended: self._on_served(number, verb, ended))
        elif "c" in message:
            if (task_or_none := self._tasks.get(int(message["c"]))) is not None:
                task_or_none.cancel()
        else:
            call = self._calls.pop(int(message["i"]), None)
            if call is None or call.done():
                return
            if "e" in message:
                call.set_exception(decode_error(message["e"]))
            elif "r" in message:
                call.set_result(message["r"])
            else:
                call.set_exception(UnreachableError(f"{self.name} sent an answer without a result."))

    # Calls ------------------------------------------------------------------------------------------------------------

    async def _serve(self, number: int, verb: str, arguments: Mapping[str, Any]) -> None:
        try:
            answer = {"i": number, "r": await self._handle(verb, arguments)}
        except SandyardError as error:
            answer = {"i": number, "e": encode_error(error)}
        except Exception as error:  # the caller waits for an answer
            log.error("host_call_failed", verb=verb, exc=error)  # noqa: TRY400 - this logger has no `exception`
            answer = {"i": number, "e": encode_error(error)}
        try:
            self._send(answer)
        except SandyardError as error:
            self._send({"i": number, "e": encode_error(error)})

    def _on_served(self, number: int, verb: str, task: asyncio.Task[None]) -> None:
        self._tasks.pop(number, None)
        if task.cancelled():  # perhaps before it began
            self._send({"i": number, "e": encode_error(SandyardError(f"The call {verb!r} was cancelled."))})

    async def call(self, verb: str, arguments: Mapping[str, Any], *, timeout_s: float, undo: Undo | None = None) -> Any:
        """Call the other end and return its result. Raises its error, or UnreachableError if the connection ends or there
        is no answer within the timeout.

        If the caller is cancelled, the call is cancelled at the other end too, and this returns when that has happened. If
        it succeeded anyway, `undo` gets its result."""
        if self._lost is not None:
            raise self._make_error()
        self._count += 1
        number = self._count
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._calls[number] = future
        if verb in LARGE_ANSWERS:
            self._large.add(number)
        try:
            self._send({"i": number, "v": verb, "a": arguments})
            done, _ = await asyncio.wait({future}, timeout=timeout_s)
        except asyncio.CancelledError:
            await asyncio.shield(asyncio.ensure_future(self._cancel(number, future, undo)))
            raise
        except BaseException:
            self._calls.pop(number, None)
            raise
        if not done:
            abandoned = asyncio.ensure_future(self._cancel(number, future, undo))
            abandoned.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
            raise UnreachableError(f"{self.name} did not answer to {verb!r} within {timeout_s:g} s.")
        return future.result()

    async def _cancel(self, number: int, future: asyncio.Future[Any], undo: Undo | None) -> None:
        """Cancel a call at the other end, wait for its answer, and undo it if it succeeded."""
        self._send({"c": number})
        await asyncio.wait({future}, timeout=CANCEL_S)
        self._calls.pop(number, None)
        if not future.done() or future.cancelled() or future.exception() is not None:
            return
        if undo is not None:
            try:
                await undo(future.result())
            except SandyardError as error:  # the next `open` of the host removes it
                log.warning("host_call_not_undone", host=self.name, reason=error.message)
