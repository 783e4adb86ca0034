"""Budgets of tasks and projects: which limit applies, when a month ends, and the messages."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from sandyard.kit.clock import get_time
from sandyard.kit.ids import make_ordered_id
from sandyard.platform.db.models import ModelCall, Session, Task
from sandyard.platform.domain.models.budgets import Budgets
from sandyard.platform.domain.models.ledger import Ledger
from sandyard.platform.domain.models.model import OverBudgetError, PriceMissingError
from sandyard.platform.domain.projects.model import ProjectSettings
from tests.unit.platform.world import World


class BudgetHarness:
    def __init__(self, world: World, session: Session) -> None:
        self.world, self.session = world, session
        self.ledger = Ledger(world.database, world.clock)
        self.budgets = Budgets(world.database, self.ledger, world.clock)

    async def spend(self, tokens: int, micros: int | None = None) -> None:
        async with self.world.database.transaction() as tx:
            tx.add(
                ModelCall(
                    id=make_ordered_id("mcl_"),
                    owner_id=self.session.owner_id,
                    project_id=self.session.project_id,
                    task_id=self.session.task_id,
                    session_id=self.session.id,
                    status=200,
                    input_tokens=tokens,
                    output_tokens=0,
                    cost_micros=micros,
                    started_at=get_time(self.world.clock),
                    duration_ms=1,
                )
            )


async def harness(world: World, settings: dict[str, Any], budget: dict[str, Any] | None) -> BudgetHarness:
    owner, now = (await world.create_person("owner")).principal, get_time(world.clock)
    project = await world.projects.create(owner, "p", settings=ProjectSettings.model_validate({"tasks": settings}))
    card = {"description": "", "status": "in_progress", "position": 0, "priority": 0}
    task = Task(
        id="tsk_1", project_id=project.id, title="t", budget=budget or {}, created_at=now, updated_at=now, **card
    )
    mine = {"owner_id": owner.user_id, "project_id": project.id, "task_id": task.id if budget is not None else None}
    session = Session(id="ses_1", title="s", template="base", created_at=now, updated_at=now, **mine)
    async with world.database.transaction() as tx:
        tx.add(task)
        await tx.session.flush()
        tx.add(session)
    return BudgetHarness(world, session)


async def test_budget_of_task_overrides_project(world: World) -> None:
    own = await harness(world, {"budget": {"tokens": 5}}, {"tokens": 100})
    await own.spend(99)
    await own.budgets.check(own.session)
    await own.spend(1)
    with pytest.raises(OverBudgetError, match="The task has used up its budget of 100 tokens for models: 100 used"):
        await own.budgets.check(own.session)
    assert await own.budgets.explain_exceeded(own.session) is None  # exactly at the limit is allowed
    await own.spend(1)
    assert ": 101 used" in (await own.budgets.explain_exceeded(own.session) or "")


async def test_task_without_budget_uses_project(world: World) -> None:
    usual = await harness(world, {"budget": {"usd": 0.5}}, {})
    with pytest.raises(PriceMissingError, match="the price of the model secret-model is unknown"):
        await usual.budgets.check_price(usual.session, "secret-model", "claude")
    await usual.spend(10**9, None)
    await usual.budgets.check(usual.session)
    await usual.spend(1, 500_000)
    with pytest.raises(OverBudgetError, match=r"0\.50 US dollars for models: 0\.50 spent"):
        await usual.budgets.check(usual.session)


@pytest.mark.both_databases
async def test_huge_numbers_exceed_every_budget(world: World) -> None:
    """Of a provider that reported them to an earlier version."""
    most = {"usd": 1_000_000, "tokens": 10**13}
    huge = await harness(world, {"monthlyBudget": most}, most)
    for _ in range(3):
        await huge.spend((1 << 63) - 1, (1 << 63) - 1)
    with pytest.raises(OverBudgetError, match="The task has used up its budget"):
        await huge.budgets.check(huge.session)
    assert "used up" in (await huge.budgets.explain_exceeded(huge.session) or "")


async def test_project_budget_resets_each_month(world: World) -> None:
    monthly = await harness(world, {"monthlyBudget": {"tokens": 10}}, None)
    await monthly.spend(11)
    with pytest.raises(
        OverBudgetError, match="The project has used up its budget of 10 tokens for models for this month"
    ):
        await monthly.budgets.check(monthly.session)
    await world.clock.advance(timedelta(days=31).total_seconds())
    await monthly.budgets.check(monthly.session)


async def test_the_limit_of_a_user_is_for_all_projects_and_a_month(world: World) -> None:
    ran = await harness(world, {}, None)
    ran.budgets = Budgets(
        world.database, ran.ledger, world.clock, lambda quotas: quotas.model_copy(update={"monthly_usd": 1.0})
    )
    await ran.spend(10, micros=600_000)
    await ran.budgets.check(ran.session)
    ran.session.project_id = None
    await ran.spend(10, micros=600_000)
    with pytest.raises(OverBudgetError, match=r"owner of the session.*1\.00 US dollars.*for this month: 1\.20 spent"):
        await ran.budgets.check(ran.session)
    world.clock.set(world.clock.now() + timedelta(days=32).total_seconds())
    await ran.budgets.check(ran.session)
