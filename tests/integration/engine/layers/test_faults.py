"""Test faults of the layer store and the engine: no snapshot is lost, and every client gets an error."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from sandyard.engine.layers.service import open_store
from sandyard.engine.layers.store import DirectoryStore, StoredObject, StoreFullError
from sandyard.engine.sandboxes.snapshots import make_snapshot_id
from sandyard.kit.errors import InvalidInputError, NotFoundError, SandyardError, UnreachableError
from tests.integration.engine.layers.harness import SnapshotsHarness, lose, wait_for


class FaultyStore(DirectoryStore):
    """A directory that is slow, full or away on request."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.error: SandyardError | None = None
        self.blobs_stored = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def get_document(self, key: str) -> bytes:
        self._fail(key)
        return await super().get_document(key)

    async def find(self, key: str) -> StoredObject | None:
        self._fail(key)
        return await super().find(key)

    async def put_document(self, key: str, content: bytes) -> None:
        self._fail(key)
        await super().put_document(key, content)

    async def put_file(self, key: str, source: Path) -> None:
        self._fail(key)
        await self.gate.wait()
        await super().put_file(key, source)
        self.blobs_stored += 1

    def _fail(self, key: str) -> None:
        if self.error is not None and (not isinstance(self.error, StoreFullError) or key.startswith("blobs/")):
            raise self.error


@pytest.fixture
def engine(tmp_path: Path, directory: Path) -> SnapshotsHarness:
    return SnapshotsHarness(tmp_path / "engine", directory)


@pytest.fixture(autouse=True)
def retry_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandyard.engine.layers.service._FIRST_RETRY_S", 0.02)
    monkeypatch.setattr("sandyard.engine.layers.service._MAX_RETRY_S", 0.1)


def list_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def make_old(*paths: Path) -> None:
    for path in paths:
        os.utime(path, (0, time.time() - 2 * 86400))


async def test_a_store_that_is_away_loses_nothing(engine: SnapshotsHarness, directory: Path) -> None:
    store = FaultyStore(directory)
    async with engine.running(store=store):
        snapshot = engine.make()
        await engine.wait_until_durable(snapshot)
        assert engine.layers.find_problem() is None
        store.error = UnreachableError("The layer store does not answer.")
        later = engine.make("later")
        await wait_for(lambda: engine.layers.status.problem is not None)
        assert not engine.layers.is_durable(later.id)
        assert "does not answer" in (problem := engine.layers.find_problem() or "") and "published: 1" in problem
        assert engine.layers.is_durable(snapshot.id), "what is known to be there stays durable"
        with pytest.raises(UnreachableError, match="could not be asked for it"):
            await engine.layers.pull_missing("unknown")
        store.error = None
        await engine.wait_until_durable(later)
        await wait_for(lambda: engine.layers.find_problem() is None)
        await engine.layers.pull_missing("unknown")  # says nothing: the caller does


async def test_a_full_store_is_reported_and_tried_again(engine: SnapshotsHarness, directory: Path) -> None:
    store = FaultyStore(directory)
    store.error = StoreFullError("The layer store is full. Free some space in it.")
    spool = engine.path / "layers/snapshots/spool"
    async with engine.running(store=store):
        snapshot = engine.make()
        await wait_for(lambda: snapshot.id in engine.layers.status.failures)
        assert "full" in (engine.layers.find_problem() or "")
        assert list_names(directory / "blobs") == list_names(directory / "snapshots") == []
        await wait_for(lambda: engine.layers.status.failure_count > 2)
        assert len(list_names(spool)) <= 1, "the packed layer is kept, once"
        store.error = None
        await engine.wait_until_durable(snapshot)
    assert list_names(spool) == []


