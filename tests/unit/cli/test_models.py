"""`sandyard model` and `sandyard usage`: keys from standard input alone, providers by name, verdicts as exit codes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sandyard.cli.main import cli
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
GOOD = {"ok": True, "detail": "The model sonnet answered.", "model": "sonnet", "durationMs": 12}
BAD = {"ok": False, "detail": "The provider does not accept the key (401).", "model": "sonnet", "durationMs": 12}


@pytest.fixture
def ready(server: Server) -> Server:
    server.on("GET", "/model-providers", Reply(200, {"items": [PROVIDER], "nextCursor": None}))
    server.on("POST", "/model-providers", Reply(201, PROVIDER))
    server.on("POST", "/model-providers/prv_1/test", Reply(200, GOOD))
    server.on("DELETE", "/model-providers/prv_1", Reply(204))
    return server


def run(*arguments: str, stdin: str = "") -> Result:
    return CliRunner().invoke(cli, [*arguments], input=stdin)


def test_a_provider_is_added(ready: Server) -> None:
    words = ("model", "add", "claude", "--kind", "anthropic", "--model", "sonnet", "--price", "sonnet-*=3,15,0.3,3.75")
    result = run(*words, "--key-stdin", stdin="sk-secret\n")
    assert result.exit_code == 0, result.output
    assert ready.asked[0].json() == {
        "name": "claude",
        "kind": "anthropic",
        "models": ["sonnet"],
        "prices": {"sonnet-*": {"input": 3, "output": 15, "cacheRead": 0.3, "cacheWrite": 3.75}},
        "key": "sk-secret",
    }
    assert "sk-secret" not in result.output
    assert "answered" in result.stderr
    ready.on("POST", "/model-providers/prv_1/test", Reply(200, BAD))
    assert run(*words, "--no-key").exit_code == 1
    assert "key" not in ready.asked[-2].json()
    assert run(*words).exit_code == 1  # nobody to ask
    assert run("model", "add", "x", "--kind", "openai", "--no-key", "--price", "a=1").exit_code == 2


def test_a_name_that_says_how_it_is_spoken_to(ready: Server) -> None:
    assert run("model", "add", "gemini", "--no-key", "--no-test").exit_code == 0
    assert ready.asked[-1].json()["kind"] == "gemini"
    result = run("model", "add", "mine", "--no-key")
    assert (result.exit_code, "--kind" in result.stderr) == (2, True)
    assert run("usage", "--since", "yesterday").exit_code == 2


def test_by_name(ready: Server) -> None:
    assert json.loads(run("model", "test", "claude", "-o", "json").stdout) == GOOD
    assert run("model", "remove", "claude").exit_code == 0
    assert ready.asked[-1].method == "DELETE"
    assert run("model", "remove", "nobody").exit_code == 3
    assert "claude" in run("model", "list", "-o", "table").stdout


def test_usage(ready: Server) -> None:
    sums = {"calls": 3, "inputTokens": 20, "outputTokens": 2, "cacheReadTokens": 0, "cacheWriteTokens": 0}
    spent = {**sums, "costUsd": 0.5, "unpriced": 1}
    ready.on("GET", "/usage", Reply(200, {**spent, "models": [{**spent, "model": "sonnet"}]}))
    shown = run("usage", "--task", "tsk_1", "-o", "table")
    assert "sonnet" in shown.stdout
    assert "0.5" in shown.stdout
    assert ready.asked[-1].query == {"taskId": "tsk_1"}
