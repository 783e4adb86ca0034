"""Budgets for models: per task, and per project and per user and calendar month (UTC)."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime

from sandyard.kit.clock import Clock, get_time
from sandyard.platform.db.database import Database
from sandyard.platform.db.models import Project, Session, Task, User
from sandyard.platform.domain.models.ledger import Ledger, select_calls
from sandyard.platform.domain.models.model import OverBudgetError, PriceMissingError, UsageTotals
from sandyard.platform.domain.projects.model import BudgetSettings, ProjectSettings
from sandyard.platform.domain.users.quotas import UserQuotas


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit. `subject` starts the sentence about it, `period` ends it."""

    subject: str
    period: str
    usd: float | None
    tokens: int | None
    task_id: str | None = None
    project_id: str | None = None
    owner_id: str | None = None
    since: datetime | None = None


_MONTH = " for this month"


class Budgets:
    """Check budgets. Limits are read each time, so that a raised limit applies immediately.

    Concurrent requests do not know each other's cost, so the last ones may exceed a limit together; nothing starts after that.
    """

    def __init__(
        self,
        database: Database,
        ledger: Ledger,
        clock: Clock,
        resolve_quotas: Callable[[UserQuotas], UserQuotas] = lambda quotas: quotas,
    ) -> None:
        """`resolve_quotas` returns the limits that apply to a user with these quotas."""
        self._resolve_quotas = resolve_quotas
        self._database = database
        self._ledger = ledger
        self._clock = clock

    async def check(self, session: Session) -> None:
        """Raise OverBudgetError if a budget is used up. Call this before a request."""
        for limit in await self._load_limits(session):
            if (message := _describe_exceeded(limit, await self._get_totals(limit), inclusive=True)) is not None:
                raise OverBudgetError(message)

    async def check_price(self, session: Session, model: str | None, provider: str) -> None:
        """Raise PriceMissingError if a limit in dollars applies. Call this for a model without a price."""
        for limit in await self._load_limits(session):
            if limit.usd is not None:
                raise PriceMissingError(
                    f"{limit.subject} has a budget of {limit.usd:.2f} US dollars{limit.period}, but the price of the model "
                    f"{(model or 'of this request')[:200]} is unknown. Set its price for the provider {provider}, or set the "
                    "budget in tokens."
                )

    async def explain_exceeded(self, session: Session) -> str | None:
        """Return an error message if more was spent than allowed, otherwise None. Call this after a request."""
        for limit in await self._load_limits(session):
            if (message := _describe_exceeded(limit, await self._get_totals(limit), inclusive=False)) is not None:
                return message
        return None

    async def _load_limits(self, session: Session) -> list[Limit]:
        async with self._database.reading() as reading:
            project = await reading.get(Project, session.project_id) if session.project_id else None
            task = await reading.get(Task, session.task_id) if session.task_id else None
            quotas = self._resolve_quotas(UserQuotas.from_user(await reading.get(User, session.owner_id)))
        limits = list(self._make_limits(project, task))
        if quotas.monthly_usd or quotas.monthly_tokens:
            subject, month = "The owner of the session", self.get_month_start()
            usd, tokens = quotas.monthly_usd, quotas.monthly_tokens
            limits.append(Limit(subject, _MONTH, usd, tokens, owner_id=session.owner_id, since=month))
        return limits

    def get_month_start(self) -> datetime:
        """Return the beginning of the calendar month, in UTC."""
        return get_time(self._clock).replace(day=1, hour=0, minute=0, second=0, microsecond=0)

    def _make_limits(self, project: Project | None, task: Task | None) -> Iterator[Limit]:
        settings = ProjectSettings.from_project(project).tasks if project is not None else None
        if task is not None:
            own = BudgetSettings.model_validate({name: value for name, value in task.budget.items() if value})
            default = settings.budget if settings is not None else BudgetSettings()
            budget = own if own.usd or own.tokens else default
            if budget.usd or budget.tokens:
                yield Limit("The task", "", budget.usd, budget.tokens, task_id=task.id)
        if settings is not None and project is not None:
            monthly = settings.monthly_budget
            if monthly.usd or monthly.tokens:
                since = self.get_month_start()
                yield Limit("The project", _MONTH, monthly.usd, monthly.tokens, project_id=project.id, since=since)

    async def _get_totals(self, limit: Limit) -> UsageTotals:
        return await self._ledger.get_totals(
            *select_calls(
                task_id=limit.task_id, project_id=limit.project_id, owner_id=limit.owner_id, since=limit.since
            ),
            *self._ledger.make_settled_condition(),
        )


def _describe_exceeded(limit: Limit, spent: UsageTotals, *, inclusive: bool) -> str | None:
    """Return an error message if more was spent than the limit, or, with `inclusive`, just as much. Otherwise None."""
    is_exceeded = operator.ge if inclusive else operator.gt
    cost, advice = spent.cost_usd or 0.0, "Raise the budget to continue."
    if limit.usd is not None and is_exceeded(cost, limit.usd):
        return f"{limit.subject} has used up its budget of {limit.usd:.2f} US dollars for models{limit.period}: {cost:.2f} spent. {advice}"
    if limit.tokens is not None and is_exceeded(spent.tokens, limit.tokens):
        return f"{limit.subject} has used up its budget of {limit.tokens} tokens for models{limit.period}: {spent.tokens} used. {advice}"
    return None
