"""The plain store without a zygote: the test process copies and removes the trees itself."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest_asyncio

from sandyard.engine.drivers.machine.store import trees
from sandyard.engine.drivers.machine.store.plain import PlainStore


@pytest_asyncio.fixture
async def store(tmp_path: Path) -> PlainStore:
    async def run_operation(op: str, fields: dict[str, Any]) -> None:
        paths = [
            f"{tmp_path}/{fields[name].removeprefix('/store/')}"
            for name in ("source", "target", "path")
            if name in fields
        ]
        (trees.copy_tree if op == "copy" else trees.remove_tree)(*paths)

    plain_store = PlainStore(tmp_path, run_operation, "a test")
    await plain_store.open()
    return plain_store


def _upper(store: PlainStore, sandbox: str) -> Path:
    return store.path / "sandboxes" / sandbox / "upper"


async def test_the_files_of_a_running_sandbox_are_copied(store: PlainStore) -> None:
    await store.create("one", 0)
    (_upper(store, "one") / "file").write_text("one")
    await store.copy("one", "two", 0, stopped=False)
    (_upper(store, "one") / "file").write_text("changed")
    assert (_upper(store, "two") / "file").read_text() == "one"
    (layer,) = await store.snapshot("one", "snap", stopped=False)
    assert layer == "snap:snap"
    assert (store.path / "snapshots/snap/upper/file").read_text() == "changed"
    assert store.list_shared_layers("one") == store.list_shared_layers("two") == ()


async def test_the_files_of_a_stopped_sandbox_are_shared_until_unused(store: PlainStore) -> None:
    await store.create("one", 0)
    (_upper(store, "one") / "file").write_text("one")
    inode = (_upper(store, "one") / "file").stat().st_ino
    await store.copy("one", "two", 0, stopped=True)
    assert list(_upper(store, "one").iterdir()) == list(_upper(store, "two").iterdir()) == []
    (shared,) = store.list_shared_layers("one")
    assert store.list_shared_layers("two") == (shared,)
    assert Path(shared, "file").stat().st_ino == inode
    layers = await store.snapshot("two", "snap", stopped=True)
    assert layers[1:] == (f"shared:{Path(shared).parent.name}",)
    await store.remove("one")
    await store.remove("two")
    await store.close(unmount=False)
    assert Path(shared, "file").exists()
    await store.remove_snapshot("snap")
    await store.close(unmount=False)
    assert not Path(shared).exists()
    assert list((store.path / "shared").iterdir()) == list((store.path / "trash").iterdir()) == []


async def test_a_crash_while_sharing_loses_nothing(store: PlainStore) -> None:
    """Worst case: the directory has been moved and its replacement does not exist yet."""
    await store.create("one", 0)
    (_upper(store, "one") / "file").write_text("one")
    await store.snapshot("one", "snap", stopped=True)
    _upper(store, "one").rmdir()
    assert store.has("one")
    await store.sweep({"one"}, set())
    assert _upper(store, "one").is_dir()
    (shared,) = store.list_shared_layers("one")
    assert Path(shared, "file").read_text() == "one"


async def test_unreferenced_sandboxes_and_snapshots_are_swept(store: PlainStore) -> None:
    for name in ("kept", "gone"):
        await store.create(name, 0)
        await store.snapshot(name, f"of-{name}", stopped=False)
    (store.path / "trash/left").mkdir()
    await store.sweep({"kept"}, {"of-gone"})
    await store.close(unmount=False)
    assert store.list_names() == {"kept"}
    assert [path.name for path in (store.path / "snapshots").iterdir()] == ["of-gone"]
    assert list((store.path / "trash").iterdir()) == []


async def test_renewing_a_sandbox_clears_its_work_directory(store: PlainStore) -> None:
    await store.create("one", 0)
    marker = store.path / "sandboxes/one/work/incompat"
    marker.mkdir()
    await store.renew("one", 0)
    assert not marker.exists()
    assert marker.parent.is_dir()


async def test_usage_counts_allocated_blocks(store: PlainStore) -> None:
    await store.create("one", 0)
    (_upper(store, "one") / "file").write_bytes(os.urandom(1 << 20))
    os.sync()
    assert await store.measure_usage("one") >= 1 << 20
    assert await store.measure_usage("nobody") == 0
