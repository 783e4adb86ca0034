"""Usage by day. Days are in UTC, whatever time zone the database uses."""

from __future__ import annotations

from datetime import UTC, date, datetime

import pytest

from sandyard.kit.ids import ordered_id
from sandyard.platform.db.models import ModelCall
from sandyard.platform.domain.models.ledger import Ledger, calls_of
from tests.unit.platform.world import World

pytestmark = pytest.mark.both_databases


def call(at: datetime, model: str | None, project_id: str | None, micros: int | None = 0) -> ModelCall:
    return ModelCall(
        id=ordered_id("mcl_"),
        project_id=project_id,
        model=model,
        status=200,
        input_tokens=10,
        output_tokens=1,
        cost_micros=micros,
        started_at=at,
        duration_ms=1,
    )


async def test_separates_days_models_and_projects(world: World) -> None:
    owner = (await world.person("owner")).principal
    project = await world.projects.create(owner, "website")
    first, last = datetime(2026, 2, 28, 0, 0, tzinfo=UTC), datetime(2026, 2, 28, 23, 59, 59, 999_000, tzinfo=UTC)
    async with world.database.transaction() as tx:
        for row in (
            call(first, "sonnet", project.id, 1_000_000),
            call(last, "sonnet", project.id, 500_000),
            call(last, "sonnet", None, None),
            call(last, "opus", project.id),
            call(datetime(2026, 3, 1, 0, 0, tzinfo=UTC), None, None),
        ):
            tx.add(row)
    ledger = Ledger(world.database, world.clock)

    days, truncated = await ledger.by_day()
    assert not truncated
    found = {(one.day, one.project_id, one.model): one.spent for one in days}
    assert len(found) == len(days) == 4
    assert days[0].day == date(2026, 3, 1)  # newest first
    both = found[date(2026, 2, 28), project.id, "sonnet"]
    assert (both.calls, both.input_tokens, both.output_tokens, both.cost_usd) == (2, 20, 2, 1.5)
    assert found[date(2026, 2, 28), None, "sonnet"].cost_usd is None

    of_project, _ = await ledger.by_day(*calls_of(project_id=project.id, since=last))
    assert {(one.model, one.spent.calls) for one in of_project} == {("sonnet", 1), ("opus", 1)}
    newest, truncated = await ledger.by_day(limit=1)
    assert ([one.day for one in newest], truncated) == ([date(2026, 3, 1)], True)
