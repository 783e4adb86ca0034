"""A card until its agent's first command, with the demo agent and a git server on this machine, from a prepared snapshot; beside a
session from the same snapshot with one command in it. Then many cards at once."""

from __future__ import annotations

import asyncio
import json
import re
import time
from typing import Any

import httpx
from e2b import AsyncSandbox
from tests.forge.gitserver import GitServer

from bench.platform import client_of, platform
from bench.processes import engine
from bench.report import Row, median, percentile

AT_ONCE = 20
TIMEOUT_S, POLL_S = 600.0, 0.5
NOW = re.compile(r"\b(\d{10}\.\d{9})\b")
SETTINGS = {"tasks": {"parallel": AT_ONCE}, "git": {"commitMessages": "any"}}
FINISHED = ("in_review", "failed", "cancelled")


def measure(rounds: int) -> list[Row]:
    return asyncio.run(_measure(max(5, rounds // 10)))


async def _measure(rounds: int) -> list[Row]:
    with GitServer() as server, engine("--pool-size", "4") as endpoint, platform(endpoint) as served:
        endpoint.use()
        site = server.repository("acme/website", files={f"src/{n}.py": f"print({n})\n" for n in range(200)})
        token = server.tokens.make("bench").text
        async with client_of(f"{served.url}/api/v1", served.token) as client:
            body = {"name": "website", "repository": site.url, "token": token, "settings": SETTINGS}
            project = (await client.post("/projects", json=body)).raise_for_status().json()["id"]
            cold = await first_command(client, project)  # which prepares
            snapshot = await _find_snapshot()
            floors = [await _session(client, snapshot) for _ in range(rounds)]
            firsts = [await first_command(client, project) for _ in range(rounds)]
            begun = time.perf_counter()
            cards = await asyncio.gather(*(_add(client, project, f"feat: number {n}") for n in range(AT_ONCE)))
            ended = await _wait_until_finished(client, project, cards)
            seconds = time.perf_counter() - begun
    finished = sum(item["status"] == "in_review" for item in ended)
    low = median(floors)
    return [
        Row("task add → the agent's first command, warm snapshot, p50", median(firsts), "s", low, 2),
        Row("the same, p90", percentile(firsts, 0.9), "s", percentile(floors, 0.9), None),
        Row("the same for the first task of a base commit, which prepares", cold, "s", None, None),
        Row(f"{AT_ONCE} tasks at once, finished", finished, "", None, AT_ONCE, more_is_better=True),
        Row(f"{AT_ONCE} tasks at once, until the last rests", seconds, "s", None, None),
    ]


async def first_command(
    client: httpx.AsyncClient,
    project: str,
    agent: str = "demo",
    model: str | None = None,
    title: str = "feat: number 0",
) -> float:
    """Return the seconds from a new card to its agent's first command. The command prints the time: the sandbox has this
    machine's clock, so nothing has to be polled."""
    begun = time.time()
    card = await _add(client, project, title, agent, model)
    (ended,) = await _wait_until_finished(client, project, [card])
    assert ended["status"] == "in_review", ended
    session = ended["sessionId"]
    messages = (await client.get(f"/sessions/{session}/messages", params={"limit": 200})).raise_for_status().json()
    times = [
        NOW.search(json.dumps(message["parts"]))
        for message in reversed(messages["items"])
        if message["role"] == "agent"
    ]
    return next(float(found[1]) for found in times if found) - begun


async def _add(
    client: httpx.AsyncClient, project: str, title: str, agent: str = "demo", model: str | None = None
) -> str:
    """Add a card. The description tells the demo agent what to do; other agents do what their model's script says."""
    body = {
        "projectId": project,
        "title": title,
        "description": f"run: date +%s.%N\ncreate new/{time.time_ns()}.txt: {title}",
        "agent": agent,
        "model": model,
        "start": True,
    }
    return str((await client.post("/tasks", json=body)).raise_for_status().json()["id"])


async def _wait_until_finished(client: httpx.AsyncClient, project: str, cards: list[str]) -> list[dict[str, Any]]:
    """Wait until these cards are finished, or until the timeout, and return their attempts. Polls rarely,
    because polling takes CPU time from the agents."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        page = (await client.get("/tasks", params={"projectId": project, "limit": 200})).raise_for_status().json()
        found = [attempt for task in page["items"] if task["id"] in cards for attempt in task["attempts"]]
        if time.monotonic() > deadline or (found and all(item["status"] in FINISHED for item in found)):
            return found
        await asyncio.sleep(POLL_S)


async def _find_snapshot() -> str:
    """Return the snapshot of the preparation."""
    pages = AsyncSandbox.list_snapshots()
    (only,) = await pages.next_items()
    return str(only.snapshot_id)


async def _session(client: httpx.AsyncClient, snapshot: str) -> float:
    begun = time.perf_counter()
    session = (await client.post("/sessions", json={"template": snapshot})).raise_for_status().json()
    ran = await client.post(f"/sandboxes/{session['sandboxId']}/execute", json={"command": "date"})
    seconds = time.perf_counter() - begun
    assert ran.json()["exitCode"] == 0, ran.text
    (await client.delete(f"/sessions/{session['id']}")).raise_for_status()
    return seconds
