"""The store on a real btrfs in an image file. Needs root."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from sandyard.engine.drivers.machine import kernel
from sandyard.engine.drivers.machine.store import btrfs, guard, image
from sandyard.engine.drivers.machine.store.cow import CowStore
from sandyard.kit.errors import FullError, SandyardError

pytestmark = pytest.mark.skipif(image.find_obstacle() is not None, reason=str(image.find_obstacle()))


@pytest_asyncio.fixture
async def store(tmp_path: Path) -> AsyncIterator[CowStore]:
    made = await _open(tmp_path)
    yield made
    await made.close(unmount=True)
    # A sandbox that is starting at this moment holds the mount too, until it has left its old root.
    async with asyncio.timeout(30):
        while image.find_loop_device(tmp_path / "store.img") is not None:
            await asyncio.sleep(0.05)


async def _open(folder: Path) -> CowStore:
    (folder / "store").mkdir(exist_ok=True)
    if not (folder / "store.img").exists():
        image.create(folder / "store.img", "sandyard-test")
    image.mount(folder / "store.img", folder / "store")
    store = CowStore(folder / "store", "test", folder / "store.img")
    await store.open()
    return store


def _size(path: Path) -> int:
    stat = os.statvfs(path)
    return stat.f_blocks * stat.f_frsize


def _upper(store: CowStore, sandbox: str) -> Path:
    return store.path / "sandboxes" / sandbox / "upper"


async def test_a_new_image_is_small_and_fully_allocated(store: CowStore) -> None:
    file = store.path.parent / "store.img"
    assert image.MIN_SIZE <= file.stat().st_size <= image.MIN_SIZE + (11 << 30)
    assert not image.count_unreserved_bytes(file)
    assert store.limits == {"disk"}


async def test_an_image_stays_fully_allocated_when_it_grows_and_shrinks(store: CowStore) -> None:
    file = store.path.parent / "store.img"
    await store.create("one", 100)
    (_upper(store, "one") / "file").write_text("kept")
    assert store.space_guard is not None
    await store.space_guard.stop()
    before = file.stat().st_size
    image.grow(file, store.path, 1 << 30)
    assert _size(store.path) == file.stat().st_size == before + (1 << 30)
    assert not image.count_unreserved_bytes(file)
    image.shrink(file, store.path, image.MIN_SIZE)
    assert _size(store.path) == file.stat().st_size == image.MIN_SIZE
    assert not image.count_unreserved_bytes(file)
    assert (_upper(store, "one") / "file").read_text() == "kept"


async def test_the_space_of_deleted_files_stays_allocated(store: CowStore) -> None:
    await store.create("one", 1000)
    (_upper(store, "one") / "big").write_bytes(os.urandom(64 << 20))
    await store.flush()
    await store.remove("one")
    await store.flush()
    subprocess.run(["fstrim", str(store.path)], check=False, capture_output=True)
    assert not image.count_unreserved_bytes(store.path.parent / "store.img")


async def test_an_image_of_an_earlier_version_becomes_fully_allocated(tmp_path: Path) -> None:
    """Those were sparse files as large as the disk."""
    first = await _open(tmp_path)
    await first.create("one", 100)
    (_upper(first, "one") / "file").write_text("kept")
    await first.close(unmount=True)
    os.truncate(tmp_path / "store.img", 20 << 30)
    image.mount(tmp_path / "store.img", tmp_path / "store")
    image.resize_to_file(tmp_path / "store.img", tmp_path / "store")
    assert _size(tmp_path / "store") == 20 << 30
    kernel.unmount(str(tmp_path / "store"))
    second = await _open(tmp_path)
    try:
        assert _size(tmp_path / "store") == (tmp_path / "store.img").stat().st_size < 5 << 30
        assert not image.count_unreserved_bytes(tmp_path / "store.img")
        assert (_upper(second, "one") / "file").read_text() == "kept"
    finally:
        await second.close(unmount=True)


async def test_growth_that_a_crash_interrupted_is_undone_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Data written to space without blocks would be lost, and the btrfs would become read-only."""
    file = tmp_path / "store.img"
    first = await _open(tmp_path)
    await first.close(unmount=True)
    size = file.stat().st_size
    os.truncate(file, size + (512 << 20))
    monkeypatch.setattr(image, "get_reserve", lambda _: 1 << 60)
    second = await _open(tmp_path)
    assert _size(tmp_path / "store") == file.stat().st_size == size
    assert not image.count_unreserved_bytes(file)
    await second.close(unmount=True)


async def test_a_sparse_image_does_not_take_the_reserve_of_the_disk(
    store: CowStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = store.path.parent / "store.img"
    assert store.space_guard is not None
    await store.space_guard.stop()
    before = guard.measure_space(store.path, file).free
    os.truncate(file, file.stat().st_size + (1 << 30))
    image.resize_to_file(file, store.path)
    monkeypatch.setattr(image, "get_reserve", lambda _: 1 << 60)
    with pytest.raises(OSError, match="No space left"):
        image.allocate_all_blocks(file)
    assert image.count_unreserved_bytes(file) > (1 << 30) - (1 << 20), "no blocks may be allocated"
    assert guard.measure_space(store.path, file).free < before + (1 << 20), (
        "space without blocks does not count as free"
    )
    store.space_guard.adjust()


@pytest.mark.slow  # it writes a gigabyte; a full disk is tested in tests/acceptance/test_full_disk.py
async def test_a_store_grows_before_it_is_full(store: CowStore) -> None:
    await store.create("one", 10_000)
    before = _size(store.path)
    with (_upper(store, "one") / "big").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 900 << 20)
    async with asyncio.timeout(20):
        while _size(store.path) <= before:
            await asyncio.sleep(0.1)
    assert not image.count_unreserved_bytes(store.path.parent / "store.img")


