"""The host service: the operations of this machine's driver, for its engine.

The service starts closed, even if sandboxes of an earlier process are running: opening the driver removes all sandboxes
except those to keep, and only the engine knows these. The engine opens the service with its epoch, a number that grows
with each start of the engine. From then on, all messages with an older epoch are rejected, so that two engines never
remove each other's sandboxes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sandyard import __version__
from sandyard.engine.certificates import files
from sandyard.engine.contract import Condition, Driver, Handle, NetworkPolicy, Spec, Stats
from sandyard.engine.drivers.cluster import codec
from sandyard.engine.drivers.cluster.codec import Json
from sandyard.engine.drivers.cluster.link import MAX_ENDS
from sandyard.engine.drivers.cluster.peer import Peer
from sandyard.engine.drivers.cluster.reports import describe_room
from sandyard.engine.drivers.layer_names import get_original_name
from sandyard.engine.layers.copies import LayerFolderCopies
from sandyard.kit.errors import ConflictError, InvalidInputError, SandyardError, UnreachableError
from sandyard.kit.logging import get_logger
from sandyard.kit.tasks import TaskSet

log = get_logger(__name__)

POLL_S = 1.0  # how long a poll waits for changes
_ASK_S = 10.0
OWNER = "owner.json"
_ALIVE = (Condition.RUNNING, Condition.FROZEN)


@dataclass(frozen=True, slots=True)
class Owner:
    """The engine process that uses this host. `engine` is a random id of that process."""

    epoch: int
    engine: str


@dataclass(slots=True)
class _Sandbox:
    """A sandbox. `life` is the number of the current start of its processes, None if they are not running."""

    handle: Handle
    life: int | None = None


class HostService:
    """Performs the operations that arrive on connections. `copies` are the layers on this machine; the first `open` prepares
    them."""

    def __init__(
        self, host_id: str, driver: Driver, copies: LayerFolderCopies, folder: Path, keep_layers_s: float
    ) -> None:
        self.driver = driver
        self.copies = copies
        self.birth = uuid.uuid4().hex  # identifies this process, so that the engine notices a restart
        self._host_id = host_id
        self._folder = folder
        self._keep_layers_s = keep_layers_s
        self._owner = self._read_owner()
        self._peer: Peer | None = None
        self._opening = asyncio.Lock()
        self.is_open = False
        self.opened = asyncio.Event()
        self._sandboxes: dict[str, _Sandbox] = {}
        self._life_count = 0
        self._end_count = 0
        self._ends: list[tuple[int, str, int, str]] = []  # number, sandbox, life, reason
        self._stats: dict[str, Stats] = {}
        self._stats_interval_s = 0.0
        self._has_new_stats = False
        self._news = asyncio.Event()
        self._watches = TaskSet("host")
        self._verbs: Mapping[str, Callable[[Json], Awaitable[Any]]] = {
            "poll": self._poll,
            "create": self._create,
            "boot": self._boot,
            "condition": self._get_condition,
            "freeze": self._freeze,
            "thaw": self._thaw,
            "suspend": self._suspend,
            "restore": self._restore,
            "stop": self._stop,
            "snapshot": self._snapshot,
            "delete_snapshot": self._delete_snapshot,
            "fork": self._fork,
            "fork_with_memory": self._fork_with_memory,
            "kill": self._kill,
            "stats": self._get_stats,
            "set_network": self._set_network,
            "take_denied": self._take_denied,
            "create_volume": self._create_volume,
            "delete_volume": self._delete_volume,
            "change_volume": self._change_volume,
            "has_layers": self._has_layers,
            "pack_layer": self._pack_layer,
        }

    async def close(self) -> None:
        """Release the machine. Sandboxes keep running."""
        if self._peer is not None:
            self._peer.close("the host service is stopping")
            await self._peer.end_handlers()
        await self._watches.cancel()
        await self.copies.close()
        if self.is_open:
            await self.driver.close()

    # The engine -------------------------------------------------------------------------------------------------------

    def check_owner(self, message: Json) -> None:
        """Raise ConflictError unless the message is from the engine process that opened this host last."""
        sender = _parse_owner(message)
        if not self.is_open or self._owner is None:
            raise ConflictError("The engine has not opened this host yet.")
        if sender != self._owner:
            raise ConflictError(self._describe_conflict(sender))

    def _describe_conflict(self, sender: Owner) -> str:
        assert self._owner is not None
        return (
            f"Another engine has taken over this host: it has the epoch {self._owner.epoch}, and this one {sender.epoch}. Stop "
            "the engine that should not run."
        )

    async def handle(self, peer: Peer, verb: str, arguments: Json) -> Any:
        """Perform an operation that the engine has requested on a control connection."""
        if verb == "open":
            return await self._open(peer, arguments)
        if peer is not self._peer:
            raise ConflictError(
                "This connection was replaced by a newer one of the engine, or has not opened the host."
            )
        operation = self._verbs.get(verb)
        if operation is None:
            raise InvalidInputError(f"This host does not know the operation {verb!r}. Upgrade it.")
        return await operation(arguments)

    async def ask(self, verb: str, arguments: Json) -> Any:
        """Send a request to the engine and return its answer. Raises UnreachableError if the engine is not connected."""
        if self._peer is None:
            raise UnreachableError("The engine is not connected to this host.")
        return await self._peer.call(verb, arguments, timeout_s=_ASK_S)

    async def _open(self, peer: Peer, arguments: Json) -> Json:
        sender = _parse_owner(arguments)
        if arguments["host"] != self._host_id:
            raise ConflictError(
                f"The engine expects the host {arguments['host']} at this address, but this is {self._host_id}. Check the "
                "addresses of both with `sandyard host list`."
            )
        async with self._opening:
            if self._owner is not None and (
                sender.epoch < self._owner.epoch or (sender.epoch == self._owner.epoch and sender != self._owner)
            ):
                raise ConflictError(self._describe_conflict(sender))
            if self._peer is not None and self._peer is not peer:
                self._peer.close("the engine has opened the host again")
                await self._peer.end_handlers()  # before the driver removes what they may still be creating
            self._write_owner(sender)
            self._owner, self._peer = sender, peer
            keep = [codec.decode_handle(handle) for handle in arguments["keep"]]
            snapshots = list(map(str, arguments["snapshots"]))
            conditions = await self._open_driver(keep, snapshots)
            self._stats_interval_s = float(arguments["stats_interval_s"])
            log.info("host_opened", epoch=sender.epoch, sandboxes=len(keep))
        present = [layer for layer in (f"snap:{snapshot}" for snapshot in snapshots) if self.copies.has(layer)]
        return {
            "birth": self.birth,
            "version": __version__,
            "conditions": {name: condition.value for name, condition in conditions.items()},
            "lives": {name: sandbox.life for name, sandbox in self._sandboxes.items() if sandbox.life is not None},
            "ends": self._end_count,
            "layers": sorted({*present, *self.copies.names}),
            **self._describe(),
        }

    async def _open_driver(self, keep: list[Handle], snapshots: list[str]) -> Mapping[str, Condition]:
        conditions = await self.driver.open(keep, snapshots)
        if not self.is_open:
            self.is_open = True
            await asyncio.to_thread(self.copies.prepare)
            self._watches.spawn(self._measure_forever())
            self.opened.set()
        known, self._sandboxes = self._sandboxes, {}
        self._ends.clear()
        for handle in keep:
            before = known.get(handle.id)
            if conditions.get(handle.id) not in _ALIVE:
                self._sandboxes[handle.id] = _Sandbox(handle)
            elif before is not None and before.life is not None:
                self._sandboxes[handle.id] = before
            else:
                self._start_life(handle)
        await self.copies.keep_snapshots(snapshots)
        used = [layer for handle in keep for layer in handle.data.get("layers", ())]
        await self.copies.collect(self._keep_layers_s, used)
        return conditions

    async def _poll(self, arguments: Json) -> Json:
        """Return what has changed, after waiting up to POLL_S for a change. `after`: the number of the last end that the engine
        knows."""
        after = int(arguments["after"])
        self._ends = [end for end in self._ends if end[0] > after]
        if not self._ends and not self._has_new_stats:
            self._news.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await self._news.wait()
        news = {"ends": [list(end) for end in self._ends[:MAX_ENDS]], **self._describe()}
        if self._has_new_stats:
            self._has_new_stats = False
            news["stats"] = {name: codec.encode_stats(stats) for name, stats in self._stats.items()}
        return news

    def _describe(self) -> dict[str, Any]:
        return {
            "room": codec.encode_room(describe_room(self.driver.get_room())),
            "capabilities": codec.encode_capabilities(self.driver.capabilities),
        }

    # Ends and measurements --------------------------------------------------------------------------------------------

    def _start_life(self, handle: Handle) -> int:
        """Record that a sandbox's processes were started, and watch for their end. Return the number of this life."""
        self._life_count += 1
        sandbox = self._sandboxes[handle.id] = _Sandbox(handle, self._life_count)
        self._watches.spawn(self._watch(sandbox, self._life_count))
        return self._life_count

    async def _watch(self, sandbox: _Sandbox, life: int) -> None:
        reason = await self.driver.wait_for_exit(sandbox.handle)
        if sandbox.life == life:
            sandbox.life = None
        self._end_count += 1
        self._ends.append((self._end_count, sandbox.handle.id, life, reason))
        self._news.set()

    async def _measure_forever(self) -> None:
        """Measure all sandboxes regularly, so that the engine does not have to request each one."""
        while True:
            started = time.monotonic()
            if self._stats_interval_s > 0:
                await self._measure()
            await asyncio.sleep(max(0.1, (self._stats_interval_s or 1.0) - (time.monotonic() - started)))

    async def _measure(self) -> None:
        found = {}
        for name, sandbox in list(self._sandboxes.items()):
            if sandbox.life is not None:
                with contextlib.suppress(SandyardError):
                    found[name] = await self.driver.get_stats(sandbox.handle)
        self._stats, self._has_new_stats = found, True
        self._news.set()

    # Operations -------------------------------------------------------------------------------------------------------

    async def _create(self, arguments: Json) -> Json:
        """Create a sandbox, or return the layers that this host lacks."""
        spec = codec.decode_spec(arguments["spec"])
        for layer in spec.layers:
            if layer.startswith("/"):
                raise InvalidInputError(f"The layer {layer} does not exist here: it was recorded with a path.")
        missing = [layer for layer in spec.layers if not self.copies.has(layer)]
        if missing:
            return {"missing": missing}
        self.copies.touch(spec.layers)
        return self._make_started(await self.driver.create(self._localize(spec)))

    def _localize(self, spec: Spec) -> Spec:
        return replace(spec, layers=self.copies.resolve(spec.layers))

    def _make_started(self, handle: Handle) -> Json:
        return {"handle": codec.encode_handle(handle), "life": self._start_life(handle)}

    async def _boot(self, arguments: Json) -> Json:
        spec = self._localize(codec.decode_spec(arguments["spec"]))
        return self._make_started(await self.driver.boot(_get_handle(arguments), spec))

    async def _fork(self, arguments: Json) -> Json:
        spec = self._localize(codec.decode_spec(arguments["spec"]))
        return self._make_started(await self.driver.fork(_get_handle(arguments), spec))

    async def _fork_with_memory(self, arguments: Json) -> list[Json]:
        specs = [self._localize(codec.decode_spec(spec)) for spec in arguments["specs"]]
        results = await self.driver.fork_with_memory(_get_handle(arguments), specs)
        return [
            self._make_started(result) if isinstance(result, Handle) else {"error": codec.encode_error(result)}
            for result in results
        ]

    async def _get_condition(self, arguments: Json) -> str:
        return (await self.driver.get_condition(_get_handle(arguments))).value

    async def _freeze(self, arguments: Json) -> None:
        await self.driver.freeze(_get_handle(arguments))

    async def _thaw(self, arguments: Json) -> None:
        await self.driver.thaw(_get_handle(arguments))

    async def _suspend(self, arguments: Json) -> Json:
        return self._make_ended(await self.driver.suspend(_get_handle(arguments)))

    async def _restore(self, arguments: Json) -> Json:
        return self._make_started(await self.driver.restore(_get_handle(arguments)))

    async def _stop(self, arguments: Json) -> Json:
        return self._make_ended(await self.driver.stop(_get_handle(arguments)))

    def _make_ended(self, handle: Handle) -> Json:
        self._sandboxes[handle.id] = _Sandbox(handle)
        return {"handle": codec.encode_handle(handle)}

    async def _kill(self, arguments: Json) -> None:
        handle = _get_handle(arguments)
        await self.driver.kill(handle)
        self._sandboxes.pop(handle.id, None)
        self._stats.pop(handle.id, None)

    async def _snapshot(self, arguments: Json) -> list[str]:
        layers = await self.driver.snapshot(_get_handle(arguments), str(arguments["snapshot"]))
        return [get_original_name(layer) for layer in layers]

    async def _delete_snapshot(self, arguments: Json) -> None:
        await self.driver.delete_snapshot(str(arguments["snapshot"]))
        await self.copies.remove_snapshot(str(arguments["snapshot"]))

    async def _get_stats(self, arguments: Json) -> Json:
        return codec.encode_stats(await self.driver.get_stats(_get_handle(arguments)))

    async def _set_network(self, arguments: Json) -> None:
        await self.driver.set_network(_get_handle(arguments), NetworkPolicy.from_dict(arguments["policy"]))

    async def _take_denied(self, arguments: Json) -> list[Json]:
        return codec.encode_denied(await self.driver.take_denied(_get_handle(arguments)))

    # Layers and volumes -----------------------------------------------------------------------------------------------

    async def _has_layers(self, arguments: Json) -> list[str]:
        return [layer for layer in map(str, arguments["layers"]) if self.copies.has(layer)]

    async def _pack_layer(self, arguments: Json) -> Json:
        return (await self.copies.pack(str(arguments["layer"]))).to_dict()

    async def _create_volume(self, arguments: Json) -> None:
        await self.driver.create_volume(str(arguments["volume"]), int(arguments["size_mb"]))

    async def _delete_volume(self, arguments: Json) -> None:
        await self.driver.delete_volume(str(arguments["volume"]))

    async def _change_volume(self, arguments: Json) -> Any:
        """Perform an operation on the files of a volume that transfers no file contents."""
        volume = self.driver.get_volume_files(str(arguments["volume"]))
        path, owner = str(arguments["path"]), codec.decode_owner(arguments.get("owner", {}))
        match arguments["do"]:
            case "stat":
                return codec.encode_entry(await volume.stat(path))
            case "list":
                return [codec.encode_entry(entry) for entry in await volume.list(path, int(arguments["depth"]))]
            case "make_dir":
                return codec.encode_entry(await volume.make_dir(path, owner, force=bool(arguments["force"])))
            case "change":
                return codec.encode_entry(await volume.change(path, owner))
            case "remove":
                await volume.remove(path)
                return None
        raise InvalidInputError(f"This host does not know the volume operation {arguments['do']!r}. Upgrade it.")

    # Files ------------------------------------------------------------------------------------------------------------

    def _read_owner(self) -> Owner | None:
        """Return the engine process that opened this host last, None if there is none. Raises SandyardError if the file is damaged."""
        try:
            return _parse_owner(json.loads((self._folder / OWNER).read_text()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise SandyardError(f"Could not read {self._folder / OWNER}: {error}.") from error

    def _write_owner(self, owner: Owner) -> None:
        files.write(self._folder / OWNER, json.dumps(asdict(owner)).encode(), 0o600)


def _get_handle(arguments: Json) -> Handle:
    return codec.decode_handle(arguments["handle"])


def _parse_owner(message: Json) -> Owner:
    try:
        return Owner(int(message["epoch"]), str(message["engine"]))
    except (KeyError, TypeError, ValueError):
        raise InvalidInputError("The message does not name its engine.") from None
