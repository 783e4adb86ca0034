"""Measure what depends on size: the first task on a large repository, next to a plain `git clone` of it on the host."""

from __future__ import annotations

import asyncio
import random
import time
from datetime import datetime
from typing import Any

import httpx
from tests.forge.gitserver import GitServer
from tests.forge.repositories import Repository

from bench.git import plain_clone
from bench.platform import client_of, platform
from bench.processes import engine
from bench.report import Row, median

MEGABYTES, FILES, FOLDERS = 310, 50_000, 500
LATER_COMMITS = 20
CLONES, TASKS = 3, 2
PATIENCE, LOOK_S = 900.0, 0.5
FINISHED = ("in_review", "failed", "cancelled")
SETTINGS = {"git": {"commitMessages": "any"}}


def measure(rounds: int) -> list[Row]:
    return asyncio.run(_measure(2 if rounds < 100 else CLONES, 1 if rounds < 100 else TASKS))


async def _measure(clones: int, tasks: int) -> list[Row]:
    with GitServer() as server, engine("--pool-size", "1") as endpoint, platform(endpoint) as served:
        site = server.repository("acme/monorepo", files={"README.md": "# Monorepo\n"})
        token = server.tokens.make("bench").text
        fill(site)
        what = f"{FILES:,} files, {site.size() / 1e6:.0f} MB"
        floors = [plain_clone(site.url, token) for _ in range(clones)]
        async with client_of(f"{served.url}/api/v1", served.token) as client:
            firsts = [await _first_task(client, site.url, token) for _ in range(tasks)]
    low = median(floors)
    setup = median([first["setup"] for first in firsts])
    last = ", ".join(f"{name} {seconds:.1f}" for name, seconds in firsts[-1].items())
    return [
        Row(f"first task on {what}: setup", setup, "s", low, 3 * low),
        Row("the whole task", median([first["all"] for first in firsts]), "s", low, None, note=last),
    ]


def fill(site: Repository) -> None:
    """Create files that hardly compress in many folders, change a few of them, and pack everything as on a server."""
    chance, each = random.Random(310), MEGABYTES * 1_000_000 // FILES
    lines: list[bytes] = []

    def blob(index: int) -> None:
        data = chance.randbytes(each)
        lines.append(b"M 100644 inline src/%d/%d.bin\ndata %d\n%b\n" % (index % FOLDERS, index, len(data), data))

    for number in range(1 + LATER_COMMITS):
        lines.append(b"commit refs/heads/main\ncommitter A <a@example.org> %d +0000\n" % (1_700_000_000 + number))
        lines.append(b"data 11\nfeat: more\n\n" + (b"from refs/heads/main^0\n" if number == 0 else b""))
        for index in range(FILES) if number == 0 else (chance.randrange(FILES),):
            blob(index)
    site.git("fast-import", "--quiet", stdin=b"".join(lines))
    site.git("repack", "-q", "-a", "-d", "-f", "--window=0")


async def _first_task(client: httpx.AsyncClient, url: str, token: str) -> dict[str, float]:
    """Return the seconds of each step of the first round, and of all of it, in a project whose repository was never fetched."""
    body = {"name": "monorepo", "repository": url, "token": token, "settings": SETTINGS}
    project = (await client.post("/projects", json=body)).raise_for_status().json()["id"]
    card = {"projectId": project, "title": "feat: one more", "agent": "demo", "start": True}
    card["description"] = f"create new/{time.time_ns()}.txt: hello"
    begun = time.monotonic()
    task = str((await client.post("/tasks", json=card)).raise_for_status().json()["id"])
    attempt = await _wait_until_finished(client, task)
    assert attempt["status"] == "in_review", attempt
    found = {step["name"]: _at(step["finishedAt"]) - _at(step["startedAt"]) for step in attempt["steps"]}
    found["all"] = time.monotonic() - begun
    (await client.delete(f"/projects/{project}")).raise_for_status()
    return found


async def _wait_until_finished(client: httpx.AsyncClient, task: str) -> dict[str, Any]:
    deadline = time.monotonic() + PATIENCE
    while True:
        answer = (await client.get(f"/tasks/{task}/attempts")).raise_for_status().json()
        attempt: dict[str, Any] = answer["items"][0]
        if attempt["status"] in FINISHED or time.monotonic() > deadline:
            return attempt
        await asyncio.sleep(LOOK_S)


def _at(instant: str) -> float:
    return datetime.fromisoformat(instant).timestamp()