async def test_copies_are_independent(store: CowStore) -> None:
    await store.create("one", 100)
    (_upper(store, "one") / "file").write_text("one")
    await store.copy("one", "two", 100, stopped=False)
    assert await store.snapshot("one", "snap", stopped=False) == ("snap:snap",)
    layer = store.path / "snapshots/snap/upper"
    (_upper(store, "one") / "file").write_text("changed")
    assert (_upper(store, "two") / "file").read_text() == "one"
    await store.remove("one")
    assert not store.has("one")
    assert Path(layer, "file").read_text() == "one"
    with pytest.raises(OSError, match="Read-only"):
        Path(layer, "file").write_text("x")
    await store.remove_snapshot("snap")
    await store.remove_snapshot("snap")
    assert not Path(layer).exists()


async def test_creating_a_sandbox_with_a_used_name_fails(store: CowStore) -> None:
    await store.create("one", 100)
    with pytest.raises(SandyardError):
        await store.create("one", 100)


async def test_each_sandbox_has_its_own_limit(store: CowStore) -> None:
    await store.create("small", 8)
    await store.create("large", 100)
    with pytest.raises(OSError) as caught, (_upper(store, "small") / "big").open("wb", buffering=0) as file:
        for _ in range(40):
            file.write(os.urandom(1 << 20))
    assert caught.value.errno == errno.EDQUOT
    (_upper(store, "large") / "big").write_bytes(os.urandom(20 << 20))
    (_upper(store, "small") / "big").unlink()
    await store.flush()
    assert await store.measure_usage("large") >= 20 << 20
    await store.renew("small", 50)
    (_upper(store, "small") / "big").write_bytes(os.urandom(20 << 20))


async def test_all_sandboxes_together_stay_within_the_free_space(store: CowStore) -> None:
    """The limit that follows the machine's free space, set by hand."""
    await store.create("one", 1000)
    group = store.quota_group
    assert group is not None
    assert store.space_guard is not None
    await store.space_guard.stop()  # it would set the limit too
    await store.flush()
    btrfs.set_limit(store.path, group, btrfs.read_usage(store.path, group) + (8 << 20))
    with pytest.raises(OSError) as caught, (_upper(store, "one") / "big").open("wb", buffering=0) as file:
        for _ in range(40):
            file.write(os.urandom(1 << 20))
    assert caught.value.errno == errno.EDQUOT


async def test_a_nearly_full_disk_rejects_new_sandboxes(store: CowStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.check_room()
    monkeypatch.setattr(guard, "measure_room", lambda *_: guard.StoreRoom(100 << 20, "the disk"))
    watch = guard.SpaceGuard(store.path, None, None)
    with pytest.raises(FullError, match="disk"):
        watch.check()


async def test_an_existing_store_is_reused(tmp_path: Path) -> None:
    """After a clean exit, after a kill (still mounted), and when something else holds it (unmounted, but the file is
    still attached): it is the same store, and attached only once."""
    first = await _open(tmp_path)
    await first.create("one", 100)
    (_upper(first, "one") / "file").write_text("kept")
    await first.close(unmount=True)
    assert not (tmp_path / "store").is_mount()
    second = await _open(tmp_path)
    assert (_upper(second, "one") / "file").read_text() == "kept"
    await second.close(unmount=False)
    third = await _open(tmp_path)
    await third.close(unmount=False)
    device = image.find_loop_device(tmp_path / "store.img")
    held = os.open(tmp_path / "store/sandboxes", os.O_RDONLY)
    try:
        kernel.unmount(str(tmp_path / "store"), kernel.MNT_DETACH)
        fourth = await _open(tmp_path)
        assert image.find_loop_device(tmp_path / "store.img") == device
        assert (_upper(fourth, "one") / "file").read_text() == "kept"
    finally:
        os.close(held)
    await fourth.sweep((), ())
    await fourth.close(unmount=True)
    for _ in range(100):
        if image.find_loop_device(tmp_path / "store.img") is None:
            break
        await asyncio.sleep(0.05)
    assert image.find_loop_device(tmp_path / "store.img") is None


async def test_a_broken_image_is_not_modified(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store.img").write_bytes(b"not a file system" * 1000)
    with pytest.raises(image.ImageError, match="could not mount"):
        image.mount(tmp_path / "store.img", tmp_path / "store")
    assert (tmp_path / "store.img").read_bytes().startswith(b"not a file system")


async def test_quota_groups_of_deleted_subvolumes_are_dropped(store: CowStore) -> None:
    await store.create("one", 100)
    group = btrfs.get_subvolume_id(store.path / "sandboxes/one")
    await store.remove("one")
    btrfs.drop_stale_groups(store.path)
    assert btrfs.get_quota_kind(store.path) in {"simple", "full"}
    assert group >= 256
