"""An engine on a copy of another one's data directory, while that one runs: two instances, and neither touches what the other has."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from e2b import Sandbox

from tests.acceptance.platform import ok, until
from tests.integration.cli.real import Yard
from tests.protocol.engine import Engine
from tests.protocol.outside import API, Outside

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root for a network of its own"),
]
FETCH = f"curl -s -o /dev/null -w '%{{http_code}}' --max-time 20 http://{API}/"


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outside]:
    made = Outside(tmp_path_factory.mktemp("outside"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def original(outside: Outside) -> Iterator[Engine]:
    engine = Engine({**outside.settings, "POOL_SIZE": "1"})
    engine.start()
    yield engine
    left = engine.stop()
    assert not left, f"the engine left behind: {left}"


@pytest.fixture
def copy(original: Engine) -> Iterator[Engine]:
    """Not started yet, and nothing is copied."""
    engine = Engine(dict(original.settings), key=original.key)
    yield engine
    engine.stop()


def options(engine: Engine) -> dict[str, str]:
    return {"api_url": engine.url, "sandbox_url": engine.url, "api_key": engine.key}


def copy_data(original: Path, copy: Path, store: Path) -> None:
    """As an administrator does, at one instant of the store."""
    mounted = store.is_mount()
    if mounted:
        subprocess.run(["fsfreeze", "--freeze", store], check=True)
    try:
        flags = ["--archive", "--one-file-system", "--sparse=always", "--reflink=auto"]
        subprocess.run(["cp", *flags, original, copy], check=True)
    finally:
        if mounted:
            subprocess.run(["fsfreeze", "--unfreeze", store], check=True)


class Watched:
    """A sandbox of the original that must not notice anything."""

    def __init__(self, engine: Engine, outside: Outside) -> None:
        self.engine, self.outside = engine, outside
        self.sandbox = Sandbox.create(network={"allow_out": [outside.address]}, timeout=600, **options(engine))
        self.sandbox.files.write("work.txt", "original")
        self.beat = self.sandbox.commands.run("sleep 1000", background=True, timeout=0).pid
        self.first = engine.first_process(self.sandbox.sandbox_id)
        self.check()

    def check(self) -> None:
        asked = len(self.outside.seen)
        assert self.sandbox.commands.run(FETCH).stdout == "200", "its name server and its way out"
        assert len(self.outside.seen) == asked + 1
        assert self.beat in [process.pid for process in self.sandbox.commands.list()], "its processes"
        assert self.engine.first_process(self.sandbox.sandbox_id) == self.first
        assert self.sandbox.files.read("work.txt") == "original"
        new = Sandbox.create(network={"allow_out": [self.outside.address]}, **options(self.engine))
        assert new.commands.run(FETCH).stdout == "200", "new ones have a network too"
        new.kill()


@pytest.mark.slow
@pytest.mark.parametrize("end", ["kill", "stop"])
def test_a_copy_is_an_instance_of_its_own(original: Engine, copy: Engine, outside: Outside, end: str) -> None:
    watched = Watched(original, outside)
    asleep = Sandbox.create(timeout=600, **options(original))
    asleep.files.write("work.txt", "asleep")
    number = asleep.commands.run("sleep 1000", background=True, timeout=0).pid
    asleep.pause()
    copy_data(original.data, copy.data, original.data / "store")
    copy.start()
    watched.check()

    theirs = Sandbox.connect(watched.sandbox.sandbox_id, **options(copy))
    assert theirs.files.read("work.txt") == "original", "booted from the copied files"
    assert theirs.commands.run(FETCH).stdout == "200"
    assert watched.beat not in [process.pid for process in theirs.commands.list()]
    theirs.files.write("work.txt", "copy")
    assert copy.first_process(theirs.sandbox_id) != watched.first
    watched.check()

    if end == "kill":  # and a second start, which is no copy's first
        copy.kill()
        copy.start()
        assert Sandbox.connect(theirs.sandbox_id, **options(copy)).files.read("work.txt") == "copy"
        watched.check()
    left = copy.stop()  # kills all sandboxes of the copy
    assert not left, f"the copy left behind: {left}"
    watched.check()
    asleep = Sandbox.connect(asleep.sandbox_id, **options(original))
    assert number in [process.pid for process in asleep.commands.list()], "its memory"


class Installation:
    """A `sandyard up`, as its administrator uses it."""

    def __init__(self, yard: Yard) -> None:
        self.yard = yard
        headers = {"Authorization": f"Bearer {yard.token}"}
        self.client = httpx.Client(base_url=f"{yard.url}/api/v1", headers=headers, timeout=120)

    def run(self, sandbox: str, command: str) -> str:
        done = ok(self.client.post(f"/sandboxes/{sandbox}/execute", json={"command": command}))
        return str(done["stdout"])

    def status(self, sandbox: str) -> str:
        return str(ok(self.client.get(f"/sandboxes/{sandbox}"))["status"])


@pytest.mark.slow
def test_a_copy_of_a_whole_installation() -> None:
    """The platform too: its sessions have sandboxes of the copy, and ending them ends nothing of the original."""
    yard = Yard()
    copied: Yard | None = None
    try:
        original = Installation(yard)
        session = ok(original.client.post("/sessions", json={}), 201)
        sandbox = session["sandboxId"]
        original.run(sandbox, "echo original > work.txt")
        boot = original.run(sandbox, "cat /proc/sys/kernel/random/boot_id")
        copied = Yard.__new__(Yard)
        copied.__dict__.update(
            {**yard.__dict__, "folder": yard.folder.with_name(f"{yard.folder.name}-copy"), "url": ""}
        )
        copied.folder.mkdir()
        copied.data = copied.folder / "data"
        copy_data(yard.data, copied.data, yard.data / "engine" / "store")
        copied.start()
        copy = Installation(copied)
        assert copy.run(sandbox, "cat work.txt") == "original\n"
        assert copy.run(sandbox, "cat /proc/sys/kernel/random/boot_id") != boot, (
            "it was booted anew, from the copied files"
        )
        copy.run(sandbox, "echo copy > work.txt")
        ok(copy.client.delete(f"/sessions/{session['id']}"))
        until(lambda: copy.status(sandbox) == "destroyed")
        copied.stop()
        assert original.status(sandbox) == "running"
        assert original.run(sandbox, "cat work.txt /proc/sys/kernel/random/boot_id") == f"original\n{boot}"
    finally:
        for one in (copied, yard):
            if one is not None:
                one.stop()
