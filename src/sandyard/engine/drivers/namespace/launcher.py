"""Start a sandbox's first process: collect what the zygote needs for that, and find layers in the zygote's own root."""

# ruff: noqa: ASYNC240 - a stat or a write to /proc takes microseconds

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sandyard.engine.drivers.machine import base_layer, processes
from sandyard.engine.drivers.machine.cgroups import Cgroups
from sandyard.engine.drivers.machine.instance import UIDS_PER_SLOT, Instance
from sandyard.engine.drivers.machine.machine import NetSlot
from sandyard.engine.drivers.machine.record import Life
from sandyard.engine.drivers.machine.runtime import DescriptorList, StartPlan
from sandyard.engine.drivers.machine.store.base import SANDBOXES, VOLUMES, Store
from sandyard.engine.drivers.namespace.forker import ForkedProcess, Forker, SendRequest, ZygoteDiedError
from sandyard.engine.drivers.namespace.rootless import Ids, map_ids
from sandyard.kit.errors import NotFoundError, UnsupportedError


class Launcher:
    """Owns the zygote. `roots` are folders that are expected to contain layers; a layer elsewhere requires a new
    zygote, once."""

    def __init__(
        self,
        *,
        store: Path,
        roots: Sequence[Path],
        cgroups: Cgroups,
        instance: Instance,
        title: str,
        guest: str,
        rootless: bool,
        on_exit: Callable[[int, int], None],
        on_loss: Callable[[], None],
    ) -> None:
        self._store = store
        self._base_layers: dict[str | None, str] = {}
        self._wanted_roots = [os.path.realpath(root) for root in roots]
        self._roots: list[str] = []  # those of the running zygote
        self._layer_paths: dict[str, str] = {}
        self._cgroups = cgroups
        self._instance = instance
        self._rootless = rootless
        self._ready_slots: set[int] = set()
        self.ids = Ids(UIDS_PER_SLOT)
        self.forker = Forker(title, guest, self._set_up_zygote, on_exit, on_loss)

    async def _set_up_zygote(self, pid: int, send_request: SendRequest) -> None:
        """Set up a new zygote: its cgroup, its ids and its root."""
        self._cgroups.add_zygote(pid)
        if self._rootless:
            await send_request("unshare", {})
            self.ids = await map_ids(pid)
        self._roots = [root for root in dict.fromkeys(self._wanted_roots) if Path(root).is_dir()]
        self._layer_paths.clear()
        self._ready_slots.clear()
        (self._store / base_layer.DIRECTORY).mkdir(exist_ok=True)
        fields = {"store": str(self._store), "roots": self._roots, "rootless": self._rootless}
        answer = await send_request("home", fields)
        if answer["problem"]:
            release = os.uname().release
            requirement = (
                "an overlay in a user namespace, Linux 5.11"
                if self._rootless
                else "an overlay on idmapped mounts, Linux 5.19"
            )
            raise UnsupportedError(f"Sandboxes require {requirement} or newer; this is {release}: {answer['problem']}.")

    def _get_uid(self, slot: int) -> int:
        return 0 if self._rootless else self._instance.get_first_uid(slot)

    def list_unprepared(self, slots: Sequence[int]) -> list[int]:
        """Return which of these slots have no user namespace yet for sandboxes without containers."""
        return [slot for slot in slots if slot not in self._ready_slots]

    async def prepare(self, slot: int) -> None:
        """Create a slot's user namespace in advance."""
        await self.forker.request(
            "userns", {"slot": slot, "containers": False, "uid": self._get_uid(slot), "ids": self.ids.count}
        )
        self._ready_slots.add(slot)

    async def start(self, plan: StartPlan, descriptors: DescriptorList, store: Store) -> tuple[Life, int]:
        """Start a first process whose agent accepts connections. Return its life and a pidfd. `descriptors` are
        those of `StartResources`. On failure no process is left."""
        await self.forker.ensure_running()
        layers = [*store.list_shared_layers(plan.id), *plan.layers]
        dns = plan.net.dns if plan.net else None
        if dns not in self._base_layers:
            self._base_layers[dns] = base_layer.get_or_create(store.path, dns)
        layers.insert(base_layer.find_template(store.path, layers), self._base_layers[dns])
        request = {
            "slot": plan.slot,
            "containers": plan.containers,
            "hold": plan.hold,
            "uid": self._get_uid(plan.slot),
            "ids": self.ids.count,
            "hostname": base_layer.HOSTNAME,
            "layers": [await self._find_layer(layer) for layer in layers],
            "writable": f"/store/{SANDBOXES}/{plan.id}",
            "volumes": [(f"/store/{VOLUMES}/{mount.volume}", mount.target, mount.read_only) for mount in plan.mounts],
            "show_cgroup": self._cgroups.shows_limits,
            "processes": None if "pids" in self._cgroups.limits else plan.limits.pids,
            "shm": plan.limits.memory_mb << 19,  # half of its memory
            "guest": {
                "warm_up": True,
                "memory_bytes": plan.limits.memory_mb << 20,
                "cpu_count": plan.limits.cpu_count,
                "disk_bytes": plan.limits.disk_mb << 20 if store.limits else None,
                "switch_user": self.ids.count > 1,
            },
        }
        started = await self._fork(request, descriptors, plan.net)
        start = processes.read_start_time(started.pid)
        if start is None:  # it was ready and has already ended
            os.close(started.pidfd)
            raise ZygoteDiedError("The sandbox ended immediately after it was started.")
        if not plan.containers:  # those have another user namespace
            self._ready_slots.add(plan.slot)
        return Life(started.pid, start, plan.slot), started.pidfd

    async def _fork(self, request: dict[str, Any], descriptors: DescriptorList, net: NetSlot | None) -> ForkedProcess:
        netns = os.open(net.netns_path, os.O_RDONLY | os.O_CLOEXEC) if net is not None else -1
        try:
            passed = [*descriptors, ("netns", netns)] if net is not None else descriptors
            fields = {**request, "fds": [name for name, _ in passed]}
            return await self.forker.start(fields, [fd for _, fd in passed])
        finally:
            if netns >= 0:
                os.close(netns)

    async def _find_layer(self, layer: str) -> str:
        """Return the path of a layer in the zygote's root. Restarts the zygote if the layer is not in it. Raises
        NotFoundError."""
        for _ in range(2):
            if layer in self._layer_paths:
                return self._layer_paths[layer]
            real = os.path.realpath(layer)
            if not Path(real).is_dir():
                raise NotFoundError(f"The layer {layer} does not exist.")
            for name, root in [
                ("/store", os.path.realpath(self._store)),
                *((f"/roots/{n}", r) for n, r in enumerate(self._roots)),
            ]:
                if real == root or real.startswith(root + "/"):
                    self._layer_paths[layer] = name + real[len(root) :]
                    break
            else:
                self._wanted_roots.append(real)
                await self.forker.restart()
        return self._layer_paths[layer]
