"""The link to one host: its connection, which is opened again whenever it is lost, and what the host has reported."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sandyard.engine.contract import Capabilities, Condition, Handle, Stats
from sandyard.engine.drivers.cluster import codec
from sandyard.engine.drivers.cluster.codec import Json
from sandyard.engine.drivers.cluster.connections import (
    FIRST_LINE_S,
    HANDSHAKE_S,
    LineProtocol,
    check_protocol,
    describe_protocol,
    enable_keepalive,
    explain_failure,
    parse_result,
)
from sandyard.engine.drivers.cluster.model import HostDirectory, HostRecord, HostRoom, HostState, HostStatus
from sandyard.engine.drivers.cluster.peer import Handler, Peer, Undo
from sandyard.engine.drivers.cluster.reading_budget import ReadingBudget
from sandyard.kit.errors import SandyardError, UnreachableError
from sandyard.kit.logging import get_logger
from sandyard.kit.tasks import TaskSet, end_tasks

log = get_logger(__name__)

CONNECT_S = 5.0
POLL_PAUSE_S = 0.02
"""The shortest time between two polls, also of a host that always has news."""
POLL_TIMEOUT_S = 5.0
"""A host that does not answer a poll within this time is unreachable. If nothing has changed, it answers after a second."""
MAX_ENDS = 1000
"""How many ends of sandboxes one answer to a poll contains. The next one contains the others."""
OPEN_S = 600.0
CALL_S = 900.0
"""No call lasts longer. Calls of the engine have earlier deadlines of their own."""
STREAM_S = 30.0  # for the answer to the first line of a stream
FIRST_RETRY_S, MAX_RETRY_S = 0.5, 5.0
FIRST_AVOIDED_S, MAX_AVOIDED_S = 30.0, 3600.0
"""How long a host is the last choice for new sandboxes after it has not answered; twice as long each time."""
SPARE_CONNECTIONS = 4
_SPARE_S = FIRST_LINE_S / 2
_MAX_VERSION = 100


@dataclass(frozen=True, slots=True)
class EngineIdentity:
    """The identity of this engine for hosts: its epoch, which grows with each start, and the id of its process."""

    epoch: int
    process: str
    stats_interval_s: float

    def to_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "engine": self.process}


class HostLink:
    """The link to one host, which is believed only what concerns its own sandboxes. `handle` answers the host's own calls;
    `on_doubt` is called with sandboxes that may have changed while the host was unreachable; `list_snapshots` returns the snapshots
    that hosts have to keep. `on_ready` is called whenever the host can be used again."""

    def __init__(
        self,
        record: HostRecord,
        directory: HostDirectory,
        identity: EngineIdentity,
        *,
        handle: Handler,
        on_doubt: Callable[[Collection[str], str], None],
        list_snapshots: Callable[[], Collection[str]],
        on_ready: Callable[[HostLink], None],
    ) -> None:
        self.record = record
        self.state, self.since = HostState.CONNECTING, time.time()
        self.reason: str | None = None
        self.version: str | None = None
        self.seen_at: float | None = None  # when the host last answered a poll
        self.silent_since: float | None = None
        self.room: HostRoom | None = None
        self.capabilities: Capabilities | None = None
        self.handles: dict[str, Handle] = {}  # as the host's driver made them
        self.layers: set[str] = set()
        self.arriving = 0  # sandboxes placed there since the host reported its room
        self.creating = 0  # sandboxes that are being created there now
        self._directory = directory
        self._identity = identity
        self._handle = handle
        self._on_doubt = on_doubt
        self._list_snapshots = list_snapshots
        self._on_ready = on_ready
        self._budget = ReadingBudget()
        self._peer: Peer | None = None
        self._birth: str | None = None
        self._avoided_until, self._avoided_s = 0.0, FIRST_AVOIDED_S
        self._removing: set[str] = set()  # sandboxes
        self._lives: dict[str, int] = {}
        self._ends: dict[str, tuple[int, str]] = {}  # life and reason, by sandbox
        self._waiters: dict[str, list[asyncio.Future[str]]] = {}  # by sandbox
        self._stats: dict[str, tuple[float, Stats]] = {}
        self._spares: deque[tuple[float, LineProtocol]] = deque()
        self._opening = asyncio.Lock()
        self._last_end = 0
        self._answered = False  # the engine knows the conditions of this host's sandboxes
        self._conditions: Mapping[str, Condition] = {}
        self._attempted = asyncio.Event()
        self._wake = asyncio.Event()
        self._tasks = TaskSet("cluster")
        self._task: asyncio.Task[None] | None = None

    @property
    def status(self) -> HostStatus:
        return HostStatus(
            self.record,
            self.state,
            self.since,
            self.reason,
            self.version,
            self.room,
            self.capabilities,
            len(self.handles),
            self.seen_at,
            self.silent_since,
        )

    def start(self) -> None:
        """Connect, and stay connected. Idempotent."""
        if self._task is None:
            self._task = asyncio.create_task(self._stay_connected())

    async def close(self) -> None:
        """End the connection. The host's sandboxes keep running."""
        if self._task is not None:
            await end_tasks(self._task)
        await self._tasks.cancel()
        self._disconnect("the engine has closed the connection")

    def update(self, record: HostRecord) -> None:
        """Use a changed record. If the address has changed, connect again."""
        before, self.record = self.record, record
        if (before.address, before.port) != (record.address, record.port):
            self._disconnect("its address was changed")
            self._wake.set()

    async def open(self, handles: Mapping[str, Handle], timeout_s: float) -> Mapping[str, Condition]:
        """Let the host keep these sandboxes and remove all others. Return their conditions; nothing if it cannot be reached
        now: that is done as soon as it can be reached, and its sandboxes are then in doubt."""
        self.handles = dict(handles)
        self._removing.clear()
        if self._peer is not None:
            with contextlib.suppress(SandyardError):
                await self._open(self._peer)
                return self._conditions
            return {}
        self._answered = True
        self.start()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._attempted.wait()
        if self.state is HostState.READY:
            return self._conditions
        self._answered = False
        return {}

    # The connection ---------------------------------------------------------------------------------------------------

    async def _stay_connected(self) -> None:
        delay = FIRST_RETRY_S
        while True:
            try:
                peer = await self._connect()
                await self._open(peer)
            except (SandyardError, OSError, TimeoutError, *codec.MALFORMED) as error:
                self._disconnect(explain_failure(error))
                self._note_silence(error)
            else:
                delay = FIRST_RETRY_S
                self._attempted.set()
                try:
                    await self._poll(peer)
                except (SandyardError, *codec.MALFORMED) as error:
                    self._disconnect(explain_failure(error))
                    self._note_silence(error)
            self._attempted.set()
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._wake.wait()
            delay = min(MAX_RETRY_S, 2 * delay)

    async def _open_connection(self) -> LineProtocol:
        context = self._directory.make_client_context(self.record.id)
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(CONNECT_S):
            _, connection = await loop.create_connection(
                LineProtocol,
                self.record.address,
                self.record.port,
                ssl=context,
                server_hostname=self.record.id,
                ssl_handshake_timeout=HANDSHAKE_S,
            )
        enable_keepalive(connection.transport)
        return connection

    async def _connect(self) -> Peer:
        connection = await self._open_connection()
        try:
            connection.send_line({"control": True, **describe_protocol()})
            async with asyncio.timeout(CONNECT_S):
                answer = parse_result(await connection.first_line)
            check_protocol(answer, f"the host {self.record.name}", "the engine")
        except BaseException:
            connection.transport.abort()
            raise
        peer = Peer(f"The host {self.record.name}", self._handle, budget=self._budget)
        connection.hand_over(peer)
        return peer

    async def _open(self, peer: Peer) -> None:
        """Open the host with the sandboxes and snapshots to keep, and take over what it reports."""
        async with self._opening:
            keep = dict(self.handles)
            arguments = {
                **self._identity.to_dict(),
                "host": self.record.id,
                "keep": [codec.encode_handle(handle) for handle in keep.values()],
                "snapshots": list(self._list_snapshots()),
                "stats_interval_s": self._identity.stats_interval_s,
            }
            try:
                found = await peer.call("open", arguments, timeout_s=OPEN_S)
            except BaseException:
                peer.close("it could not be opened")
                raise
            with self._budget.measure(), self.translate_parse_errors():
                conditions, lives = found["conditions"], found["lives"]
                self._conditions = {name: Condition(conditions[name]) for name in keep if name in conditions}
                self._lives = {name: int(lives[name]) for name in keep if name in lives}
                birth, self.version = str(found["birth"])[: codec.MAX_TEXT], str(found["version"])[:_MAX_VERSION]
                self._last_end = int(found["ends"])
                self.layers = set(map(str, found["layers"]))
                self._take_report(found)
            restarted, self._birth = self._birth not in (None, birth), birth
            self._ends.clear()
            self._peer = peer
            if self.state is not HostState.READY:
                log.info("host_ready", host=self.record.id, name=self.record.name, sandboxes=len(self.handles))
                self._set_state(HostState.READY, None)
                self.silent_since = None
                self._on_ready(self)
                if not self._answered and self.handles:
                    self._on_doubt(
                        list(self.handles), "Its host was restarted" if restarted else "Its host was unreachable"
                    )
            self._answered = False

    def _disconnect(self, reason: str) -> None:
        peer, self._peer = self._peer, None
        if peer is not None:
            peer.close(reason)
        while self._spares:
            self._spares.popleft()[1].transport.abort()
        if self.state is HostState.READY:
            log.warning("host_away", host=self.record.id, name=self.record.name, reason=reason)
        if self.state is not HostState.UNREACHABLE or self.reason != reason:
            self._set_state(HostState.UNREACHABLE, reason)

    def _note_silence(self, error: BaseException) -> None:
        """Remember since when the host has not answered. A refusal is an answer: the host may be used by another engine, which then
        has its sandboxes."""
        silent = isinstance(error, UnreachableError | OSError) and not isinstance(error, ssl.SSLError)
        self.silent_since = (self.silent_since or time.time()) if silent else None

    def _set_state(self, state: HostState, reason: str | None) -> None:
        if self.state is not state:
            self.state, self.since = state, time.time()
        self.reason = reason

    async def _poll(self, peer: Peer) -> None:
        """Ask for news until the connection is lost. Raises UnreachableError."""
        while True:
            started = time.monotonic()
            news = await peer.call("poll", {"after": self._last_end}, timeout_s=POLL_TIMEOUT_S)
            with self._budget.measure(), self.translate_parse_errors():
                self._take_report(news)
                for number, sandbox_id, life, reason in news["ends"][:MAX_ENDS]:  # others are in the next answer too
                    self._take_end(int(number), str(sandbox_id), int(life), str(reason)[: codec.MAX_TEXT])
                if "stats" in news:
                    now, stats = time.monotonic(), news["stats"]
                    self._stats = {
                        name: (now, codec.decode_stats(stats[name])) for name in self.handles if name in stats
                    }
            await asyncio.sleep(max(0.0, started + POLL_PAUSE_S - time.monotonic()))

    def _take_end(self, number: int, sandbox_id: str, life: int, reason: str) -> None:
        if number <= self._last_end:
            return
        self._last_end = number
        if sandbox_id not in self.handles:
            return  # it was killed
        self._ends[sandbox_id] = (life, reason)
        if life >= self._lives.get(sandbox_id, 0):
            self._report_end(sandbox_id, reason)

    def _report_end(self, sandbox_id: str, reason: str) -> None:
        for waiter in self._waiters.pop(sandbox_id, ()):
            if not waiter.done():
                waiter.set_result(reason)

    def _take_report(self, report: Json) -> None:
        self.seen_at = time.time()
        self.room, self.arriving = codec.decode_room(report["room"]), 0
        capabilities = codec.decode_capabilities(report["capabilities"])
        if capabilities != self.capabilities:
            self.capabilities = capabilities

    # Calls ------------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def translate_parse_errors(self) -> Iterator[None]:
        """Raise UnreachableError if the block cannot parse what the host has sent."""
        try:
            yield
        except codec.MALFORMED as error:
            raise UnreachableError(
                f"The host {self.record.name} sent an answer that cannot be used: {type(error).__name__} {error}."
            ) from error

    async def call(self, verb: str, *, undo: Undo | None = None, **arguments: Any) -> Any:
        """Perform an operation on the host and return its result. Raises its error, or UnreachableError."""
        if self._peer is None or self.state is not HostState.READY:
            raise self.make_error()
        return await self._peer.call(verb, arguments, timeout_s=CALL_S, undo=undo)

    def make_error(self) -> UnreachableError:
        """Return the error that operations raise while the host is unreachable."""
        subject, reason = f"The host {self.record.name}", (self.reason or "").rstrip(".")
        if reason.startswith(f"{subject} "):
            reason = f"it{reason.removeprefix(subject)}"
        return UnreachableError(f"{subject} is unreachable{': ' if reason else ''}{reason}. Its sandboxes are kept.")

    async def boot(self, handle: Handle, spec: Json) -> Handle:
        """Start a stopped sandbox. If the caller is cancelled, it is stopped again."""

        async def undo(started: Json) -> None:
            with self.translate_parse_errors():
                stopped = started["handle"]
            await self.call("stop", handle=stopped)

        started = await self.call("boot", undo=undo, handle=codec.encode_handle(handle), spec=spec)
        return self.add_started(started, handle.id)

    async def undo_start(self, result: Any) -> None:
        """Remove the results of a call whose caller was cancelled."""
        with self.translate_parse_errors():
            items = result if isinstance(result, list) else [result]
            started = [item["handle"] for item in items if "handle" in item]
        for handle in started:
            await self.call("kill", handle=handle)

    @property
    def is_stuck(self) -> bool:
        """Whether the host has lately not answered when a sandbox was created there, or not stored its layers."""
        return time.monotonic() < self._avoided_until

    @contextlib.contextmanager
    def count_create(self) -> Iterator[None]:
        """Count a sandbox that is being created there while the block runs, so that others are placed elsewhere."""
        self.arriving += 1
        self.creating += 1
        try:
            yield
        finally:
            self.creating -= 1

    @contextlib.contextmanager
    def watch_create(self) -> Iterator[None]:
        """Avoid the host for new sandboxes for a while if the block is cancelled, because the host has not answered in time."""
        try:
            yield
        except asyncio.CancelledError:
            self.avoid()
            log.warning("host_did_not_answer", host=self.record.id, name=self.record.name)
            raise

    def avoid(self) -> None:
        """Let the host be the last choice for new sandboxes for a while."""
        self._avoided_until = time.monotonic() + self._avoided_s
        self._avoided_s = min(MAX_AVOIDED_S, 2 * self._avoided_s)

    def add_started(self, started: Json, sandbox_id: str) -> Handle:
        """Remember a sandbox whose processes were started. Return its handle."""
        with self.translate_parse_errors():
            handle, life = codec.decode_started(started, sandbox_id)
        self._avoided_s = FIRST_AVOIDED_S
        self.handles[handle.id] = handle
        self._removing.discard(handle.id)
        self._lives[handle.id] = life
        return handle

    async def end_sandbox(self, verb: str, handle: Handle) -> Handle:
        """Call an operation that ends the processes of a sandbox and keeps it."""
        result = await self.call(verb, handle=codec.encode_handle(handle))
        with self.translate_parse_errors():
            ended = codec.decode_own_handle(result, handle.id)
        self.handles[ended.id] = ended
        self._lives.pop(ended.id, None)
        return ended

    async def kill(self, handle: Handle) -> None:
        self._removing.add(handle.id)
        await self.call("kill", handle=codec.encode_handle(handle))
        self._forget(handle.id)

    async def abandon(self, handle: Handle) -> None:
        """Forget a sandbox. The host removes it when it is opened, or now if it has been in the meantime."""
        self._forget(handle.id)
        async with self._opening:
            if self.state is not HostState.READY:
                return
        try:
            await self.call("kill", handle=codec.encode_handle(handle))
        except SandyardError as error:
            log.warning("abandoned_sandbox_left", host=self.record.id, sandbox=handle.id, reason=error.message)
            self._disconnect("a sandbox that continues elsewhere could not be removed")  # opening it does that

    def _forget(self, sandbox_id: str) -> None:
        self._removing.discard(sandbox_id)
        self.handles.pop(sandbox_id, None)
        self._lives.pop(sandbox_id, None)
        self._stats.pop(sandbox_id, None)
        self._ends.pop(sandbox_id, None)
        self._report_end(sandbox_id, "killed")

    def list_entitled(self) -> Collection[str]:
        """Return the sandboxes for which the host may get secrets: not those that were to be removed, whether it has confirmed
        that or not. They may run on another host now."""
        return self.handles.keys() - self._removing

    async def wait_for_exit(self, sandbox_id: str) -> str:
        """Wait until the processes of a sandbox have ended. Return the reason."""
        life = self._lives.get(sandbox_id)
        if life is None and self.state is HostState.READY:
            return self._ends.get(sandbox_id, (0, "it is not running"))[1]
        ended = self._ends.get(sandbox_id)
        if life is not None and ended is not None and ended[0] >= life:
            return ended[1]
        waiter: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        waiters = self._waiters.setdefault(sandbox_id, [])
        waiters.append(waiter)
        try:
            return await waiter
        finally:
            waiters.remove(waiter)
            if not waiters and self._waiters.get(sandbox_id) is waiters:
                del self._waiters[sandbox_id]

    async def get_stats(self, handle: Handle) -> Stats:
        """Return the statistics that the host reported last, or new ones if those are too old."""
        reported_at, stats = self._stats.get(handle.id, (float("-inf"), None))
        if stats is not None and time.monotonic() - reported_at < 2 * self._identity.stats_interval_s:
            return stats
        answer = await self.call("stats", handle=codec.encode_handle(handle))
        with self.translate_parse_errors():
            return codec.decode_stats(answer)

    # Streams ----------------------------------------------------------------------------------------------------------

    async def open_stream(self, kind: str, **arguments: Any) -> tuple[LineProtocol, Any]:
        """Open a stream and return it with the host's answer. Raises the host's error, or UnreachableError."""
        if self.state is not HostState.READY:
            raise self.make_error()
        try:
            connection = self._take_spare() or await self._open_connection()
        except (OSError, TimeoutError) as error:
            raise UnreachableError(
                f"The host {self.record.name} cannot be reached: {explain_failure(error)}."
            ) from error
        try:
            message = {"stream": kind, **describe_protocol(), **self._identity.to_dict(), "arguments": arguments}
            connection.send_line(message)
            async with asyncio.timeout(STREAM_S):
                answer = parse_result(await connection.first_line)
        except TimeoutError:
            connection.transport.abort()
            raise UnreachableError(f"The host {self.record.name} did not answer within {STREAM_S:g} s.") from None
        except BaseException:
            connection.transport.abort()
            raise
        return connection, answer

    def _take_spare(self) -> LineProtocol | None:
        """Return a connection that was opened before, and open others in the background."""
        spare = None
        oldest = time.monotonic() - _SPARE_S
        while self._spares and spare is None:
            opened_at, connection = self._spares.popleft()
            if opened_at < oldest or connection.transport.is_closing():
                connection.transport.abort()
            else:
                spare = connection
        if len(self._tasks) < SPARE_CONNECTIONS - len(self._spares):
            self._tasks.spawn(self._add_spare())
        return spare

    async def _add_spare(self) -> None:
        while len(self._spares) < SPARE_CONNECTIONS and self.state is HostState.READY:
            try:
                connection = await self._open_connection()
            except (OSError, TimeoutError, SandyardError):
                return
            self._spares.append((time.monotonic(), connection))
