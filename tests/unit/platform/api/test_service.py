"""/health, /ready and /metrics."""

from __future__ import annotations

from pathlib import Path

import pytest
from fastapi.responses import StreamingResponse
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import text

from sandyard import __version__
from sandyard.platform.api import health
from sandyard.platform.api.routers import api_router
from tests.unit.platform.world import World, client, open_world


async def test_health(world: World) -> None:
    async with client(world.app()) as web:
        answer = await web.get("/health")
        assert answer.status_code == 200
        body = answer.json()
        assert body["status"] == "ok" and body["version"] == __version__ and body["uptimeSeconds"] >= 0
        assert body["database"] == {"ok": True, "reason": None}
        assert body["engine"] == {"configured": False, "breaker": "closed", "reason": None}


async def test_database_is_unavailable(tmp_path: Path) -> None:
    async with open_world(tmp_path, e2b_api_key="e2b_x") as world, client(world.app()) as web:
        assert (await web.get("/ready")).status_code == 200
        await world.database.close()
        (tmp_path / "platform.db").unlink()
        (tmp_path / "platform.db").mkdir()
        await world.database.open()
        seen = await web.get("/health")
        assert seen.status_code == 200 and seen.json()["status"] == "degraded"
        assert seen.json()["database"]["ok"] is False and seen.json()["database"]["reason"]
        answer = await web.get("/ready")
        assert answer.status_code == 503 and "database" in answer.json()["reasons"][0]
        assert (await web.get("/api/v1/me", headers={"Authorization": "Bearer sy_" + "a" * 40})).status_code == 503
        metrics = (await web.get("/metrics")).text
        assert "sandyard_database_up 0.0" in metrics


async def test_reports_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_world(tmp_path, e2b_api_key="e2b_x") as world, client(world.app()) as web:
        assert (await web.get("/ready")).status_code == 200
        monkeypatch.setattr(health, "MIN_FREE_BYTES", 1 << 60)
        answer = await web.get("/ready")
        assert answer.status_code == 503 and "disk is full" in answer.json()["reasons"][0]


async def test_ready_requires_engine_and_schema(world: World) -> None:
    async with client(world.app()) as web:
        answer = await web.get("/ready")
        assert answer.status_code == 503 and "E2B_API_KEY" in answer.json()["reasons"][0]
        async with world.database.transaction() as tx:
            await tx.session.execute(text("DELETE FROM alembic_version"))
        answer = await web.get("/ready")
        assert len(answer.json()["reasons"]) == 2 and "schema" in answer.json()["reasons"][0]
        async with world.database.transaction() as tx:
            await tx.session.execute(text("INSERT INTO alembic_version VALUES ('9999')"))
        assert "newer" in (await web.get("/ready")).json()["reasons"][0]


async def test_unreachable_engine_does_not_affect_readiness(tmp_path: Path) -> None:
    async with open_world(tmp_path, e2b_api_key="e2b_x") as world, client(world.app()) as web:
        world.engine.breaker.opened_at, world.engine.breaker.reason = world.clock.now(), "It does not answer."
        answer = await web.get("/ready")
        assert answer.status_code == 200 and answer.json()["engine"]["breaker"] == "open"
        health = (await web.get("/health")).json()
        assert health["status"] == "degraded" and health["engine"]["reason"] == "It does not answer."
        assert "sandyard_engine_breaker 2.0" in (await web.get("/metrics")).text


async def test_metrics(world: World) -> None:
    router = api_router("test")

    @router.get("/stream", name="test.stream")
    async def stream() -> StreamingResponse:
        async def body():
            yield f"{app.state.metrics.sse_clients.collect()[0].samples[0].value}"

        return StreamingResponse(body(), media_type="text/event-stream")

    maria = await world.create_person("maria")
    app = world.app(router)
    async with client(app, maria) as web:
        await web.get("/api/v1/me")
        await web.get("/api/v1/projects/prj_1")
        await web.get("/api/v1/projects/prj_2")
        await web.get("/api/no/such/place")
        assert (await web.get("/api/v1/stream")).text == "1.0"
        answer = await web.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    samples = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }

    def value(name: str, **labels: str) -> float:
        return samples[name, tuple(sorted(labels.items()))]

    requests = "sandyard_http_requests_total"
    assert value(requests, method="GET", route="/projects/{project_id}", status="404") == 2
    assert value(requests, method="GET", route="none", status="404") == 1
    assert value("sandyard_http_request_seconds_count", method="GET", route="/me") == 1
    assert value("sandyard_sse_clients") == 0 and value("sandyard_event_seq") == 2
    assert value("sandyard_info", version=__version__) == 1 and value("sandyard_database_up") == 1


async def test_metrics_require_loopback_or_token(world: World) -> None:
    maria, app = await world.create_person("maria"), world.app()
    async with client(app, peer="10.0.0.7") as web:
        assert (await web.get("/metrics")).status_code == 401
        assert (await web.get("/metrics", headers=maria.headers)).status_code == 200
    async with client(app, peer="::1") as web:
        assert (await web.get("/metrics")).status_code == 200
        assert (await web.get("/metrics", headers={"X-Forwarded-For": "10.0.0.7"})).status_code == 401
