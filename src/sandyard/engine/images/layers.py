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

from sandyard.engine.drivers.layer_names import IMAGE, make_layer_name
from sandyard.engine.images import adapt, child
from sandyard.engine.images.image_changes import AdaptOptions
from sandyard.engine.images.source import Blob, LayerSource
from sandyard.engine.images.unpack import UnpackRequest
from sandyard.engine.templates.folder import remove_tree
from sandyard.kit.errors import InvalidInputError
from sandyard.kit.logging import get_logger

log = get_logger(__name__)

FORMAT = 1  # increase it when the output of `unpack` or `image_changes` changes
FS, MANIFEST, PARTIAL, SPOOL = "fs", "layer.json", ".partial-", "spool"
_MIN_KEEP_S = 3600.0
_ADAPT_TIMEOUT_S = 300.0


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
    name: str  # by which drivers find it
    entries: int
    bytes: int
    devices: int  # device nodes, which are skipped
    strangers: int  # entries whose owner has an id above 65535
    implied: tuple[str, ...]  # directories that no entry describes, but that contain entries
    opaque_root: bool


@dataclass(slots=True)
class _Lock:
    """Exists as long as a task holds it or waits for it."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0


class LayerFolder:
    def __init__(self, folder: Path, keep_s: float, layer_kind: str = IMAGE) -> None:
        self.folder = folder
        self._layer_kind = layer_kind
        self._layers, self._adapted = folder / "layers", folder / "adapted"
        self.spool = folder / SPOOL
        self._keep_s = max(keep_s, _MIN_KEEP_S)
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

    async def ensure(
        self, diff_id: str, blob: Blob, source: LayerSource, budget: Budget, what: str, *, exact: bool = False
    ) -> Layer:
        """Return the layer with this content, fetched and unpacked if needed. Tasks that need the same layer wait for
        each other. `exact`: see UnpackRequest."""
        async with self._lock_key(diff_id):
            path = self._layers / f"{diff_id.removeprefix('sha256:')}.{FORMAT}"
            if (known := _read_layer(path, self._name_layer(path))) is not None:
                return known
            async with source.fetch(blob) as content, self._open_partial(self._layers) as work:
                target = work / FS
                target.mkdir()
                target.chmod(0o755)
                request = UnpackRequest(
                    str(target),
                    content.offset,
                    content.size,
                    blob.digest,
                    diff_id,
                    budget.bytes,
                    budget.entries,
                    budget.reserve,
                    exact,
                )
                report = _validate_report(await child.run_process("unpack", asdict(request), what, content.fd), what)
                (work / MANIFEST).write_text(json.dumps(report))
                work.rename(path)
            layer = _read_layer(path, self._name_layer(path))
            assert layer is not None
            return layer

    async def adapt(self, layers: Sequence[Layer], options: AdaptOptions, what: str) -> tuple[str, str | None]:
        """Return the name of the layer that adapts these layers (topmost first) to sandboxes, and the name of the user
        their author set."""
        names = [Path(layer.path).parent.name for layer in layers]
        parts = json.dumps([FORMAT, names, options.user, options.path, options.trust.digest, options.privileged])
        key = hashlib.sha256(parts.encode()).hexdigest()[:32]
        path = self._adapted / key
        async with self._lock_key(key):
            if not path.exists():
                async with self._open_partial(self._adapted) as work:
                    scratch = work / "scratch"
                    scratch.mkdir()
                    implied = [layer.implied for layer in layers]
                    request = adapt.make_adapt_request([layer.path for layer in layers], implied, work, options)
                    try:
                        async with asyncio.timeout(_ADAPT_TIMEOUT_S):
                            report = await child.run_process("adapt", request, what)
                    except TimeoutError:
                        raise InvalidInputError(
                            f"{what} could not be adapted within {_ADAPT_TIMEOUT_S:.0f} seconds. Try again."
                        ) from None
                    scratch.rmdir()
                    (work / MANIFEST).write_text(json.dumps(report))
                    work.rename(path)
            _touch(path)
            return self._name_layer(path), json.loads((path / MANIFEST).read_text())["user"]

    async def collect(self, uses_layer: Callable[[str], bool]) -> int:
        """Remove layers that nothing uses and that were not requested for a while. Return how many were removed."""
        removed = 0
        for path in self.list_layers():
            folder = path.parent
            async with self._lock_key(
                path.name.partition(".")[0] if folder == self._adapted else f"sha256:{path.stem}"
            ):
                with contextlib.suppress(FileNotFoundError):
                    if self.is_needed(path, uses_layer):
                        continue
                    trash = folder / f"{PARTIAL}{uuid.uuid4().hex}"
                    path.rename(trash)
                    await asyncio.to_thread(remove_tree, trash)
                    removed += 1
        if removed:
            log.info("image_layers_collected", count=removed)
        return removed

    def list_layers(self) -> list[Path]:
        """Return the directories of all complete layers."""
        return [
            entry
            for folder in (self._adapted, self._layers)
            for entry in folder.iterdir()
            if not entry.name.startswith(".")
        ]

    def is_needed(self, path: Path, uses_layer: Callable[[str], bool]) -> bool:
        """Return whether something uses the layer in this directory, or it was requested recently. Raises
        FileNotFoundError."""
        is_new = time.time() - (path / MANIFEST).stat().st_mtime < self._keep_s
        # records of earlier versions contain its path
        return is_new or uses_layer(self._name_layer(path)) or uses_layer(str(path / FS))

    def _name_layer(self, path: Path) -> str:
        """Return the name of the layer in this directory."""
        return make_layer_name(self._layer_kind, path.parent.name, path.name)

    @contextlib.asynccontextmanager
    async def _lock_key(self, key: str) -> AsyncIterator[None]:
        lock = self._locks.setdefault(key, _Lock())
        lock.users += 1
        try:
            async with lock.lock:
                yield
        finally:
            lock.users -= 1
            if not lock.users:
                del self._locks[key]

    @contextlib.asynccontextmanager
    async def _open_partial(self, folder: Path) -> AsyncIterator[Path]:
        work = folder / f"{PARTIAL}{uuid.uuid4().hex}"
        work.mkdir(mode=0o755)
        try:
            yield work
        finally:
            if work.exists():
                await asyncio.shield(asyncio.to_thread(shutil.rmtree, work, ignore_errors=True))


def _validate_report(report: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Validate the report about a layer, because the reporting process may have been taken over by hostile data."""
    try:
        numbers = {name: report[name] for name in ("entries", "bytes", "devices", "strangers")}
        implied = list(report["implied"])
    except (LookupError, TypeError):
        numbers, implied = {}, []
    counted = all(type(number) is int and number >= 0 for number in numbers.values())
    if not numbers or not counted or not all(_is_relative_path(path) for path in implied):
        raise InvalidInputError(f"Unpacking {what} returned an invalid result.")
    return {**numbers, "implied": implied, "opaque_root": report.get("opaque_root") is True}


def _is_relative_path(path: object) -> bool:
    return isinstance(path, str) and "\0" not in path and not path.startswith("/") and ".." not in path.split("/")


def _read_layer(path: Path, name: str) -> Layer | None:
    try:
        raw = json.loads((path / MANIFEST).read_text())
    except FileNotFoundError:
        return None
    _touch(path)
    return Layer(str(path / FS), name, **{**raw, "implied": tuple(raw["implied"])})


def _touch(path: Path) -> None:
    os.utime(path / MANIFEST)
