"""Sandboxes for the engine's own work. They have no record: no client sees one, and after a crash the driver sweeps it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

from sandyard.engine.contract import Handle, Layers, Limits
from sandyard.engine.sandboxes.agent import Agent
from sandyard.engine.sandboxes.calls import Calls
from sandyard.engine.sandboxes.capacity import Capacity
from sandyard.engine.sandboxes.creation import Creation
from sandyard.engine.sandboxes.model import Snapshot, Template
from sandyard.engine.sandboxes.snapshots import Snapshots, new_snapshot_id
from sandyard.kit.clock import Clock

Hold = Callable[[Iterable[str]], None]
"""Keep the files of these snapshots until the work is over."""


@dataclass(frozen=True, slots=True)
class Bench:
    """One of these sandboxes."""

    handle: Handle
    agent: Agent
    template: Template  # on which it stands
    limits: Limits


class Workshop:
    def __init__(
        self,
        *,
        calls: Calls,
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

    def keeps(self, needed: Callable[[], Iterable[str]]) -> None:
        """`needed()` says, whenever it is asked, which kept snapshots must stay. To be said before anything is opened."""
        self._snapshots.keepers.append(needed)

    def limits(self, template: Template) -> Limits:
        """What sandboxes of this template get."""
        return self._creation.limits_of(template)

    @contextmanager
    def holding(self) -> Iterator[Hold]:
        with ExitStack() as stack:
            yield lambda snapshots: stack.enter_context(self._snapshots.holding(tuple(snapshots)))

    @asynccontextmanager
    async def bench(self, template: Template) -> AsyncIterator[Bench]:
        """A running sandbox of this template, which ends with the context. Whoever asks holds the template's snapshots.
        FullError names what is full."""
        limits = self.limits(template)
        async with self._creation.unlisted(template, limits) as handle:
            yield Bench(handle, Agent(self._calls, handle), template, limits)

    async def ended(self, bench: Bench) -> str:
        """Return, with the reason, when the sandbox has ended by itself."""
        return await self._calls.driver.exited(bench.handle)

    async def keep(self, bench: Bench, hold: Hold) -> tuple[Layers, tuple[str, ...]]:
        """The file system as of now: its layers, and the snapshots they need. It is held, and stays as long as a keeper
        or a sandbox needs it."""
        snapshot_id = new_snapshot_id()
        self._capacity.check(0, counted=False)
        driver = self._calls.driver

        async def drop(_: Any) -> None:
            await driver.delete_snapshot(snapshot_id)

        hold((snapshot_id,))
        try:
            call = driver.snapshot(bench.handle, snapshot_id)
            layers = await self._calls.run("snapshot", bench.handle.id, call, if_late=drop)
            self._snapshots.add(self._described(bench, snapshot_id, layers), hidden=True)
        except BaseException:
            self._snapshots.discard(snapshot_id)
            raise
        return layers, (*bench.template.snapshots, snapshot_id)

    def _described(self, bench: Bench, snapshot_id: str, layers: Layers) -> Snapshot:
        return Snapshot(
            id=snapshot_id,
            sandbox_id=bench.handle.id,
            template_id=bench.template.id,
            layers=layers,
            limits=bench.limits,
            created_at=self._clock.now(),
            snapshots=bench.template.snapshots,
        )
