"""Previews: list the open ports of a sandbox, grant a person access, and route their browser's requests."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from urllib.parse import urlsplit

import httpx

from sandyard.kit.clock import Clock
from sandyard.kit.http_clients import discard_cookies
from sandyard.kit.listen import is_loopback
from sandyard.kit.paced_http import limit_responses
from sandyard.kit.pacing import count_turns_for
from sandyard.kit.vault import Vault
from sandyard.platform.db.database import Database
from sandyard.platform.db.models import Sandbox
from sandyard.platform.domain.previews.addresses import (
    Addresses,
    PreviewPort,
    check_path,
    check_port,
    require_addresses,
)
from sandyard.platform.domain.previews.model import (
    OpenPort,
    OpenPorts,
    PreviewLink,
    PreviewSleepingError,
    TooManyPreviewConnectionsError,
)
from sandyard.platform.domain.previews.passes import Passes, Tickets
from sandyard.platform.domain.sandboxes.e2b import (
    EngineState,
    Listener,
    Route,
    SandboxNotFoundError,
    SandboxNotRunningError,
)
from sandyard.platform.domain.sandboxes.lifecycle import Lifecycle
from sandyard.platform.domain.sandboxes.model import Status, check_usable
from sandyard.platform.domain.users.model import Principal
from sandyard.platform.settings import PlatformSettings

TICKET_PARAMETER = "sandyard_ticket"
PORTS_CACHE_S = 2.0
"""How long a list of ports is cached, so that ten open tabs cost no more than one."""
MAX_CONNECTIONS = 128
"""Maximum number of concurrent connections to one sandbox."""
MAX_CONNECTIONS_PER_USER = 256
"""Maximum number of concurrent connections of one user to all sandboxes."""
_MAX_RETRY_S, _RETRY_GAP_S = 120.0, 15.0
_MAX_SHOWN_PATHS = 1000


class Previews:
    """Operations on previews, and the state of their connections."""

    def __init__(
        self,
        database: Database,
        lifecycle: Lifecycle,
        *,
        tickets: Tickets,
        vault: Vault,
        settings: PlatformSettings,
        clock: Clock,
    ) -> None:
        self._lifecycle = lifecycle
        self._clock = clock
        self.addresses = Addresses.from_settings(settings)
        self.passes = Passes(database, tickets, vault, settings, clock)
        # proxies that are set in the environment are used only for addresses outside of this machine
        self.is_engine_remote = not is_loopback(urlsplit(settings.e2b_sandbox_url or "").hostname or "")
        client = httpx.AsyncClient(
            trust_env=self.is_engine_remote,
            # http: needs no verification, which is slow to set up
            verify=not (settings.e2b_sandbox_url or "").startswith("http:"),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=100),
        )
        self.http = limit_responses(discard_cookies(client))  # browsers keep cookies
        self._listeners: dict[str, tuple[float, asyncio.Task[list[Listener]]]] = {}
        self.connections: Counter[str] = Counter()  # by sandbox, and by user
        self.closed_ports: dict[
            PreviewPort, tuple[float, float]
        ] = {}  # when each was found closed: first and last time
        self._shown_paths: dict[tuple[PreviewPort, str], str] = {}

    async def close(self) -> None:
        await self.http.aclose()

    # for the API ------------------------------------------------------------------------------------------------------

    async def list_ports(self, principal: Principal, sandbox_id: str) -> OpenPorts:
        """List the ports that something listens on now. Neither resumes the sandbox nor counts as use of it."""
        row = await self._lifecycle.repository.get_for(principal, sandbox_id)
        check_usable(row)
        if row.status == Status.PAUSED:
            return OpenPorts((), sleeping=True)
        if row.status != Status.RUNNING or row.engine_id is None:
            return OpenPorts(())
        try:
            found = await asyncio.shield(self._list_listeners(row.id, row.engine_id))
        except SandboxNotRunningError:
            return OpenPorts((), sleeping=True)
        return OpenPorts(tuple(self._to_open_port(row.id, listener) for listener in found))

    async def create(self, principal: Principal, sandbox_id: str, port: int, path: str = "/") -> PreviewLink:
        """Return a single-use URL for the caller's browser. Raises UnsupportedError if previews are not available here."""
        check_port(port)
        check_path(path)
        addresses = require_addresses(self.addresses)
        row = await self._lifecycle.repository.get_for(principal, sandbox_id)
        check_usable(row)
        preview = PreviewPort(row.id, port)
        ticket, expires = await self.passes.create_ticket(principal, preview)
        url = addresses.make_url(preview, path)
        return PreviewLink(f"{url}{'&' if '?' in path else '?'}{TICKET_PARAMETER}={ticket}", expires)

    async def get_shown_path(self, principal: Principal, sandbox_id: str, port: int) -> str | None:
        """Return the path that the caller last opened in a frame for this port. None if there was none since the
        platform started."""
        row = await self._lifecycle.repository.get_for(principal, sandbox_id)
        return self._shown_paths.get((PreviewPort(row.id, port), principal.user_id))

    def _list_listeners(self, sandbox_id: str, engine_id: str) -> asyncio.Task[list[Listener]]:
        now = self._clock.now()
        for known, (started, _) in list(self._listeners.items()):
            if not 0 <= now - started < PORTS_CACHE_S:
                del self._listeners[known]
        cached = self._listeners.get(sandbox_id)
        if cached is None:
            task = self._lifecycle.tasks.spawn(self._lifecycle.engine.ports.list_listeners(engine_id))
            cached = self._listeners[sandbox_id] = (now, task)
        return cached[1]

    def _to_open_port(self, sandbox_id: str, listener: Listener) -> OpenPort:
        url = self.addresses.make_url(PreviewPort(sandbox_id, listener.port)) if self.addresses else None
        return OpenPort(listener.port, listener.address, listener.process, url)

    # for requests of browsers -----------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def count_connection(self, preview: PreviewPort, user_id: str) -> Iterator[None]:
        """Count a connection while the context is open. Raises TooManyPreviewConnectionsError if the user or the sandbox has too
        many. Data that is forwarded in the context counts against the user's share of the event loop (see `pacing`)."""
        limits = {preview.sandbox_id: MAX_CONNECTIONS, user_id: MAX_CONNECTIONS_PER_USER}
        if any(self.connections[key] >= limit for key, limit in limits.items()):
            raise TooManyPreviewConnectionsError
        self.connections.update(limits.keys())
        try:
            with count_turns_for(user_id):
                yield
        finally:
            self.connections.subtract(limits.keys())
            for key in limits:
                if not self.connections[key]:
                    del self.connections[key]

    @contextlib.asynccontextmanager
    async def open_route(self, preview: PreviewPort, *, wake: bool) -> AsyncIterator[Route]:
        """Yield the route to the port. The sandbox counts as used until the context ends.

        A paused sandbox is resumed, or PreviewSleepingError is raised without `wake`.
        """
        row = await self._lifecycle.repository.get(preview.sandbox_id)
        if row.status == Status.PAUSED and not wake:
            check_usable(row)
            raise PreviewSleepingError
        async with self._lifecycle.using(row) as engine_id:
            try:
                route = await self._lifecycle.engine.ports.get_route(engine_id, preview.port)
            except SandboxNotRunningError:
                await self._resume(row, wake=wake)
                route = await self._lifecycle.engine.ports.get_route(engine_id, preview.port)
            except SandboxNotFoundError:
                await self._lifecycle.mark_lost(row.id)
                raise
            yield route

    async def resume_if_paused(self, preview: PreviewPort, *, wake: bool) -> bool:
        """Resume the sandbox if the engine has paused it, and return whether it had. Call it if the engine could not route a
        request."""
        row = await self._lifecycle.repository.get(preview.sandbox_id)
        check_usable(row)
        assert row.engine_id is not None
        try:
            info = await self._lifecycle.engine.get_info(row.engine_id)
        except SandboxNotFoundError:
            await self._lifecycle.mark_lost(row.id)
            raise
        if info.state is EngineState.RUNNING:
            return False
        await self._resume(row, wake=wake)
        return True

    async def _resume(self, row: Sandbox, *, wake: bool) -> None:
        row = await self._lifecycle.record_pause(row.id)
        if row.status == Status.PAUSED and not wake:
            raise PreviewSleepingError
        await self._lifecycle.resume(row)

    def record_shown_path(self, preview: PreviewPort, user_id: str, path: str) -> None:
        """Record the path that a frame of this person shows. The oldest records are dropped."""
        self._shown_paths.pop((preview, user_id), None)
        self._shown_paths[preview, user_id] = path
        while len(self._shown_paths) > _MAX_SHOWN_PATHS:
            del self._shown_paths[next(iter(self._shown_paths))]

    def touch(self, preview: PreviewPort) -> None:
        """Record a use of the sandbox."""
        self._lifecycle.activity.touch(preview.sandbox_id)

    def record_closed_port(self, preview: PreviewPort) -> bool:
        """Record that nothing listens on the port. Returns whether the page should retry by itself.

        Retries are limited in time, because a forgotten tab would otherwise keep the sandbox running.
        """
        now = self._clock.now()
        started, last = self.closed_ports.get(preview, (now, now))
        if not 0 <= now - last <= _RETRY_GAP_S:
            started = now
        for known in [known for known, (_, seen) in self.closed_ports.items() if now - seen > _RETRY_GAP_S]:
            del self.closed_ports[known]
        self.closed_ports[preview] = (started, now)
        return now - started < _MAX_RETRY_S