async def test_a_crash_while_publishing_is_continued_by_the_next_engine(
    engine: SnapshotsHarness, directory: Path
) -> None:
    store, spool = FaultyStore(directory), engine.path / "layers/snapshots/spool"
    async with engine.running(publishing=False):
        before = engine.make("from before the layer store")
    store.gate.clear()
    async with engine.running(store=store, crash=True):
        snapshot = engine.make()
        await wait_for(lambda: bool(list_names(spool)))
        assert not engine.layers.is_durable(snapshot.id)
    (spool / "left").write_text("by a killed engine")
    async with engine.running():
        assert "left" not in list_names(spool)
        await engine.wait_until_durable(snapshot, before)
    assert len(list_names(directory / "snapshots")) == 2


async def test_a_deleted_snapshot_leaves_the_store(engine: SnapshotsHarness, directory: Path) -> None:
    store = FaultyStore(directory)
    async with engine.running(store=store):
        first = engine.make(name="app")
        await engine.wait_until_durable(first)
        second = engine.make("second", name="app")  # the name moves on, which deletes the first
        await engine.wait_until_durable(second)
        await wait_for(lambda: list_names(directory / "snapshots") == [f"{second.id}.json"])
        store.gate.clear()
        third = engine.make("deleted while it is published")
        await wait_for(lambda: bool(list_names(engine.path / "layers/snapshots/spool")))
        engine.snapshots.delete(third.id)
        store.gate.set()
        engine.snapshots.delete(second.id)
        await wait_for(lambda: list_names(directory / "snapshots") == [])
        assert not engine.layers.is_durable(second.id)
    fourth = None
    async with engine.running(crash=True):
        fourth = engine.make("deleted while the engine is not running")
        await engine.wait_until_durable(fourth)
    async with engine.running(publishing=False):
        engine.snapshots.delete(fourth.id)
    async with engine.running():
        await wait_for(lambda: list_names(directory / "snapshots") == [])


async def test_only_blobs_that_nothing_needs_are_swept(engine: SnapshotsHarness, directory: Path) -> None:
    blobs = directory / "blobs"
    async with engine.running():
        kept, deleted = engine.make(), engine.make("other")
        await engine.wait_until_durable(kept, deleted)
        engine.snapshots.delete(deleted.id)
        await wait_for(lambda: len(list_names(directory / "snapshots")) == 1)
        assert len(list_names(blobs)) == 2
        assert await engine.layers.sweep() == 0, "they are too young"
        make_old(*blobs.iterdir())
        assert await engine.layers.sweep() == 1
        (left,) = blobs.iterdir()
        manifest = directory / "snapshots" / f"{kept.id}.json"
        assert left.name in manifest.read_text()
        # an old blob that is used again gets a new date, or another engine could sweep it before the manifest is there
        make_old(left)
        again = engine.make()
        await engine.wait_until_durable(again)
        assert list_names(blobs) == [left.name] and left.stat().st_mtime > time.time() - 3600
        # a manifest that can't be read may need any blob
        make_old(left)
        (directory / "snapshots" / f"{again.id}.json").unlink()
        manifest.write_text('{"format": 2}')
        with pytest.raises(SandyardError, match="newer engine"):
            await engine.layers.sweep()
        assert list_names(blobs) == [left.name]


async def test_a_sweep_finds_what_was_lost_in_the_store(engine: SnapshotsHarness, directory: Path) -> None:
    async with engine.running():
        snapshot = engine.make()
        await engine.wait_until_durable(snapshot)
        (blob,) = (directory / "blobs").iterdir()
        manifest = directory / "snapshots" / f"{snapshot.id}.json"
        content = blob.read_bytes()
        for lose_something in (blob.unlink, manifest.unlink, lambda: blob.write_bytes(b"short")):
            lose_something()
            await engine.layers.sweep()
            await engine.wait_until_durable(snapshot)
            assert blob.read_bytes() == content and manifest.exists()


