"""Cleaning up after preparations while the engine fails for some of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sandyard.kit.errors import UnreachableError
from sandyard.platform.db.models import Preparation, PreparationStatus, Sandbox
from sandyard.platform.domain.preparations import cleanup as module
from sandyard.platform.domain.preparations.cleanup import BUILDER_AGENT_ID, PreparationCleanup
from sandyard.platform.domain.sandboxes.model import utc_now
from sandyard.platform.domain.sandboxes.repository import build_sandbox_row
from tests.unit.platform.world import World


async def test_removes_other_leftovers_if_one_cannot_be_removed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = await world.create_person("ada", "admin")
    project = await world.projects.create(owner.principal, "website")
    orphans = [
        build_sandbox_row(owner.principal.user_id, template="base", idle_seconds=60, agent_id=BUILDER_AGENT_ID)
        for _ in range(2)
    ]
    orphan_ids = sorted(row.id for row in orphans)
    async with world.database.transaction() as tx:
        for row in orphans:
            tx.add(row)
        for name in ("one", "two"):
            preparation = Preparation(
                id=f"prep_{name}",
                project_id=project.id,
                key=name,
                template="base",
                base_branch="main",
                base_commit="0" * 40,
                status=PreparationStatus.FAILED,
                sandbox_id=f"sbx_{name}",
                created_at=utc_now(),
            )
            tx.add(preparation)
    broken, ended = {"sbx_one", orphan_ids[0]}, set[str]()
    changed: dict[str, object] = {}

    async def end(_: Any, sandbox_id: str, keep: str | None) -> None:
        ended.add(sandbox_id)
        if sandbox_id in broken:
            raise UnreachableError

    async def set_fields(sandbox_id: str, **fields: object) -> Sandbox | None:
        changed[sandbox_id] = fields
        return None

    monkeypatch.setattr(module, "end_sandbox", end)
    lifecycle: Any = SimpleNamespace(repository=SimpleNamespace(set_fields=set_fields))
    await PreparationCleanup(world.database, lifecycle).remove_leftovers((), ())
    assert ended == {"sbx_one", "sbx_two", *orphan_ids}
    assert changed == {orphan_ids[1]: {"agent_id": None}}
    async with world.database.reading() as session:
        rows = [await session.get(Preparation, f"prep_{name}") for name in ("one", "two")]
    assert [row.sandbox_id for row in rows if row is not None] == ["sbx_one", None]
