"""The layers on this machine: `layers/<diff id>/{layer.json,fs/}`, shared by all images, and `adapted/<key>/…`, one for
each image.

A directory is filled under a temporary name and renamed when it is complete and on disk, so that a kill at any time
leaves no partial layer. A published layer is never changed. It is removed when nothing uses it and it was not requested
for a while; that delay also protects a layer that was just resolved until its first sandbox has a record.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import shutil
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sandyard.engine.images import adapt, child
from sandyard.engine.images.image_changes import AdaptOptions
from sandyard.engine.images.source import Blob, Source
from sandyard.engine.images.unpack import Order
from sandyard.engine.templates.folder import remove_tree
from sandyard.kit.errors import InvalidInputError
from sandyard.kit.logging import get_logger

log = get_logger(__name__)

FORMAT = 1  # increase it when the output of `unpack` or `image_changes` changes
FS, MANIFEST, PARTIAL, SPOOL = "fs", "layer.json", ".partial-", "spool"
_SHORTEST_KEEP = 3600.0
_PATIENCE = 300.0


@dataclass(frozen=True, slots=True)
class Budget:
    """The limits of one image, and the space that must stay free on the disk."""

    bytes: int
    entries: int
    reserve: int


@dataclass(frozen=True, slots=True)
class Layer:
    """An unpacked layer."""

    path: str
    entries: int
    bytes: int
    devices: int
    strangers: int
    implied: tuple[str, ...]
    opaque_root: bool


@dataclass(slots=True)
class _Lock:
    """Exists as long as a task holds it or waits for it."""

    it: asyncio.Lock = field(default_factory=asyncio.Lock)
    wanted: int = 0


class LayerFolder:
    def __init__(self, folder: Path, keep_s: float) -> None:
        self.folder = folder
        self._layers, self._adapted = folder / "layers", folder / "adapted"
        self.spool = folder / SPOOL
        self._keep_s = max(keep_s, _SHORTEST_KEEP)
        self._locks: dict[str, _Lock] = {}

    def prepare(self) -> None:
        """Create the folder with access for the engine's own user only, because the trees contain set-user-id programs.
        Removes what a killed engine left incomplete."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        for folder in (self._layers, self._adapted, self.spool):
            folder.mkdir(exist_ok=True)
            for leftover in folder.glob(f"{PARTIAL}*" if folder != self.spool else "*"):
                remove_tree(leftover)

    async def ensure(self, diff_id: str, blob: Blob, source: Source, budget: Budget, what: str) -> Layer:
        """Return the layer with this content, fetched and unpacked if needed. Tasks that need the same layer wait for
        each other."""
        async with self._lock_key(diff_id):
            place = self._layers / f"{diff_id.removeprefix('sha256:')}.{FORMAT}"
            if (known := _read(place)) is not None:
                return known
            async with source.fetch(blob) as content, self._partial(self._layers) as work:
                target = work / FS
                target.mkdir()
                target.chmod(0o755)
                order = Order(
                    str(target),
                    content.offset,
                    content.size,
                    blob.digest,
                    diff_id,
                    budget.bytes,
                    budget.entries,
                    budget.reserve,
                )
                found = _validate_report(await child.run_process("unpack", asdict(order), what, content.fd), what)
                (work / MANIFEST).write_text(json.dumps(found))
                work.rename(place)
            layer = _read(place)
            assert layer is not None
            return layer

    async def adapt(self, layers: Sequence[Layer], options: AdaptOptions, what: str) -> tuple[str, str | None]:
        """Return the layer that adapts these layers (topmost first) to sandboxes, and the name of the user their author
        set."""
        names = [Path(layer.path).parent.name for layer in layers]
        parts = json.dumps([FORMAT, names, options.user, options.path, options.trust.digest, options.privileged])
        key = hashlib.sha256(parts.encode()).hexdigest()[:32]
        place = self._adapted / key
        async with self._lock_key(key):
            if not place.exists():
                async with self._partial(self._adapted) as work:
                    scratch = work / "scratch"
                    scratch.mkdir()
                    implied = [layer.implied for layer in layers]
                    order = adapt.make_order([layer.path for layer in layers], implied, work, options)
                    try:
                        async with asyncio.timeout(_PATIENCE):
                            found = await child.run_process("adapt", order, what)
                    except TimeoutError:
                        raise InvalidInputError(
                            f"{what} could not be adapted within {_PATIENCE:.0f} seconds."
                        ) from None
                    scratch.rmdir()
                    (work / MANIFEST).write_text(json.dumps(found))
                    work.rename(place)
            _touch(place)
            return str(place / FS), json.loads((place / MANIFEST).read_text())["user"]

    async def collect(self, uses_layer: Callable[[str], bool]) -> int:
        """Remove layers that nothing uses and that were not requested for a while. Return how many were removed."""
        now, gone = time.time(), 0
        for folder in (self._adapted, self._layers):
            for place in [entry for entry in folder.iterdir() if not entry.name.startswith(".")]:
                async with self._lock_key(
                    place.name.partition(".")[0] if folder == self._adapted else f"sha256:{place.stem}"
                ):
                    with contextlib.suppress(FileNotFoundError):
                        if now - (place / MANIFEST).stat().st_mtime < self._keep_s or uses_layer(str(place / FS)):
                            continue
                        trash = folder / f"{PARTIAL}{uuid.uuid4().hex}"
                        place.rename(trash)
                        await asyncio.to_thread(remove_tree, trash)
                        gone += 1
        if gone:
            log.info("image_layers_collected", count=gone)
        return gone

    @contextlib.asynccontextmanager
    async def _lock_key(self, key: str) -> AsyncIterator[None]:
        lock = self._locks.setdefault(key, _Lock())
        lock.wanted += 1
        try:
            async with lock.it:
                yield
        finally:
            lock.wanted -= 1
            if not lock.wanted:
                del self._locks[key]

    @contextlib.asynccontextmanager
    async def _partial(self, folder: Path) -> AsyncIterator[Path]:
        work = folder / f"{PARTIAL}{uuid.uuid4().hex}"
        work.mkdir(mode=0o755)
        try:
            yield work
        finally:
            if work.exists():
                await asyncio.shield(asyncio.to_thread(shutil.rmtree, work, ignore_errors=True))


def _validate_report(found: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Validate the report about a layer, because the reporting process may have been taken over by hostile data."""
    try:
        numbers = {name: found[name] for name in ("entries", "bytes", "devices", "strangers")}
        implied = list(found["implied"])
    except (LookupError, TypeError):
        numbers, implied = {}, []
    counted = all(type(number) is int and number >= 0 for number in numbers.values())
    if not numbers or not counted or not all(_is_inside(path) for path in implied):
        raise InvalidInputError(f"Unpacking {what} returned an invalid result.")
    return {**numbers, "implied": implied, "opaque_root": found.get("opaque_root") is True}


def _is_inside(path: object) -> bool:
    return isinstance(path, str) and "\0" not in path and not path.startswith("/") and ".." not in path.split("/")


def _read(place: Path) -> Layer | None:
    try:
        raw = json.loads((place / MANIFEST).read_text())
    except FileNotFoundError:
        return None
    _touch(place)
    return Layer(str(place / FS), **{**raw, "implied": tuple(raw["implied"])})


def _touch(place: Path) -> None:
    os.utime(place / MANIFEST)
