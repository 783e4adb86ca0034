"""Schedules, which create tasks repeatedly."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query, Request, Response
from pydantic import Field, StringConstraints

from sandyard.platform.api.audit_middleware import add_audit_detail
from sandyard.platform.api.auth import Caller
from sandyard.platform.api.dependencies import inject
from sandyard.platform.api.large_responses import limit_large_responses
from sandyard.platform.api.limits import limit_rate
from sandyard.platform.api.paging import Page, Paging
from sandyard.platform.api.routers import api_router
from sandyard.platform.api.schema import Input, Instant, Model, example, id_in_path
from sandyard.platform.api.task_views import PROJECT, TaskView
from sandyard.platform.api.tasks import TaskInput, Tasks
from sandyard.platform.db import models
from sandyard.platform.domain.tasks import schedules as service
from sandyard.platform.domain.tasks.cron import MAX_CRON, MAX_ZONE
from sandyard.platform.domain.tasks.fields import TaskFields
from sandyard.platform.domain.tasks.schedules import ScheduledTask

router = api_router("schedules")
SCHEDULE = "sch_0mh3k7a1x2abcdefghij"
Schedules = Annotated[service.Schedules, inject("schedules")]
ScheduleId = Annotated[str, id_in_path("schedule", SCHEDULE)]
ScheduleName = Annotated[str, StringConstraints(min_length=1, max_length=200, strip_whitespace=True)]
Cron = Annotated[
    str,
    Field(
        min_length=9,
        max_length=MAX_CRON,
        examples=["0 6 * * MON-FRI"],
        description="Minute, hour, day of month, month, day of week.",
    ),
]
Zone = Annotated[str, Field(min_length=1, max_length=MAX_ZONE, examples=["UTC", "Europe/Berlin"])]
_TASK = {"title": "Update the dependencies", "description": "Run `make update`.", "agent": "demo"}


class ScheduleView(Model):
    model_config = example(
        id=SCHEDULE, projectId=PROJECT, name="nightly", cron="0 3 * * *", timezone="UTC", enabled=True
    )

    id: str
    project_id: str
    owner_id: str = Field(description="The user on whose behalf its tasks run.")
    name: str
    cron: str
    timezone: str
    task: ScheduledTask
    enabled: bool
    next_at: Instant | None = Field(description="Null while the schedule is disabled.")
    last_at: Instant | None
    last_task_id: str | None
    last_error: str | None = Field(
        description="Why the last run created no task. Null if it did. The schedule continues after a failure."
    )
    created_at: Instant
    updated_at: Instant

    @classmethod
    def from_row(cls, row: models.Schedule, error: str | None) -> ScheduleView:
        fields = {name: getattr(row, name) for name in cls.model_fields if name not in ("task", "last_error")}
        return cls(**fields, task=ScheduledTask.model_validate(row.task), last_error=error)


class ScheduledTaskInput(TaskInput):
    model_config = example(**_TASK)

    start: bool = Field(
        default=True,
        description="True: start immediately or when a slot is free. False: leave the task in the backlog.",
    )

    def to_scheduled_task(self) -> ScheduledTask:
        return ScheduledTask(start=self.start, **{name: getattr(self, name) for name in TaskFields.model_fields})


class NewSchedule(Input):
    model_config = example(projectId=PROJECT, name="nightly", cron="0 3 * * *", timezone="Europe/Berlin", task=_TASK)

    project_id: str = Field(min_length=1, max_length=40)
    name: ScheduleName
    cron: Cron
    timezone: Zone = "UTC"
    task: ScheduledTaskInput
    enabled: bool = True


class ScheduleChange(Input):
    """Fields left out are not changed. `task` is replaced as a whole."""

    model_config = example(cron="30 3 * * *", enabled=True)

    name: ScheduleName | None = None
    cron: Cron | None = None
    timezone: Zone | None = None
    task: ScheduledTaskInput | None = None
    enabled: bool | None = None


@router.get("/schedules", name="schedule.list")
async def list_(
    caller: Caller,
    schedules: Schedules,
    page: Paging,
    project_id: Annotated[str | None, Query(alias="projectId", max_length=40)] = None,
) -> Page[ScheduleView]:
    """List schedules of projects you may see, newest first."""
    found = await schedules.list(caller, page, project_id=project_id)
    failures = await schedules.list_failures(found.items)
    return Page[ScheduleView].from_listing(found, lambda row: ScheduleView.from_row(row, failures.get(row.id)))


@router.post("/schedules", name="schedule.create", status_code=201, dependencies=[limit_rate("create")])
async def create(request: Request, caller: Caller, schedules: Schedules, body: NewSchedule) -> ScheduleView:
    """Create a schedule. If several runs are missed while the platform is down, only one task is created for them."""
    given: dict[str, Any] = {name: getattr(body, name) for name in ("name", "cron", "timezone", "enabled")}
    row = await schedules.create(caller, body.project_id, task=body.task.to_scheduled_task(), **given)
    add_audit_detail(request, target=row.id)
    return ScheduleView.from_row(row, None)


@router.get("/schedules/{schedule_id}", name="schedule.get", dependencies=[limit_large_responses()])
async def get(caller: Caller, schedules: Schedules, schedule_id: ScheduleId) -> ScheduleView:
    return await _make_view(schedules, await schedules.get(caller, schedule_id))


@router.patch("/schedules/{schedule_id}", name="schedule.update", dependencies=[limit_rate("execute")])
async def update(
    request: Request, caller: Caller, schedules: Schedules, schedule_id: ScheduleId, body: ScheduleChange
) -> ScheduleView:
    """Update a schedule. Allowed for its creator, on whose behalf its tasks run.

    The project's owner and administrators may only disable it: `{"enabled": false}`.
    """
    given = {name: value for name in body.model_fields_set if (value := getattr(body, name)) is not None}
    add_audit_detail(request, changed=sorted(given))
    if body.task is not None:
        given["task"] = body.task.to_scheduled_task()
    return await _make_view(schedules, await schedules.update(caller, schedule_id, given))


@router.delete("/schedules/{schedule_id}", name="schedule.delete", status_code=204)
async def delete(caller: Caller, schedules: Schedules, schedule_id: ScheduleId) -> Response:
    """Delete a schedule. Tasks it has created are kept. Allowed for its creator, the project's owner and administrators."""
    await schedules.delete(caller, schedule_id)
    return Response(status_code=204)


@router.post("/schedules/{schedule_id}/run", name="schedule.run", status_code=201, dependencies=[limit_rate("create")])
async def run(
    request: Request, caller: Caller, schedules: Schedules, tasks: Tasks, schedule_id: ScheduleId
) -> TaskView:
    """Create the schedule's task now, on your behalf. Does not change its times."""
    row = await schedules.run(caller, schedule_id)
    add_audit_detail(request, task=row.id)
    return TaskView.from_card(await tasks.cards.get_card(row))


async def _make_view(schedules: service.Schedules, row: models.Schedule) -> ScheduleView:
    return ScheduleView.from_row(row, (await schedules.list_failures([row])).get(row.id))
