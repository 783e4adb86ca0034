"""A driver double with two hosts, and what the engine knows about them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from sandyard.engine.contract import Condition, Handle, Layers, Spec
from sandyard.kit.errors import SandyardError, UnreachableError
from tests.unit.engine.sandboxes.double import DoubleDriver
from tests.unit.engine.sandboxes.harness import SandboxesHarness

OTHER = "@2"
"""The end of the names of machines of the second host."""


class TwoHostsDriver(DoubleDriver):
    """Two hosts in one: while the first one is drained, sandboxes are created on the second."""

    draining = False
    away = False
    """Whether the first host cannot be reached."""

    async def create(self, spec: Spec) -> Handle:
        if not self.draining:
            return await super().create(spec)
        handle = await super().create(replace(spec, id=spec.id + OTHER))
        return self._place(spec.id, handle, OTHER)

    async def open(self, keep: Collection[Handle], snapshots: Collection[str]) -> Mapping[str, Condition]:
        found = await super().open([self._locate(handle) for handle in keep], snapshots)
        return {sandbox_id.removesuffix(OTHER): condition for sandbox_id, condition in found.items()}

    def _locate(self, handle: Handle) -> Handle:
        return replace(handle, id=handle.id + handle.data.get("at", ""))

    def _place(self, sandbox_id: str, handle: Handle, at: str) -> Handle:
        return Handle(sandbox_id, handle.driver, {**handle.data, "at": at})


def _forward(verb: str) -> Callable[..., Any]:
    async def call(self: TwoHostsDriver, handle: Handle, *arguments: Any) -> Any:
        if self.away and not handle.data.get("at"):
            raise UnreachableError("The host one is unreachable.")
        result = await getattr(super(TwoHostsDriver, self), verb)(self._locate(handle), *arguments)
        return self._place(handle.id, result, handle.data.get("at", "")) if isinstance(result, Handle) else result

    return call


for _verb in "boot condition wait_for_exit connect freeze thaw stop snapshot kill stats set_network".split():
    setattr(TwoHostsDriver, _verb, _forward(_verb))


def find_host(handle: Handle) -> str:
    return "second" if handle.data.get("at") else "first"


class TwoHosts:
    """Implements `Places` for `TwoHostsDriver`."""

    def __init__(self, harness: SandboxesHarness) -> None:
        self._harness = harness
        self.seen_at: float | None = None
        self.abandoned: list[str] = []
        self.free_disk = 1 << 30
        self.fetched: list[Layers] = []
        self.error: SandyardError | None = None
        """The error that fetching layers raises."""

    def find_host(self, handle: Handle) -> str:
        return "second" if handle.data.get("at") else "first"

    def list_sandboxes(self, host_id: str) -> Collection[str]:
        machines = self._harness.host.machines
        return [machine for machine in machines if machine.endswith(OTHER) == (host_id == "second")]

    def is_ready(self, host_id: str) -> bool:
        return host_id == "second" or not self._harness.driver.away  # type: ignore[attr-defined]

    def find_last_seen(self, host_id: str) -> float | None:
        return self.seen_at

    async def fetch_layers(self, layers: Layers) -> None:
        if self.error is not None:
            raise self.error
        self.fetched.append(layers)

    def abandon(self, handle: Handle) -> None:
        self.abandoned.append(handle.id)
