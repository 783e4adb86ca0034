"""Schedules: each due time creates one task, with any number of platforms and after outages; failures are reported."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import update

from sandyard.kit.clock import get_time
from sandyard.kit.errors import ConflictError, ForbiddenError, InvalidInputError, NotFoundError
from sandyard.platform.db.database import Transaction
from sandyard.platform.db.models import Project, Schedule, Task
from sandyard.platform.domain.paging import PageRequest
from sandyard.platform.domain.tasks.cron import get_next_time
from sandyard.platform.domain.tasks.fields import TaskFields
from sandyard.platform.domain.tasks.model import Column
from sandyard.platform.domain.tasks.schedules import MAX_MISSED_COUNTED, ScheduledTask, Schedules
from sandyard.platform.domain.users.model import Principal
from sandyard.platform.settings import PlatformSettings
from tests.unit.platform.domain.tasks.board_harness import BoardHarness


class Times:
    def __init__(self, harness: BoardHarness) -> None:
        self.harness = harness
        self.schedules, self.other = self.platform(), self.platform()

    def platform(self) -> Schedules:
        world = self.harness.world
        settings = PlatformSettings.load({}, schedules_per_user=6)
        return Schedules(world.database, world.projects, self.harness.tasks, settings, world.clock)

    async def hourly(self, **task: Any) -> Schedule:
        wanted = ScheduledTask.model_validate({"title": "Tidy up", **task})
        return await self.schedules.create(
            self.harness.me, self.harness.project.id, name="hourly", cron="0 * * * *", timezone="UTC", task=wanted
        )

    async def every_minute(self, caller: Principal, name: str) -> Schedule:
        task = ScheduledTask(title=name, start=False)
        return await self.schedules.create(
            caller, self.harness.project.id, name=name, cron="* * * * *", timezone="UTC", task=task
        )

    async def made(self) -> int:
        return len((await self.harness.tasks.list(self.harness.me, PageRequest(200))).items)

    async def pass_(self, **time: float) -> None:
        await self.harness.world.clock.advance(timedelta(**time).total_seconds())

    async def again(self, row: Schedule) -> Schedule:
        return await self.schedules.get(self.harness.me, row.id)


@pytest.fixture
async def times(harness: BoardHarness) -> AsyncIterator[Times]:
    yield Times(harness)


@pytest.fixture
async def times_anywhere(harness_on_each_database: BoardHarness) -> AsyncIterator[Times]:
    yield Times(harness_on_each_database)


async def test_creates_one_task_per_time_with_several_platforms(times_anywhere: Times) -> None:
    times = times_anywhere
    row = await times.hourly()
    await times.schedules.tick()
    assert await times.made() == 0
    for hour in (1, 2):
        await times.pass_(hours=1)
        await asyncio.gather(*(item.tick() for item in (times.schedules, times.other, times.schedules, times.other)))
        assert await times.made() == hour
    row = await times.again(row)
    task = await times.harness.tasks.get(times.harness.me, row.last_task_id or "")
    assert task.status == Column.IN_PROGRESS
    assert task.source == {"kind": "schedule", "scheduleId": row.id, "name": "hourly"}
    assert row.last_at == get_time(times.harness.world.clock)
    assert len(await times.harness.list_events("schedule.fired")) == 2


async def test_missed_times_create_one_task(times: Times) -> None:
    row = await times.hourly()
    await times.pass_(days=3)
    await times.schedules.tick()
    await times.schedules.tick()
    assert await times.made() == 1
    assert (await times.again(row)).next_at == get_next_time("0 * * * *", "UTC", get_time(times.harness.world.clock))


async def test_reports_how_many_times_were_missed(times: Times) -> None:
    row = await times.hourly()
    await times.pass_(hours=1)
    await times.schedules.tick()
    await times.pass_(hours=3)
    await times.schedules.tick()
    fired = await times.harness.list_events("schedule.fired")
    assert [event.data["missed"] for event in fired] == [0, 2]
    assert {event.data["scheduleId"] for event in fired} == {row.id}
    await times.pass_(days=400)
    await times.schedules.tick()
    assert (await times.harness.list_events("schedule.fired"))[-1].data["missed"] == MAX_MISSED_COUNTED


async def test_limits_schedules_per_user(times_anywhere: Times) -> None:
    times, mo = times_anywhere, times_anywhere.harness.member.principal
    rows = [await times.every_minute(mo, str(number)) for number in range(5)]
    results = await asyncio.gather(*(times.every_minute(mo, "more") for _ in range(3)), return_exceptions=True)
    refused = [result for result in results if isinstance(result, ConflictError)]
    assert len(refused) == 2
    assert "the limit is 6" in refused[0].message
    await times.every_minute(times.harness.me, "of another user")
    await times.schedules.delete(mo, rows[0].id)
    await times.every_minute(mo, "again")


async def test_owners_take_turns(times_anywhere: Times, monkeypatch: pytest.MonkeyPatch) -> None:
    times, mo = times_anywhere, times_anywhere.harness.member.principal
    monkeypatch.setattr("sandyard.platform.domain.tasks.schedules.MAX_RUNS", 4)
    monkeypatch.setattr("sandyard.platform.domain.tasks.schedules.MAX_RUNS_PER_OWNER", 3)
    for number in range(6):
        await times.every_minute(mo, f"mo {number}")
    await times.pass_(seconds=30)
    await times.every_minute(times.harness.me, "mine")
    await times.pass_(seconds=30)
    assert await times.schedules.tick()
    names = [event.data["name"] for event in await times.harness.list_events("schedule.fired")]
    assert len(names) == 4
    assert "mine" in names[:2]
    assert not await times.schedules.tick()
    names = [event.data["name"] for event in await times.harness.list_events("schedule.fired")]
    assert sorted(names) == ["mine", *(f"mo {number}" for number in range(6))]


async def test_crashing_schedules_do_not_block_others_of_their_owner(
    times: Times, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandyard.platform.domain.tasks.schedules.MAX_RUNS_PER_OWNER", 1)
    await times.every_minute(times.harness.me, "crashes")
    await times.every_minute(times.harness.me, "works")
    add = times.harness.tasks.add

    async def crash(tx: Transaction, project: Project, fields: TaskFields, **options: Any) -> Task:
        if fields.title == "crashes":
            raise RuntimeError("a bug")
        return await add(tx, project, fields, **options)

    monkeypatch.setattr(times.harness.tasks, "add", crash)
    await times.pass_(minutes=1)
    assert not await times.schedules.tick()  # the next one follows after a pause
    assert await times.made() == 0
    await times.schedules.tick()
    assert await times.made() == 1


async def test_crash_before_commit_loses_nothing(times: Times, monkeypatch: pytest.MonkeyPatch) -> None:
    async def dies(*_: Any, **__: Any) -> None:
        raise RuntimeError("the platform died here")

    await times.hourly()
    await times.pass_(hours=1)
    with monkeypatch.context() as broken:
        broken.setattr(times.harness.attempts, "draft", dies)
        await times.schedules.tick()
    assert await times.made() == 0
    await times.other.tick()
    assert await times.made() == 1


async def test_reports_failure_and_continues(times: Times) -> None:
    row = await times.hourly(agent="demo")
    async with times.harness.world.database.transaction() as tx:
        await tx.session.execute(update(Schedule).values(task={"title": "Tidy up", "agent": "gone"}))
    await times.pass_(hours=1)
    await times.schedules.tick()
    row = await times.again(row)
    assert row.enabled
    assert row.next_at is not None
    assert row.next_at > get_time(times.harness.world.clock)
    failures = await times.schedules.list_failures([row])
    assert "no agent 'gone'" in failures[row.id]
    changed = await times.schedules.update(times.harness.me, row.id, {"task": ScheduledTask(title="Tidy up")})
    await times.pass_(hours=1)
    await times.schedules.tick()
    assert await times.made() == 1
    assert await times.schedules.list_failures([changed]) == {}
    await times.harness.world.projects.update(times.harness.me, times.harness.project.id, archived=True)
    await times.pass_(hours=1)
    await times.schedules.tick()
    assert "archived" in (await times.schedules.list_failures([changed]))[row.id]
    assert await times.made() == 1


async def test_schedule_of_member_who_left_starts_nothing(times: Times) -> None:
    harness, mo = times.harness, times.harness.member.principal
    wanted = ScheduledTask(title="x", start=False)
    arguments: dict[str, Any] = {"name": "x", "cron": "* * * * *", "timezone": "UTC", "task": wanted}
    row = await times.schedules.create(mo, harness.project.id, **arguments)
    own = await times.hourly()
    with pytest.raises(ForbiddenError):
        await times.schedules.update(mo, own.id, {"enabled": False})
    await times.schedules.run(mo, own.id)
    await harness.world.projects.remove_member(harness.me, harness.project.id, mo.user_id)
    with pytest.raises(NotFoundError):
        await times.schedules.get(mo, row.id)
    await times.pass_(minutes=1)
    await times.schedules.tick()
    assert await times.made() == 1
    assert list(await times.schedules.list_failures([row])) == [row.id]
    await times.schedules.delete(harness.me, row.id)
    assert [item.id for item in (await times.schedules.list(harness.me, PageRequest())).items] == [own.id]


@pytest.mark.parametrize(
    "changes", [{"task": ScheduledTask(title="y")}, {"cron": "0 * * * *"}, {"enabled": True}, {"name": "y"}]
)
async def test_only_its_creator_changes_a_schedule(times: Times, changes: dict[str, Any]) -> None:
    harness, mo = times.harness, times.harness.member.principal
    arguments: dict[str, Any] = {"cron": "* * * * *", "timezone": "UTC", "task": ScheduledTask(title="x", start=False)}
    row = await times.schedules.create(mo, harness.project.id, name="x", **arguments)
    administrator = (await harness.world.create_person("ada", "admin")).principal
    for other in (harness.me, administrator):
        with pytest.raises(ForbiddenError, match="run on their behalf"):
            await times.schedules.update(other, row.id, changes)
        with pytest.raises(ForbiddenError):
            await times.schedules.update(other, row.id, {"timezone": "UTC", "enabled": False})
        assert not (await times.schedules.update(other, row.id, {"enabled": False})).enabled
    row = await times.schedules.update(mo, row.id, changes)
    assert (row.owner_id, row.task["title"]) == (mo.user_id, "y" if "task" in changes else "x")
    await times.schedules.delete(administrator, row.id)


async def test_disable_and_enable(times: Times) -> None:
    row = await times.hourly()
    await times.schedules.update(times.harness.me, row.id, {"enabled": False})
    await times.pass_(hours=5)
    await times.schedules.tick()
    row = await times.schedules.update(times.harness.me, row.id, {"enabled": True})
    await times.schedules.tick()
    assert await times.made() == 0
    assert row.next_at is not None


@pytest.mark.parametrize(
    ("cron", "zone", "after", "expected"),
    [
        ("0 6 * * MON-FRI", "UTC", "2026-01-31T10:00", "2026-02-02T06:00"),
        (
            "30 2 * * *",
            "Europe/Berlin",
            "2026-03-28T12:00",
            "2026-03-29T01:00",
        ),  # 2:30 does not exist: right after the gap
        ("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00", "2026-10-25T00:30"),  # 2:30 exists twice: the first one
        ("30 2 * * *", "Europe/Berlin", "2026-10-25T00:30", "2026-10-26T01:30"),
    ],
)
def test_next_time(cron: str, zone: str, after: str, expected: str) -> None:
    moment, wanted = (datetime.fromisoformat(item).replace(tzinfo=UTC) for item in (after, expected))
    assert get_next_time(cron, zone, moment) == wanted


@pytest.mark.parametrize(
    ("cron", "zone"),
    [
        ("* * * *", "UTC"),
        ("* * * * * *", "UTC"),
        ("61 * * * *", "UTC"),
        ("0 0 30 2 *", "UTC"),
        ("0 0 31 4 *", "UTC"),
        ("* * * * 5L/2", "UTC"),
        ("* * * * 1#9", "UTC"),
        ("0 0 * 2 MON#5/0", "UTC"),
        ("* * * * *", "Nowhere/Land"),
        ("* * * * *", "../../etc/passwd"),
        ("* * * * *", "Europe"),
        ("* * * * *", ""),
    ],
)
def test_rejects_invalid_cron(cron: str, zone: str) -> None:
    with pytest.raises(InvalidInputError):
        get_next_time(cron, zone, datetime(2026, 1, 1, tzinfo=UTC))
