"""The platform's API, as the web tests use it to prepare data and to check results."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import httpx

from tests.harness.platform import TASK_PAUSE, Platform, ok, until

INACTIVE = ("ready", "in_review", "failed", "cancelled", "merged", "archived")


@dataclass
class Api:
    platform: Platform

    @cached_property
    def client(self) -> httpx.Client:
        return self.platform.client

    def get(self, path: str, **query: Any) -> Any:
        return ok(self.client.get(path, params=query))

    def post(self, path: str, **body: Any) -> Any:
        return ok(self.client.post(path, json=body))

    @cached_property
    def sample_project(self) -> str:
        """The id of the sample project."""
        return str(self.post("/projects/sample")["project"]["id"])

    def create_task(self, title: str, *lines: str, project: str | None = None, start: bool = True, **body: Any) -> str:
        """Create a task for the demo agent, which follows the lines. Returns its id."""
        values = {
            "projectId": project or self.sample_project,
            "title": title,
            "description": "\n".join(lines),
            "agent": "demo",
        }
        return str(self.post("/tasks", **{**values, "start": start, **body})["id"])

    def wait_for_attempt(self, task: str, *statuses: str, timeout: float = 180) -> dict[str, Any]:
        """Wait until the task's only attempt is no longer active, and return it. `statuses`: the statuses expected then."""

        def find_attempt() -> dict[str, Any] | None:
            found = self.get(f"/tasks/{task}")["attempts"]
            return dict(found[0]) if found and found[0]["status"] in INACTIVE else None

        attempt: dict[str, Any] = until(find_attempt, timeout, TASK_PAUSE)
        assert not statuses or attempt["status"] in statuses, attempt
        return attempt

    def create_session(self, title: str, project: str | None = None) -> dict[str, Any]:
        """Create a session and wait until its sandbox runs and, if it has a project, the repository is checked out."""
        body = {"title": title, "agent": "demo", **({"projectId": project} if project else {})}
        made = self.post("/sessions", **body)
        until(lambda: self.get(f"/sandboxes/{made['sandboxId']}")["status"] == "running")
        if project:
            until(lambda: self.client.get(f"/git/{made['sandboxId']}").is_success)
        return dict(made)
