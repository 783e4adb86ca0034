"""Keep a sandbox's tunnel up across broken connections, pauses and engine restarts, without ever resuming the sandbox."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from sandyard.kit.errors import SandyardError, drop_traceback
from sandyard.kit.logging import get_logger
from sandyard.kit.tasks import end_tasks
from sandyard.platform.db.models import Sandbox
from sandyard.platform.db.retry import TEMPORARY_ERRORS, retry_while_database_unavailable
from sandyard.platform.domain.models.tunnel import (
    PORT,
    PROGRAM,
    Room,
    Serve,
    Tunnel,
    TunnelError,
    TunnelProtocolError,
)
from sandyard.platform.domain.sandboxes.e2b import (
    EngineError,
    NoPythonError,
    ProgramProtocolError,
    SandboxNotFoundError,
    SandboxNotRunningError,
)
from sandyard.platform.domain.sandboxes.lifecycle import Lifecycle
from sandyard.platform.domain.sandboxes.model import LIVE, Status, check_usable

log = get_logger(__name__)

UP_S = 60.0
"""How long a caller waits for a tunnel while it fails in ways that may be temporary."""
LOOK_AGAIN_S = 30.0
VIOLATIONS = 5
"""Protocol errors in a row after which the tunnel is given up until the next turn, or for GIVEN_UP_S."""
GIVEN_UP_S = 600.0
_PAUSES = (0.05, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)

GivenUp = Callable[[SandyardError], Awaitable[None]]


class TunnelKeeper:
    """Keeps the tunnel of one attached sandbox up. `given_up` is called with the reason when the tunnel is given up."""

    def __init__(
        self, lifecycle: Lifecycle, sandbox_id: str, owner_id: str, serve: Serve, room: Room, *, given_up: GivenUp
    ) -> None:
        self._lifecycle = lifecycle
        self._sandbox_id = sandbox_id
        self._owner_id = owner_id
        self._serve = serve
        self._room = room
        self._given_up = given_up
        self._violations = 0
        self._news = asyncio.Event()
        self._nudged = asyncio.Event()
        self._failure: SandyardError | None = None
        self._task: asyncio.Task[None] | None = None
        self.port: int | None = None

    def start(self) -> None:
        self._task = self._lifecycle.tasks.spawn(self._keep())
        # not in `_keep`, which does not run if it is cancelled before it starts
        self._task.add_done_callback(lambda _: self._ended())

    @property
    def over(self) -> bool:
        """True if the tunnel will never be up: its sandbox is deleted or unsuitable."""
        return self._task is None or self._task.done()

    async def up(self) -> int:
        """Return the port in the sandbox at which agents are served. Raises the reason if there is none."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(UP_S):
                while self.port is None and not self._hopeless():
                    self._news.clear()
                    await self._news.wait()
        if self.port is not None:
            return self.port
        raise self._failure or TunnelError("The tunnel to the sandbox did not open in time. Try again.")

    def nudge(self) -> None:
        """Check again now, because the sandbox was resumed or has ended."""
        self._nudged.set()

    def retry(self) -> None:
        """Try again now if the tunnel was given up, because a turn begins."""
        if self._violations >= VIOLATIONS:
            self._violations, self._failure = 0, None
            self._nudged.set()

    async def stop(self) -> None:
        if self._task is not None:
            await end_tasks(self._task)

    def _hopeless(self) -> bool:
        if self.over or self._failure is None:
            return self.over
        if isinstance(self._failure, TEMPORARY_ERRORS):
            return False
        return not (isinstance(self._failure, EngineError) and self._failure.transient)

    async def _keep(self) -> None:
        failures = 0
        try:
            while True:
                self._nudged.clear()  # before the check, so that changes during it are noticed
                began = asyncio.get_running_loop().time()
                try:
                    row = await self._lifecycle.repository.get(self._sandbox_id)
                    if row.status not in LIVE or row.destroy_requested_at is not None:
                        check_usable(row)
                        return
                    if row.status != Status.RUNNING or row.engine_id is None:
                        self._failed(SandboxNotRunningError())
                        await self._wait(LOOK_AGAIN_S)
                        continue
                    await self._once(row, row.engine_id)
                except TEMPORARY_ERRORS as error:
                    log.info("tunnel_waits", sandbox=self._sandbox_id, reason=error.message)
                    self._failed(error)
                lasted = asyncio.get_running_loop().time() - began
                failures = 0 if lasted > LOOK_AGAIN_S else failures + 1
                given_up = self._violations >= VIOLATIONS
                await self._wait(GIVEN_UP_S if given_up else _PAUSES[min(failures, len(_PAUSES) - 1)])
        except SandyardError as error:
            self._failed(error)

    def _ended(self) -> None:
        self.port = None
        self._news.set()

    async def _once(self, row: Sandbox, engine_id: str) -> None:
        """Serve until the line breaks or `nudge` is called."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        line, nudge = loop.create_task(self._line(engine_id)), loop.create_task(self._nudged.wait())
        try:
            await asyncio.wait((line, nudge), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.port = None
            await end_tasks(line, nudge)
        if line.cancelled():
            return
        try:
            line.result()
            log.info("tunnel_ended", sandbox=row.id)
        except SandboxNotFoundError:
            await self._lifecycle.mark_lost(row.id)
        except SandboxNotRunningError as error:
            await self._lifecycle.record_pause(row.id)
            self._failed(error)
        except NoPythonError:
            raise
        except SandyardError as error:
            log.info("tunnel_broken", sandbox=row.id, reason=error.message)
            self._failed(error)
            await self._count_violation(error, lasted=loop.time() - began)

    async def _count_violation(self, error: SandyardError, *, lasted: float) -> None:
        if lasted > LOOK_AGAIN_S:
            self._violations = 0
        if isinstance(error, TunnelProtocolError | ProgramProtocolError):
            self._violations += 1
        if self._violations >= VIOLATIONS:
            log.warning("tunnel_given_up", sandbox=self._sandbox_id, reason=error.message)
            await retry_while_database_unavailable(lambda: self._given_up(error), "tunnel", sandbox=self._sandbox_id)

    async def _line(self, engine_id: str) -> None:
        stream = await self._lifecycle.engine.streams.open(engine_id, PROGRAM, str(PORT))
        try:
            await Tunnel(stream, self._serve, self._room, self._up, owner_id=self._owner_id).run()
        finally:
            await stream.close()

    def _up(self, port: int) -> None:
        self.port, self._failure = port, None
        self._news.set()

    def _failed(self, error: SandyardError) -> None:
        self._failure = drop_traceback(error)
        self._news.set()

    async def _wait(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._nudged.wait()
