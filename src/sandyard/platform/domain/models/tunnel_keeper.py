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
    RequestMemory,
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

OPEN_TIMEOUT_S = 60.0
"""How long a caller waits for a tunnel while its errors may be temporary."""
RECHECK_S = 30.0
"""How often the status of a sandbox that is not running is checked. A tunnel that lasted longer counts as working."""
MAX_VIOLATIONS = 5
"""Protocol errors in a row after which the tunnel is given up until the next turn, or for GIVE_UP_PAUSE_S."""
GIVE_UP_PAUSE_S = 600.0
RETRY_PAUSES_S = (0.05, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)

OnGiveUp = Callable[[SandyardError], Awaitable[None]]


class TunnelKeeper:
    """Keeps the tunnel of one attached sandbox up. `on_give_up` is called with the reason when the tunnel is given up."""

    def __init__(
        self,
        lifecycle: Lifecycle,
        sandbox_id: str,
        owner_id: str,
        serve: Serve,
        memory: RequestMemory,
        *,
        on_give_up: OnGiveUp,
    ) -> None:
        self._lifecycle = lifecycle
        self._sandbox_id = sandbox_id
        self._owner_id = owner_id
        self._serve = serve
        self._memory = memory
        self._on_give_up = on_give_up
        self._violations = 0
        self._state_changed = asyncio.Event()
        self._recheck_requested = asyncio.Event()
        self._failure: SandyardError | None = None
        self._task: asyncio.Task[None] | None = None
        self.port: int | None = None

    def start(self) -> None:
        self._task = self._lifecycle.tasks.spawn(self._keep_open())
        # not in `_keep_open`, which does not run if it is cancelled before it starts
        self._task.add_done_callback(lambda _: self._on_end())

    @property
    def is_over(self) -> bool:
        """True if the tunnel will never be up: its sandbox is deleted or unsuitable."""
        return self._task is None or self._task.done()

    async def wait_until_up(self) -> int:
        """Return the port in the sandbox at which agents are served. Raises the reason if there is none."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(OPEN_TIMEOUT_S):
                while self.port is None and not self._has_failed():
                    self._state_changed.clear()
                    await self._state_changed.wait()
        if self.port is not None:
            return self.port
        raise self._failure or TunnelError("The tunnel to the sandbox did not open in time. Try again.")

    def recheck(self) -> None:
        """Check again now, because the sandbox was resumed or has ended."""
        self._recheck_requested.set()

    def retry(self) -> None:
        """Try again now if the tunnel was given up, because a turn begins."""
        if self._violations >= MAX_VIOLATIONS:
            self._violations, self._failure = 0, None
            self._recheck_requested.set()

    async def stop(self) -> None:
        if self._task is not None:
            await end_tasks(self._task)

    def _has_failed(self) -> bool:
        if self.is_over or self._failure is None:
            return self.is_over
        if isinstance(self._failure, TEMPORARY_ERRORS):
            return False
        return not (isinstance(self._failure, EngineError) and self._failure.transient)

    async def _keep_open(self) -> None:
        failures = 0
        try:
            while True:
                self._recheck_requested.clear()  # before the check, so that changes during it are noticed
                began = asyncio.get_running_loop().time()
                try:
                    row = await self._lifecycle.repository.get(self._sandbox_id)
                    if row.status not in LIVE or row.destroy_requested_at is not None:
                        check_usable(row)
                        return
                    if row.status != Status.RUNNING or row.engine_id is None:
                        self._set_failure(SandboxNotRunningError())
                        await self._wait(RECHECK_S)
                        continue
                    await self._serve_once(row, row.engine_id)
                except TEMPORARY_ERRORS as error:
                    log.info("tunnel_waits", sandbox=self._sandbox_id, reason=error.message)
                    self._set_failure(error)
                lasted = asyncio.get_running_loop().time() - began
                failures = 0 if lasted > RECHECK_S else failures + 1
                is_given_up = self._violations >= MAX_VIOLATIONS
                await self._wait(
                    GIVE_UP_PAUSE_S if is_given_up else RETRY_PAUSES_S[min(failures, len(RETRY_PAUSES_S) - 1)]
                )
        except SandyardError as error:
            self._set_failure(error)

    def _on_end(self) -> None:
        self.port = None
        self._state_changed.set()

    async def _serve_once(self, row: Sandbox, engine_id: str) -> None:
        """Serve until the connection breaks or `recheck` is called."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        serving, recheck = (
            loop.create_task(self._serve_tunnel(engine_id)),
            loop.create_task(self._recheck_requested.wait()),
        )
        try:
            await asyncio.wait((serving, recheck), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.port = None
            await end_tasks(serving, recheck)
        if serving.cancelled():
            return
        try:
            serving.result()
            log.info("tunnel_ended", sandbox=row.id)
        except SandboxNotFoundError:
            await self._lifecycle.mark_lost(row.id)
        except SandboxNotRunningError as error:
            await self._lifecycle.record_pause(row.id)
            self._set_failure(error)
        except NoPythonError:
            raise
        except SandyardError as error:
            log.info("tunnel_broken", sandbox=row.id, reason=error.message)
            self._set_failure(error)
            await self._count_violation(error, lasted=loop.time() - began)

    async def _count_violation(self, error: SandyardError, *, lasted: float) -> None:
        if lasted > RECHECK_S:
            self._violations = 0
        if isinstance(error, TunnelProtocolError | ProgramProtocolError):
            self._violations += 1
        if self._violations >= MAX_VIOLATIONS:
            log.warning("tunnel_given_up", sandbox=self._sandbox_id, reason=error.message)
            await retry_while_database_unavailable(lambda: self._on_give_up(error), "tunnel", sandbox=self._sandbox_id)

    async def _serve_tunnel(self, engine_id: str) -> None:
        stream = await self._lifecycle.engine.streams.open(engine_id, PROGRAM, str(PORT))
        try:
            await Tunnel(stream, self._serve, self._memory, self._on_up, owner_id=self._owner_id).run()
        finally:
            await stream.close()

    def _on_up(self, port: int) -> None:
        self.port, self._failure = port, None
        self._state_changed.set()

    def _set_failure(self, error: SandyardError) -> None:
        self._failure = drop_traceback(error)
        self._state_changed.set()

    async def _wait(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._recheck_requested.wait()
