"""The files of fake sandboxes on disk."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from sandyard.engine.contract import DiskKind, DiskReport, DiskUse, Layers, Limits, Mount, NetworkPolicy, Spec
from sandyard.engine.drivers.layer_names import FETCHED_SNAPSHOT, SNAPSHOT, LayerLocation, find_layers, make_copy_name
from sandyard.kit.errors import InvalidInputError, NoSpaceError, NotFoundError, SandyardError


class FakeFiles:
    """The paths of all files of this driver. Sockets are in a short separate directory, because their paths may have at
    most 107 bytes."""

    def __init__(self, data_dir: Path, layer_locations: Mapping[str, LayerLocation]) -> None:
        self.base = data_dir.absolute() / "fake"
        self.sandboxes = self.base / "sandboxes"
        self.snapshots = self.base / "snapshots"
        self.volumes = self.base / "volumes"
        self._layer_locations = {**layer_locations, SNAPSHOT: LayerLocation(self.snapshots, "")}
        name = hashlib.sha256(str(self.base).encode()).hexdigest()[:12]
        self.sockets = Path(tempfile.gettempdir()) / f"sandyard-fake-{os.geteuid()}-{name}"

    def create_folders(self) -> None:
        for folder in (self.sandboxes, self.snapshots, self.volumes, self.sockets):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def find_snapshots(self, layers: Layers) -> list[Path]:
        """Return the directories of the snapshots among these layers, lowest first. Layers of templates have none: the
        host's own programs are used instead."""
        prefixes = (f"{SNAPSHOT}:", f"{FETCHED_SNAPSHOT}:", make_copy_name(f"{SNAPSHOT}:"), f"{self.base}/")
        found = self.find_layers(tuple(layer for layer in reversed(layers) if layer.startswith(prefixes)))
        return [Path(path) for path in found]

    def find_layers(self, layers: Layers) -> Layers:
        """Return the directories of these layers. Raises NotFoundError."""
        return find_layers(layers, self._layer_locations)

    def measure(self) -> DiskReport:
        """Return the disk use."""
        folders = {
            DiskKind.SANDBOXES: self.sandboxes,
            DiskKind.SNAPSHOTS: self.snapshots,
            DiskKind.VOLUMES: self.volumes,
        }
        uses = []
        for kind, folder in folders.items():
            files = [path.lstat().st_blocks * 512 for path in folder.rglob("*")]
            uses.append(DiskUse(kind, sum(files), sum(1 for _ in folder.iterdir())))
        return DiskReport(tuple(uses), frozenset({str(self.base)}))

    def get_root(self, sandbox_id: str) -> Path:
        return self.sandboxes / sandbox_id / "root"

    def mount(self, sandbox_id: str, mount: Mount) -> None:
        """Mount a volume as a symbolic link, because real mounts need privileges. Raises NotFoundError or
        InvalidInputError."""
        target, volume = self.get_root(sandbox_id) / mount.target.lstrip("/"), self.volumes / mount.volume
        if not volume.is_dir():
            raise NotFoundError(f"Volume {mount.volume} not found.")
        if target.is_symlink():
            target.unlink()
        try:
            if target.is_dir():
                target.rmdir()  # the contents of a directory that is not empty could not be hidden
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(volume)
        except OSError:
            raise InvalidInputError(f"{mount.target} already exists and is not an empty directory.") from None

    def get_spec_path(self, sandbox_id: str) -> Path:
        return self.sandboxes / sandbox_id / "spec.json"

    def get_log_path(self, sandbox_id: str) -> Path:
        return self.sandboxes / sandbox_id / "agent.log"

    def get_socket_path(self, sandbox_id: str) -> Path:
        return self.sockets / f"{sandbox_id}.sock"

    def write_spec(self, spec: Spec) -> None:
        path = self.get_spec_path(spec.id)
        path.with_suffix(".new").write_text(json.dumps(asdict(spec)))
        path.with_suffix(".new").replace(path)

    def read_spec(self, sandbox_id: str) -> Spec:
        try:
            plain = json.loads(self.get_spec_path(sandbox_id).read_text())
        except FileNotFoundError:
            raise NotFoundError(f"Sandbox {sandbox_id} not found.") from None
        policy = plain["network"]
        network = NetworkPolicy(policy["allow_internet"], tuple(policy["allow_out"]), tuple(policy["deny_out"]))
        mounts = tuple(Mount(**mount) for mount in plain.get("mounts", ()))
        return Spec(plain["id"], tuple(plain["layers"]), Limits(**plain["limits"]), network, mounts)


async def copy_tree(source: Path, target: Path) -> None:
    """Copy the contents of `source` into `target`. A new target exists completely or not at all."""
    is_new = await asyncio.to_thread(_create_folder, target)
    command = ("cp", "-a", "--reflink=auto", "--", f"{source}/.", str(target))
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    try:
        _, stderr = await process.communicate()
    except BaseException:
        process.kill()
        await process.wait()
        if is_new:
            await delete_tree(target)
        raise
    if process.returncode != 0:
        if is_new:
            await delete_tree(target)
        text = stderr.decode(errors="replace").strip()
        raise NoSpaceError if "No space left" in text else SandyardError(f"Copying failed: {text[-500:]}")


def _create_folder(path: Path) -> bool:
    """Create the directory. Return whether it is new."""
    is_new = not path.exists()
    path.mkdir(exist_ok=True)
    return is_new


async def delete_tree(path: Path) -> None:
    """Remove a directory with its contents. Idempotent."""

    def work() -> None:
        if path.exists():
            shutil.rmtree(path, onerror=_make_accessible_and_retry)

    await asyncio.shield(asyncio.to_thread(work))


def _make_accessible_and_retry(function: object, path: str, error: object) -> None:
    """Make a path accessible that a sandbox's user made unreadable, and retry."""
    parent = Path(path).parent
    parent.chmod(0o700)
    target = Path(path)
    if target.is_dir() and not target.is_symlink():
        target.chmod(0o700)
        shutil.rmtree(target, ignore_errors=True)
    else:
        target.unlink(missing_ok=True)


def measure_size(path: Path) -> int:
    """Return the bytes on disk below a directory."""
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_blocks * 512  # noqa: PTH118 (thousands of them)
            except OSError:
                continue
    return total
