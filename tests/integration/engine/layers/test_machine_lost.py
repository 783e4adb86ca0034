"""The machine with all data of an engine is lost: another engine with the same layer store has the snapshots."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandyard.engine.layers.manifest import Manifest
from tests.integration.engine.layers import trees
from tests.integration.engine.layers.harness import EngineHarness, lose

CHANGE = """
set -e
head -c 3000000 /dev/urandom > /var/random; sha256sum /var/random > /var/sum
rm /etc/group; echo own > /etc/hosts
mv /var/data /var/moved; echo more > /var/moved/inner/more
rm -r /home/user; mkdir /home/user; echo new > /home/user/new
ln /var/sum /var/sum2; ln -s sum /var/link
chmod 4755 /bin/cat; touch /var/owned; mkfifo /var/pipe
"""
CHECK = """
set -e
sha256sum -c /var/sum; cat /var/sum /etc/hosts /var/moved/inner/file /var/moved/inner/more; ls -A /home/user /var /etc
stat -c '%n %a %u %g %h' /bin/cat /var/sum2 /var/pipe /var/link; test ! -e /etc/group
"""


@pytest.mark.slow
async def test_a_snapshot_survives_the_loss_of_the_machine(tmp_path: Path, directory: Path, rootfs: Path) -> None:
    first = EngineHarness(tmp_path / "first", directory, rootfs)
    async with first.running() as engine:
        sandbox = await engine.create()
        await engine.run(sandbox, CHANGE)
        expected = await engine.run(sandbox, CHECK)
        lower = await engine.snapshot(sandbox)
        child = await engine.create(lower.id)
        await engine.run(child, "echo second > /var/second; rm /var/owned")
        upper = await engine.snapshot(child, "mine:v2")
        assert not engine.layers.is_durable(upper.id)
        await engine.wait_until_durable(upper)
        tree = trees.describe(engine.find_layers(upper.layers)[1])
        blobs = {path.name for path in (directory / "blobs").iterdir()}
        assert len(blobs) == 3, "the template and both layers, each once"
    lose(tmp_path / "first")
    # another engine has no such template either: its layers come from the store too
    (rootfs.parent / "layer.json").unlink()
    async with EngineHarness(tmp_path / "second", directory, rootfs).running() as engine:
        assert not engine.sandboxes.list_snapshots().items
        published = [candidate for candidate in await engine.layers.list_published() if isinstance(candidate, Manifest)]
        assert [item.ref for item in published] == [f"{lower.id}:default", "mine:v2"]
        restored = await engine.create("mine:v2")
        assert await engine.run(restored, "cat /var/second; test ! -e /var/owned") == "second\n"
        listed = engine.sandboxes.list_snapshots().items
        assert [(item.id, item.ref) for item in listed] == [(upper.id, "mine:v2")]
        assert engine.layers.is_durable(upper.id)
        record = engine.sandboxes.get(restored.id)
        assert [layer.partition(":")[0] for layer in record.layers] == ["fetched-snap", "fetched-snap", "fetched-tpl"]
        fetched = tmp_path / "second/layers"
        assert all(path.is_relative_to(fetched) for path in engine.find_layers(record.layers))
        again = trees.describe(engine.find_layers(record.layers)[1])
        assert {name: again.get(name) for name in tree} == tree
        older = await engine.create(lower.id)
        assert await engine.run(older, CHECK) == expected
        # a snapshot of what was restored needs only its own layer
        await engine.run(older, "echo third > /var/third")
        third = await engine.snapshot(older)
        await engine.wait_until_durable(third)
        assert len(list((directory / "blobs").iterdir())) == len(blobs) + 1
        fork = await engine.create(third.id)
        assert await engine.run(fork, "cat /var/third /etc/hosts") == "third\nown\n"
    async with EngineHarness(tmp_path / "second", directory, rootfs).running() as engine:
        restored = await engine.create("mine:v2")
        assert await engine.run(restored, "cat /var/second /etc/hosts") == "second\nown\n"


async def test_records_with_paths_are_published_too(tmp_path: Path, directory: Path, rootfs: Path) -> None:
    async with EngineHarness(tmp_path / "first", directory, rootfs, with_paths=True).running() as engine:
        sandbox = await engine.create()
        await engine.run(sandbox, "echo kept > /var/kept; echo own > /etc/hosts")
        snapshot = await engine.snapshot(sandbox)
        assert snapshot.layers[-1] == str(rootfs)
        await engine.wait_until_durable(snapshot)
        (manifest,) = await engine.layers.list_published()
        assert isinstance(manifest, Manifest)
        assert [(layer.kind, layer.name) for layer in manifest.layers] == [
            ("snapshot", snapshot.layers[0]),
            ("template", "tiny/1"),
        ]
    lose(tmp_path / "first")
    async with EngineHarness(tmp_path / "second", directory, rootfs).running() as engine:
        restored = await engine.create(snapshot.id)
        assert await engine.run(restored, "cat /var/kept /etc/hosts") == "kept\nown\n"
        layers = engine.sandboxes.get(restored.id).layers
        assert layers[-1] == "tpl:tiny/1", "the template here is the same one, so it was not fetched"


async def test_with_the_fake_driver(tmp_path: Path, directory: Path) -> None:
    async with EngineHarness(tmp_path / "first", directory).running() as engine:
        sandbox = await engine.create()
        (engine.driver.files.get_root(sandbox.id) / "note").write_text("kept")
        snapshot = await engine.snapshot(sandbox)
        await engine.wait_until_durable(snapshot)
    lose(tmp_path / "first")
    async with EngineHarness(tmp_path / "second", directory).running() as engine:
        sandbox = await engine.create(snapshot.id)
        assert (engine.driver.files.get_root(sandbox.id) / "note").read_text() == "kept"
