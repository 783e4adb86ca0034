"""Responses of the server about tasks, for tests that need particular ones."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from tests.unit.cli.server import MakeReply, Reply, Request, Server, events

TASK, SESSION = "tsk_00mwhnkzc0a1b2c3d4e5", "ses_1"
BOX = "sbx_1"
PULL: dict[str, Any] = {
    "id": "pul_1",
    "forge": "github",
    "number": 7,
    "url": "https://example.org/o/website/pull/7",
    "title": "fix: the login",
    "state": "open",
    "draft": False,
    "headBranch": "sandyard/login",
    "baseBranch": "main",
    "review": "none",
    "checks": "none",
    "mergeable": None,
}
ASK: dict[str, Any] = {
    "id": "ask_1",
    "sessionId": SESSION,
    "kind": "permission",
    "title": "Run rm -rf build",
    "status": "pending",
    "detail": {
        "toolCall": {"toolCallId": "c", "title": "Run it", "rawInput": {"command": ["rm", "-rf", "dist"]}},
        "options": [
            {"optionId": "ok", "name": "Allow", "kind": "allow_once"},
            {"optionId": "never", "name": "Never", "kind": "reject_always"},
        ],
    },
}
AGENTS = {
    "items": [{"name": "demo", "title": "Demo", "demo": True}, {"name": "codex", "title": "Codex", "demo": False}]
}


def step(name: str, status: str = "completed", *, number: int = 1, **more: Any) -> dict[str, Any]:
    return {
        "round": 1,
        "number": number,
        "name": name,
        "status": status,
        "tries": 1,
        "detail": {},
        "error": None,
        "startedAt": "2026-01-31T10:00:00.000Z",
        "finishedAt": None if status == "running" else "2026-01-31T10:00:02.500Z",
        **more,
    }


def attempt(status: str = "running", *, number: int = 1, **more: Any) -> dict[str, Any]:
    return {
        "id": f"att_{number}",
        "taskId": TASK,
        "number": number,
        "sessionId": f"ses_{number}",
        "sandboxId": f"sbx_{number}",
        "agent": "demo",
        "model": None,
        "status": status,
        "step": None,
        "round": 1,
        "queuePosition": None,
        "stopping": False,
        "verified": None,
        "diff": None,
        "branch": None,
        "spent": {"calls": 0, "inputTokens": 0, "outputTokens": 0, "costUsd": 0.0, "unpriced": 0},
        "seconds": None,
        "pullRequest": None,
        "error": None,
        "steps": [],
        **more,
    }


def task(status: str = "in_progress", *attempts: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "id": TASK,
        "projectId": "prj_1",
        "title": "Mend the login",
        "description": "",
        "status": status,
        "position": 0,
        "priority": 0,
        "baseBranch": None,
        "agent": None,
        "model": None,
        "budget": {"usd": None, "tokens": None},
        "source": {"kind": "person"},
        "startWhenReady": False,
        "startError": None,
        "needs": [],
        "blockedBy": [],
        "attempts": list(attempts),
        "pullRequest": None,
        "error": None,
        "createdAt": "2026-01-31T10:00:00.000Z",
        "updatedAt": "2026-01-31T10:00:00.000Z",
        "startedAt": None,
        "finishedAt": None,
        **more,
    }


def message(number: int, part: dict[str, Any], role: str = "agent") -> dict[str, Any]:
    return {"id": f"msg_{number:04}", "sessionId": SESSION, "role": role, "parts": [part]}


def text(number: int, words: str, kind: str = "text") -> dict[str, Any]:
    return message(number, {"type": kind, "text": words})


def call(number: int, title: str, status: str = "completed", **more: Any) -> dict[str, Any]:
    part = {"type": "tool_call", "toolCallId": f"call_{number}", "title": title, "kind": "execute", "status": status}
    return message(number, {**part, "locations": [], "content": [], "input": None, "output": None, **more})


def page(items: list[Any]) -> Reply:
    return Reply(200, {"items": items, "nextCursor": None})


class ScriptedTask:
    """A task that changes in stages: each connection to the event stream plays the next stage, which applies `change` and sends events.

    `kinds` are the kinds of these events; `broken`: the connection breaks. A stage waits until the client has polled the previous one.
    """

    def __init__(self, server: Server) -> None:
        self.server = server
        self.task: dict[str, Any] = task()
        self.messages: dict[str, list[Any]] = {SESSION: []}
        self.asks: list[Any] = []
        self._stages: list[MakeReply] = []
        self._seq = 0
        self._polled = threading.Event()
        server.on("GET", f"/tasks/{TASK}", lambda request: Reply(200, self.task))
        server.on("GET", "/asks", self._list_asks)
        server.on("GET", "/agents", Reply(200, AGENTS))
        for number in (1, 2):
            server.on("GET", f"/sessions/ses_{number}/messages", self._list_messages(f"ses_{number}"))

    def add_stage(
        self, change: Callable[[], None], *kinds: str | tuple[str, dict[str, Any]], broken: bool = False
    ) -> None:
        first = not self._stages

        def play(request: Request) -> Reply:
            assert first or self._polled.wait(30)
            self._polled.clear()
            change()
            return events(*(self._event(kind) for kind in kinds), cut=broken)

        self._stages.append(play)
        self.server.on("GET", "/events", *self._stages)

    def _list_asks(self, request: Request) -> Reply:
        self._polled.set()  # the last request of a poll
        return page(list(reversed(self.asks)))

    def _event(self, event_kind: str | tuple[str, dict[str, Any]]) -> tuple[str, str, Any]:
        kind, data = event_kind if isinstance(event_kind, tuple) else (event_kind, {})
        self._seq += 1
        event = {"seq": self._seq, "kind": kind, "taskId": TASK, "sessionId": SESSION, "data": data}
        return str(self._seq), kind, event

    def _list_messages(self, session: str) -> MakeReply:
        def answer(request: Request) -> Reply:
            newest = [
                candidate
                for candidate in reversed(self.messages.get(session, []))
                if candidate["id"] < request.query.get("cursor", "z")
            ]
            limit = int(request.query["limit"])
            shown = newest[:limit]
            return Reply(200, {"items": shown, "nextCursor": shown[-1]["id"] if len(newest) > limit else None})

        return answer
