"""The machine: what is opened once and shared by the sandboxes of all runtimes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from sandyard.engine.contract import Capabilities, DeniedAttempt, Hairpin, Layers, NetworkPolicy
from sandyard.engine.drivers.layer_names import SHARED, SNAPSHOT, LayerLocation, find_layers
from sandyard.engine.drivers.machine import fuse, kernel, processes
from sandyard.engine.drivers.machine import instance as instances
from sandyard.engine.drivers.machine.capacity import Memory
from sandyard.engine.drivers.machine.cgroups import Cgroups, IoLimits, discover_hierarchies
from sandyard.engine.drivers.machine.cgroups.io import find_disk
from sandyard.engine.drivers.machine.cgroups.tree import ZYGOTE
from sandyard.engine.drivers.machine.kernel import is_root
from sandyard.engine.drivers.machine.slots import Slots
from sandyard.engine.drivers.machine.store import btrfs, image
from sandyard.engine.drivers.machine.store.base import SANDBOXES, SHARED_LAYERS, SNAPSHOTS, UPPER, VOLUMES, Store
from sandyard.engine.drivers.machine.store.cow import CowStore
from sandyard.engine.drivers.machine.store.plain import PlainStore
from sandyard.kit.errors import SandyardError
from sandyard.kit.logging import get_logger

log = get_logger(__name__)

_MAX_OPEN_FILES = 65_536
_RELEASE_TIMEOUT_S = 60.0
_SWEEP_TIMEOUT_S = 3.0


class NetSlot(Protocol):
    """The network of one slot. `dns` is the address of its name server, None if the slot has only a loopback."""

    @property
    def netns_path(self) -> Path: ...
    @property
    def dns(self) -> str | None: ...


class Network(Protocol):
    """The interface of `net`: a namespace, an address and an egress policy for each slot."""

    @property
    def missing(self) -> Mapping[str, str]: ...
    @property
    def hairpin(self) -> Hairpin | None: ...
    async def open(self, keep_slots: Collection[int]) -> None: ...
    async def close(self, remove: bool = False) -> None: ...
    async def acquire(self, slot: int) -> NetSlot: ...
    async def release(self, slot: int) -> None: ...
    async def set_policy(self, slot: int, policy: NetworkPolicy) -> None: ...
    async def take_denied(self, slot: int) -> Collection[DeniedAttempt]: ...


MakeNetwork = Callable[[str, Path], Network]  # instance name, directory for its state


class PrivilegedFiles(Protocol):
    """File operations that need a helper process."""

    async def change_files(self, operation: str, fields: dict[str, Any]) -> Any:
        """Copy or remove a directory whose files belong to ids that this process has no access to. Only the plain
        store needs it."""
        ...

    def release_files(self) -> None:
        """End everything besides sandboxes that keeps the store mounted. Blocks."""
        ...


@dataclass(frozen=True, slots=True)
class DriverOptions:
    """Options of the machine driver. `layer_locations` tells where other parts of the engine create layers, by kind;
    `layer_roots` are further folders with layers. `rootless` None: detected. `store` "plain" disables btrfs."""

    data_dir: Path
    layer_locations: Mapping[str, LayerLocation] = field(default_factory=dict)
    layer_roots: Sequence[Path] = ()
    max_slots: int = 1024
    network: MakeNetwork | None = None
    rootless: bool | None = None
    store: Literal["auto", "plain"] = "auto"
    io: IoLimits = field(default_factory=IoLimits)


class Machine:
    """The resources that all sandboxes share. Exists from `open` to `close` of the driver."""

    def __init__(self, options: DriverOptions, privileged_files: PrivilegedFiles) -> None:
        self.options = options
        self.rootless = not is_root() if options.rootless is None else options.rootless
        self.run_dir = options.data_dir / "run"
        self.memory = Memory()
        self._privileged_files = privileged_files
        self.instance: instances.Instance
        self.cgroups: Cgroups
        self.store: Store
        self.network: Network | None = None
        self.slots: Slots
        self._layer_locations: Mapping[str, LayerLocation]
        self.title: str  # the command line of the zygote and its agents, by which they are found
        self._missing: dict[str, str] = {}
        self.run_fd = -1  # the directory run/

    async def open(self) -> None:
        data_dir = self.options.data_dir
        _raise_file_limit()
        self.run_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.run_fd = os.open(self.run_dir, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        known = instances.load(data_dir, self.options.max_slots)
        name = f"sandyard-{known.name}"
        hierarchies, missing = discover_hierarchies(name, known=known.cgroups, rootless=self.rootless)
        self._missing |= missing
        self.cgroups = Cgroups(hierarchies)
        self.cgroups.limit_processes()
        self.instance = instances.set_cgroups(known, self.cgroups.directories)
        instances.save(data_dir, self.instance)
        self.slots = Slots(min(self.options.max_slots, self.instance.slots))
        self.title = f"sandyard {known.name}"
        if not await self.cgroups.kill_and_remove(ZYGOTE):
            raise SandyardError(
                "Could not start the engine: the zygote of an earlier engine could not be killed. Try again, or restart the machine."
            )
        self.store = await self._open_store(data_dir / "store")
        self._layer_locations = {
            **self.options.layer_locations,
            SNAPSHOT: LayerLocation(self.store.path / SNAPSHOTS, UPPER),
            SHARED: LayerLocation(self.store.path / SHARED_LAYERS, UPPER),
        }
        self.cgroups.limit_io(self.options.io, find_disk(self.store.path.resolve()))
        if self.options.network is not None and not self.rootless:
            self.network = self.options.network(known.name, data_dir / "net")

    async def close(self, *, everything_ended: bool, keep_ids: bool = False) -> None:
        """Release the machine, after its store and the runtimes were closed. `everything_ended`: no sandbox is running, so
        the machine can be restored to its original state."""
        if self.network is not None:
            await self.network.close(remove=everything_ended)
        if everything_ended:
            await self.cgroups.kill_and_remove(ZYGOTE)
            await self.store.close(unmount=True)
            for folder in self.cgroups.directories.values():
                with contextlib.suppress(OSError):
                    Path(folder).rmdir()  # noqa: ASYNC240 - of a kernel file system
            if not keep_ids:
                instances.release(self.instance, self.options.data_dir)
        os.close(self.run_fd)

    async def sweep_groups(self, keep: Mapping[str, int]) -> None:
        """Remove the cgroups of this instance with their processes, except those of the sandboxes in `keep`, by their
        slots."""
        leftovers = self.cgroups.list_names() - set(keep) - {ZYGOTE}
        if leftovers:
            log.info("sandboxes_swept", count=len(leftovers))
        cleared = await asyncio.gather(*(self.cgroups.kill_and_remove(name, _SWEEP_TIMEOUT_S) for name in leftovers))
        if not all(cleared) and not self.rootless:  # they may wait for a FUSE server
            kept = [self.instance.get_uids(slot) for slot in keep.values()]
            fuse.abort_connections(self.instance.uids, keep=kept)
            cleared = await asyncio.gather(*(self.cgroups.kill_and_remove(name) for name in leftovers))
        if not all(cleared):
            raise SandyardError(
                "Could not start the engine: processes of removed sandboxes could not be killed. Try again, or restart the machine."
            )

    def mark_adopted(self) -> None:
        """Mark the contents of the data directory as adopted or removed."""
        self.instance = instances.mark_adopted(self.options.data_dir, self.instance)

    def disable_network(self) -> None:
        """Continue without the network, which does not work here; `missing` of the capabilities contains the reason."""
        if self.network is not None:
            self._missing |= self.network.missing
            self._missing.setdefault("egress", self._missing.get("network", "the network can't be used"))
            self.network = None

    @property
    def layer_roots(self) -> Sequence[Path]:
        """The folders outside of the store that contain layers."""
        return (*(location.path for location in self.options.layer_locations.values()), *self.options.layer_roots)

    def find_layers(self, layers: Layers) -> Layers:
        """Return the directories of these layers on this machine. Raises NotFoundError."""
        return find_layers(layers, self._layer_locations)

    def get_agent_path(self, sandbox: str) -> str:
        """Return a path that is short even if that of the data directory is long, because a unix socket's path has at most 107
        bytes."""
        return f"/proc/self/fd/{self.run_fd}/{sandbox}/agent.sock"

    async def _open_store(self, path: Path) -> Store:
        file = path.parent / "store.img"
        if await asyncio.to_thread(lambda: path.is_mount() and file.exists() and image.is_read_only(path)):
            await self._release_store(path, file)
        store: CowStore | PlainStore = await asyncio.to_thread(self._choose_store, path)
        await store.open()
        log.info("store_opened", path=str(path), copies=store.live_copy, limits=",".join(store.limits) or "none")
        return store

    async def _release_store(self, path: Path, file: Path) -> None:
        """Unmount a store that the kernel has made read-only, so that it is writable when mounted again. Running
        sandboxes keep it mounted, so their processes are ended; they are started again from their files."""
        log.warning("store_remounted", path=str(path), reason="the kernel had made it read-only")
        await asyncio.gather(*(self.cgroups.kill_and_remove(name) for name in self.cgroups.list_names()))
        for pid in processes.find_by_title(self.title):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(SandyardError):
            await asyncio.to_thread(self._privileged_files.release_files)
        deadline = time.monotonic() + _RELEASE_TIMEOUT_S
        while True:
            with contextlib.suppress(OSError):  # busy until the last of them is gone
                await asyncio.to_thread(kernel.unmount, str(path))
            if await asyncio.to_thread(image.find_loop_device, file) is None:
                return
            if time.monotonic() > deadline:
                raise SandyardError(
                    f"The store {path} is read-only and can't be unmounted: something else uses it. Run `fuser -m {path}` to find it."
                )
            await asyncio.sleep(0.1)

    def _choose_store(self, path: Path) -> CowStore | PlainStore:
        path.mkdir(exist_ok=True, mode=0o755)
        file = path.parent / "store.img"
        name = self.instance.name
        if self.rootless or self.options.store == "plain":
            reason = "btrfs needs root" if self.rootless else "btrfs was turned off"
            return PlainStore(path, self._privileged_files.change_files, reason)
        if not path.is_mount() and _has_content(path) and not file.exists():
            if btrfs.is_btrfs(path):
                return CowStore(path, name, None)
            return PlainStore(
                path,
                self._privileged_files.change_files,
                "it was created without btrfs; use a new data directory to get it",
            )
        if btrfs.is_btrfs(path) and not path.is_mount() and not file.exists() and btrfs.get_quota_kind(path):
            return CowStore(path, name, None)
        obstacle = image.find_obstacle()
        try:
            if obstacle is None:
                if not file.exists():
                    image.create(file, f"sandyard-{name}")
                elif self.instance.is_copy and image.find_loop_device(file) is None:
                    image.renew_uuid(file)
                image.mount(file, path)
                return CowStore(path, name, file)
        except (image.ImageError, OSError) as error:
            obstacle = str(error)
        if file.exists():
            raise SandyardError(f"Could not open the store {file}: {obstacle}.")
        # A btrfs of the machine itself: its owner has to decide whether to enable quotas for all of it.
        return (
            CowStore(path, name, None)
            if btrfs.is_btrfs(path)
            else PlainStore(path, self._privileged_files.change_files, obstacle or "unknown")
        )

    async def acquire_network(self, slot: int, policy: NetworkPolicy) -> NetSlot | None:
        """Return the slot's network with this policy, or None if there is no network."""
        if self.network is None:
            return None
        net = await self.network.acquire(slot)
        if policy != NetworkPolicy():  # the default is already applied
            await self.network.set_policy(slot, policy)
        return net

    def get_capabilities(self) -> Capabilities:
        """Return the capabilities that all runtimes share. Each runtime adds its own to those by level."""
        missing = {**self._missing, **self.store.missing}
        if not self.cgroups.can_freeze:
            missing["freezer"] = "no cgroup freezer: a pause stops processes by signals, which they can notice"
        egress = False
        if self.network is not None:
            missing |= self.network.missing
            egress = not {"network", "egress"} & set(self.network.missing)
        else:
            reason = "a network needs root" if self.rootless else "no network was configured"
            missing.setdefault("egress", f"sandboxes have a loopback only: {reason}")
        return Capabilities(
            freeze=True,
            suspend=frozenset(),
            memory_fork=frozenset(),
            live_copy=self.store.live_copy,
            limits=self.cgroups.limits | self.store.limits,
            egress=egress,
            isolation=frozenset(),
            containers=frozenset(),
            missing=missing,
        )


def _raise_file_limit() -> None:
    """Raise the limit of open files: every sandbox needs a descriptor of this process, and its connections need
    more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _MAX_OPEN_FILES)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _has_content(path: Path) -> bool:
    return any((path / name).is_dir() and any((path / name).iterdir()) for name in (SANDBOXES, SNAPSHOTS, VOLUMES))
