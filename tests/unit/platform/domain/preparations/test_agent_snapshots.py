"""Cleaning up agent snapshots while others create and use them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sandyard.kit.errors import UnreachableError
from sandyard.platform.db.database import Database
from sandyard.platform.db.models import AgentSnapshot
from sandyard.platform.domain.preparations import agent_snapshots as module
from sandyard.platform.domain.preparations.agent_snapshots import AgentSnapshots
from sandyard.platform.domain.sandboxes.model import utc_now
from sandyard.platform.settings import PlatformSettings

WEEK = timedelta(days=7)


class Engine:
    """Sandboxes that end, and snapshots that are deleted. `meanwhile` runs while that sandbox ends."""

    def __init__(self) -> None:
        self.ended: list[tuple[str, str | None]] = []
        self.deleted: list[str] = []
        self.broken: set[str] = set()
        self.meanwhile: dict[str, Callable[[], Any]] = {}
        self.engine = self

    async def end(self, _: Any, sandbox_id: str, keep: str | None) -> None:
        if sandbox_id in self.meanwhile:
            await self.meanwhile[sandbox_id]()
        self.ended.append((sandbox_id, keep))

    async def delete_snapshot(self, snapshot: str) -> None:
        if snapshot in self.broken:
            raise UnreachableError
        self.deleted.append(snapshot)


class SnapshotsHarness:
    def __init__(self, database: Database, folder: Path, engine: Engine) -> None:
        self.database, self.engine = database, engine
        lifecycle: Any = SimpleNamespace(engine=engine)
        settings = PlatformSettings.load({}, data_dir=folder)
        self.snapshots = AgentSnapshots(database, lifecycle, settings, cast(Any, None))

    async def add(self, name: str, *, days: int = 0, **fields: Any) -> None:
        now = utc_now() - timedelta(days=days)
        row = AgentSnapshot(id=name, key=name, agent=name, template="base", created_at=now, used_at=now, **fields)
        async with self.database.transaction() as tx:
            tx.add(row)

    async def change(self, name: str, **fields: Any) -> None:
        await self.snapshots.update_row(name, used_at=utc_now(), **fields)

    async def row(self, name: str) -> AgentSnapshot | None:
        async with self.database.reading() as session:
            return await session.get(AgentSnapshot, name)


@pytest.fixture
def harness(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SnapshotsHarness:
    engine = Engine()
    monkeypatch.setattr(module, "end_sandbox", engine.end)
    return SnapshotsHarness(database, tmp_path, engine)


async def test_keeps_snapshot_created_meanwhile(harness: SnapshotsHarness) -> None:
    await harness.add("made", sandbox_id="sbx_made")
    await harness.add("left", sandbox_id="sbx_left")  # the newest comes first and takes a while
    harness.engine.meanwhile["sbx_left"] = lambda: harness.change("made", snapshot="snap")
    await harness.snapshots.tidy(WEEK)
    assert harness.engine.ended == [("sbx_left", None), ("sbx_made", "snap")]
    row = await harness.row("made")
    assert row is not None
    assert (row.snapshot, row.sandbox_id, harness.engine.deleted) == ("snap", None, [])
    assert await harness.row("left") is None


async def test_keeps_sandbox_of_new_attempt(harness: SnapshotsHarness) -> None:
    """The previous sandbox ends late."""
    await harness.add("one", sandbox_id="sbx_old")
    harness.engine.meanwhile["sbx_old"] = lambda: harness.change("one", sandbox_id="sbx_new")
    await harness.snapshots.tidy(WEEK)
    row = await harness.row("one")
    assert row is not None
    assert row.sandbox_id == "sbx_new"


async def test_keeps_snapshot_used_meanwhile(harness: SnapshotsHarness) -> None:
    await harness.add("old", days=30, snapshot="snap-old")
    await harness.add("older", days=31, snapshot="snap-older")
    await harness.add("left", sandbox_id="sbx_left")
    harness.engine.meanwhile["sbx_left"] = lambda: harness.change("old")
    await harness.snapshots.tidy(WEEK)
    assert harness.engine.deleted == ["snap-older"]
    assert await harness.row("old") is not None
    assert await harness.row("older") is None


async def test_removes_others_if_one_snapshot_cannot_be_deleted(harness: SnapshotsHarness) -> None:
    await harness.add("old", days=30, snapshot="snap-old")
    await harness.add("older", days=31, snapshot="snap-older")
    harness.engine.broken = {"snap-old"}
    await harness.snapshots.tidy(WEEK)
    assert harness.engine.deleted == ["snap-older"]
    assert await harness.row("old") is not None
    assert await harness.row("older") is None
