"""`sandyard project`: credentials are never arguments, and a new project is tested at once."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sandyard.cli.main import cli
from tests.harness.up import Installation, Terminal
from tests.unit.cli.server import Reply, Server, problem

PROJECT: dict[str, Any] = {
    "id": "prj_1",
    "name": "website",
    "repository": "https://example.org/o/website.git",
    "baseBranch": None,
    "settings": {
        "commandPolicy": {"allow": [], "deny": ["sudo"]},
        "git": {"author": None, "commitMessages": "conventional"},
        "forge": {"kind": "auto", "labels": ["bot"], "mergeMethod": "squash"},
        "template": "base",
    },
}
GOOD = {
    "ok": True,
    "findings": [{"what": "base_branch", "ok": True, "detail": "main is\x1b[2J there."}],
    "budget": None,
}
REFUSED = {
    "code": "connection_test_failed",
    "detail": "The connection test failed.",
    "findings": [{"what": "credential", "ok": False, "detail": "The token is wrong."}],
}
BAD = {"ok": False, "findings": [{"what": "credential", "ok": False, "detail": "The token is wrong."}]}


@pytest.fixture
def ready(server: Server) -> Server:
    server.on("POST", "/projects", Reply(201, PROJECT))
    server.on("PUT", "/projects/prj_1/credentials", Reply(200, {"items": []}))
    server.on("POST", "/projects/prj_1/test", Reply(200, GOOD))
    server.on("GET", "/projects", Reply(200, {"items": [PROJECT], "nextCursor": None}))
    server.on("GET", "/projects/prj_1", Reply(200, PROJECT))
    server.on("PATCH", "/projects/prj_1", Reply(200, PROJECT))
    return server


def run(*arguments: str, stdin: str = "") -> Result:
    return CliRunner().invoke(cli, ["project", *arguments], input=stdin)


def list_requests(server: Server) -> list[tuple[str, str]]:
    return [(request.method, request.path.removeprefix("/api/v1")) for request in server.requests]


def test_a_project_is_added_with_a_token(ready: Server) -> None:
    address = "https://example.org/o/website.git"
    result = run("add", "website", "--repository", address, "--base", "main", "--token-stdin", stdin="ghp_secret\n")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == PROJECT
    assert "ghp_secret" not in result.output
    assert list_requests(ready) == [("POST", "/projects")], (
        "one request with the token: the project is created completely or not at all"
    )
    given = {"name": "website", "repository": address, "baseBranch": "main", "token": "ghp_secret", "test": True}
    assert ready.requests[0].json() == given
    ready.on("POST", "/projects", Reply(201, {**PROJECT, "forgeNote": "Set its API URL."}))
    result = run("add", "website", "--repository", address, "--no-token")
    assert "Set its API URL. To set it: sandyard project set prj_1 --api-url https://HOST/api/v3\n" in result.stderr


def test_a_project_is_added_with_an_ssh_key_and_an_app_key(ready: Server, tmp_path: Path) -> None:
    ssh, app = tmp_path / "id", tmp_path / "app.pem"
    ssh.write_text("SSH KEY\n")
    app.write_text("APP KEY\n")
    options = ["--ssh-key", str(ssh), "--app-id", "7", "--installation-id", "9", "--private-key", str(app)]
    forge = ["--forge", "github", "--api-url", "https://ghe.example.org/api/v3"]
    result = run("add", "w", "--repository", "git@example.org:o/w", *options, *forge, "--no-test")
    assert result.exit_code == 0, result.output
    assert list_requests(ready) == [("POST", "/projects")]
    settings = {"forge": {"kind": "github", "apiUrl": "https://ghe.example.org/api/v3"}}
    assert ready.requests[0].json()["settings"] == settings
    given = {"appId": "7", "installationId": "9", "privateKey": "APP KEY\n"}
    sent = ready.requests[0].json()
    assert (sent["sshKey"], sent["app"], sent["test"]) == ("SSH KEY\n", given, False)


def test_a_local_path_is_made_absolute(ready: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "repository").mkdir()
    monkeypatch.chdir(tmp_path)
    for given, sent in (("repository", str(tmp_path / "repository")), ("o/name", "o/name")):
        assert run("add", "w", "--repository", given).exit_code == 0
        assert [request for request in ready.requests if request.path.endswith("/projects")][-1].json()[
            "repository"
        ] == sent


def test_a_project_that_fails_its_test_is_not_added(ready: Server) -> None:
    ready.on("POST", "/projects", Reply(409, REFUSED, "application/problem+json"))
    result = run("add", "website", "--repository", "https://example.org/x", "--no-token")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "✗ credential: The token is wrong.\n" in result.stderr
    assert "website was not added. To add it anyway, use --no-test." in result.stderr
    ready.on("POST", "/projects", problem(400, "invalid_argument", "That is no token."))
    result = run("add", "website", "--repository", "https://example.org/x", "--token-stdin", stdin="x\n")
    assert (result.exit_code, "That is no token." in result.stderr) == (1, True)


def test_a_connection_error_is_listed(ready: Server) -> None:
    broken = {**PROJECT, "connectionError": "There is no repository."}
    ready.on("GET", "/projects", Reply(200, {"items": [broken], "nextCursor": None}))
    assert "There is no repository." in run("list", "-o", "table").stdout


def test_a_terminal_prompts_for_the_token_and_does_not_show_it(ready: Server) -> None:
    command = Installation.command("project", "add", "website", "--repository", "https://example.org/o/website")
    terminal = Terminal(command, {**os.environ, "COLUMNS": "200"})
    try:
        terminal.until("Token for example.org (leave empty for none): ")
        terminal.type("ghp_typed\n")
        terminal.until("prj_1")
        assert terminal.wait_for_exit() == 0
        assert b"ghp_typed" not in terminal.shown
    finally:
        terminal.close()
    assert ready.requests[0].json()["token"] == "ghp_typed"


@pytest.mark.parametrize(
    ("arguments", "stdin", "code", "words"),
    [
        (["--token-stdin", "--webhook-secret-stdin"], "x", 2, "either the token"),
        (["--token-stdin", "--no-token"], "x", 2, "not both"),
        (["--token-stdin"], "\n", 1, "is empty"),
        (["--app-id", "7"], "", 2, "--installation-id"),
        (["--username", "me"], "", 2, "together with a token"),
        (["--ssh-key", "EMPTY"], "", 1, "is not a key"),
        (["--ssh-key", "BINARY"], "", 1, "is not text"),
    ],
)
def test_invalid_credential_options_are_reported(
    server: Server, tmp_path: Path, arguments: list[str], stdin: str, code: int, words: str
) -> None:
    (tmp_path / "EMPTY").touch()
    (tmp_path / "BINARY").write_bytes(b"\xff\xfe")
    options = [str(tmp_path / word) if word in {"EMPTY", "BINARY"} else word for word in arguments]
    result = run("add", "w", "--repository", "https://example.org/x", *options, stdin=stdin)
    assert result.exit_code == code
    assert words in result.stderr
    assert server.requests == [], "no request is sent before all options are valid"


def test_credentials_are_replaced_tested_and_removed(ready: Server) -> None:
    result = run("token", "website", "--token-stdin", "--username", "me", stdin="ghp_new\n")
    assert result.exit_code == 0, result.output
    (put,) = [request for request in ready.requests if request.method == "PUT"]
    assert put.json() == {"token": "ghp_new", "username": "me"}
    assert put.query == {"test": "true"}
    assert run("token", "prj_1", "--webhook-secret-stdin", stdin="hush\n").exit_code == 0
    last = [request for request in ready.requests if request.method == "PUT"][-1]
    assert (last.json(), last.query) == ({"webhookSecret": "hush"}, {"test": "false"})
    ready.on("PUT", "/projects/prj_1/credentials", Reply(409, REFUSED, "application/problem+json"))
    result = run("token", "website", "--token-stdin", stdin="ghp_wrong\n")
    assert (result.exit_code, "Nothing was saved" in result.stderr) == (1, True)
    assert "✗ credential: The token is wrong." in result.stderr
    ready.on("DELETE", "/projects/prj_1/credentials/ssh_key", Reply(204))
    assert run("token", "website", "--remove", "ssh-key").exit_code == 0
    assert run("token", "website").exit_code == 1, "there is no terminal to prompt on"


def test_the_test_prints_its_findings(ready: Server) -> None:
    assert run("test", "website", "-o", "table").stdout == "✓ base branch: main is^[[2J there.\n"
    ready.on("POST", "/projects/prj_1/test", Reply(200, BAD))
    result = run("test", "website", "-o", "table")
    assert (result.exit_code, result.stdout) == (1, "✗ credential: The token is wrong.\n")
    assert json.loads(run("test", "prj_1").stdout)["ok"] is False


@pytest.mark.parametrize(
    ("arguments", "body"),
    [
        (["--name", "site", "--base", ""], {"name": "site", "baseBranch": None}),
        (["--archive"], {"archived": True}),
        (["--repository", "https://example.org/y"], {"repository": "https://example.org/y"}),
    ],
)
def test_set_sends_only_the_given_fields(ready: Server, arguments: list[str], body: dict[str, object]) -> None:
    assert run("set", "website", *arguments).exit_code == 0
    assert ready.requests[-1].json() == body


def test_set_keeps_the_other_settings(ready: Server) -> None:
    result = run(
        "set",
        "website",
        "--author",
        "Maria M <m@example.org>",
        "--label",
        "",
        "--merge-method",
        "rebase",
        "--template",
        "",
        "--isolation",
        "gvisor",
        "--containers",
    )
    assert result.exit_code == 0, result.output
    old = PROJECT["settings"]
    assert ready.requests[-1].json() == {
        "settings": {
            **old,
            "git": {**old["git"], "author": {"name": "Maria M", "email": "m@example.org"}},
            "forge": {**old["forge"], "labels": [], "mergeMethod": "rebase"},
            "template": None,
            "isolation": "gvisor",
            "containers": True,
        }
    }
    assert run("set", "website").exit_code == 2
    assert run("set", "website", "--author", "Maria").exit_code == 2


def test_task_settings_are_set(ready: Server) -> None:
    words = ("--verify", "make test", "--setup", "", "--agent", "claude", "--permissions", "ask", "--parallel", "2")
    assert run("set", "website", *words, "--budget-usd", "5", "--monthly-budget-usd", "0").exit_code == 0
    settings = ready.requests[-1].json()["settings"]
    assert settings == {
        **PROJECT["settings"],
        "verify": {"command": "make test"},
        "setup": {"command": None},
        "agent": {"default": "claude", "permissions": {"mode": "ask"}},
        "tasks": {"parallel": 2, "budget": {"usd": 5}, "monthlyBudget": {"usd": None}},
    }


def test_network_settings_are_set(ready: Server) -> None:
    words = (
        "--network",
        "listed",
        "--network-preset",
        "pypi",
        "--allow-host",
        "a.test",
        "--allow-host",
        "192.0.2.0/24",
    )
    assert run("set", "website", *words).exit_code == 0
    network = {"mode": "listed", "presets": ["pypi"], "allow": ["a.test", "192.0.2.0/24"]}
    assert ready.requests[-1].json()["settings"]["network"] == network
    assert run("set", "website", "--network", "", "--allow-host", "").exit_code == 0
    assert ready.requests[-1].json()["settings"]["network"] == {"mode": None, "allow": []}
    assert run("set", "website", "--network", "some").exit_code == 2


def test_a_project_is_found_by_its_unique_name(ready: Server) -> None:
    assert json.loads(run("show", "website").stdout) == PROJECT
    assert list_requests(ready) == [("GET", "/projects"), ("GET", "/projects/prj_1")]
    assert run("show", "other").exit_code == 3
    twice = {"items": [PROJECT, PROJECT | {"id": "prj_2"}], "nextCursor": None}
    ready.on("GET", "/projects", Reply(200, twice))
    result = run("show", "website")
    assert result.exit_code == 1
    assert "prj_1, prj_2" in result.stderr


def test_a_project_is_shown_listed_and_deleted(ready: Server) -> None:
    credentials = {"items": [{"kind": "token", "hint": "…wxyz", "updatedAt": None}]}
    ready.on("GET", "/projects/prj_1/credentials", Reply(200, credentials))
    assert "…wxyz" in run("show", "website", "-o", "table").stdout
    ready.on("GET", "/projects/prj_1/credentials", problem(403, "forbidden", "No."))
    assert run("show", "website", "-o", "table").exit_code == 0
    assert "website" in run("list", "-o", "table").stdout
    ready.on("DELETE", "/projects/prj_1", Reply(204))
    assert run("delete", "website", stdin="n\n").exit_code == 1
    assert run("delete", "website", "--yes").exit_code == 0


def test_members_are_listed_added_and_removed(ready: Server) -> None:
    ada = {"id": "usr_1", "name": "ada"}
    path = "/projects/prj_1/members"
    ready.on("GET", path, Reply(200, {"items": [ada]}))
    ready.on("GET", "/users", Reply(200, {"items": [ada], "nextCursor": None}))
    ready.on("PUT", f"{path}/usr_1", Reply(204))
    ready.on("DELETE", f"{path}/usr_1", Reply(204))
    assert "ada" in run("members", "list", "website", "-o", "table").stdout
    assert run("members", "add", "website", "ada").exit_code == 0
    assert run("members", "add", "website", "usr_1").exit_code == 0
    assert run("members", "add", "website", "bob").exit_code == 3
    ready.on("GET", "/users", problem(403, "forbidden", "No."))
    assert run("members", "remove", "website", "ada").exit_code == 0, (
        "members can be removed by name without the list of users"
    )
    assert "by name" in run("members", "add", "website", "bob").stderr
