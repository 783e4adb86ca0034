"""`sandyard model` and `sandyard usage`: keys only from standard input, providers by name, test results as exit codes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sandyard.cli.main import cli
from sandyard.cli.tasks.progress import describe_end
from tests.unit.cli.server import Reply, Server

PROVIDER: dict[str, Any] = {
    "id": "prv_1",
    "projectId": None,
    "name": "claude",
    "kind": "anthropic",
    "baseUrl": "https://api.anthropic.com",
    "hint": "…wxyz",
    "models": ["sonnet"],
    "prices": {},
    "createdAt": "2026-01-31T10:00:00.000Z",
    "updatedAt": "2026-01-31T10:00:00.000Z",
}
PRESETS = {
    "pricesTaken": "2026-11-17",
    "items": [
        {
            "name": name,
            "title": name.title(),
            "kind": "openai_chat",
            "baseUrl": f"https://{name}.example.org",
            "keyRequired": name != "ollama",
            "keyUrl": None,
            "models": ["big"] if name != "ollama" else [],
            "prices": {},
            "agents": ["opencode"],
        }
        for name in ("gemini", "openrouter", "ollama")
    ],
}
GOOD = {"ok": True, "detail": "The model sonnet answered.", "model": "sonnet", "durationMs": 12}
WRONG = "Anthropic refused the API key (401)."
REFUSED = {
    "code": "connection_test_failed",
    "detail": f"{WRONG} Nothing was saved.",
    "cause": "key",
    "findings": [{"what": "key", "ok": False, "detail": WRONG}],
}


@pytest.fixture
def ready(server: Server) -> Server:
    server.on("GET", "/model-providers", Reply(200, {"items": [PROVIDER], "nextCursor": None}))
    server.on("GET", "/model-presets", Reply(200, PRESETS))
    server.on("POST", "/model-providers", Reply(201, PROVIDER))
    server.on("POST", "/model-providers/prv_1/test", Reply(200, GOOD))
    server.on("DELETE", "/model-providers/prv_1", Reply(204))
    return server


def run(*arguments: str, stdin: str = "") -> Result:
    return CliRunner().invoke(cli, [*arguments], input=stdin)


def test_a_provider_is_tested_and_added(ready: Server) -> None:
    words = ("model", "add", "claude", "--kind", "anthropic", "--model", "sonnet", "--price", "sonnet-*=3,15,0.3,3.75")
    result = run(*words, "--key-stdin", stdin="sk-secret\n")
    assert result.exit_code == 0, result.output
    assert ready.requests[0].json() == {
        "test": True,
        "name": "claude",
        "kind": "anthropic",
        "models": ["sonnet"],
        "prices": {"sonnet-*": {"input": 3, "output": 15, "cacheRead": 0.3, "cacheWrite": 3.75}},
        "key": "sk-secret",
    }
    assert "sk-secret" not in result.output
    assert "claude works" in result.stderr
    ready.on("POST", "/model-providers", Reply(409, REFUSED))
    refused = run(*words, "--no-key")
    assert (refused.exit_code, "✗ Anthropic refused the API key (401)." in refused.stderr) == (1, True)
    assert "--no-test" in refused.stderr
    assert "key" not in ready.requests[-1].json()
    assert run(*words).exit_code == 1  # there is no terminal to prompt for the key
    assert run("model", "add", "x", "--kind", "openai", "--no-key", "--price", "a=1").exit_code == 2


def test_a_provider_is_added_from_a_preset(ready: Server) -> None:
    assert run("model", "add", "openrouter", "--key-stdin", "--no-test", stdin="sk-1\n").exit_code == 0
    assert ready.requests[-1].json() == {"name": "openrouter", "preset": "openrouter", "key": "sk-1", "test": False}
    url = "http://10.0.0.9:11434/v1"
    assert run("model", "add", "ollama", "--url", url, "--no-test").exit_code == 0  # Ollama needs no key
    assert ready.requests[-1].json() == {"name": "ollama", "preset": "ollama", "baseUrl": url, "test": False}
    assert run("model", "add", "den", "--preset", "ollama", "--no-test").exit_code == 0
    assert ready.requests[-1].json() == {"name": "den", "preset": "ollama", "test": False}
    shown = run("model", "presets", "-o", "table")
    assert "from the server" in shown.stdout
    assert "2026-11-17" in shown.stderr
    result = run("model", "add", "mine", "--no-key")
    assert (result.exit_code, "--kind" in result.stderr) == (2, True)
    assert run("model", "add", "mine", "--preset", "nobody").exit_code == 2
    assert run("usage", "--since", "yesterday").exit_code == 2


@pytest.mark.parametrize("width", [80, 120, 200])
def test_the_list_fits_the_terminal(ready: Server, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandyard.cli.output.is_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", str(width))
    provider = PROVIDER | {
        "id": "prv_00mwhnkzc0a1b2c3d4e5",
        "name": "anthropic",
        "models": [f"model-{n}" for n in range(20)],
    }
    ready.on("GET", "/model-providers", Reply(200, {"items": [provider], "nextCursor": None}))
    heading, line = run("model", "list", "-o", "table").stdout.splitlines()
    assert max(len(heading), len(line)) <= width
    words = line.split()
    assert words[:2] == [provider["id"], "anthropic"] and "…wxyz" in words and "model-0," in words
    assert ("URL" in heading) == (width > 80)


def test_the_key_of_a_provider_is_replaced(ready: Server) -> None:
    ready.on("PATCH", "/model-providers/prv_1", Reply(200, PROVIDER), Reply(409, REFUSED))
    assert run("model", "set-key", "claude", "--key-stdin", stdin="sk-2\n").exit_code == 0
    assert ready.requests[-1].json() == {"key": "sk-2", "test": True}
    refused = run("model", "set-key", "claude", "--key-stdin", stdin="sk-3\n")
    assert (refused.exit_code, WRONG in refused.stderr) == (1, True)


def test_agents_without_a_key_are_marked(ready: Server) -> None:
    def agent(name: str, *apis: str, everywhere: bool = False, projects: int = 0) -> dict[str, Any]:
        ids = [f"prj_{number}" for number in range(projects)]
        return {"name": name, "title": name, "apis": apis, "modelReady": everywhere, "modelProjects": ids}

    items = [agent("demo", everywhere=True), agent("codex", "openai", projects=2), agent("claude", "anthropic")]
    ready.on("GET", "/agents", Reply(200, {"items": items}))
    shown = run("agent", "list", "-o", "table")
    lines = {line.split()[0]: line for line in shown.stdout.splitlines()}
    assert "not needed" in lines["demo"]
    assert "ready in 2 projects" in lines["codex"]
    assert "needs a key" in lines["claude"]
    assert "sandyard model add" in shown.stderr
    items[2]["modelReady"] = True
    shown = run("agent", "list", "-o", "table")
    assert "needs a key" not in shown.stdout
    assert shown.stderr == ""


def test_a_failure_suggests_a_command(ready: Server) -> None:
    """The messages of the platform, which the web also shows, contain no commands."""
    problem = {"code": "no_model", "detail": "Claude Code needs a model, and no Anthropic API key is set up."}
    ready.on("POST", "/agents/claude/test", Reply(409, problem))
    assert "To add a model provider: sandyard model add PROVIDER" in run("agent", "test", "claude").stderr
    ready.on("POST", "/agents/claude/test", Reply(409, {**problem, "preset": "anthropic"}))
    assert "To add the model provider: sandyard model add anthropic\n" in run("agent", "test", "claude").stderr
    attempt = {"id": "att_1", "number": 1, "agent": "claude", "status": "failed", "errorCode": "model_key_refused"}
    task = {"id": "tsk_1", "attempts": [{**attempt, "error": WRONG}]}
    assert "To change the API key: sandyard model set-key PROVIDER (list them with: sandyard model list)" in list(
        describe_end(task)
    )


@pytest.mark.parametrize("code", ["remote_refused", "forge_unauthorized", "forge_forbidden"])
def test_a_refused_credential_suggests_how_to_replace_it(code: str) -> None:
    attempt = {"id": "att_1", "number": 1, "agent": "claude", "status": "failed", "errorCode": code, "error": WRONG}
    task = {"id": "tsk_1", "projectId": "prj_1", "attempts": [attempt]}
    assert "To replace the project's token or key: sandyard project token prj_1" in list(describe_end(task))


def test_providers_are_tested_and_removed_by_name(ready: Server) -> None:
    assert json.loads(run("model", "test", "claude", "-o", "json").stdout) == GOOD
    assert run("model", "remove", "claude").exit_code == 0
    assert ready.requests[-1].method == "DELETE"
    assert run("model", "remove", "nobody").exit_code == 3
    assert "claude" in run("model", "list", "-o", "table").stdout


def test_the_usage_of_a_task_is_shown(ready: Server) -> None:
    sums = {"calls": 3, "inputTokens": 20, "outputTokens": 2, "cacheReadTokens": 0, "cacheWriteTokens": 0}
    spent = {**sums, "costUsd": 0.5, "unpriced": 1}
    ready.on("GET", "/usage", Reply(200, {**spent, "models": [{**spent, "model": "sonnet"}]}))
    shown = run("usage", "--task", "tsk_1", "-o", "table")
    assert "sonnet" in shown.stdout
    assert "0.5" in shown.stdout
    assert "≈" not in shown.stdout
    assert ready.requests[-1].query == {"taskId": "tsk_1"}
    ready.on(
        "GET", "/usage", Reply(200, {**spent, "estimated": 2, "models": [{**spent, "model": "sonnet", "estimated": 2}]})
    )
    shown = run("usage", "-o", "table")
    assert shown.stdout.count("≈ 0.5") == 2
    assert "≈ contains estimates: some requests were stopped" in shown.stdout