async def test_a_damaged_blob_is_refused(tmp_path: Path, engine: SnapshotsHarness, directory: Path) -> None:
    async with engine.running():
        snapshot = engine.make(os.urandom(3000).hex())
        await engine.wait_until_durable(snapshot)
    (blob,) = (directory / "blobs").iterdir()
    content = blob.read_bytes()
    other = SnapshotsHarness(tmp_path / "other", directory)
    async with other.running():
        for damaged in (content[:-30], content[:90] + bytes(8) + content[98:], None):
            blob.write_bytes(damaged) if damaged is not None else blob.unlink()
            error = NotFoundError if damaged is None else InvalidInputError
            with pytest.raises(
                error, match=rf"{snapshot.id}.*(not complete|does not match|not valid|truncated|damaged)"
            ):
                await other.layers.pull(snapshot.id)
            assert other.snapshots.list_all() == []
            fetched = other.path / "layers/snapshots"
            assert list_names(fetched / "layers") == list_names(fetched / "spool") == []
        blob.write_bytes(content)
        assert len(await other.pull(snapshot)) == 6000
        assert other.layers.is_durable(snapshot.id)


async def test_a_manifest_that_was_tampered_with_is_refused(
    tmp_path: Path, engine: SnapshotsHarness, directory: Path
) -> None:
    async with engine.running():
        snapshot = engine.make()
        await engine.wait_until_durable(snapshot)
    path = directory / "snapshots" / f"{snapshot.id}.json"
    manifest = json.loads(path.read_text())
    changes: list[dict[str, Any]] = [
        {"id": "other"},
        {"id": make_snapshot_id()},
        {"layers": []},
        {"layers": manifest["layers"] * 120},
        {"limits": {"memory_mb": 0, "cpu_count": 1, "pids": 1, "disk_mb": 1}},
        {"isolation": "none"},
        {"name": "../../etc"},
        {"layers": [manifest["layers"][0] | {"digest": "sha256:../../etc/passwd"}]},
        {"format": 99},
    ]
    async with SnapshotsHarness(tmp_path / "other", directory).running() as other:
        for change in changes:
            path.write_text(json.dumps(manifest | change))
            with pytest.raises(InvalidInputError, match=f"manifest of the snapshot {snapshot.id}"):
                await other.layers.pull(snapshot.id)
            (listed,) = await other.layers.list_published()
            assert snapshot.id in str(listed)
        path.write_text("[" * 100_000)
        with pytest.raises(InvalidInputError, match="damaged"):
            await other.layers.pull(snapshot.id)
        for name in ("../secret", "a/b", "", ".", "x" * 300):
            with pytest.raises(NotFoundError):
                await other.layers.pull(name)


async def test_a_directory_that_is_not_mounted_is_not_filled(engine: SnapshotsHarness, directory: Path) -> None:
    async with engine.running():
        snapshot = engine.make()
        await engine.wait_until_durable(snapshot)
    away = directory.rename(directory.with_name("elsewhere"))
    async with engine.running():
        await wait_for(lambda: "does not exist" in (engine.layers.find_problem() or ""))
        directory.mkdir()  # the mount point
        waiting = engine.make("waiting")
        await wait_for(lambda: "probably not mounted" in (engine.layers.find_problem() or ""))
        assert list_names(directory) == []
        directory.rmdir()
        away.rename(directory)
        await engine.wait_until_durable(waiting)
    # a new store, confirmed by an operator, gets everything again
    shutil.rmtree(directory)
    directory.mkdir()
    (directory / "store.json").touch()
    async with engine.running():
        await wait_for(lambda: len(list_names(directory / "snapshots")) == 2)
        await engine.wait_until_durable(snapshot, waiting)


