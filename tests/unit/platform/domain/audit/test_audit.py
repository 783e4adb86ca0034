from __future__ import annotations

import asyncio
import json
from datetime import timedelta

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from sandyard.kit.clock import get_time
from sandyard.kit.errors import ForbiddenError, InvalidInputError
from sandyard.platform.domain.audit.detail import MAX_DETAIL
from sandyard.platform.domain.audit.refusals import PERIOD_S, RECORDED_PER_PERIOD
from sandyard.platform.domain.audit.service import FURTHER_REFUSALS, AuditQuery
from sandyard.platform.domain.paging import PageRequest
from tests.unit.platform.world import ROOT, World


async def test_stores_concurrent_records(world: World) -> None:
    await asyncio.gather(*(world.audit.record(ROOT, action="a.b", target=str(number)) for number in range(200)))
    found = await world.audit.list(ROOT, AuditQuery(), PageRequest(200))
    assert {entry.target for entry in found.items} == {str(number) for number in range(200)}


async def test_cancelled_record_does_not_affect_others(world: World) -> None:
    records = [asyncio.create_task(world.audit.record(ROOT, action="a.b", target=str(n))) for n in range(20)]
    await asyncio.sleep(0)
    for task in records[::2]:
        task.cancel()
    await asyncio.gather(*records, return_exceptions=True)
    await world.audit.tasks.wait(10)
    assert len((await world.audit.list(ROOT, AuditQuery(), PageRequest(200))).items) == 20


async def test_failure_reaches_the_caller(world: World) -> None:
    async with world.database.transaction() as tx:
        await tx.session.execute(text("ALTER TABLE audit RENAME TO gone"))
    with pytest.raises(Exception, match=r"no such table|does not exist"):
        await world.audit.record(ROOT, action="a.b")


async def test_filters(world: World) -> None:
    maria = (await world.create_person("maria")).principal
    start = get_time(world.clock)
    await world.audit.record(maria, action="sandbox.execute", target="sbx_1", detail={"a": 1})
    await world.clock.advance(10)
    await world.audit.record(ROOT, action="sandbox.execute", target="sbx_2", outcome="not_found")
    await world.audit.record(None, action="login.create", target="x" * 500, address="1.2.3.4")

    async def targets(**conditions: object) -> list[str | None]:
        found = await world.audit.list(ROOT, AuditQuery(**conditions), PageRequest())  # type: ignore[arg-type]
        return [entry.target for entry in found.items]

    assert await targets() == ["x" * 300, "sbx_2", "sbx_1"]
    assert await targets(user_id=maria.user_id) == ["sbx_1"]
    assert await targets(action="sandbox.execute") == ["sbx_2", "sbx_1"]
    assert await targets(target="sbx_2") == ["sbx_2"]
    assert await targets(since=start + timedelta(seconds=10)) == ["x" * 300, "sbx_2"]
    assert await targets(until=start + timedelta(seconds=10)) == ["sbx_1"]
    page = await world.audit.list(ROOT, AuditQuery(), PageRequest(2))
    rest = await world.audit.list(ROOT, AuditQuery(), PageRequest(2, page.next_cursor))
    assert [entry.target for entry in rest.items] == ["sbx_1"] and rest.next_cursor is None
    with pytest.raises(InvalidInputError):
        await world.audit.list(ROOT, AuditQuery(), PageRequest(2, "abc"))
    for refused in (world.audit.list(maria, AuditQuery(), PageRequest()), world.audit.export(maria, AuditQuery())):
        with pytest.raises(ForbiddenError):
            await refused


async def test_further_refusals_are_stored_when_the_platform_stops(world: World) -> None:
    maria = (await world.create_person("maria")).principal
    for _ in range(RECORDED_PER_PERIOD + 5):
        await world.audit.record(maria, action="a.b", outcome="not_found", refused=True)
    await world.audit.close()
    newest = (await world.audit.list(ROOT, AuditQuery(), PageRequest(1))).items[0]
    assert newest.action == FURTHER_REFUSALS and newest.detail["requests"] == 5


async def test_refusals_of_each_minute_are_counted_separately(world: World) -> None:
    maria = (await world.create_person("maria")).principal
    for _ in range(2):
        for _ in range(RECORDED_PER_PERIOD + 1):
            await world.audit.record(maria, action="a.b", outcome="not_found", refused=True)
        await world.clock.advance(PERIOD_S)
    await world.audit.close()
    found = [entry.action for entry in (await world.audit.list(ROOT, AuditQuery(), PageRequest(200))).items]
    assert found.count("a.b") == 2 * RECORDED_PER_PERIOD and found.count(FURTHER_REFUSALS) == 2


@pytest.mark.parametrize(
    "detail",
    [
        {"path": "x" * 100_000},
        {"also": ["x" * 100_000] * 1_000},
        {"nested": {f"key{number}": ["x" * 900] * 900 for number in range(1_000)}},
        {f"{number}" + "k" * 10_000: "x" * 10_000 for number in range(1_000)},
        {"deep": [[[[[[["x" * 10_000]]]]]]]},
        {"quoted": '"' * 100_000, "control": "\x01" * 100_000, "wide": "\U0001f600" * 100_000},
    ],
)
async def test_details_are_limited(world: World, detail: dict[str, object]) -> None:
    await world.audit.record(ROOT, action="a.b", detail=detail)
    found = (await world.audit.list(ROOT, AuditQuery(), PageRequest(1))).items[0].detail
    assert found and len(json.dumps(found)) <= MAX_DETAIL + 100 and "…" in json.dumps(found, ensure_ascii=False)


async def test_export_is_complete(world: World) -> None:
    for start in range(0, 1200, 100):
        await asyncio.gather(*(world.audit.record(ROOT, action="a.b", target=str(start + n)) for n in range(100)))
    lines = b"".join([part async for part in await world.audit.export(ROOT, AuditQuery())]).splitlines()
    entries = [json.loads(line) for line in lines]
    assert len(entries) == 1200 and len({entry["seq"] for entry in entries}) == 1200
    assert entries[0]["action"] == "a.b" and entries[0]["at"].endswith("Z")


async def test_the_database_refuses_changes(world: World) -> None:
    await world.audit.record(ROOT, action="a.b")
    for change in ("UPDATE audit SET action = 'x'", "DELETE FROM audit"):
        with pytest.raises(DBAPIError, match="append-only"):
            async with world.database.transaction() as tx:
                await tx.session.execute(text(change))
