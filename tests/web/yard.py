"""What the tests of the web put on the platform beforehand, through its API, and ask it afterwards."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import httpx

from tests.acceptance.platform import TASK_PAUSE, Platform, ok, until

RESTS = ("ready", "in_review", "failed", "cancelled", "merged", "archived")


@dataclass
class Yard:
    platform: Platform

    @cached_property
    def client(self) -> httpx.Client:
        return self.platform.client

    def get(self, path: str, **query: Any) -> Any:
        return ok(self.client.get(path, params=query))

    def post(self, path: str, **body: Any) -> Any:
        return ok(self.client.post(path, json=body))

    @cached_property
    def sample(self) -> str:
        """The id of the sample project."""
        return str(self.post("/projects/sample")["project"]["id"])

    def task(self, title: str, *lines: str, project: str | None = None, start: bool = True, **body: Any) -> str:
        """For the demo agent, which follows the lines. Its id."""
        wanted = {"projectId": project or self.sample, "title": title, "description": "\n".join(lines), "agent": "demo"}
        return str(self.post("/tasks", **{**wanted, "start": start, **body})["id"])

    def rests(self, task: str, *statuses: str, patience: float = 180) -> dict[str, Any]:
        """Its only attempt, when that rests."""

        def look() -> dict[str, Any] | None:
            found = self.get(f"/tasks/{task}")["attempts"]
            return dict(found[0]) if found and found[0]["status"] in RESTS else None

        attempt: dict[str, Any] = until(look, patience, TASK_PAUSE)
        assert not statuses or attempt["status"] in statuses, attempt
        return attempt

    def session(self, title: str, project: str | None = None) -> dict[str, Any]:
        """One whose sandbox (and checkout, if it has a project) is there."""
        body = {"title": title, "agent": "demo", **({"projectId": project} if project else {})}
        made = self.post("/sessions", **body)
        until(lambda: self.get(f"/sandboxes/{made['sandboxId']}")["status"] == "running")
        if project:
            until(lambda: self.client.get(f"/git/{made['sandboxId']}").is_success)
        return dict(made)
