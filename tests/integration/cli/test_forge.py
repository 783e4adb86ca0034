"""`sandyard project` and `sandyard pr` against the real server and a GitHub: a token, a review, a merge."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.forge import GitHub, forge
from tests.integration.cli.real import Yard, read


@pytest.fixture(scope="module")
def github() -> Iterator[GitHub]:
    with forge() as running:
        yield running


def test_from_a_token_to_a_merge(yard: Yard, github: GitHub) -> None:
    repository = github.repository("acme/website", files={"a.txt": "one\n"})
    token = github.tokens.make("sandyard-bot")
    place = ["--repository", repository.url, "--api-url", github.api_url, "--token-stdin"]
    wrong = yard.run("project", "add", "website", *place, stdin=b"ghp_wrong\n")
    assert wrong.returncode == 1
    assert "✗ " in wrong.stderr.decode()
    assert read(yard, "project", "list")["items"] == [], "nothing is left behind"
    yard.ok("project", "add", "website", *place, "--no-test", stdin=b"ghp_wrong\n")
    mended = yard.run("project", "token", "website", "--token-stdin", stdin=f"{token.text}\n".encode())
    assert mended.returncode == 0, mended.stderr
    shown = yard.ok("project", "show", "website", "-o", "table")
    assert "token" in shown
    assert token.text not in shown + mended.stderr.decode()
    yard.ok("project", "set", "website", "--label", "bot", "--merge-method", "merge")
    assert read(yard, "project", "show", "website")["settings"]["forge"]["apiUrl"] == github.api_url, "it stays"

    name = read(yard, "session", "create", "--project", "website", "--wait")["id"]
    yard.ok("sandbox", "exec", "--cwd", "/home/user/workspace", name, "echo 2 > a.txt")
    yard.ok("git", "commit", name, "-m", "fix: say 2")
    address = yard.ok("pr", "open", name, "--draft").strip()
    assert yard.ok("pr", "open", name).strip() == address, "the same one"
    number = address.rpartition("/")[2]
    maria = github.colleague("maria")
    maria.request_changes("acme/website", int(number), "Why\nnot 3?")
    said = yard.ok("pr", "show", number, "--project", "website", "--refresh", "-o", "table")
    assert "  maria (changes requested):\n    Why\n    not 3?\n" in said
    assert read(yard, "pr", "ready", name)["draft"] is False
    assert number in [str(one["number"]) for one in json.loads(yard.ok("pr", "list", "--state", "open"))["items"]]
    assert read(yard, "pr", "merge", name)["state"] == "merged"
    assert repository.read("main", "a.txt") == b"2\n"
    assert yard.run("pr", "close", name).returncode == 1, "it was merged"
    yard.ok("project", "delete", "website", "--yes")
