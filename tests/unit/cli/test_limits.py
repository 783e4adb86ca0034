"""`sandyard user limits` and `sandyard project limits`."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner

from sandyard.cli.main import cli
from tests.unit.cli.server import Reply, Server

OWN: dict[str, Any] = {
    "runningSandboxes": 3,
    "cpus": None,
    "memoryMb": None,
    "diskMb": 5,
    "monthlyUsd": None,
    "monthlyTokens": None,
}
USED: dict[str, Any] = {
    "items": [
        {"name": "cpus", "used": 6.0, "limit": 16.0},
        {"name": "memoryMb", "used": 2048.0, "limit": None},
        {"name": "monthlyUsd", "used": 1.5, "limit": 50.0},
        {"name": "monthlyTokens", "used": 12_345_678.0, "limit": None},
    ]
}
PROJECT: dict[str, Any] = {
    "id": "prj_1",
    "settings": {
        "quotas": {"cpus": 2, "diskMb": 100},
        "tasks": {"parallel": 3, "monthlyBudget": {"usd": 9, "tokens": None}},
        "template": "base",
    },
}


def run(*arguments: str) -> str:
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_limits_are_shown_with_what_is_used(server: Server) -> None:
    server.on("GET", "/users", Reply(200, {"items": [{"id": "usr_1", "name": "maria"}], "nextCursor": None}))
    server.on("GET", "/users/usr_1/quotas", Reply(200, {**USED, "own": OWN}))
    lines = [line.split("  ") for line in run("user", "limits", "maria", "-o", "table").splitlines()]
    assert [[cell.strip() for cell in line if cell.strip()] for line in lines] == [
        ["LIMIT ON", "USED", "LIMIT"],
        ["processors of running sandboxes", "6", "16"],
        ["memory of running sandboxes", "2.0 GiB", "none"],
        ["models per month ($)", "1.50", "50.00"],
        ["models per month (tokens)", "12345678", "none"],
    ]


def test_limits_of_a_user_are_changed_one_by_one(server: Server) -> None:
    server.on("GET", "/users/usr_1/quotas", Reply(200, {**USED, "own": OWN}))
    server.on("PUT", "/users/usr_1/quotas", Reply(200, {**USED, "own": OWN}))
    run("user", "limits", "usr_1", "--cpus", "8", "--memory-mb", "none", "--disk-mb", "default", "--monthly-usd", "2.5")
    assert server.requests[-1].json() == {**OWN, "cpus": 8, "memoryMb": 0, "diskMb": None, "monthlyUsd": 2.5}


def test_limits_of_a_project_are_changed_one_by_one(server: Server) -> None:
    server.on("GET", "/projects/prj_1", Reply(200, PROJECT))
    server.on("PATCH", "/projects/prj_1", Reply(200, PROJECT))
    server.on("GET", "/projects/prj_1/quotas", Reply(200, USED))
    run("project", "limits", "prj_1", "--cpus", "8", "--disk-mb", "none", "--monthly-tokens", "1000")
    (change,) = [request.json() for request in server.requests if request.method == "PATCH"]
    settings = {
        "quotas": {"cpus": 8, "diskMb": None},
        "tasks": {"parallel": 3, "monthlyBudget": {"usd": 9, "tokens": 1000}},
        "template": "base",
    }
    assert change == {"settings": settings}


@pytest.mark.parametrize(
    ("noun", "value"),
    [("user", "0"), ("user", "-1"), ("user", "many"), ("user", "1.5"), ("project", "default"), ("user", "inf")],
)
def test_invalid_limits_are_refused(server: Server, noun: str, value: str) -> None:
    result = CliRunner().invoke(cli, [noun, "limits", "x_1", "--cpus", value])
    assert result.exit_code == 2 and "is neither a number above 0 nor none" in result.output, result.output
    assert not server.requests
