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
from sandyard.kit.pacing import turns_for
from sandyard.kit.vault import Vault
from sandyard.platform.db.database import Database
from sandyard.platform.db.models import Sandbox
from sandyard.platform.domain.previews.addresses import Addresses, Place, check_path, check_port, required
from sandyard.platform.domain.previews.model import CrowdedError, Opening, OpenPort, OpenPorts, SleepingError
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

TICKET = "sandyard_ticket"
FRESH_S = 2.0
"""How long a list of ports is cached, so that ten open tabs cost no more than one."""
CONNECTIONS = 128
"""Maximum number of concurrent connections to one sandbox."""
CONNECTIONS_PER_USER = 256
"""Maximum number of concurrent connections of one user to all sandboxes."""
_MAX_RETRY_S, _RETRY_GAP_S = 120.0, 15.0
_MAX_SHOWN = 1000


class Previews:
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
        self.addresses = Addresses.of(settings)
        self.passes = Passes(database, tickets, vault, settings, clock)
        # a proxy from the environment is only for addresses outside of this machine
        self.outside = not is_loopback(urlsplit(settings.e2b_sandbox_url or "").hostname or "")
        client = httpx.AsyncClient(
            trust_env=self.outside,
            # http: needs no verification, which is slow to set up
            verify=not (settings.e2b_sandbox_url or "").startswith("http:"),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=100),
        )
        self.http = limit_responses(discard_cookies(client))  # browsers keep cookies
        self._looks: dict[str, tuple[float, asyncio.Task[list[Listener]]]] = {}
        self._connections: Counter[str] = Counter()  # by sandbox, and by user
        self._closed: dict[Place, tuple[float, float]] = {}
        self._shown_paths: dict[tuple[Place, str], str] = {}

    async def close(self) -> None:
        await self.http.aclose()

    # for the API ------------------------------------------------------------------------------------------------------

    async def ports(self, principal: Principal, sandbox_id: str) -> OpenPorts:
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
        return OpenPorts(tuple(self._to_open_port(row.id, one) for one in found))

    async def create(self, principal: Principal, sandbox_id: str, port: int, path: str = "/") -> Opening:
        """Return a single-use URL for the caller's browser. Raises UnsupportedError if previews are not available here."""
        check_port(port)
        check_path(path)
        addresses = required(self.addresses)
        row = await self._lifecycle.repository.get_for(principal, sandbox_id)
        check_usable(row)
        place = Place(row.id, port)
        ticket, expires = await self.passes.ticket(principal, place)
        url = addresses.url(place, path)
        return Opening(f"{url}{'&' if '?' in path else '?'}{TICKET}={ticket}", expires)

    async def shown_path(self, principal: Principal, sandbox_id: str, port: int) -> str | None:
        """Return the path that the caller last opened in a frame for this port. None if there was none since the
        platform started."""
        row = await self._lifecycle.repository.get_for(principal, sandbox_id)
        return self._shown_paths.get((Place(row.id, port), principal.user_id))

    def _list_listeners(self, sandbox_id: str, engine_id: str) -> asyncio.Task[list[Listener]]:
        now = self._clock.now()
        for known, (began, _) in list(self._looks.items()):
            if not 0 <= now - began < FRESH_S:
                del self._looks[known]
        look = self._looks.get(sandbox_id)
        if look is None:
            task = self._lifecycle.tasks.spawn(self._lifecycle.engine.ports.list_listeners(engine_id))
            look = self._looks[sandbox_id] = (now, task)
        return look[1]

    def _to_open_port(self, sandbox_id: str, one: Listener) -> OpenPort:
        url = self.addresses.url(Place(sandbox_id, one.port)) if self.addresses else None
        return OpenPort(one.port, one.address, one.process, url)

    # for requests of browsers -----------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def entering(self, place: Place, user_id: str) -> Iterator[None]:
        """Count a connection of the user to the sandbox. Raises CrowdedError if one of them has too many.

        Its data is forwarded in the user's turns (see `pacing`).
        """
        limits = {place.sandbox_id: CONNECTIONS, user_id: CONNECTIONS_PER_USER}
        if any(self._connections[key] >= limit for key, limit in limits.items()):
            raise CrowdedError
        self._connections.update(limits.keys())
        try:
            with turns_for(user_id):
                yield
        finally:
            self._connections.subtract(limits.keys())
            for key in limits:
                if not self._connections[key]:
                    del self._connections[key]

    @contextlib.asynccontextmanager
    async def reaching(self, place: Place, *, wake: bool) -> AsyncIterator[Route]:
        """Yield the route to the port. The sandbox counts as used until the context ends.

        A paused sandbox is resumed, or SleepingError is raised without `wake`.
        """
        row = await self._lifecycle.repository.get(place.sandbox_id)
        if row.status == Status.PAUSED and not wake:
            check_usable(row)
            raise SleepingError
        async with self._lifecycle.using(row) as engine_id:
            try:
                route = await self._lifecycle.engine.ports.get_route(engine_id, place.port)
            except SandboxNotRunningError:
                await self._resume(row, wake=wake)
                route = await self._lifecycle.engine.ports.get_route(engine_id, place.port)
            except SandboxNotFoundError:
                await self._lifecycle.mark_lost(row.id)
                raise
            yield route

    async def missed(self, place: Place, *, wake: bool) -> bool:
        """Find out why a route led to no sandbox. Returns True if the engine had paused it and it has been resumed."""
        row = await self._lifecycle.repository.get(place.sandbox_id)
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
            raise SleepingError
        await self._lifecycle.resume(row)

    def note_shown(self, place: Place, user_id: str, path: str) -> None:
        """Record the path that a frame of this person shows. The oldest records are dropped."""
        self._shown_paths.pop((place, user_id), None)
        self._shown_paths[place, user_id] = path
        while len(self._shown_paths) > _MAX_SHOWN:
            del self._shown_paths[next(iter(self._shown_paths))]

    def touch(self, place: Place) -> None:
        """Record a use of the sandbox."""
        self._lifecycle.activity.touch(place.sandbox_id)

    def closed(self, place: Place) -> bool:
        """Record that nothing listens on the port. Returns whether the page should retry by itself.

        Retries are limited in time, because a forgotten tab would otherwise keep the sandbox running.
        """
        now = self._clock.now()
        began, last = self._closed.get(place, (now, now))
        if not 0 <= now - last <= _RETRY_GAP_S:
            began = now
        for known in [known for known, (_, seen) in self._closed.items() if now - seen > _RETRY_GAP_S]:
            del self._closed[known]
        self._closed[place] = (began, now)
        return now - began < _MAX_RETRY_S
