"""The processes that unpack and adapt images are confined. Every attack runs in the process that an engine would start, in place of
one of our functions, as if a layer had taken the process over through a vulnerability in a parser."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import os
import signal
import socket
import subprocess
import sys
import tarfile
import textwrap
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from sandyard.engine.drivers.machine import instance, kernel
from sandyard.engine.images import adapt, child, confinement
from sandyard.engine.images.image_changes import make_adapt_options
from sandyard.engine.images.unpack import UnpackRequest
from sandyard.engine.templates.trust import Trust
from sandyard.kit.errors import InvalidInputError, SandyardError, UnsupportedError
from tests.images import hostile
from tests.images.image_files import entry, folder, rootfs, sha256, tar

LAYER = tar(folder("d"), entry("d/f", "x"), entry("pipe", kind=tarfile.FIFOTYPE, mode=0o666))
PASSWORD = "wonderland-in-the-environment"
TARGETS = {
    "decompressor": ("sandyard.engine.images.stream", "_open_decompressed"),
    "parser": ("sandyard.engine.images.tree", "Tree.finish"),
    "adapter": ("sandyard.engine.images.image_changes", "adapt_image"),
    "indexer": ("sandyard.engine.images.stream", "forget_members"),
}
TAKE_OVER = """
    import importlib, json, sys
    import {module}
    from sandyard.engine.images.stream import LayerError
    sys.path.insert(0, {hostile!r})
    import hostile

    def instead(*_, **__):
        {body}

    place, _, name = {function!r}.rpartition(".")
    setattr(getattr({module}, place) if place else {module}, name, instead)
