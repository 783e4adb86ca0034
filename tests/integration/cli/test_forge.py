"""`sandyard project` and `sandyard pr` with the real server and a GitHub server: token, review, merge."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.forge import GitHub, forge
from tests.harness.up import Installation, run_json


@pytest.fixture(scope="module")
def github() -> Iterator[GitHub]:
    with forge() as running:
        yield running


def test_a_pull_request_is_opened_reviewed_and_merged(installation: Installation, github: GitHub) -> None:
    repository = github.repository("acme/website", files={"a.txt": "one\n"})
    token = github.tokens.make("sandyard-bot")
    options = ["--repository", repository.url, "--api-url", github.api_url, "--token-stdin"]
    rejected = installation.run("project", "add", "website", *options, stdin=b"ghp_wrong\n")
    assert rejected.returncode == 1
    assert "✗ " in rejected.stderr.decode()
    assert run_json(installation, "project", "list")["items"] == [], "a project that failed its test is not stored"
    installation.ok("project", "add", "website", *options, "--no-test", stdin=b"ghp_wrong\n")
    replaced = installation.run("project", "token", "website", "--token-stdin", stdin=f"{token.text}\n".encode())
    assert replaced.returncode == 0, replaced.stderr
    shown = installation.ok("project", "show", "website", "-o", "table")
    assert "token" in shown
    assert token.text not in shown + replaced.stderr.decode()
    installation.ok("project", "set", "website", "--label", "bot", "--merge-method", "merge")
    assert run_json(installation, "project", "show", "website")["settings"]["forge"]["apiUrl"] == github.api_url, (
        "other settings are kept"
    )

    name = run_json(installation, "session", "create", "--project", "website", "--wait")["id"]
    installation.ok("sandbox", "exec", "--cwd", "/home/user/workspace", name, "echo 2 > a.txt")
    installation.ok("git", "commit", name, "-m", "fix: say 2")
    address = installation.ok("pr", "open", name, "--draft").strip()
    assert installation.ok("pr", "open", name).strip() == address, "the same pull request"
    number = address.rpartition("/")[2]
    maria = github.colleague("maria")
    maria.request_changes("acme/website", int(number), "Why\nnot 3?")
    printed = installation.ok("pr", "show", number, "--project", "website", "--refresh", "-o", "table")
    assert "  maria (changes requested):\n    Why\n    not 3?\n" in printed
    assert run_json(installation, "pr", "ready", name)["draft"] is False
    assert number in [
        str(item["number"]) for item in json.loads(installation.ok("pr", "list", "--state", "open"))["items"]
    ]
    assert run_json(installation, "pr", "merge", name)["state"] == "merged"
    assert repository.read("main", "a.txt") == b"2\n"
    assert installation.run("pr", "close", name).returncode == 1, "a merged pull request cannot be closed"
    installation.ok("project", "delete", "website", "--yes")
