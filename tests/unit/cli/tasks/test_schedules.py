"""`sandyard schedule`: its requests and its output."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sandyard.cli.main import cli
from tests.unit.cli.server import Reply, Server
from tests.unit.cli.tasks.answers import TASK, page, task

NIGHTLY: dict[str, Any] = {
    "id": "sch_1",
    "projectId": "prj_1",
    "name": "nightly",
    "cron": "0 3 * * *",
    "timezone": "UTC",
    "task": {"title": "Update it", "agent": "demo"},
    "enabled": True,
    "nextAt": "2030-01-31T03:00:00.000Z",
    "lastAt": None,
    "lastTaskId": None,
    "lastError": None,
}


@pytest.fixture
def ready(server: Server) -> Server:
    server.on("GET", "/schedules", page([NIGHTLY]))
    server.on("GET", "/schedules/sch_1", Reply(200, NIGHTLY))
    server.on("POST", "/schedules", Reply(201, NIGHTLY))
    server.on("PATCH", "/schedules/sch_1", Reply(200, {**NIGHTLY, "enabled": False}))
    server.on("DELETE", "/schedules/sch_1", Reply(204))
    server.on("POST", "/schedules/sch_1/run", Reply(201, task()))
    return server


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["schedule", *arguments])


def test_a_schedule_is_added(ready: Server) -> None:
    result = run(
        "add", "0 3 * * *", "Update it\nAll of it.", "--project", "prj_1", "--zone", "Europe/Vienna", "--disabled"
    )
    assert json.loads(result.stdout) == NIGHTLY
    assert ready.requests[-1].json() == {
        "projectId": "prj_1",
        "name": "Update it",
        "cron": "0 3 * * *",
        "timezone": "Europe/Vienna",
        "task": {"title": "Update it", "description": "All of it."},
        "enabled": False,
    }


@pytest.mark.parametrize("name", ["nightly", "sch_1"])
def test_a_schedule_is_run_enabled_disabled_and_removed(ready: Server, name: str) -> None:
    assert run("run", name).stdout == f"{TASK}\n"
    run("disable", name)
    assert ready.requests[-1].json() == {"enabled": False}
    run("enable", name)
    assert ready.requests[-1].json() == {"enabled": True}
    assert run("remove", name, "--yes").exit_code == 0
    assert ready.requests[-1].method == "DELETE"


def test_schedules_are_listed(ready: Server) -> None:
    printed = run("list", "-o", "table").stdout
    assert "2030-01-31 03:00 UTC" in printed and "Update it" in printed
    assert run("run", "hourly").exit_code == 3
