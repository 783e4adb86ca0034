from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sandyard.engine.settings import EngineSettings
from sandyard.engine.store.database import Database
from sandyard.engine.volumes.model import Owner
from sandyard.engine.volumes.service import Volumes
from sandyard.kit.clock import ManualClock
from sandyard.kit.errors import ConflictError, FullError, InvalidInputError, NotFoundError, SandyardError
from tests.unit.engine.volumes.support import Shelf, Users


class Place:
    def __init__(self, path: Path) -> None:
        (path / "volumes").mkdir()
        self.path = path
        self.shelf, self.users, self.clock = Shelf(path / "volumes"), Users(), ManualClock()
        self.database: Database | None = None

    async def start(self, **settings: Any) -> Volumes:
        """Anew, as after a crash."""
        if self.database is not None:
            self.database.close()
        self.database = Database(self.path / "engine.db")
        self.database.open()
        chosen = EngineSettings(data_dir=self.path, disk_reserve_mb=0, **settings)
        volumes = Volumes(self.database, self.shelf, chosen, self.users, clock=self.clock)  # type: ignore[arg-type]
        await volumes.open()
        return volumes

    def rows(self) -> list[tuple[Any, ...]]:
        assert self.database is not None
        return self.database.query("SELECT name, state FROM volumes ORDER BY name")

    async def settle(self) -> None:
        for _ in range(50):
            await asyncio.sleep(0)


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    made = Place(tmp_path)
    yield made
    if made.database is not None:
        made.database.close()


async def test_volumes_outlive_engines(place: Place) -> None:
    volumes = await place.start()
    made = await volumes.create("data")
    await place.clock.advance(1)
    await volumes.create("more")
    await volumes.close()
    volumes = await place.start()
    assert volumes.get(made.id) == made
    assert volumes.find("data") == made
    assert [volume.name for volume in volumes.list()] == ["data", "more"]
    assert volumes.get(made.id).token.reveal() == made.token.reveal()
    await volumes.close()


async def test_names(place: Place) -> None:
    volumes = await place.start(max_volumes=2)
    for name in ("", "a b", "a/b", "a.b", "ä", "x" * 129, "a\n"):
        with pytest.raises(InvalidInputError):
            await volumes.create(name)
    both = await asyncio.gather(volumes.create("same"), volumes.create("same"), return_exceptions=True)
    assert sorted(type(one).__name__ for one in both) == ["InvalidInputError", "Volume"]
    made = await volumes.create("A_b-1")
    with pytest.raises(FullError, match="2 volumes"):
        await volumes.create("third")
    await volumes.delete(made.id)
    await volumes.create("A_b-1")
    await volumes.close()


async def test_a_volume_in_use_stays(place: Place) -> None:
    volumes = await place.start()
    made = await volumes.create("data")
    place.users.running[made.id] = [f"i{number}" for number in range(7)]
    with pytest.raises(ConflictError, match="i0, i1, i2, i3, i4 and 2 more"):
        await volumes.delete(made.id)
    assert volumes.get(made.id) == made
    await volumes.close()


async def test_files_go_when_the_last_user_is_gone(place: Place) -> None:
    volumes = await place.start()
    made = await volumes.create("data")
    place.users.removing[made.id] = ["i1"]
    (mounts,) = volumes.resolve([("data", "/data")])
    with volumes.hold([mounts]):
        await volumes.delete(made.id)
        with pytest.raises(NotFoundError):
            volumes.get(made.id)
        assert volumes.find("data") is None
        place.users.removing.clear()
        await place.clock.advance(5)
        await place.settle()
        assert place.shelf.ids == {made.id}
    await place.clock.advance(5)
    await place.settle()
    assert place.shelf.ids == set()
    assert place.rows() == []
    with pytest.raises(NotFoundError):
        await volumes.delete(made.id)
    await volumes.close()


async def test_a_removal_that_fails_is_tried_again_by_this_engine_and_the_next(place: Place) -> None:
    volumes = await place.start()
    made = await volumes.create("data")
    place.shelf.broken.add("delete")
    await volumes.delete(made.id)
    await place.settle()
    assert place.rows() == [("data", "doomed")]
    again = await volumes.create("data")
    await volumes.close()
    place.shelf.broken.clear()
    volumes = await place.start()
    await place.settle()
    assert place.shelf.ids == {again.id}
    assert place.rows() == [("data", "live")]
    await volumes.close()


async def test_a_crash_while_it_was_being_made(place: Place) -> None:
    volumes = await place.start()
    place.shelf.broken.update(("create", "delete"))
    with pytest.raises(SandyardError, match="broken"):
        await volumes.create("data")
    await place.settle()
    assert place.rows() == [("data", "making")]
    assert len(place.shelf.ids) == 1
    assert volumes.list() == []
    await volumes.close()
    place.shelf.broken.clear()
    (place.shelf.folder / "nobodys").mkdir()
    volumes = await place.start()
    await place.settle()
    assert place.shelf.ids == {"nobodys"}, "what no row names is never removed"
    assert place.rows() == []
    await volumes.create("data")
    await volumes.close()


async def test_content_by_threads(place: Place) -> None:
    volumes = await place.start()
    content = volumes.content(await volumes.create("data"))
    upload = await volumes.begin(content, "file", owner=Owner(), force=False)
    await volumes.run(lambda: upload.write(b"x"))
    await volumes.run(upload.finish)
    assert (await volumes.run(lambda: content.stat("file"))).size == 1
    await volumes.close()
