"""Client helpers for projects, sessions, commits and pull requests through the API of the platform."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import httpx

from tests.forge import GitHub
from tests.forge.repositories import Files, Repository
from tests.forge.tokens import Token
from tests.harness.platform import Platform, ok, until

FILES: Files = {"README.md": "# Website\n", "src/app.py": "print('hello')\n", "src/data.txt": "one\ntwo\nthree\n"}
EXTRA_SECONDS = 60.0
"""Seconds that a response may take longer than the requested wait."""


@dataclass
class Session:
    """A session with its sandbox."""

    platform: Platform
    id: str
    sandbox: str

    @cached_property
    def client(self) -> httpx.Client:
        return self.platform.client

    def execute(self, command: str) -> str:
        """Run a command in the checkout and return its output. It must succeed."""
        result = ok(
            self.client.post(f"/sandboxes/{self.sandbox}/execute", json={"command": f"cd workspace && {command}"})
        )
        assert result["exitCode"] == 0, result
        return str(result["stdout"])

    def post_git(self, verb: str, *, wait: float = 120, **body: Any) -> httpx.Response:
        """Send POST /git/{verb}."""
        body["sandboxId"] = self.sandbox
        return self.client.post(f"/git/{verb}", params={"wait": wait}, json=body, timeout=wait + EXTRA_SECONDS)

    def run_git(self, verb: str, **body: Any) -> dict[str, Any]:
        """Send POST /git/{verb}, which must succeed, and return its details."""
        return dict(ok(self.post_git(verb, **body), 200)["detail"])

    def checkout(self) -> dict[str, Any]:
        return dict(ok(self.client.get(f"/git/{self.sandbox}")))

    def wait_for_checkout(self) -> Session:
        """Wait for the checkout, which the platform creates by itself."""
        until(lambda: self.client.get(f"/git/{self.sandbox}").status_code == 200)
        return self

    def commit_file(self, path: str, text: str, message: str) -> str:
        """Write one file and commit it. Return the commit id."""
        body = {"path": f"workspace/{path}"}
        ok(self.client.put(f"/sandboxes/{self.sandbox}/files", params=body, content=text.encode()))
        return str(self.run_git("commit", message=message)["commit"])

    def open_pull_request(self, **body: Any) -> tuple[int, dict[str, Any]]:
        body["sandboxId"] = self.sandbox
        response = self.client.post("/github/pull-requests", json=body, timeout=300)
        return response.status_code, dict(ok(response))

    def list_events(self, kind: str | None = None) -> list[dict[str, Any]]:
        events = ok(self.client.get("/events/history", params={"sessionId": self.id, "limit": 200}))["items"]
        return [event for event in events if kind in (None, event["kind"])]

    def messages(self) -> str:
        return json.dumps(ok(self.client.get(f"/sessions/{self.id}/messages", params={"limit": 200}))["items"])


@dataclass
class ForgeProject:
    """A project on the platform and its repository on the forge."""

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

    def create_session(self, title: str = "Mend the login") -> Session:
        """Create a session and wait for its checkout."""
        return self.start_session(title).wait_for_checkout()

    def start_session(self, title: str = "Mend the login") -> Session:
        created = ok(self.client.post("/sessions", json={"title": title, "projectId": self.id}), 201)
        return Session(self.platform, created["id"], created["sandboxId"])

    def set_credentials(self, **credentials: Any) -> None:
        ok(self.client.put(f"/projects/{self.id}/credentials", json=credentials))

    def get_pull_request(self, number: int, **query: Any) -> dict[str, Any]:
        path = f"/github/pull-requests/{number}"
        return dict(ok(self.client.get(path, params={"projectId": self.id, **query})))

    def act_on_pull_request(self, number: int, verb: str, **body: Any) -> dict[str, Any]:
        return dict(ok(self.client.post(f"/github/pull-requests/{number}/{verb}", json={"projectId": self.id, **body})))


def create_forge_project(
    platform: Platform, github: GitHub, *, files: Files = FILES, text: str | None = None, **forge: Any
) -> ForgeProject:
    """Create a project with its own repository and a token for it. `forge` are further forge settings of the project."""
    slug = f"acme/site-{len(github.repositories)}"
    repository = github.repository(slug, files=files)
    token = github.tokens.make("sandyard-bot", text=text)
    settings = {"forge": {"apiUrl": github.api_url, **forge}}
    body = {"name": slug, "repository": repository.url, "token": token.text, "settings": settings}
    created = ok(platform.client.post("/projects", json=body), 201)
    return ForgeProject(platform, github, repository, token, created["id"])


def check_problem(response: httpx.Response) -> dict[str, Any]:
    """Check that the response is one clear error, with a code and a sentence, and return it."""
    assert response.status_code >= 400, response.text
    assert response.headers["content-type"].startswith("application/problem+json")
    body = dict(response.json())
    assert body["code"], body
    assert body["code"] != "internal_error", body
    assert len(body["detail"].split()) > 3, "the detail must be a sentence"
    return body
