"""The disk under the data directory fills up, and is freed again: nothing breaks, new work is refused with the reason, and all goes on
by itself. The disk is a file system of the test's own."""

from __future__ import annotations

import errno
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from e2b import RateLimitException, Sandbox

from sandyard.engine.drivers.namespace.store import image
from tests.protocol import engine as engines
from tests.protocol.engine import Engine

pytestmark = pytest.mark.skipif(image.find_obstacle() is not None, reason=str(image.find_obstacle()))
DISK = 8 << 30
PATIENCE = 30.0


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Takes no space that is not written to."""
    tmp_path = tmp_path_factory.mktemp("full")
    file, folder = tmp_path / "disk.img", tmp_path / "disk"
    with file.open("wb") as made:
        made.truncate(DISK)
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


def fill(path: Path) -> None:
    """To the last block."""
    with path.open("wb") as file:
        size = DISK
        while size >= 4096:
            try:
                os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), size)
            except OSError as error:
                assert error.errno == errno.ENOSPC
                size //= 2


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def trouble(engine: Engine) -> str | None:
    answer = httpx.get(f"{engine.url}/ready")
    return None if answer.status_code == 204 else f"{answer.status_code} {answer.json()['message']}"


def write(sandbox: Sandbox, name: str) -> None:
    """Through to the disk, and more than fits into what happens to be allocated already."""
    sandbox.commands.run(f"head -c 32M /dev/zero > {name} && sync {name} && rm {name}", timeout=60)
    sandbox.files.write(f"kept-{name}", "kept")


def test_a_store_that_became_read_only_is_put_right_by_a_restart(engine: Engine) -> None:
    """As the kernel does it after an error of the disk. Programs end, files stay."""
    sandbox = Sandbox.create(timeout=600)
    sandbox.files.write("kept", "kept")
    sandbox.commands.run("sync kept")
    subprocess.run(["mount", "-o", "remount,ro", str(engine.data / "store")], check=True)
    assert engine.process
    assert engine.process.wait(PATIENCE) != 0
    assert "read-only" in engine.tail()
    engine.start()  # as a supervisor does
    assert sandbox.files.read("kept") == "kept"
    write(sandbox, "after")
    write(Sandbox.create(timeout=600), "after")


def test_a_full_disk_breaks_nothing_and_all_goes_on_when_it_is_freed(engine: Engine, disk: Path) -> None:
    sandbox, other = Sandbox.create(timeout=600), Sandbox.create(timeout=600)
    write(sandbox, "before")
    assert trouble(engine) is None

    fill(disk / "filler")
    until(lambda: trouble(engine))
    assert "503 " in (trouble(engine) or "")
    assert "disk" in (trouble(engine) or "")
    with pytest.raises(RateLimitException, match="disk"):
        Sandbox.create(timeout=600)
    write(sandbox, "during")  # what was reserved before can be written to
    other.pause()
    other.kill()

    (disk / "filler").unlink()
    until(lambda: trouble(engine) is None)
    write(sandbox, "after")
    write(Sandbox.create(timeout=600), "after")
    assert [sandbox.files.read(f"kept-{name}") for name in ("before", "during", "after")] == ["kept"] * 3


def test_an_engine_that_crashed_starts_on_a_full_disk(engine: Engine, disk: Path) -> None:
    sandbox = Sandbox.create(timeout=600)
    write(sandbox, "before")
    fill(disk / "filler")
    engine.kill()
    engine.start()
    assert "disk" in (trouble(engine) or "")
    write(sandbox, "during")
    (disk / "filler").unlink()
    until(lambda: trouble(engine) is None)
    write(sandbox, "after")
    assert sandbox.files.read("kept-before") == "kept"
