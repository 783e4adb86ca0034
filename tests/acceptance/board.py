"""What a person does with tasks through the API."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import httpx

from tests.acceptance.platform import TASK_PAUSE, ok, until
from tests.acceptance.workshop import Work

RESTS = ("ready", "in_review", "failed", "cancelled", "merged", "archived")
PATIENCE = 120.0


@dataclass
class Card:
    """One task of a project."""

    work: Work
    id: str

    @property
    def client(self) -> httpx.Client:
        return self.work.client

    def get(self) -> dict[str, Any]:
        return dict(ok(self.client.get(f"/tasks/{self.id}")))

    def attempts(self) -> list[dict[str, Any]]:
        return list(self.get()["attempts"])

    def attempt(self) -> dict[str, Any]:
        (only,) = self.attempts()
        return dict(only)

    def rests(self, *statuses: str, round_: int = 1, patience: float = PATIENCE) -> dict[str, Any]:
        """Its attempts, when all of them rest in that round or a later one; each in one of the statuses."""

        def look() -> list[dict[str, Any]]:
            found = self.attempts()
            return found if all(one["status"] in RESTS and one["round"] >= round_ for one in found) else []

        found = until(look, patience, TASK_PAUSE)
        for one in found:
            assert not statuses or one["status"] in statuses, (one["status"], one.get("error"), self.get().get("error"))
        return dict(found[0])

    def move(self, status: str, **body: Any) -> httpx.Response:
        return self.client.post(f"/tasks/{self.id}/move", json={"status": status, **body})

    def asks(self) -> list[dict[str, Any]]:
        return list(ok(self.client.get("/asks", params={"taskId": self.id, "status": "pending"}))["items"])

    def pull(self) -> dict[str, Any]:
        return dict(ok(self.client.get(f"/tasks/{self.id}/pull-request")))

    def messages(self, session_id: str) -> list[dict[str, Any]]:
        """Oldest first."""
        found: list[dict[str, Any]] = []
        cursor = None
        while True:
            query = {"limit": 200, **({"cursor": cursor} if cursor else {})}
            page = ok(self.client.get(f"/sessions/{session_id}/messages", params=query))
            found += page["items"]
            cursor = page["nextCursor"]
            if cursor is None:
                return found[::-1]

    def parts(self, session_id: str) -> list[dict[str, Any]]:
        """Of the agent."""
        return [
            part for message in self.messages(session_id) if message["role"] == "agent" for part in message["parts"]
        ]

    def said(self, session_id: str) -> str:
        """All that the agent has said, joined."""
        return "".join(part["text"] for part in self.parts(session_id) if part["type"] == "text")

    def transcript(self, session_id: str) -> str:
        return json.dumps(self.messages(session_id))


def add(work: Work, words: str, **body: Any) -> Card:
    """Starts at once. The first line is the title."""
    title, _, description = words.partition("\n")
    wanted = {"projectId": work.id, "title": title, "description": description, "agent": "demo", "start": True, **body}
    return Card(work, ok(work.client.post("/tasks", json=wanted), 201)["id"])


def configure(work: Work, **settings: Any) -> None:
    """More of the project's settings, on top of those it has."""
    known = ok(work.client.get(f"/projects/{work.id}"))["settings"]
    ok(work.client.patch(f"/projects/{work.id}", json={"settings": {**known, **settings}}))
