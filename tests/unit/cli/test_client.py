"""Errors of the server become one sentence and an exit code."""

from __future__ import annotations

import socket

import pytest
from click.testing import CliRunner, Result

from sandyard.cli.connection import connect
from sandyard.cli.main import cli
from tests.unit.cli.server import Reply, Request, Server, problem


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


def test_the_token_is_sent_to_the_server(server: Server) -> None:
    server.on("GET", "/sandboxes", Reply(200, {"items": [], "nextCursor": None}))
    assert run("sandbox", "list").exit_code == 0
    assert server.requests[0].headers["authorization"] == "Bearer sy_test"


@pytest.mark.parametrize(
    ("status", "code", "exit_code"),
    [
        (400, "invalid_argument", 1),
        (401, "unauthenticated", 4),
        (403, "forbidden", 4),
        (404, "not_found", 3),
        (409, "conflict", 1),
        (410, "sandbox_destroyed", 3),
        (429, "rate_limited", 1),
        (500, "internal", 1),
        (502, "engine_unreachable", 5),
        (503, "busy", 5),
    ],
)
def test_a_problem_response_becomes_a_message_and_an_exit_code(
    server: Server, status: int, code: str, exit_code: int
) -> None:
    server.on("GET", "/sandboxes/sbx_1", problem(status, code, "That was\nwrong"))
    result = run("sandbox", "show", "sbx_1")
    assert result.exit_code == exit_code
    assert result.stderr == "sandyard: That was wrong.\n"
    assert result.stdout == ""


def test_invalid_fields_are_named_once(server: Server) -> None:
    body = {"detail": "Not valid: limit: too large.", "errors": [{"field": "limit", "message": "too large"}]}
    server.on("GET", "/sandboxes", Reply(400, body))
    assert run("sandbox", "list").stderr == "sandyard: Not valid: limit: too large.\n"
    body = {"detail": "Not valid.", "errors": [{"field": "limit", "message": "too large"}, {"message": "no"}]}
    server.on("GET", "/sandboxes", Reply(400, body))
    assert run("sandbox", "list").stderr == "sandyard: Not valid: limit: too large; no.\n"
    body = {"detail": "No such template.", "errors": [{"field": "template", "message": "No such template."}]}
    server.on("GET", "/sandboxes", Reply(400, body))
    assert run("sandbox", "list").stderr == "sandyard: No such template.\n"


@pytest.mark.parametrize("body", [b"<html>Bad gateway</html>", b"", b"[]", b'"x"'])
def test_an_error_page_of_a_proxy_is_reported_by_its_status(server: Server, body: bytes) -> None:
    server.on("GET", "/sandboxes/sbx_1", Reply(502, body, "text/html"))
    result = run("sandbox", "show", "sbx_1")
    assert result.exit_code == 5
    assert result.stderr == "sandyard: The server at 127.0.0.1 returned 502 Bad Gateway.\n"


@pytest.mark.parametrize("reply", [Reply(200, b"<html>", "text/html"), Reply(200, b"{", cut=True)])
def test_a_response_that_is_not_json_is_reported_in_one_line(server: Server, reply: Reply) -> None:
    server.on("GET", "/sandboxes/sbx_1", reply)
    result = run("sandbox", "show", "sbx_1")
    assert result.exit_code == 5
    assert result.stderr.count("\n") == 1


def test_redirects_are_not_followed_with_a_token(server: Server) -> None:
    server.on("GET", "/sandboxes/sbx_1", Reply(302, b""))
    assert run("sandbox", "show", "sbx_1").exit_code == 1


def test_a_refused_connection_suggests_sandyard_up(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setenv("SANDYARD_URL", f"http://127.0.0.1:{taken.getsockname()[1]}")
        monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
        result = run("session", "list")
    assert result.exit_code == 5
    assert "Connection refused" in result.stderr
    assert "sandyard up" in result.stderr


def test_a_wrong_password_is_reported_as_such(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SANDYARD_TOKEN")
    monkeypatch.setenv("SANDYARD_PASSWORD", "wrong")
    server.on("POST", "/login", problem(401, "wrong_login", "The name or the password is wrong"))
    result = run("login", server.url, "--name", "admin")
    assert result.exit_code == 4
    assert "sandyard: The name or the password is wrong.\n" in result.stderr
    assert "Not logged in" not in result.stderr


@pytest.mark.parametrize("arguments", [("--token", "sy_x"), ("--name", "admin"), ()])
def test_login_to_the_engine_names_the_mistake(
    server: Server, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.delenv("SANDYARD_TOKEN")
    monkeypatch.setenv("SANDYARD_PASSWORD", "x")
    reply = Reply(401, {"code": 401, "message": "The API key is missing."})
    server.on("GET", "/me", reply)
    server.on("POST", "/login", reply)
    result = run("login", server.url, *arguments)
    assert result.exit_code == 5
    assert "is the API of the engine. The platform usually listens on the next lower port." in result.stderr


def test_login_without_a_token_to_an_unreachable_server_reports_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        result = run("login", f"http://127.0.0.1:{unused.getsockname()[1]}")
    assert result.exit_code == 5
    assert "Could not connect to" in result.stderr


def test_a_missing_token_suggests_sandyard_login(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SANDYARD_TOKEN")
    server.on("GET", "/sessions", problem(401, "unauthenticated", "The token is missing."))
    result = run("session", "list")
    assert result.exit_code == 4
    assert "sandyard login" in result.stderr


def test_pages_are_joined(server: Server) -> None:
    def page(request: Request) -> Reply:
        start = int(request.query.get("cursor", 0))
        count = int(request.query["limit"])
        more = str(start + count) if start + count < 450 else None
        return Reply(200, {"items": list(range(start, min(450, start + count))), "nextCursor": more})

    server.on("GET", "/sandboxes", page)
    with connect() as client:
        assert client.list_items("/sandboxes", 250)["items"] == list(range(250))
        assert [request.query["limit"] for request in server.requests] == ["200", "50"]
        everything = client.list_items("/sandboxes", 1000, all=True)
    assert everything == {"items": list(range(450)), "nextCursor": None}
    assert server.requests[-1].query["all"] == "true"


@pytest.mark.parametrize("name", ["../tokens", "a/b", "sbx_1?x=1", "sbx 1", "sbx_é"])
def test_an_id_is_escaped_as_one_path_segment(server: Server, name: str) -> None:
    assert run("sandbox", "show", name).exit_code == 3
    assert server.requests[0].path.count("/") == 4
    assert server.requests[0].query == {}


@pytest.mark.parametrize("name", ["", " ", ".."])
def test_an_impossible_id_is_rejected_without_a_request(server: Server, name: str) -> None:
    assert run("sandbox", "show", name).exit_code == 1
    assert server.requests == []