async def test_pulled_snapshots_are_evicted_when_they_are_not_used(
    tmp_path: Path, engine: SnapshotsHarness, directory: Path
) -> None:
    async with engine.running():
        snapshot = engine.make()
        await engine.wait_until_durable(snapshot)
    lose(engine.path)
    other = SnapshotsHarness(tmp_path / "other", directory, layer_keep_s=0)
    fetched = other.path / "layers/snapshots/layers"
    async with other.running():
        assert await other.pull(snapshot) == "kept"
        (layer,) = fetched.iterdir()
        other.used.add(snapshot.id)
        os.utime(layer / "layer.json", (0, 0))
        await other.layers.sweep()
        assert list_names(fetched) == [layer.name], "a sandbox uses it"
        other.used.clear()
        await other.layers.sweep()
        assert other.snapshots.list_all() == []
        await wait_for(lambda: not other.snapshots.uses_layer(f"fetched-snap:layers/{layer.name}"))
        os.utime(layer / "layer.json", (0, 0))
        await other.layers.sweep()
        assert list_names(fetched) == []
        assert list_names(directory / "snapshots") == [f"{snapshot.id}.json"], "it is still published"
        assert await other.pull(snapshot) == "kept"
        other.snapshots.delete(snapshot.id)  # by a client: then it leaves the store
        await wait_for(lambda: list_names(directory / "snapshots") == [])


async def test_records_with_paths_are_published(tmp_path: Path, engine: SnapshotsHarness, directory: Path) -> None:
    async with engine.running():
        snapshot = engine.make(with_path=True)
        await engine.wait_until_durable(snapshot)
    manifest = json.loads((directory / "snapshots" / f"{snapshot.id}.json").read_text())
    assert [(layer["kind"], layer["name"]) for layer in manifest["layers"]] == [
        ("snapshot", f"snapshots/{snapshot.id}")
    ]
    lose(engine.path)
    async with SnapshotsHarness(tmp_path / "other", directory).running() as other:
        assert await other.pull(snapshot) == "kept"
        assert other.snapshots.list_all()[0].layers[0].startswith("fetched-snap:layers/")


async def test_a_pulled_snapshot_needs_no_files_of_another_one(engine: SnapshotsHarness, directory: Path) -> None:
    """The other one may be deleted at any time."""
    async with engine.running():
        lower = engine.make()
        await engine.wait_until_durable(lower)
        manifest = json.loads((directory / "snapshots" / f"{lower.id}.json").read_text())
        upper = manifest | {"id": make_snapshot_id()}  # of another engine, with the same layer
        (directory / "snapshots" / f"{upper['id']}.json").write_text(json.dumps(upper))
        pulled = await engine.layers.pull(upper["id"])
        assert not set(pulled.layers) & set(lower.layers)


async def test_two_engines_share_a_store(tmp_path: Path, directory: Path) -> None:
    engines = [SnapshotsHarness(tmp_path / name, directory) for name in ("one", "two")]
    async with engines[0].running() as one, engines[1].running() as two:
        snapshot = one.make(name="app")
        await one.wait_until_durable(snapshot)
        first, second = await asyncio.gather(two.layers.pull("app"), two.layers.pull(f"{snapshot.id}:default"))
        assert first == second and [record.id for record in two.snapshots.list_all()] == [snapshot.id]
        assert two.layers.is_durable(snapshot.id)
        two.snapshots.delete(snapshot.id)  # the engine that made it publishes it again
        await wait_for(lambda: list_names(directory / "snapshots") == [])
        await one.layers.sweep()
        await wait_for(lambda: list_names(directory / "snapshots") == [f"{snapshot.id}.json"])
        # a name that is taken on this engine stays with its snapshot
        taken = two.make("another", name="app")
        pulled = await two.layers.pull(snapshot.id)
        assert pulled.name is None and two.snapshots.find(taken.id) is not None


def test_locations_are_checked(tmp_path: Path) -> None:
    for location in ("relative/path", "http://somewhere", "s3:/bucket"):
        with pytest.raises(ValueError, match="absolute path of a directory, or s3://"):
            SnapshotsHarness(tmp_path, location)
    with pytest.raises(InvalidInputError, match="s3://bucket"):
        open_store(SnapshotsHarness(tmp_path, "s3://UPPER").settings)
