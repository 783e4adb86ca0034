"""A platform, an engine and a forge, and what a person does with them through the API: projects, sessions, commits, pull requests."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import httpx

from tests.acceptance.platform import Platform, ok, until
from tests.forge import GitHub
from tests.forge.repositories import Files, Repository
from tests.forge.tokens import Token

FILES: Files = {"README.md": "# Website\n", "src/app.py": "print('hello')\n", "src/data.txt": "one\ntwo\nthree\n"}
SLACK = 60.0
"""Seconds that an answer may take longer than it was asked to wait."""


@dataclass
class Seat:
    """One session with its sandbox."""

    platform: Platform
    id: str
    sandbox: str

    @cached_property
    def client(self) -> httpx.Client:
        return self.platform.client

    def execute(self, command: str) -> str:
        """In the checkout; what it wrote."""
        said = ok(
            self.client.post(f"/sandboxes/{self.sandbox}/execute", json={"command": f"cd workspace && {command}"})
        )
        assert said["exitCode"] == 0, said
        return str(said["stdout"])

    def ask(self, verb: str, *, wait: float = 120, **body: Any) -> httpx.Response:
        """POST /git/{verb}."""
        body["sandboxId"] = self.sandbox
        return self.client.post(f"/git/{verb}", params={"wait": wait}, json=body, timeout=wait + SLACK)

    def git(self, verb: str, **body: Any) -> dict[str, Any]:
        """The same, done; what came of it."""
        return dict(ok(self.ask(verb, **body), 200)["detail"])

    def checkout(self) -> dict[str, Any]:
        return dict(ok(self.client.get(f"/git/{self.sandbox}")))

    def ready(self) -> Seat:
        """When its checkout, which is made by itself, is there."""
        until(lambda: self.client.get(f"/git/{self.sandbox}").status_code == 200)
        return self

    def change(self, path: str, text: str, message: str) -> str:
        """One file, in a commit of its own."""
        body = {"path": f"workspace/{path}"}
        ok(self.client.put(f"/sandboxes/{self.sandbox}/files", params=body, content=text.encode()))
        return str(self.git("commit", message=message)["commit"])

    def pull_request(self, **body: Any) -> tuple[int, dict[str, Any]]:
        body["sandboxId"] = self.sandbox
        answer = self.client.post("/github/pull-requests", json=body, timeout=300)
        return answer.status_code, dict(ok(answer))

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        found = ok(self.client.get("/events/history", params={"sessionId": self.id, "limit": 200}))["items"]
        return [event for event in found if kind in (None, event["kind"])]

    def messages(self) -> str:
        return json.dumps(ok(self.client.get(f"/sessions/{self.id}/messages", params={"limit": 200}))["items"])


@dataclass
class Work:
    """One project on the platform and its repository on the forge."""

    platform: Platform
    github: GitHub
    repository: Repository
    token: Token
    id: str

    @cached_property
    def client(self) -> httpx.Client:
        return self.platform.client

    @property
    def slug(self) -> str:
        return self.repository.slug

    def session(self, title: str = "Mend the login") -> Seat:
        """With a sandbox and a checkout."""
        return self.begin(title).mark_ready()

    def begin(self, title: str = "Mend the login") -> Seat:
        made = ok(self.client.post("/sessions", json={"title": title, "projectId": self.id}), 201)
        return Seat(self.platform, made["id"], made["sandboxId"])

    def credentials(self, **given: Any) -> None:
        ok(self.client.put(f"/projects/{self.id}/credentials", json=given))

    def pull(self, number: int, **query: Any) -> dict[str, Any]:
        path = f"/github/pull-requests/{number}"
        return dict(ok(self.client.get(path, params={"projectId": self.id, **query})))

    def does(self, number: int, verb: str, **body: Any) -> dict[str, Any]:
        return dict(ok(self.client.post(f"/github/pull-requests/{number}/{verb}", json={"projectId": self.id, **body})))


def work(platform: Platform, github: GitHub, *, files: Files = FILES, text: str | None = None, **forge: Any) -> Work:
    """A project of its own, with a repository of its own that its token opens. `forge`: more of the project's settings."""
    slug = f"acme/site-{len(github.repositories)}"
    repository = github.repository(slug, files=files)
    token = github.tokens.make("sandyard-bot", text=text)
    settings = {"forge": {"apiUrl": github.api_url, **forge}}
    body = {"name": slug, "repository": repository.url, "token": token.text, "settings": settings}
    made = ok(platform.client.post("/projects", json=body), 201)
    return Work(platform, github, repository, token, made["id"])


def problem(answer: httpx.Response) -> dict[str, Any]:
    """One clear error: a code, and a sentence for a person."""
    assert answer.status_code >= 400, answer.text
    assert answer.headers["content-type"].startswith("application/problem+json")
    told = dict(answer.json())
    assert told["code"], told
    assert told["code"] != "internal_error", told
    assert len(told["detail"].split()) > 3, "it is a sentence"
    return told
