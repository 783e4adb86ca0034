"""Usage by day. Days are in UTC, whatever time zone the database uses."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import pytest
from sqlalchemy import select

from sandyard.kit.clock import get_time
from sandyard.kit.ids import make_ordered_id
from sandyard.platform.db.models import ModelCall, ModelProvider, Session
from sandyard.platform.domain.models import ledger as ledgers
from sandyard.platform.domain.models.ledger import OTHER_MODELS, Ledger, select_calls
from tests.unit.platform.world import World

pytestmark = pytest.mark.both_databases


def call(at: datetime, model: str | None, project_id: str | None, micros: int | None = 0) -> ModelCall:
    return ModelCall(
        id=make_ordered_id("mcl_"),
        project_id=project_id,
        model=model,
        status=200,
        input_tokens=10,
        output_tokens=1,
        cost_micros=micros,
        started_at=at,
        duration_ms=1,
    )


async def test_costs_of_unfinished_requests_are_estimates(world: World) -> None:
    now = get_time(world.clock)
    rows = [call(now, "sonnet", None, micros) for micros in (1_000_000, 500_000, None, 0)]
    for row in rows[1:]:
        row.error = "The agent disconnected before the response was complete."
    async with world.database.transaction() as tx:
        tx.add(*rows)
    spent = await Ledger(world.database, world.clock).get_totals()
    assert (spent.cost_usd, spent.unpriced, spent.estimated) == (1.5, 1, 1)


async def test_separates_days_models_and_projects(world: World) -> None:
    owner = (await world.create_person("owner")).principal
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

    days, truncated = await ledger.list_by_day()
    assert not truncated
    found = {(day.day, day.project_id, day.model): day.spent for day in days}
    assert len(found) == len(days) == 4
    assert days[0].day == date(2026, 3, 1)  # newest first
    both = found[date(2026, 2, 28), project.id, "sonnet"]
    assert (both.calls, both.input_tokens, both.output_tokens, both.cost_usd) == (2, 20, 2, 1.5)
    assert found[date(2026, 2, 28), None, "sonnet"].cost_usd is None

    of_project, _ = await ledger.list_by_day(*select_calls(project_id=project.id, since=last))
    assert {(item.model, item.spent.calls) for item in of_project} == {("sonnet", 1), ("opus", 1)}
    newest, truncated = await ledger.list_by_day(limit=1)
    assert ([item.day for item in newest], truncated) == ([date(2026, 3, 1)], True)


async def test_adds_up_rows_with_huge_numbers(world: World) -> None:
    """Of a provider that reported them to an earlier version."""
    most, now = (1 << 63) - 1, datetime(2026, 3, 1, tzinfo=UTC)
    async with world.database.transaction() as tx:
        for _ in range(3):
            row = call(now, "huge", None, most)
            row.input_tokens = row.output_tokens = row.cache_read_tokens = row.cache_write_tokens = most
            tx.add(row)
        tx.add(call(now, "small", None, 5))
    ledger = Ledger(world.database, world.clock)
    assert (await ledger.get_totals()).calls == 4
    models = await ledger.list_by_model()
    assert [model for model, _ in models] == ["huge", "small"]
    assert models[0][1].tokens >= 6 * most and (models[0][1].cost_usd or 0) > 2e13
    assert (models[1][1].tokens, models[1][1].cost_usd) == (11, 0.000005)
    days, _ = await ledger.list_by_day()
    assert [day.spent for day in days] == [spent for _, spent in models]


async def test_bounds_model_names_of_a_day(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledgers, "MODELS_PER_DAY", 3)
    owner, other = (await world.create_person("owner")).principal, (await world.create_person("other")).principal
    project, now = await world.projects.create(owner, "website"), get_time(world.clock)
    rows = {"title": "s", "template": "base", "created_at": now, "updated_at": now}
    provider = {"name": "p", "kind": "openai", "base_url": "https://models.example", "hint": ""}
    inside = Session(id="ses_1", owner_id=owner.user_id, project_id=project.id, **rows)
    outside = [Session(id=f"ses_{who.user_id}", owner_id=who.user_id, **rows) for who in (owner, other)]
    async with world.database.transaction() as tx:
        tx.add(ModelProvider(id="prv_1", created_at=now, updated_at=now, **provider), inside, *outside)

    async def record(ledger: Ledger, session: Session, name: str | None, **options: Any) -> str | None:
        call_id = await ledger.open("prv_1", session, None, name, **options)
        async with world.database.reading() as reading:
            return await reading.scalar(select(ModelCall.model).where(ModelCall.id == call_id))

    for session in (inside, *outside):
        ledger = Ledger(world.database, world.clock)
        assert [await record(ledger, session, name) for name in "aba"] == ["a", "b", "a"]
        ledger = Ledger(world.database, world.clock)  # as after a restart
        assert [await record(ledger, session, name) for name in "cdea"] == ["c", OTHER_MODELS, OTHER_MODELS, "a"]
        assert await record(ledger, session, "listed", configured=True) == "listed"
        assert await record(ledger, session, None) is None
    await world.clock.advance(86400)
    assert await record(ledger, inside, "e") == "e"
