"""Idle connections to sandboxes' agents, kept for the next request, and exchanges in progress, which are closed when
their sandbox pauses or ends.

Only connections to the agent are kept, because it is known to keep them open. A user's server gets a new connection
each time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from sandyard.engine.e2b.dataplane.upstream import Upstream

MAX_IDLE_PER_SANDBOX = 4
"""Idle connections kept per sandbox: enough for a client's parallel calls, few enough to be cheap for its agent."""
MAX_IDLE = 4096
IDLE_SECONDS = 30.0
"""The agent never closes an idle connection; the engine does, so that an idle sandbox holds none."""


class Abortable(Protocol):
    """A connection into a sandbox that can be closed."""

    def abort(self, reason: str = ...) -> None: ...


class Pool:
    def __init__(self) -> None:
        self.idle: dict[str, list[Upstream]] = {}
        self._busy: dict[str, set[Abortable]] = {}
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None

    def take(self, sandbox_id: str) -> Upstream | None:
        """Return the most recently used idle connection to this sandbox's agent, or None."""
        idle = self.idle.get(sandbox_id)
        while idle:
            upstream = idle.pop()
            self._count -= 1
            if not idle:
                del self.idle[sandbox_id]
            if upstream.usable:
                return upstream
        return None

    def give(self, sandbox_id: str, upstream: Upstream) -> None:
        """Keep a connection whose exchange ended successfully."""
        idle = self.idle.setdefault(sandbox_id, [])
        if len(idle) >= MAX_IDLE_PER_SANDBOX or self._count >= MAX_IDLE:
            if not idle:
                del self.idle[sandbox_id]
            upstream.abort()
            return
        loop = asyncio.get_running_loop()
        upstream.idle_since = loop.time()
        idle.append(upstream)
        self._count += 1
        if self._timer is None:
            self._timer = loop.call_later(IDLE_SECONDS, self._sweep, loop)

    @contextmanager
    def mark_busy(self, sandbox_id: str, connection: Abortable) -> Iterator[None]:
        """While the context lasts, `drop` closes this connection."""
        self.add_busy(sandbox_id, connection)
        try:
            yield
        finally:
            self.remove_busy(sandbox_id, connection)

    def add_busy(self, sandbox_id: str, connection: Abortable) -> None:
        self._busy.setdefault(sandbox_id, set()).add(connection)

    def remove_busy(self, sandbox_id: str, connection: Abortable) -> None:
        if busy := self._busy.get(sandbox_id):
            busy.discard(connection)
            if not busy:
                del self._busy[sandbox_id]

    def drop(self, sandbox_id: str) -> None:
        """Close all connections into a sandbox that was paused or ended."""
        for upstream in self.idle.pop(sandbox_id, ()):
            self._count -= 1
            upstream.abort()
        for connection in self._busy.pop(sandbox_id, ()):
            connection.abort("The sandbox was paused or ended.")

    def list_sandboxes(self) -> set[str]:
        """Return the sandboxes with a connection, idle or busy."""
        return {*self.idle, *self._busy}

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for sandbox_id in self.list_sandboxes():
            self.drop(sandbox_id)

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        oldest = loop.time() - IDLE_SECONDS
        for sandbox_id, idle in list(self.idle.items()):
            kept = [upstream for upstream in idle if upstream.idle_since > oldest and upstream.usable]
            for upstream in idle:
                if upstream not in kept:
                    upstream.abort()
            self._count -= len(idle) - len(kept)
            if kept:
                self.idle[sandbox_id] = kept
            else:
                del self.idle[sandbox_id]
        self._timer = loop.call_later(IDLE_SECONDS, self._sweep, loop) if self.idle else None
