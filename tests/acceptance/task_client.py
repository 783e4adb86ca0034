"""Client helpers for tasks through the API of the platform."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import httpx

from tests.acceptance.project_client import ForgeProject
from tests.harness.platform import TASK_PAUSE, ok, until

SETTLED = ("ready", "in_review", "failed", "cancelled", "merged", "archived")
PATIENCE = 120.0


@dataclass
class Task:
    """A task of a project."""

    project: ForgeProject
    id: str

    @property
    def client(self) -> httpx.Client:
        return self.project.client

    def get(self) -> dict[str, Any]:
        return dict(ok(self.client.get(f"/tasks/{self.id}")))

    def list_attempts(self) -> list[dict[str, Any]]:
        return list(self.get()["attempts"])

    def get_attempt(self) -> dict[str, Any]:
        (attempt,) = self.list_attempts()
        return dict(attempt)

    def wait_until_settled(self, *statuses: str, round_: int = 1, patience: float = PATIENCE) -> dict[str, Any]:
        """Wait until all attempts are settled in that round or a later one, check their statuses, and return the first."""

        def get_settled_attempts() -> list[dict[str, Any]]:
            attempts = self.list_attempts()
            settled = all(attempt["status"] in SETTLED and attempt["round"] >= round_ for attempt in attempts)
            return attempts if settled else []

        attempts = until(get_settled_attempts, patience, TASK_PAUSE)
        for attempt in attempts:
            assert not statuses or attempt["status"] in statuses, (
                attempt["status"],
                attempt.get("error"),
                self.get().get("error"),
            )
        return dict(attempts[0])

    def move(self, status: str, **body: Any) -> httpx.Response:
        return self.client.post(f"/tasks/{self.id}/move", json={"status": status, **body})

    def list_pending_asks(self) -> list[dict[str, Any]]:
        return list(ok(self.client.get("/asks", params={"taskId": self.id, "status": "pending"}))["items"])

    def get_pull_request(self) -> dict[str, Any]:
        return dict(ok(self.client.get(f"/tasks/{self.id}/pull-request")))

    def read_messages(self, session_id: str) -> list[dict[str, Any]]:
        """Return all messages, oldest first."""
        messages: list[dict[str, Any]] = []
        cursor = None
        while True:
            query = {"limit": 200, **({"cursor": cursor} if cursor else {})}
            page = ok(self.client.get(f"/sessions/{session_id}/messages", params=query))
            messages += page["items"]
            cursor = page["nextCursor"]
            if cursor is None:
                return messages[::-1]

    def read_agent_parts(self, session_id: str) -> list[dict[str, Any]]:
        """Return the parts of the agent's messages."""
        return [
            part
            for message in self.read_messages(session_id)
            if message["role"] == "agent"
            for part in message["parts"]
        ]

    def read_agent_text(self, session_id: str) -> str:
        """Return the joined text of the agent's messages."""
        return "".join(part["text"] for part in self.read_agent_parts(session_id) if part["type"] == "text")

    def read_transcript(self, session_id: str) -> str:
        return json.dumps(self.read_messages(session_id))


def create_task(project: ForgeProject, text: str, **body: Any) -> Task:
    """Create and start a task. The first line of `text` is the title."""
    title, _, description = text.partition("\n")
    request = {
        "projectId": project.id,
        "title": title,
        "description": description,
        "agent": "demo",
        "start": True,
        **body,
    }
    return Task(project, ok(project.client.post("/tasks", json=request), 201)["id"])


def update_settings(project: ForgeProject, **settings: Any) -> None:
    """Change some settings of the project and keep the others."""
    current = ok(project.client.get(f"/projects/{project.id}"))["settings"]
    ok(project.client.patch(f"/projects/{project.id}", json={"settings": {**current, **settings}}))
