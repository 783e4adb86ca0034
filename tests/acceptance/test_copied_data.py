"""Test an engine on a copy of the data directory of a running engine: neither instance affects the other."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from e2b import Sandbox

from tests.harness.engine import Engine
from tests.harness.platform import ok, until
from tests.harness.up import Installation
from tests.protocol.fake_internet import API, FakeInternet

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root to create a network namespace"),
]
FETCH = f"curl -s -o /dev/null -w '%{{http_code}}' --max-time 20 http://{API}/"


@pytest.fixture(scope="module")
def internet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeInternet]:
    created = FakeInternet(tmp_path_factory.mktemp("internet"))
    yield created
    created.close()


@pytest.fixture(scope="module")
def original(internet: FakeInternet) -> Iterator[Engine]:
    engine = Engine({**internet.settings, "POOL_SIZE": "1"})
    engine.start()
    yield engine
    left = engine.stop()
    assert not left, f"the engine left behind: {left}"


@pytest.fixture
def copy(original: Engine) -> Iterator[Engine]:
    """A second engine, not started, before the data is copied."""
    engine = Engine(dict(original.settings), key=original.key)
    yield engine
    engine.stop()


def options(engine: Engine) -> dict[str, str]:
    return {"api_url": engine.url, "sandbox_url": engine.url, "api_key": engine.key}


def copy_data(original: Path, copy: Path, store: Path) -> None:
    """Copy the data directory as an administrator does, with the store frozen."""
    mounted = store.is_mount()
    if mounted:
        subprocess.run(["fsfreeze", "--freeze", store], check=True)
    try:
        flags = ["--archive", "--one-file-system", "--sparse=always", "--reflink=auto"]
        subprocess.run(["cp", *flags, original, copy], check=True)
    finally:
        if mounted:
            subprocess.run(["fsfreeze", "--unfreeze", store], check=True)


class WatchedSandbox:
    """A sandbox of the original engine that must not be affected."""

    def __init__(self, engine: Engine, internet: FakeInternet) -> None:
        self.engine, self.internet = engine, internet
        self.sandbox = Sandbox.create(network={"allow_out": [internet.address]}, timeout=600, **options(engine))
        self.sandbox.files.write("work.txt", "original")
        self.command_pid = self.sandbox.commands.run("sleep 1000", background=True, timeout=0).pid
        self.first_pid = engine.first_process(self.sandbox.sandbox_id)
        self.check()

    def check(self) -> None:
        requests_before = len(self.internet.seen)
        assert self.sandbox.commands.run(FETCH).stdout == "200", "name resolution and egress must work"
        assert len(self.internet.seen) == requests_before + 1
        assert self.command_pid in [process.pid for process in self.sandbox.commands.list()], (
            "processes must keep running"
        )
        assert self.engine.first_process(self.sandbox.sandbox_id) == self.first_pid
        assert self.sandbox.files.read("work.txt") == "original"
        new = Sandbox.create(network={"allow_out": [self.internet.address]}, **options(self.engine))
        assert new.commands.run(FETCH).stdout == "200", "new sandboxes must have a network"
        new.kill()


@pytest.mark.slow
@pytest.mark.parametrize("end", ["kill", "stop"])
def test_a_copied_data_directory_is_a_separate_instance(
    original: Engine, copy: Engine, internet: FakeInternet, end: str
) -> None:
    watched = WatchedSandbox(original, internet)
    paused = Sandbox.create(timeout=600, **options(original))
    paused.files.write("work.txt", "asleep")
    paused_pid = paused.commands.run("sleep 1000", background=True, timeout=0).pid
    paused.pause()
    copy_data(original.data, copy.data, original.data / "store")
    copy.start()
    watched.check()

    copied_sandbox = Sandbox.connect(watched.sandbox.sandbox_id, **options(copy))
    assert copied_sandbox.files.read("work.txt") == "original", "the copy must boot from the copied files"
    assert copied_sandbox.commands.run(FETCH).stdout == "200"
    assert watched.command_pid not in [process.pid for process in copied_sandbox.commands.list()]
    copied_sandbox.files.write("work.txt", "copy")
    assert copy.first_process(copied_sandbox.sandbox_id) != watched.first_pid
    watched.check()

    if end == "kill":  # and start the copy a second time
        copy.kill()
        copy.start()
        assert Sandbox.connect(copied_sandbox.sandbox_id, **options(copy)).files.read("work.txt") == "copy"
        watched.check()
    left = copy.stop()  # kills all sandboxes of the copy
    assert not left, f"the copy left behind: {left}"
    watched.check()
    paused = Sandbox.connect(paused.sandbox_id, **options(original))
    assert paused_pid in [process.pid for process in paused.commands.list()], "the paused sandbox must keep its memory"


class AdminClient:
    """An API client of an installation's administrator."""

    def __init__(self, installation: Installation) -> None:
        headers = {"Authorization": f"Bearer {installation.token}"}
        self.client = httpx.Client(base_url=f"{installation.url}/api/v1", headers=headers, timeout=120)

    def run(self, sandbox: str, command: str) -> str:
        result = ok(self.client.post(f"/sandboxes/{sandbox}/execute", json={"command": command}))
        return str(result["stdout"])

    def status(self, sandbox: str) -> str:
        return str(ok(self.client.get(f"/sandboxes/{sandbox}"))["status"])


@pytest.mark.slow
def test_a_copied_installation_does_not_affect_the_original() -> None:
    """Copies the platform too: deleting a session in the copy does not affect the original sandbox."""
    installation = Installation()
    copied: Installation | None = None
    try:
        original = AdminClient(installation)
        session = ok(original.client.post("/sessions", json={}), 201)
        sandbox = session["sandboxId"]
        original.run(sandbox, "echo original > work.txt")
        boot = original.run(sandbox, "cat /proc/sys/kernel/random/boot_id")
        copied = Installation.__new__(Installation)
        copied.__dict__.update(
            {
                **installation.__dict__,
                "folder": installation.folder.with_name(f"{installation.folder.name}-copy"),
                "url": "",
            }
        )
        copied.folder.mkdir()
        copied.data = copied.folder / "data"
        copy_data(installation.data, copied.data, installation.data / "engine" / "store")
        copied.start()
        copy = AdminClient(copied)
        assert copy.run(sandbox, "cat work.txt") == "original\n"
        assert copy.run(sandbox, "cat /proc/sys/kernel/random/boot_id") != boot, (
            "the copy must boot from the copied files"
        )
        copy.run(sandbox, "echo copy > work.txt")
        ok(copy.client.delete(f"/sessions/{session['id']}"))
        until(lambda: copy.status(sandbox) == "destroyed")
        copied.stop()
        assert original.status(sandbox) == "running"
        assert original.run(sandbox, "cat work.txt /proc/sys/kernel/random/boot_id") == f"original\n{boot}"
    finally:
        for item in (copied, installation):
            if item is not None:
                item.stop()
