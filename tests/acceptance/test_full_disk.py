"""Test a full disk under the data directory: sandboxes keep working, new ones are refused with the reason, and the engine recovers by
itself after the disk is freed. The disk is a separate file system of the test."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from e2b import RateLimitException, Sandbox

from sandyard.engine.drivers.machine.store import image
from tests.harness import engine as engines
from tests.harness.engine import Engine
from tests.harness.full_disk import DISK, fill

pytestmark = pytest.mark.skipif(image.find_obstacle() is not None, reason=str(image.find_obstacle()))
TIMEOUT_S = 30.0


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A sparse file system that takes only the space written to it."""
    tmp_path = tmp_path_factory.mktemp("full")
    file, folder = tmp_path / "disk.img", tmp_path / "disk"
    with file.open("wb") as image_file:
        image_file.truncate(DISK)
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", str(file)], check=True)
    folder.mkdir()
    subprocess.run(["mount", "-o", "loop", str(file), str(folder)], check=True)
    yield folder
    (folder / "filler").unlink(missing_ok=True)
    subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture(scope="module")
def engine(disk: Path) -> Iterator[Engine]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engines, "SCRATCH", disk)
        engine = Engine({"POOL_SIZE": "2"})
        for name, value in engine.environment.items():
            patch.setenv(name, value)
        engine.start()
        yield engine
        if engine.process and engine.process.poll() is not None:
            (disk / "filler").unlink(missing_ok=True)
            engine.start()
        assert not engine.stop()


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def get_problem(engine: Engine) -> str | None:
    response = httpx.get(f"{engine.url}/ready")
    return None if response.status_code == 204 else f"{response.status_code} {response.json()['message']}"


def write_and_sync(sandbox: Sandbox, name: str) -> None:
    """Write and sync more data than fits into space that is already allocated."""
    sandbox.commands.run(f"head -c 32M /dev/zero > {name} && sync {name} && rm {name}", timeout=60)
    sandbox.files.write(f"kept-{name}", "kept")


def test_a_restart_repairs_a_store_that_became_read_only(engine: Engine) -> None:
    """The kernel remounts the store read-only after a disk error. Programs end, files are kept."""
    sandbox = Sandbox.create(timeout=600)
    sandbox.files.write("kept", "kept")
    sandbox.commands.run("sync kept")
    subprocess.run(["mount", "-o", "remount,ro", str(engine.data / "store")], check=True)
    assert engine.process
    assert engine.process.wait(TIMEOUT_S) != 0
    assert "read-only" in engine.tail()
    engine.start()  # as a supervisor would
    assert sandbox.files.read("kept") == "kept"
    write_and_sync(sandbox, "after")
    write_and_sync(Sandbox.create(timeout=600), "after")


def test_sandboxes_survive_a_full_disk_and_work_again_after_it_is_freed(engine: Engine, disk: Path) -> None:
    sandbox, other = Sandbox.create(timeout=600), Sandbox.create(timeout=600)
    write_and_sync(sandbox, "before")
    assert get_problem(engine) is None

    fill(disk / "filler")
    until(lambda: get_problem(engine))
    assert "503 " in (get_problem(engine) or "")
    assert "disk" in (get_problem(engine) or "")
    with pytest.raises(RateLimitException, match="disk"):
        Sandbox.create(timeout=600)
    write_and_sync(sandbox, "during")  # space reserved before is still writable
    other.pause()
    other.kill()

    (disk / "filler").unlink()
    until(lambda: get_problem(engine) is None)
    write_and_sync(sandbox, "after")
    write_and_sync(Sandbox.create(timeout=600), "after")
    assert [sandbox.files.read(f"kept-{name}") for name in ("before", "during", "after")] == ["kept"] * 3


def test_a_crashed_engine_starts_on_a_full_disk(engine: Engine, disk: Path) -> None:
    sandbox = Sandbox.create(timeout=600)
    write_and_sync(sandbox, "before")
    fill(disk / "filler")
    engine.kill()
    engine.start()
    assert "disk" in (get_problem(engine) or "")
    write_and_sync(sandbox, "during")
    (disk / "filler").unlink()
    until(lambda: get_problem(engine) is None)
    write_and_sync(sandbox, "after")
    assert sandbox.files.read("kept-before") == "kept"
