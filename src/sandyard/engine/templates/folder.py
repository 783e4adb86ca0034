"""The machine-wide folder of templates: `<folder>/<name>/<version>/{manifest.json,size,rootfs/}`.

A version is built in a hidden directory next to it and renamed when it is complete, so that a kill at any time leaves
no partial template. With a lock per name, two engines that need the same template wait for each other. Published
versions are never changed: sandboxes or snapshots of any engine may use them. `unused.py` finds those that can be removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from sandyard.engine.drivers.layer_names import TEMPLATE, make_layer_name
from sandyard.kit.disk_usage import measure
from sandyard.kit.errors import BusyError, NoSpaceError

ROOTFS = "rootfs"
MANIFEST = "manifest.json"
SIZE = "size"
BUILDING = ".building-"


@dataclass(frozen=True, slots=True)
class TemplateVersion:
    """A published template directory."""

    name: str
    version: str
    path: Path
    created_at: float
    description: str
    details: Mapping[str, str] = field(default_factory=dict)

    @property
    def rootfs(self) -> Path:
        return self.path / ROOTFS

    @property
    def digest(self) -> str:
        """The hash of its recipe. A forced rebuild of the same recipe has the same digest and a later version."""
        return self.version.partition(".")[0]


class TemplateFolder:
    """The published templates of this machine. Reading never blocks. `open_build_directory` blocks while another process
    builds the same name."""

    def __init__(self, directory: Path, layer_kind: str = TEMPLATE) -> None:
        self.directory = directory.absolute()
        self._layer_kind = layer_kind

    def prepare(self) -> None:
        """Create the folder with access for the engine's own user only: the trees contain set-user-id programs, and
        files of user id 1000, which belong to somebody else outside a sandbox."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self.directory.chmod(0o700)

    def name_layer(self, version: TemplateVersion) -> str:
        """Return the name of a version's layer, by which drivers find its root directory."""
        return make_layer_name(self._layer_kind, version.name, version.version)

    def list_versions(self, name: str) -> list[TemplateVersion]:
        """Return the versions, newest first."""
        versions = []
        with contextlib.suppress(FileNotFoundError):
            for path in (self.directory / name).iterdir():
                if not path.name.startswith("."):
                    with contextlib.suppress(FileNotFoundError, NotADirectoryError, LookupError, ValueError, TypeError):
                        versions.append(_read_version(name, path))
        return sorted(versions, key=lambda version: (version.created_at, version.version), reverse=True)

    def find(self, name: str, digest: str) -> TemplateVersion | None:
        """Return the newest version of this recipe, or None."""
        return next((version for version in self.list_versions(name) if version.digest == digest), None)

    @contextlib.contextmanager
    def open_build_directory(self, name: str, *, wait: bool = True) -> Iterator[Path]:
        """Yield an empty directory to build in, exclusively. Leftovers of a killed builder are removed first, and the
        directory is removed at the end unless it was published. Raises BusyError if another process builds `name` and
        `wait` is false."""
        self.prepare()
        parent = self.directory / name
        parent.mkdir(exist_ok=True)
        with (self.directory / f".{name}.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                raise BusyError(f"Template {name} is already being built by another process.") from None
            for leftover in parent.glob(f"{BUILDING}*"):
                remove_tree(leftover)
            work = parent / f"{BUILDING}{os.getpid()}"
            work.mkdir(mode=0o700)
            try:
                yield work
            finally:
                if work.exists():
                    remove_tree(work)

    def is_building(self, name: str) -> bool:
        """Return whether a process is currently building `name`."""
        try:
            with (self.directory / f".{name}.lock").open() as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def publish(self, work: Path, version: TemplateVersion) -> TemplateVersion:
        """Rename the directory from `open_build_directory` to its final name. Blocks until everything is on disk, because
        builders write without fsync."""
        if version.path.exists():
            raise BusyError(f"Template {version.name} {version.version} already exists.")
        manifest = asdict(version) | {"details": dict(version.details)}
        del manifest["path"]
        (work / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
        (work / SIZE).write_text(str(measure(work)))
        subprocess.run(["sync", "-f", str(work)], check=True)
        work.rename(version.path)
        return version

    def measure(self, version: TemplateVersion) -> int:
        """Return the bytes of a version on the disk, which were counted when it was published. The files of a version that
        an earlier release published are counted by the first call, which can take a minute."""
        stored = version.path / SIZE
        with contextlib.suppress(FileNotFoundError, ValueError):
            return int(stored.read_text())
        size = measure(version.path)
        with contextlib.suppress(OSError):  # removed meanwhile, or the disk is full
            partial = version.path / f"{SIZE}.{os.getpid()}"
            partial.write_text(str(size))
            partial.rename(stored)
        return size

    def make_version(self, name: str, digest: str, description: str, details: Mapping[str, str]) -> TemplateVersion:
        """Return a version that is not published yet, with the path where it will be."""
        now = time.time()
        label = digest if self.find(name, digest) is None else f"{digest}.{int(now)}"
        return TemplateVersion(name, label, self.directory / name / label, now, description, dict(details))


def _read_version(name: str, path: Path) -> TemplateVersion:
    raw = json.loads((path / MANIFEST).read_text())
    return TemplateVersion(
        name, path.name, path, float(raw["created_at"]), str(raw["description"]), dict(raw["details"])
    )


@contextlib.contextmanager
def use_default_umask() -> Iterator[None]:
    """Set the usual umask (022), so that a stricter one does not affect file modes in the template. Affects the whole
    process: do not use it while other threads write."""
    umask = os.umask(0o022)
    try:
        yield
    finally:
        os.umask(umask)


def remove_tree(path: Path) -> None:
    """Remove a tree without entering file systems that are mounted in it."""
    subprocess.run(["rm", "-rf", "--one-file-system", "--", str(path)], check=True)


def require_space(directory: Path, needed: int, what: str) -> None:
    """Raise NoSpaceError, with both numbers, unless `needed` bytes are free."""
    stat = os.statvfs(directory)
    free = stat.f_bavail * stat.f_frsize
    if free < needed:
        raise NoSpaceError(f"{what} needs {needed >> 20} MiB in {directory}; {free >> 20} MiB are free.")
