"""`sandyard project mcp`: commands behind --, values of headers from standard input or a prompt alone, verdicts as exit codes."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner, Result

from sandyard.cli.main import cli
from tests.unit.cli.server import Reply, Server

PATH = "/projects/prj_1/mcp-servers"
URL: dict[str, Any] = {
    "id": "mcp_1",
    "projectId": "prj_1",
    "name": "issues",
    "type": "http",
    "command": None,
    "args": [],
    "env": {},
    "url": "https://mcp.example.org/mcp",
    "headers": [{"name": "Authorization", "hint": "…wxyz"}],
    "createdAt": "2026-01-31T10:00:00.000Z",
    "updatedAt": "2026-01-31T10:00:00.000Z",
}
COMMAND = {**URL, "id": "mcp_2", "name": "notes", "type": "stdio", "command": "npx", "args": ["-y"], "url": None}
COMMAND |= {"headers": [], "env": {"LEVEL": "info"}}
WRONG = "The MCP server issues rejected the configured headers (401)."
REFUSED = {
    "code": "connection_test_failed",
    "detail": WRONG,
    "findings": [{"what": "mcp", "ok": False, "detail": WRONG}],
}


@pytest.fixture
def ready(server: Server) -> Server:
    server.on("GET", PATH, Reply(200, {"items": [COMMAND, URL]}))
    server.on("POST", PATH, Reply(201, URL))
    server.on("PATCH", f"{PATH}/mcp_1", Reply(200, URL))
    server.on("DELETE", f"{PATH}/mcp_2", Reply(204))
    return server


def run(*words: str, typed: str | None = None) -> Result:
    return CliRunner().invoke(cli, ["project", "mcp", *words], input=typed)


def test_servers_are_listed(ready: Server) -> None:
    said = run("list", "prj_1", "-o", "table")
    assert said.exit_code == 0, said.output
    for word in (
        "COMMAND/URL",
        "issues",
        "https://mcp.example.org/mcp",
        "Authorization …wxyz",
        "notes",
        "npx -y",
        "LEVEL",
    ):
        assert word in said.output


def test_a_command_is_added(ready: Server) -> None:
    said = run("add", "prj_1", "notes", "-e", "LEVEL=info", "--", "npx", "-y", "notes", "--url", "x")
    assert said.exit_code == 0, said.output
    sent = next(one for one in ready.asked if one.method == "POST").json()
    assert sent == {"name": "notes", "command": "npx", "args": ["-y", "notes", "--url", "x"], "env": {"LEVEL": "info"}}


def test_headers_are_read_or_asked_for(ready: Server) -> None:
    where = ("add", "prj_1", "issues", "--url", URL["url"])
    assert run(*where, "--headers-stdin", typed="Authorization: Bearer a:b\nX-Team: blue\n").exit_code == 0
    assert run(*where, "--header", "Authorization", typed="Bearer hidden\n").exit_code == 0
    sent = [one.json() for one in ready.asked if one.method == "POST"]
    assert sent[0]["headers"] == {"Authorization": "Bearer a:b", "X-Team": "blue"}
    assert (sent[1]["headers"], sent[1]["test"]) == ({"Authorization": "Bearer hidden"}, True)
    assert run(*where, "--headers-stdin", typed="nonsense\n").exit_code != 0
    assert run(*where, "--headers-stdin", typed="").exit_code != 0


def test_one_is_replaced_and_keeps_its_headers(ready: Server) -> None:
    assert run("add", "prj_1", "issues", "--url", "https://mcp.example.org/v2", "--replace", "--no-test").exit_code == 0
    sent = next(one for one in ready.asked if one.method == "PATCH").json()
    assert sent == {"url": "https://mcp.example.org/v2", "headers": {"Authorization": None}, "test": False}


def test_a_url_does_not_become_a_command(ready: Server) -> None:
    said = run("add", "prj_1", "issues", "--replace", "--", "npx")
    assert (said.exit_code, "issues is a URL. Remove it first" in said.output) == (1, True), said.output
    said = run("add", "prj_1", "notes", "--replace", "--url", "https://mcp.example.org/mcp")
    assert (said.exit_code, "notes is a command. Remove it first" in said.output) == (1, True), said.output
    assert not [one for one in ready.asked if one.method == "PATCH"]


def test_the_help_says_what_stays(ready: Server) -> None:
    said = " ".join(run("add", "--help").output.split())
    assert "Without headers, existing headers are kept; without -e, variables are removed." in said


def test_what_does_not_go_together(ready: Server) -> None:
    for words in (
        ("x",),
        ("x", "--url", "https://a", "--", "npx"),
        ("x", "--header", "A", "--", "npx"),
        ("x", "--url", "https://a", "-e", "A=b"),
        ("notes", "--replcae", "--", "npx", "-y", "x"),
    ):
        assert run("add", "prj_1", *words).exit_code == 2, words
    assert not [one for one in ready.asked if one.method == "POST"]


def test_what_does_not_work_is_not_stored(server: Server) -> None:
    server.on("POST", PATH, Reply(409, REFUSED, "application/problem+json"))
    said = run("add", "prj_1", "issues", "--url", URL["url"])
    assert said.exit_code == 1
    assert WRONG in said.output
    assert "issues was not saved. To save it anyway, use --no-test." in said.output


def test_one_is_tested_and_removed(ready: Server) -> None:
    works = {"ok": True, "detail": "issues works: 1 tool.", "server": "t", "tools": ["search"], "durationMs": 3}
    fails = {**works, "ok": False, "detail": WRONG, "tools": []}
    ready.on("POST", f"{PATH}/mcp_1/test", Reply(200, works), Reply(200, fails))
    said = run("test", "prj_1", "issues")
    assert (said.exit_code, "issues works" in said.output, "search" in said.output) == (0, True, True)
    said = run("test", "prj_1", "mcp_1")
    assert (said.exit_code, WRONG in said.output) == (1, True)
    assert run("remove", "prj_1", "notes").exit_code == 0
    assert ready.asked[-1].method == "DELETE"
    assert run("remove", "prj_1", "other").exit_code != 0
