"""`sandyard project mcp`: commands after --, header values only from standard input or a prompt, test results as exit codes."""

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
    result = run("list", "prj_1", "-o", "table")
    assert result.exit_code == 0, result.output
    for word in (
        "COMMAND/URL",
        "issues",
        "https://mcp.example.org/mcp",
        "Authorization …wxyz",
        "notes",
        "npx -y",
        "LEVEL",
    ):
        assert word in result.output


def test_a_command_server_is_added(ready: Server) -> None:
    result = run("add", "prj_1", "notes", "-e", "LEVEL=info", "--", "npx", "-y", "notes", "--url", "x")
    assert result.exit_code == 0, result.output
    sent = next(request for request in ready.requests if request.method == "POST").json()
    assert sent == {"name": "notes", "command": "npx", "args": ["-y", "notes", "--url", "x"], "env": {"LEVEL": "info"}}


def test_header_values_are_read_from_stdin_or_a_prompt(ready: Server) -> None:
    where = ("add", "prj_1", "issues", "--url", URL["url"])
    assert run(*where, "--headers-stdin", typed="Authorization: Bearer a:b\nX-Team: blue\n").exit_code == 0
    assert run(*where, "--header", "Authorization", typed="Bearer hidden\n").exit_code == 0
    sent = [request.json() for request in ready.requests if request.method == "POST"]
    assert sent[0]["headers"] == {"Authorization": "Bearer a:b", "X-Team": "blue"}
    assert (sent[1]["headers"], sent[1]["test"]) == ({"Authorization": "Bearer hidden"}, True)
    assert run(*where, "--headers-stdin", typed="nonsense\n").exit_code != 0
    assert run(*where, "--headers-stdin", typed="").exit_code != 0


def test_a_replaced_server_keeps_its_headers(ready: Server) -> None:
    assert run("add", "prj_1", "issues", "--url", "https://mcp.example.org/v2", "--replace", "--no-test").exit_code == 0
    sent = next(request for request in ready.requests if request.method == "PATCH").json()
    assert sent == {"url": "https://mcp.example.org/v2", "headers": {"Authorization": None}, "test": False}


def test_replace_does_not_change_the_type_of_a_server(ready: Server) -> None:
    result = run("add", "prj_1", "issues", "--replace", "--", "npx")
    assert (result.exit_code, "issues is a server with a URL" in result.output) == (1, True), result.output
    result = run("add", "prj_1", "notes", "--replace", "--url", "https://mcp.example.org/mcp")
    assert (result.exit_code, "notes is a server with a command" in result.output) == (1, True), result.output
    assert not [request for request in ready.requests if request.method == "PATCH"]


def test_the_help_explains_what_replace_keeps(ready: Server) -> None:
    result = " ".join(run("add", "--help").output.split())
    assert "Without headers, existing headers are kept; without -e, variables are removed." in result


def test_conflicting_options_are_usage_errors(ready: Server) -> None:
    for words in (
        ("x",),
        ("x", "--url", "https://a", "--", "npx"),
        ("x", "--header", "A", "--", "npx"),
        ("x", "--url", "https://a", "-e", "A=b"),
        ("notes", "--replcae", "--", "npx", "-y", "x"),
    ):
        assert run("add", "prj_1", *words).exit_code == 2, words
    assert not [request for request in ready.requests if request.method == "POST"]


def test_a_server_that_fails_its_test_is_not_saved(server: Server) -> None:
    server.on("POST", PATH, Reply(409, REFUSED, "application/problem+json"))
    result = run("add", "prj_1", "issues", "--url", URL["url"])
    assert result.exit_code == 1
    assert WRONG in result.output
    assert "issues was not saved, because the test failed. To save it anyway, use --no-test." in result.output


def test_a_server_is_tested_and_removed(ready: Server) -> None:
    works = {"ok": True, "detail": "issues works: 1 tool.", "server": "t", "tools": ["search"], "durationMs": 3}
    fails = {**works, "ok": False, "detail": WRONG, "tools": []}
    ready.on("POST", f"{PATH}/mcp_1/test", Reply(200, works), Reply(200, fails))
    result = run("test", "prj_1", "issues")
    assert (result.exit_code, "issues works" in result.output, "search" in result.output) == (0, True, True)
    result = run("test", "prj_1", "mcp_1")
    assert (result.exit_code, WRONG in result.output) == (1, True)
    assert run("remove", "prj_1", "notes").exit_code == 0
    assert ready.requests[-1].method == "DELETE"
    assert run("remove", "prj_1", "other").exit_code != 0
