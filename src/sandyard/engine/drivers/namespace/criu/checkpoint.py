"""`Criu`: write a frozen sandbox's memory to disk, and restore it. Used by the namespace runtime's `suspend` and
`restore`.

One engine's images: a directory per sandbox, and next to them `library/`, copies of the host's files that the agents
have mapped, so that an upgrade of the host's Python or C library does not invalidate a sandbox's memory. `sweep` cleans
up.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandyard.engine.drivers.machine.child_command import make_bare_command
from sandyard.engine.drivers.namespace.criu.child import EXIT_REFUSED
from sandyard.kit.errors import NoSpaceError, SandyardError, UnsupportedError
from sandyard.kit.tasks import run_uninterrupted

PRIVATE_CRIU = Path("/var/lib/sandyard/criu/criu")  # where `sandyard setup criu` installs it
MIN_VERSION = (4, 1)
INSTALL_HINT = "run `sandyard setup criu` to install a suitable version"

_CHILD = "sandyard.engine.drivers.namespace.criu.child"
_LIBRARY = "library"
_PARTIAL = ".partial"
_HARMLESS_ERRORS = ("RLIMIT_NOFILE", "FAILED", "failed with -1", "repair mode", "recv req error")

# CRIU's messages and their meaning for a sandbox. The first match counts.
_REASONS = (
    (r"No space left on device", "there is no space left on the disk"),
    (r"SysVIPC|SYSV|shmem map", "a process uses System V shared memory"),
    (r"io_uring|\[aio\]", "a process uses io_uring or kernel asynchronous I/O"),
    (r"Can't dump nested|own namespace", "a process runs in its own namespaces"),
    (r"in-flight|Dangling|xternal socket|without peer", "a connection to its agent was just being opened or closed"),
    (r"fsnotify|Can't dump that handle", "a process watches a file whose path can't be found"),
    (r"Can't lookup mount", "a process has a file open that is not in its file system"),
    (r"ghost file .* too big|ghost-limit", "a process keeps a very large deleted file open"),
    (r"No NS ID", "a process has the file of a namespace open"),
    (r"seccomp", "a process has a seccomp filter that can't be saved"),
)


@dataclass(frozen=True, slots=True)
class Frozen:
    """A frozen sandbox."""

    pid: int  # of its agent, on the host
    freezer: Path  # the frozen cgroup directory: of cgroup2, or of v1's freezer
    files: tuple[Path, ...] = ()  # files on the host that the agent has open for writing
    volumes: tuple[str, ...] = ()  # mounted volumes: the last part of their path on the host


@dataclass(frozen=True, slots=True)
class RestoreTarget:
    """The target of a restore: everything as for a boot, but without processes."""

    holder: int  # a process in the new mount, net, uts, ipc and cgroup namespaces; it may end once restore has returned
    root: Path  # where it sees the sandbox's root file system, with all mounts on it (proc may be missing)
    cgroups: tuple[Path, ...]  # directories whose limits and freezers apply to it
    socket: Path  # of the agent; created again


@dataclass(frozen=True, slots=True)
class Criu:
    """The program CRIU."""

    command: tuple[str, ...]
    version: tuple[int, ...]

    @classmethod
    async def find(cls, candidates: Sequence[Path] | None = None) -> Criu:
        """Return the CRIU of this machine, if it is new enough. Raises UnsupportedError, which says what is missing and
        what to do.

        Does not check the kernel: `probe.find_working` does.
        """
        if os.geteuid() != 0:
            raise UnsupportedError("moving memory to disk requires an engine that runs as root")
        if candidates is None:
            candidates = [PRIVATE_CRIU, *(Path(found) for found in [shutil.which("criu")] if found)]
        reason = "CRIU is not installed on this machine"
        for candidate in candidates:
            if not candidate.exists():
                continue
            code, output, _ = await _run([str(candidate), "--version"])
            found = re.search(r"^Version:\s*(\d+(?:\.\d+)*)", output, re.MULTILINE)
            if code or not found:
                reason = f"{candidate} does not start"
            elif (version := tuple(int(part) for part in found[1].split("."))) < MIN_VERSION:
                reason = (
                    f"{candidate} is version {found[1]}, but {MIN_VERSION[0]}.{MIN_VERSION[1]} or later is required"
                )
            else:
                return cls((str(candidate),), version)
        raise UnsupportedError(f"{reason}; {INSTALL_HINT}")

    async def dump(self, sandbox: Frozen, images: Path) -> None:
        """Write the memory of a frozen sandbox to the directory `images`: completely and safely on disk, or not at all.

        The sandbox stays frozen in any case: to free its memory, kill it afterwards. Runs to completion even if the
        caller is cancelled, because a killed CRIU leaves traces in the processes. Raises UnsupportedError, which says
        what in the sandbox can't be dumped, or NoSpaceError if the disk is full.
        """
        partial, library = images.with_name(images.name + _PARTIAL), images.parent / _LIBRARY
        await run_uninterrupted(self._dump(sandbox, images, partial, library))

    async def _dump(self, sandbox: Frozen, images: Path, partial: Path, library: Path) -> None:
        request: dict[str, Any] = {"verb": "dump", "pid": sandbox.pid, "freezer": str(sandbox.freezer)}
        request["files"] = [str(path) for path in sandbox.files]
        request["volumes"] = sandbox.volumes
        try:
            await asyncio.to_thread(_create_folders, partial, library)
            await self._run_child({**request, "images": str(partial), "library": str(library)}, "be dumped")
            await asyncio.to_thread(_publish, partial, images)
        finally:
            await asyncio.to_thread(shutil.rmtree, partial, ignore_errors=True)

    async def restore(self, images: Path, target: RestoreTarget) -> int:
        """Restore the processes, running, and return the host's pid of the agent. The images stay unchanged.

        The processes are no children of the engine and outlive it. Raises UnsupportedError with the reason; the caller
        must then empty the cgroups, because a killed CRIU leaves processes behind. Runs to completion even if the
        caller is cancelled.
        """
        request: dict[str, Any] = {"verb": "restore", "images": str(images), "library": str(images.parent / _LIBRARY)}
        request |= {"holder": target.holder, "root": str(target.root), "socket": str(target.socket)}
        request["cgroups"] = [str(folder) for folder in target.cgroups]
        return int(await run_uninterrupted(self._run_child(request, "be restored", result_file="pid")))

    async def _run_child(self, request: dict[str, Any], what: str, result_file: str | None = None) -> str:
        command = make_bare_command(f"from {_CHILD} import main; main()")
        with tempfile.TemporaryDirectory(prefix="sandyard-criu-", ignore_cleanup_errors=True) as work:
            os.chmod(work, 0o711)  # noqa: S103, PTH101  the sandbox's root must traverse it to reach its mounts
            argument = json.dumps({**request, "criu": list(self.command), "work": work})
            status, _, stderr = await _run([*command, argument])
            if status == EXIT_REFUSED:
                raise UnsupportedError(f"this sandbox's memory can't {what}: {stderr.strip()}")
            if status < 0:
                raise UnsupportedError(f"this sandbox's memory can't {what}: CRIU was ended by signal {-status}")
            if status:
                raise explain_failure(_read_file(work, "criu.log") + stderr, what)
            return _read_file(work, result_file) if result_file else ""

    @staticmethod
    async def sweep(parent: Path, keep: Collection[str]) -> None:
        """Remove every image in `parent` except those in `keep`, and the copies that none of them needs."""
        await asyncio.to_thread(_sweep, parent, frozenset(keep))


async def _run(command: list[str]) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    output, errors = await process.communicate()
    return process.returncode or 0, output.decode(errors="replace"), errors.decode(errors="replace")


def _create_folders(partial: Path, library: Path) -> None:
    shutil.rmtree(partial, ignore_errors=True)
    for folder in (library, partial):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    (partial / "criu").mkdir()
    (partial / "criu").chmod(0o755)


def _publish(partial: Path, images: Path) -> None:
    """Wait until everything is on disk, then rename it to its final name."""
    for path in [*partial.rglob("*"), partial]:
        if path.is_file():
            path.chmod(0o644)
        _sync_to_disk(path)
    shutil.rmtree(images, ignore_errors=True)
    partial.rename(images)
    _sync_to_disk(images.parent)


def _read_file(folder: str, name: str) -> str:
    try:
        return Path(folder, name).read_text(errors="replace")
    except FileNotFoundError:
        return ""


def _sync_to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def explain_failure(log: str, what: str) -> SandyardError:
    """Return an error that says why the memory of a sandbox can't `what`, from CRIU's log."""
    errors = [
        line for line in log.splitlines() if "Error" in line and not any(word in line for word in _HARMLESS_ERRORS)
    ]
    lines = [re.sub(r"^.*?Error\s*(\([^)]*\):)?\s*", "", line) for line in errors] or [log.strip()[-200:]]
    details = "; ".join(lines[:2])
    for pattern, meaning in _REASONS:
        if re.search(pattern, "\n".join(errors)):
            message = f"this sandbox's memory can't {what}: {meaning} (CRIU: {details})"
            return NoSpaceError(message) if pattern.startswith("No space") else UnsupportedError(message)
    return UnsupportedError(f"this sandbox's memory can't {what}: CRIU reported: {details}")


def _sweep(parent: Path, keep: frozenset[str]) -> None:
    needed = set()
    for folder in parent.iterdir() if parent.is_dir() else ():
        if folder.name == _LIBRARY:
            continue
        if folder.name not in keep:
            shutil.rmtree(folder, ignore_errors=True)
            continue
        with contextlib.suppress(OSError, ValueError):
            needed |= {file["copy"] for file in json.loads((folder / "sandbox.json").read_text())["files"]}
    for copy in (parent / _LIBRARY).glob("*"):
        if copy.name not in needed:
            copy.unlink(missing_ok=True)