"""
TRY_ALL = "raise LayerError('tried: ' + json.dumps(hostile.try_all({attempts})))"


class ImageProcesses:
    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = path
        self._monkeypatch = monkeypatch
        self.fs = path / "work/fs"
        self.fs.mkdir(parents=True)
        self.fs.chmod(0o755)

    def take_over(self, where: str, body: str) -> None:
        """Make the processes that are started from now on run `body` in place of a function."""
        module, _, function = where.partition(":")
        code = self.path / "code"
        code.mkdir()
        images = str(Path(hostile.__file__).parent)
        text = textwrap.dedent(TAKE_OVER).format(module=module, function=function, hostile=images, body=body)
        (code / "sitecustomize.py").write_text(text)
        paths = [str(code), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))

    async def unpack(self, layer: bytes = LAYER) -> dict[str, Any]:
        blob = gzip.compress(layer)
        (self.path / "blob").write_bytes(blob)
        request = UnpackRequest(str(self.fs), 0, len(blob), sha256(blob), sha256(layer), 64 << 20, 1000, 0)
        with (self.path / "blob").open("rb") as source:
            return await child.run_process("unpack", asdict(request), "The layer", source.fileno())

    async def adapt(self) -> dict[str, Any]:
        await self.unpack(rootfs())
        work = self.path / "adapted"
        (work / "scratch").mkdir(parents=True)
        request = adapt.make_adapt_request([str(self.fs)], [[]], work, make_adapt_options("", None, Trust()))
        return await child.run_process("adapt", request, "The image")

    async def index(self) -> dict[str, Any]:
        (self.path / "archive").write_bytes(tar(entry("index.json", "{}")))
        with (self.path / "archive").open("rb") as source:
            return await child.run_process("index", {}, "The archive", source.fileno())


@pytest.fixture
def processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ImageProcesses:
    return ImageProcesses(tmp_path, monkeypatch)


@pytest.fixture
def aim(processes: ImageProcesses, monkeypatch: pytest.MonkeyPatch) -> Iterator[hostile.Aim]:
    monkeypatch.setenv("SANDYARD_TEST_PASSWORD", PASSWORD)
    (processes.path / "secret").write_text("of the host")
    abstract = f"\0sandyard-test-{os.getpid()}"
    other_process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
            unix.bind(abstract)
            unix.listen()
            port = tcp.getsockname()[1]
            yield hostile.Aim(
                str(processes.fs),
                str(processes.path / "secret"),
                str(processes.path),
                port,
                abstract,
                other_process.pid,
                PASSWORD,
            )
    finally:
        other_process.kill()
        other_process.wait()
        with contextlib.suppress(OSError):  # nothing is mounted unless an attack succeeded
            kernel.unmount(str(processes.fs), kernel.MNT_DETACH)


@pytest.mark.parametrize("target", TARGETS)
async def test_a_compromised_process_reaches_nothing(processes: ImageProcesses, aim: hostile.Aim, target: str) -> None:
    attempts = f"hostile.attempts(hostile.Aim(**{asdict(aim)!r}))"
    if target != "adapter":
        attempts += " | hostile.parser_attempts()"
    processes.take_over(":".join(TARGETS[target]), TRY_ALL.format(attempts=attempts))
    start = {"adapter": processes.adapt, "indexer": processes.index}.get(target, processes.unpack)
    with pytest.raises(InvalidInputError, match="tried: ") as failure:
        await start()
    succeeded = json.loads(failure.value.message.partition("tried: ")[2].removesuffix("."))
    assert succeeded == []
    assert (processes.path / "secret").read_text() == "of the host" and not (processes.path / "evil").exists()


@pytest.fixture
async def waiting_worker(processes: ImageProcesses) -> AsyncIterator[int]:
    """The host pid of the worker that writes the tree. It blocks while it reads from a pipe in its layer."""
    processes.take_over(":".join(TARGETS["parser"]), "open('/pipe', 'rb').read()")
    running = asyncio.create_task(processes.unpack())
    pipe = -1
    try:
        while pipe < 0:
            assert not running.done(), running.result()
            with contextlib.suppress(OSError):  # the worker has not opened it yet
                pipe = os.open(processes.fs / "pipe", os.O_WRONLY | os.O_NONBLOCK)
            await asyncio.sleep(0.01)
        while len(workers := _list_worker_pids()) != 1:  # the other worker exits when it has nothing left to do
            await asyncio.sleep(0.01)
        yield workers[0]
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError, InvalidInputError, SandyardError):
            await running
        os.close(pipe)


def _status(pid: int) -> dict[str, list[str]]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.split() for name, _, value in (line.partition(":") for line in lines)}


def _list_worker_pids() -> list[int]:
    """Return the pids of the first processes of pid namespaces whose parent is an unpacking process started by this one."""
    pids = []
    for folder_ in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, KeyError):
            status = _status(int(folder_.name))
            parent = int(status["PPid"][0])
            if (
                status["NSpid"][-1] == "1"
                and status["State"][0] != "Z"
                and _status(parent)["PPid"][0] == str(os.getpid())
            ):
                pids.append(int(folder_.name))
    return pids


async def test_the_worker_has_no_privileges_on_the_host(processes: ImageProcesses, waiting_worker: int) -> None:
    status = _status(waiting_worker)
    root = kernel.is_root()
    mine = str(confinement.FIRST_ID) if root else str(os.getuid())
    assert status["Uid"] == [mine] * 4
    assert status["Groups"] == [] or not root
    assert status["NSpid"][-1] == "1"
    assert status["NoNewPrivs"] == ["1"] and status["Seccomp"] == ["2"]
    assert {int(status[name][0], 16) for name in ("CapInh", "CapAmb")} == {0}
    kept = confinement.MAKE_FILES if root else 0
    assert {int(status[name][0], 16) for name in ("CapPrm", "CapEff", "CapBnd")} == {kept}
    if root:  # for a process that is not dumpable, only root may read this
        for kind in ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup"):
            theirs, ours = (Path(f"/proc/{pid}/ns/{kind}").readlink() for pid in (waiting_worker, "self"))
            assert theirs != ours, kind
        mounts = Path(f"/proc/{waiting_worker}/mountinfo").read_text().splitlines()
        assert len(mounts) == 1 and mounts[0].split()[4] == "/" and "idmapped" in mounts[0]
        open_files = {link.readlink().name.partition(":")[0] for link in Path(f"/proc/{waiting_worker}/fd").iterdir()}
        assert open_files <= {"null", "pipe", "socket", ""}


async def test_the_worker_ends_with_its_parent(processes: ImageProcesses, waiting_worker: int) -> None:
    pidfd = os.pidfd_open(waiting_worker)
    os.kill(int(_status(waiting_worker)["PPid"][0]), signal.SIGKILL)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(pidfd, ended.set)
    async with asyncio.timeout(20):
        await ended.wait()
    asyncio.get_running_loop().remove_reader(pidfd)
    os.close(pidfd)


async def test_nothing_is_unpacked_without_confinement(processes: ImageProcesses) -> None:
    processes.take_over(
        "sandyard.engine.drivers.machine.kernel:clone",
        "raise OSError(28, 'unshare(0x10000000): No space left on device')",
    )
    with pytest.raises(UnsupportedError, match=r"cannot confine .*No space left on device.*sandyard doctor"):
        await processes.unpack()
    assert list(processes.fs.iterdir()) == []


def test_worker_ids_do_not_overlap_with_sandbox_ids() -> None:
    last = instance.FIRST_UID + instance.BLOCKS * instance.SLOTS_PER_BLOCK * instance.UIDS_PER_SLOT
    assert last <= confinement.FIRST_ID <= 2**31 - confinement.IDS
