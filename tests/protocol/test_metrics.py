"""Test metrics and logs of a sandbox."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import httpx
import pytest
from e2b import Sandbox, SandboxNotFoundException

from tests.harness.sdk import get_access_token

from .waiting import until


def test_metrics_of_a_running_sandbox(sandbox: Sandbox) -> None:
    started = datetime.now(UTC)
    sandbox.commands.run("head -c 20000000 /dev/urandom > fill")
    until(sandbox.get_metrics, 15)
    metric = sandbox.get_metrics()[-1]
    assert metric.cpu_count >= 1
    assert metric.cpu_used_pct >= 0
    assert 0 < metric.mem_used <= metric.mem_total
    assert 0 < metric.disk_used <= metric.disk_total
    assert abs(metric.timestamp - datetime.now(UTC)) < timedelta(seconds=30)
    now = datetime.now(UTC)
    assert sandbox.get_metrics(start=started - timedelta(seconds=5), end=now + timedelta(seconds=5))
    assert sandbox.get_metrics(start=started - timedelta(hours=2), end=started - timedelta(hours=1)) == []


def test_metrics_of_a_killed_sandbox_are_not_found(sandbox: Sandbox) -> None:
    sandbox.kill()
    with pytest.raises(SandboxNotFoundException):
        sandbox.get_metrics()


@pytest.mark.parametrize("parameters", [{"start": "soon"}, {"start": "-5"}, {"start": "200", "end": "100"}], ids=str)
def test_invalid_time_ranges_are_refused(sandbox: Sandbox, api: httpx.Client, parameters: dict[str, str]) -> None:
    assert api.get(f"/sandboxes/{sandbox.sandbox_id}/metrics", params=parameters).status_code == 400


def test_logs_contain_lifecycle_events(sandbox: Sandbox, api: httpx.Client) -> None:
    sandbox.pause()
    sandbox.connect()
    response = api.get(f"/sandboxes/{sandbox.sandbox_id}/logs")
    assert response.status_code == 200, response.text
    logs = response.json()
    assert logs["logs"], "lifecycle events must be logged"
    for line in logs["logs"]:
        assert datetime.fromisoformat(line["timestamp"]).tzinfo is not None
        assert line["line"]
    for entry in logs["logEntries"]:
        assert {"timestamp", "level", "message", "fields"} <= set(entry)
    assert str(get_access_token(sandbox)) not in response.text, "the access token must not be logged"


def test_logs_can_be_limited(sandbox: Sandbox, api: httpx.Client) -> None:
    sandbox.pause()
    sandbox.connect()
    route = f"/sandboxes/{sandbox.sandbox_id}/logs"
    assert len(api.get(route, params={"limit": 1}).json()["logs"]) == 1
    assert api.get(route, params={"limit": "x"}).status_code == 400
