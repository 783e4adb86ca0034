"""Layers and volumes on several hosts: each host has what its sandboxes need, and fetches it once."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from sandyard.engine.contract import FileOwner, Handle, Layers, Mount
from sandyard.engine.drivers.cluster import driver as driver_module
from sandyard.engine.drivers.cluster.driver import ClusterDriver
from sandyard.engine.drivers.cluster.link import HostLink
from sandyard.engine.drivers.cluster.transfers import LayerTransfers
from sandyard.engine.drivers.layer_names import REMOTE, SNAPSHOT, LayerLocation, find_layers, make_copy_name
from sandyard.engine.layers.copies import LayerFolderCopies
from sandyard.engine.layers.publisher import PackLimits
from sandyard.kit.errors import BusyError, ConflictError, InvalidInputError, NotFoundError, UnreachableError
from tests.conformance.guest_agent import GuestAgent
from tests.harness.cluster import Directory
from tests.integration.engine.drivers.cluster.conftest import Cluster, get_states, wait_until

OWNER = FileOwner(os.getuid(), os.getgid())


async def make_snapshot(driver: ClusterDriver, cluster: Cluster, directory: Directory) -> tuple[Handle, Layers]:
    """Take a snapshot, and let no host that has it get new sandboxes."""
    handle = await driver.create(cluster.spec())
    await GuestAgent(driver, handle).run("mkdir deep; echo kept > deep/file; ln -s file deep/link; chmod 640 deep/file")
    layers = await driver.snapshot(handle, f"of-{handle.id}")
    host = cluster.get_host(handle)
    directory.set([replace(record, draining=record.id == host.id) for record in directory.hosts])
    return handle, layers


def count_copies(cluster: Cluster, handle: Handle) -> int:
    log = cluster.get_host(handle).settings.log.read_text()
    return log.count("layer_copied")


async def test_a_snapshot_of_one_host_is_used_on_another_and_fetched_once(cluster: Cluster) -> None:
    directory = cluster.make_directory()
    driver = await cluster.open(directory)
    original, layers = await make_snapshot(driver, cluster, directory)
    before = {host.id: host.settings.log.read_text().count("layer_copied") for host in cluster.hosts}
    handles = await asyncio.gather(*(driver.create(cluster.spec(layers)) for _ in range(4)))
    for handle in handles:
        assert handle.data["host"] != original.data["host"]
        listing = await GuestAgent(driver, handle).run("cat deep/link; stat -c %a deep/file")
        assert listing.out == "kept\n640\n"
    assert count_copies(cluster, handles[0]) == before[cluster.get_host(handles[0]).id] + 1
    again = await driver.snapshot(handles[0], "again")
    assert not any(layer.startswith("remote:") for layer in again)


async def test_a_deleted_snapshot_leaves_no_copy_on_any_host(cluster: Cluster) -> None:
    directory = cluster.make_directory()
    driver = await cluster.open(directory)
    original, layers = await make_snapshot(driver, cluster, directory)
    copy = await driver.create(cluster.spec(layers))
    await driver.fetch_layers(layers)
    (path,) = driver.find_layers(layers)
    assert (Path(path) / "deep/file").read_text() == "kept\n"
    folders = [host.settings.folder / "host/layers/hosts/snap" for host in cluster.hosts]
    assert sum(len(list(folder.glob("*"))) for folder in folders) == 1
    for handle in (original, copy):
        await driver.kill(handle)
    snapshot = layers[0].partition(":")[2]
    for _ in range(2):
        await driver.delete_snapshot(snapshot)
    await wait_until(lambda: sum(len(list(folder.glob("*"))) for folder in folders) == 0)
    assert not Path(path).exists()
    with pytest.raises(NotFoundError, match="on no host"):
        await driver.create(cluster.spec(layers))


async def test_a_layer_whose_host_is_away_is_not_reported_as_missing(cluster: Cluster) -> None:
    directory = cluster.make_directory()
    driver = await cluster.open(directory)
    original, layers = await make_snapshot(driver, cluster, directory)
    host = cluster.get_host(original)
    host.kill()
    await wait_until(lambda: get_states(driver)[host.id].value == "unreachable")
    with pytest.raises(UnreachableError, match=host.id):
        await driver.create(cluster.spec(layers))


async def test_only_one_host_gets_a_copy_unless_that_takes_too_long(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    targets: list[str] = []

    async def hang(transfers: LayerTransfers, layer: str, target: HostLink) -> None:
        targets.append(target.record.id)
        await asyncio.Event().wait()

    monkeypatch.setattr(LayerTransfers, "_copy", hang)
    monkeypatch.setattr(driver_module, "TRANSFER_WAIT_S", 0.05)
    driver = await cluster.open()
    for _ in range(2):
        with pytest.raises(BusyError, match="still being copied to the host"):
            await driver.create(cluster.spec(("snap:large",)))
    assert len(targets) == 1
    monkeypatch.setattr(driver_module, "SLOW_TRANSFER_S", 0.0)
    with pytest.raises(BusyError):
        await driver.create(cluster.spec(("snap:large",)))
    assert len(set(targets)) == 2


def test_files_of_a_layer_are_not_taken_for_records_of_copies(tmp_path: Path) -> None:
    """They are written by programs in sandboxes."""
    folder = tmp_path / "layers/hosts"
    locations = {REMOTE: LayerLocation(folder, "fs")}

    def write(path: Path, layer: str) -> None:
        path.mkdir(parents=True)
        (path / "layer.json").write_text(json.dumps({"layer": layer}))

    write(folder / "snap/s1", "snap:s1")
    write(folder / "tpl/base/1", "tpl:base/1")
    write(folder / "snap/s1/fs/home", "tpl:base/2")
    write(folder / "snap/s2", "tpl:base/3")
    os.mkfifo(folder / "snap/s1/fs/layer.json")  # whoever reads it waits forever
    limits = PackLimits(1 << 30, 1000, 0)
    copies = LayerFolderCopies(tmp_path, limits, lambda layers: find_layers(layers, locations), rootless=False)
    copies.prepare()
    assert set(copies.names) == {"snap:s1", "tpl:base/1"}


async def test_a_damaged_layer_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "source/snap"
    (source / "s1").mkdir(parents=True)
    (source / "s1/file").write_text("content")

    def find(layers: Layers) -> Layers:
        return tuple(str(tmp_path / "source" / layer.replace(":", "/")) for layer in layers)

    def find_copy(layers: Layers) -> Layers:
        return tuple(str(tmp_path / "target/copies" / layer.replace(":", "/") / "fs") for layer in layers)

    limits = PackLimits(1 << 30, 1000, 0)
    origin = LayerFolderCopies(tmp_path / "origin", limits, find, rootless=os.geteuid() != 0)
    target = LayerFolderCopies(tmp_path / "target", limits, find_copy, rootless=os.geteuid() != 0)
    for item in (origin, target):
        item.prepare()
    package = await origin.pack("snap:s1")

    async def damage() -> AsyncIterator[bytes]:
        async with origin.open("snap:s1") as chunks:
            async for chunk in chunks:
                yield chunk[:-1] + bytes([chunk[-1] ^ 1])

    with pytest.raises(InvalidInputError, match="damaged"):
        await target.add("snap:s1", package, damage())
    async with origin.open("snap:s1") as chunks:
        with pytest.raises(InvalidInputError, match="digest differs"):
            await target.add("snap:s1", replace(package, diff_id="sha256:" + "0" * 64), chunks)
    assert not target.has("snap:s1")
    async with origin.open("snap:s1") as chunks:
        await target.add("snap:s1", package, chunks)
    assert target.has("snap:s1")
    assert target.resolve(("snap:s1", "snap:s2")) == (make_copy_name(f"{SNAPSHOT}:s1"), "snap:s2")


async def test_volumes_are_on_one_host_and_sandboxes_follow_them(cluster: Cluster) -> None:
    driver = await cluster.open()
    await driver.create_volume("one", 100)
    files = driver.get_volume_files("one")
    entry = await files.write("folder/file", _iterate(b"x" * 3_000_000, b"end"), OWNER, force=True)
    assert entry.size == 3_000_003
    handles = [await driver.create(cluster.spec(mounts=(Mount("one", "/data"),))) for _ in range(3)]
    assert len({handle.data["host"] for handle in handles}) == 1
    assert (await GuestAgent(driver, handles[0]).run("wc -c < data/folder/file")).out == "3000003\n"
    assert [item.path for item in await files.list("/", 2)] == ["/folder", "/folder/file"]
    reader = await files.open("folder/file")
    content = b""
    while chunk := await reader.read(100_000):
        content += chunk
    await reader.close()
    assert content == b"x" * 3_000_000 + b"end"
    with pytest.raises(NotFoundError):
        await files.open("folder/nothing")
    with pytest.raises(ConflictError):
        await files.write("folder/file", _iterate(b"again"), OWNER, force=False)
    newer = cluster.make_driver()
    await newer.open(handles, ())
    assert (await newer.get_volume_files("one").stat("folder/file")).size == 3_000_003
    for handle in handles:
        await newer.kill(handle)
    for _ in range(2):
        await newer.delete_volume("one")
    with pytest.raises(NotFoundError):
        await newer.get_volume_files("one").stat("/")
    with pytest.raises(NotFoundError, match="one"):
        await newer.create(cluster.spec(mounts=(Mount("one", "/data"),)))


async def _iterate(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk
