from __future__ import annotations

import json
from typing import Any

from fastapi import Request, WebSocket
from sqlalchemy import text

from sandyard.kit.errors import ConflictError
from sandyard.platform.api.audit_middleware import add_audit_detail, audited
from sandyard.platform.api.auth import Caller, StreamCaller
from sandyard.platform.api.routers import api_router
from sandyard.platform.domain.audit.refusals import PERIOD_S, RECORDED_PER_PERIOD
from sandyard.platform.domain.audit.service import AuditQuery
from sandyard.platform.domain.paging import PageRequest
from tests.unit.platform.api.sockets import connect
from tests.unit.platform.world import PASSWORD, ROOT, World, client

router = api_router("test")


@router.post("/things/{thing_id}/parts/{part_id}", name="thing.change")
async def change(caller: Caller, thing_id: str, part_id: str, request: Request) -> None:
    add_audit_detail(request, color="red")


@router.post("/things", name="thing.create")
async def create(caller: Caller, request: Request) -> None:
    add_audit_detail(request, target="thg_new")


@router.delete("/things/{thing_id}", name="thing.delete")
async def delete(caller: Caller, thing_id: str) -> None:
    raise ConflictError


@router.patch("/things/{thing_id}", name="thing.crash")
async def crash(caller: Caller, thing_id: str) -> None:
    raise ValueError


@router.get("/things/{thing_id}", name="thing.get")
async def get(caller: Caller, thing_id: str) -> None: ...


@router.get("/things/{thing_id}/file", name="thing.download")
@audited
async def download(caller: Caller, thing_id: str) -> None: ...


@router.websocket("/things/{thing_id}/socket", name="thing.open")
async def socket(socket: WebSocket, caller: StreamCaller, thing_id: str) -> None:
    await socket.accept()


async def entries(world: World) -> list[Any]:
    return list(reversed((await world.audit.list(ROOT, AuditQuery(), PageRequest(200))).items))


async def test_records_changes(world: World) -> None:
    maria = await world.create_person("maria")
    app = world.app(router)
    async with client(app, maria) as web:
        await web.post("/api/v1/things/thg_1/parts/prt_2", headers={"X-Request-Id": "mine"})
        await web.post("/api/v1/things")
        await web.delete("/api/v1/things/thg_1")
        await web.patch("/api/v1/things/thg_1")
        await web.get("/api/v1/things/thg_1")
        await web.get("/api/v1/things/thg_1/file")
        await web.post("/api/v1/nowhere")
        await web.put("/api/v1/things")
    await connect(app, "/api/v1/things/thg_1/socket", maria.headers)
    found = await entries(world)
    assert [(entry.action, entry.target, entry.outcome) for entry in found] == [
        ("thing.change", "thg_1", "ok"),
        ("thing.create", "thg_new", "ok"),
        ("thing.delete", "thg_1", "conflict"),
        ("thing.crash", "thg_1", "internal"),
        ("thing.download", "thg_1", "ok"),
        ("thing.open", "thg_1", "ok"),
    ]
    first = found[0]
    assert (first.user_name, first.means, first.request_id) == ("maria", maria.principal.means, "mine")
    assert first.address == "127.0.0.1" and first.detail == {"color": "red", "also": ["prt_2"]}


async def test_long_path_parameters_are_not_stored_completely(world: World) -> None:
    maria = await world.create_person("maria")
    async with client(world.app(router), maria) as web:
        assert (await web.post(f"/api/v1/things/{'t' * 20_000}/parts/{'p' * 20_000}")).status_code == 200
    (found,) = await entries(world)
    assert len(found.target) == 300 and found.detail["also"][0].startswith("ppp")
    assert len(json.dumps(found.detail)) < 2_000


async def test_refused_requests_beyond_a_limit_are_counted_in_one_entry(world: World) -> None:
    maria, noor = await world.create_person("maria"), await world.create_person("noor")
    app, further = world.app(router), 7
    async with client(app, maria) as web:
        for _ in range(RECORDED_PER_PERIOD + further):
            assert (await web.delete("/api/v1/things/thg_1")).status_code == 409
        await web.post("/api/v1/things")
    async with client(app, noor) as web:
        await web.delete("/api/v1/things/thg_2")
    found = await entries(world)
    assert [entry.action for entry in found[-2:]] == ["thing.create", "thing.delete"] and found[-1].user_name == "noor"
    assert len(found) == RECORDED_PER_PERIOD + 2
    await world.clock.advance(PERIOD_S)
    await world.audit.close()
    summary = (await entries(world))[-1]
    assert (summary.action, summary.user_name, summary.outcome) == ("audit.further_refusals", "maria", "refused")
    assert summary.detail["requests"] == further and summary.detail["actions"] == {"thing.delete": further}
    assert summary.detail["outcomes"] == {"conflict": further} and summary.detail["addresses"] == {"127.0.0.1": further}
    assert summary.detail["first"] == summary.detail["last"]
    assert len(await entries(world)) == RECORDED_PER_PERIOD + 3


async def test_failures_are_recorded_individually(world: World) -> None:
    """What failed or was interrupted may have changed something."""
    maria = await world.create_person("maria")
    async with client(world.app(router), maria) as web:
        for _ in range(RECORDED_PER_PERIOD + 3):
            await web.patch("/api/v1/things/thg_1")
    assert len(await entries(world)) == RECORDED_PER_PERIOD + 3


async def test_unauthenticated_requests_are_not_recorded(world: World) -> None:
    async with client(world.app(router)) as web:
        await web.post("/api/v1/things")
        await connect(world.app(router), "/api/v1/things/thg_1/socket")
    assert await entries(world) == []


async def test_logins_are_recorded_without_secrets(world: World) -> None:
    maria = await world.create_person("maria", password=PASSWORD)
    async with client(world.app()) as web:
        await web.post("/api/v1/login", json={"name": "maria", "password": "wrong password"})
        await web.post("/api/v1/login", json={"name": "maria", "password": PASSWORD})
        await web.post("/api/v1/login", json={"token": maria.token})
    found = await entries(world)
    assert [(entry.action, entry.target, entry.outcome, entry.user_name) for entry in found] == [
        ("login.create", "maria", "unauthenticated", None),
        ("login.create", "maria", "ok", "maria"),
        ("login.create", None, "ok", "maria"),
    ]
    async with world.database.reading() as session:
        stored = repr((await session.execute(text("SELECT * FROM audit"))).all())
    assert PASSWORD not in stored and "wrong password" not in stored and maria.token not in stored


async def test_logs_failed_audit(world: World, caplog: Any) -> None:
    maria = await world.create_person("maria")
    async with world.database.transaction() as tx:
        await tx.session.execute(text("ALTER TABLE audit RENAME TO gone"))
    async with client(world.app(router), maria) as web:
        assert (await web.post("/api/v1/things")).status_code == 200
    assert "audit_failed" in [record.message for record in caplog.records]
