"""Sandboxes for the engine's own work. They have no record: clients do not see them, and after a crash the driver
removes them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

from sandyard.engine.contract import Handle, Layers, Limits
from sandyard.engine.sandboxes.agent import Agent
from sandyard.engine.sandboxes.calls import DriverCalls
from sandyard.engine.sandboxes.capacity import Capacity
from sandyard.engine.sandboxes.creation import Creation
from sandyard.engine.sandboxes.model import Snapshot, Template
from sandyard.engine.sandboxes.snapshots import Snapshots, make_snapshot_id
from sandyard.kit.clock import Clock

HoldSnapshots = Callable[[Iterable[str]], None]
"""Keep the files of these snapshots until the work is done."""


@dataclass(frozen=True, slots=True)
class InternalSandbox:
    """A running sandbox without a record."""

    handle: Handle
    agent: Agent
    template: Template  # that it was created from
    limits: Limits


class InternalSandboxes:
    """Creates, saves and removes sandboxes without a record."""

    def __init__(
        self,
        *,
        calls: DriverCalls,
        capacity: Capacity,
        creation: Creation,
        snapshots: Snapshots,
        clock: Clock,
    ) -> None:
        self._calls = calls
        self._capacity = capacity
        self._creation = creation
        self._snapshots = snapshots
        self._clock = clock

    def register_keeper(self, list_needed: Callable[[], Iterable[str]]) -> None:
        """Register `list_needed()`, which returns the kept snapshots that must stay. Call it before anything is
        opened."""
        self._snapshots.keepers.append(list_needed)

    def get_limits(self, template: Template) -> Limits:
        """Return the limits for sandboxes of this template."""
        return self._creation.get_limits(template)

    @contextmanager
    def hold_snapshots(self) -> Iterator[HoldSnapshots]:
        """Yield a function that holds snapshots until the context ends."""
        with ExitStack() as stack:
            yield lambda snapshots: stack.enter_context(self._snapshots.hold(tuple(snapshots)))

    @asynccontextmanager
    async def open(self, template: Template) -> AsyncIterator[InternalSandbox]:
        """Yield a running sandbox of this template, removed when the context ends. The caller must hold the template's
        snapshots. Raises FullError, which names the exhausted resource."""
        limits = self.get_limits(template)
        async with self._creation.create_unrecorded(template, limits) as handle:
            yield InternalSandbox(handle, Agent(self._calls, handle), template, limits)

    async def wait_for_end(self, sandbox: InternalSandbox) -> str:
        """Wait until the sandbox has ended by itself. Return the reason."""
        return await self._calls.driver.wait_for_exit(sandbox.handle)

    async def save(self, sandbox: InternalSandbox, hold: HoldSnapshots) -> tuple[Layers, tuple[str, ...]]:
        """Save the current file system. Return its layers and the snapshots they need. The snapshot is held, and kept
        as long as a keeper or a sandbox needs it."""
        snapshot_id = make_snapshot_id()
        self._capacity.check(0, check_count=False)
        driver = self._calls.driver

        async def delete_late(_: Any) -> None:
            await driver.delete_snapshot(snapshot_id)

        hold((snapshot_id,))
        try:
            call = driver.snapshot(sandbox.handle, snapshot_id)
            layers = await self._calls.run("snapshot", sandbox.handle.id, call, if_late=delete_late)
            self._snapshots.add(self._make_snapshot(sandbox, snapshot_id, layers), hidden=True)
        except BaseException:
            self._snapshots.discard(snapshot_id)
            raise
        return layers, (*sandbox.template.snapshots, snapshot_id)

    def _make_snapshot(self, sandbox: InternalSandbox, snapshot_id: str, layers: Layers) -> Snapshot:
        return Snapshot(
            id=snapshot_id,
            sandbox_id=sandbox.handle.id,
            template_id=sandbox.template.id,
            layers=layers,
            limits=sandbox.limits,
            created_at=self._clock.now(),
            snapshots=sandbox.template.snapshots,
        )
