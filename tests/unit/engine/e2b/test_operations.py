"""The engine's reports for operators: `/metrics` and `/status`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from sandyard.engine.builds.model import BuildStatus
from sandyard.engine.contract import Limits
from sandyard.engine.e2b.control import api
from sandyard.engine.e2b.control.context import Context
from sandyard.engine.sandboxes import counters
from sandyard.engine.store.keys import ApiKeys
from sandyard.kit.errors import SandyardError, UnreachableError
from sandyard.kit.secret import Secret
from tests.unit.engine.sandboxes.harness import SandboxesHarness

KEY = "e2b_0123456789"


class NoHosts:
    """The hosts of an engine whose metrics are not tested here."""

    def list(self) -> Sequence[Any]:
        return ()


class OneBuild:
    """Builds, one of which is running."""

    def count_unfinished(self) -> dict[BuildStatus, int]:
        return {BuildStatus.WAITING: 0, BuildStatus.BUILDING: 1}


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[SandboxesHarness]:
    harness = SandboxesHarness(tmp_path, pool_size=2)
    await harness.start()
    yield harness
    await harness.stop()


@pytest.fixture
async def client(harness: SandboxesHarness) -> AsyncIterator[httpx.AsyncClient]:
    context = Context(harness.service, harness.templates, Limits(), None, None, OneBuild(), None, NoHosts(), None)  # type: ignore[arg-type]
    app = api.build_app(context, ApiKeys(harness.database, [Secret(KEY)]))
    transport = httpx.ASGITransport(app=app)  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=transport, base_url="http://engine", headers={"X-API-KEY": KEY}) as client:
        yield client


async def read_metrics(client: httpx.AsyncClient) -> dict[tuple[str, ...], float]:
    """Return all samples, by name and label values in the order of the labels' names."""
    families = text_string_to_metric_families((await client.get("/metrics")).text)
    return {(sample.name, *sample.labels.values()): sample.value for family in families for sample in family.samples}


async def test_metrics_count_sandboxes_and_where_they_came_from(
    harness: SandboxesHarness, client: httpx.AsyncClient
) -> None:
    first = await harness.create()
    await harness.settle()  # the first request starts the pool
    await harness.create()
    await harness.service.pause(first.id)
    found = await read_metrics(client)
    assert found["sandyard_engine_sandboxes", "running"] == found["sandyard_engine_sandboxes_running",] == 1
    assert found["sandyard_engine_sandboxes", "paused"] == 1
    assert found["sandyard_engine_creates_total", "new"] == found["sandyard_engine_creates_total", "pool"] == 1
    assert found["sandyard_engine_pool_target", "false", "namespace", "base"] == 2
    assert found["sandyard_engine_builds", "building"] == found["sandyard_engine_can_create",] == 1
    assert found["sandyard_engine_operation_seconds_count", "driver.freeze"] == 1


async def test_metrics_count_failures_by_kind_but_not_missing_sandboxes(
    harness: SandboxesHarness, client: httpx.AsyncClient
) -> None:
    sandbox = await harness.create()
    harness.driver.fail("freeze", UnreachableError("The host is unreachable."))
    with pytest.raises(SandyardError):
        await harness.service.pause(sandbox.id)
    harness.driver.clear_faults()
    await harness.service.kill(sandbox.id)
    with pytest.raises(SandyardError):
        await harness.service.kill(sandbox.id)
    failures = {key[1:]: value for key, value in (await read_metrics(client)).items() if "failures_total" in key[0]}
    assert failures == {("Unreachable", "driver.freeze"): 1}


async def test_metrics_count_boots_of_sandboxes_that_ended(
    harness: SandboxesHarness, client: httpx.AsyncClient
) -> None:
    sandbox = await harness.create()
    harness.host.end(sandbox.id)
    await harness.settle()
    assert (await read_metrics(client))["sandyard_engine_boots_total",] == 1


async def test_status_describes_the_engine(
    harness: SandboxesHarness, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counters, "SLOW_OPERATION_S", 0.0)
    sandbox = await harness.create()
    status: dict[str, Any] = (await client.get("/status")).json()
    assert status["sandboxes"] == {"running": 1, "paused": 0, "creating": 0, "removing": 0}
    assert status["builds"] == {"waiting": 0, "building": 1}
    assert status["shortage"] is status["layerStore"] is None
    assert status["isolation"] == ["namespace"]
    [create] = [slow for slow in status["slowOperations"] if slow["operation"] == "driver.create"][:1]
    assert create["error"] is None
    assert {slow["sandbox"] for slow in status["slowOperations"]} >= {sandbox.id}


async def test_status_needs_a_key(client: httpx.AsyncClient) -> None:
    assert (await client.get("/status", headers={"X-API-KEY": "wrong"})).status_code == 401
