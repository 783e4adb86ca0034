"""`sandyard agent`: list, add, remove and test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sandyard.cli.main import cli
from tests.harness.up import Installation, run_json
from tests.unit.cli.server import Reply, Server, events, problem

DEMO: dict[str, Any] = {
    "name": "demo",
    "title": "Demo agent (no model)",
    "description": "Follows instructions.",
    "demo": True,
    "builtIn": True,
    "apis": [],
    "models": [],
    "modes": ["work", "ask"],
    "version": None,
    "definition": None,
    "ownerId": None,
    "createdAt": None,
    "updatedAt": None,
}
SESSION = "ses_1"


def agent(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["agent", *arguments])


def event(kind: str, **data: Any) -> dict[str, Any]:
    return {"seq": 1, "kind": kind, "data": data}


def outcome(**result: Any) -> dict[str, Any]:
    steps = [{"name": "sandbox", "seconds": 0.21, "ok": True}, {"name": "install", "seconds": 4.0, "ok": result["ok"]}]
    return event("agent.tested", **{"agent": "demo", "steps": steps, "answer": None, "error": None} | result)


def test_agents_are_listed_and_shown(server: Server) -> None:
    server.on("GET", "/agents", Reply(body={"items": [DEMO]}))
    server.on("GET", "/agents/demo", Reply(body=DEMO))
    listed = agent("list", "-o", "table")
    assert "Demo agent (no model)" in listed.output
    assert "work, ask" in agent("show", "demo", "-o", "table").output
    assert json.loads(agent("show", "demo").output) == DEMO
    assert agent("show", "nobody").exit_code == 3


def test_an_agent_is_added_replaced_and_removed(server: Server, tmp_path: Path) -> None:
    server.on("POST", "/agents", Reply(201, DEMO))
    server.on("PUT", "/agents/mine", Reply(200, DEMO))
    server.on("DELETE", "/agents/mine", Reply(204))
    (tmp_path / "install.sh").write_text("npm i -g mine@1\n")
    options = [
        "--title",
        "Mine",
        "--install",
        f"@{tmp_path}/install.sh",
        "--check",
        "command -v mine",
        "-e",
        "A={model}",
    ]
    done = agent("add", *options, "--api", "openai", "mine", "mine-agent", "acp", "--flag")
    assert done.exit_code == 0, done.output
    assert server.requests[-1].json() == {
        "name": "mine",
        "title": "Mine",
        "definition": {
            "argv": ["mine-agent", "acp", "--flag"],
            "install": {"script": "npm i -g mine@1\n", "check": "command -v mine"},
            "envs": {"A": "{model}"},
            "apis": ["openai"],
        },
    }
    assert agent("add", "--replace", "mine", "--", "other").exit_code == 0
    assert server.requests[-1].json() == {"definition": {"argv": ["other"]}}
    missing = {"status": 404, "code": "not_found", "detail": "There is no agent 'new'."}
    server.on("PUT", "/agents/new", Reply(404, missing))
    assert agent("add", "--replace", "new", "--", "other").exit_code == 0
    assert server.requests[-1].json() == {"name": "new", "definition": {"argv": ["other"]}}
    assert agent("remove", "mine").exit_code == 0
    assert agent("add", "--check", "true", "mine", "x").exit_code == 2


@pytest.mark.parametrize(
    ("result", "code", "text"),
    [
        ({"ok": True, "answer": "ready"}, 0, "It works. Reply: ready"),
        ({"ok": False, "error": "The install ended with 1.\x1b[2J"}, 1, "It does not work. The install ended with 1."),
    ],
)
def test_the_test_of_an_agent_is_followed_to_its_end(
    server: Server, result: dict[str, Any], code: int, text: str
) -> None:
    server.on("POST", "/agents/demo/test", Reply(202, {"agent": "demo", "sessionId": SESSION}))
    stream = events(
        ("1", "sandbox.running", event("sandbox.running")),
        ("2", "agent.installing", event("agent.installing", what="npm says")),
        ("3", "agent.tested", outcome(**result)),
    )
    server.on("GET", "/events", events(("1", "sandbox.running", event("sandbox.running")), cut=True), stream)
    done = agent("test", "demo", "--model", "big")
    assert done.exit_code == code, done.output
    assert text in done.output
    assert "sandbox" in done.output and "0.2 s" in done.output
    posted, first, again = server.requests
    assert posted.json() == {"model": "big", "background": True}
    assert (first.query["sessionId"], first.headers["last-event-id"]) == (SESSION, "0")
    assert again.headers["last-event-id"] == "1"
    server.on("GET", "/events", stream)
    assert json.loads(agent("test", "demo", "-o", "json").output)["ok"] is (code == 0)


def test_testing_an_unknown_agent_is_an_error(server: Server) -> None:
    server.on("POST", "/agents/x/test", problem(404, "not_found", "There is no agent 'x'."))
    done = agent("test", "x")
    assert (done.exit_code, "There is no agent" in done.output) == (3, True)


def test_the_demo_agent_passes_its_test_on_a_real_server(installation: Installation) -> None:
    assert [item["name"] for item in run_json(installation, "agent", "list")["items"]][-1] == "demo"
    result = run_json(installation, "agent", "test", "demo", "-o", "json")
    assert (result["ok"], result["error"]) == (True, None)
