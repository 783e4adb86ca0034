"""A repository of 50 MB into a sandbox: from a git server over HTTP on this machine, beside a plain `git clone` on the host."""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
from tests.forge.gitserver import GitServer
from tests.forge.repositories import Repository

from bench.platform import client_of, platform
from bench.processes import engine
from bench.report import Row, median, percentile

MEGABYTES, FILES, COMMITS = 50, 500, 250
SESSIONS = 20


def measure(rounds: int) -> list[Row]:
    return asyncio.run(_measure(rounds))


async def _measure(rounds: int) -> list[Row]:
    rounds = max(3, rounds // 20)
    with GitServer() as server, engine("--pool-size", "4") as endpoint, platform(endpoint) as served:
        site = server.repository("acme/large", files={"README.md": "# Large\n"})
        token = server.tokens.make("bench").text
        fill(site)
        size = f"{site.size() / 1e6:.0f} MB"
        clones = [plain_clone(site.url, token) for _ in range(3)]
        async with client_of(f"{served.url}/api/v1", served.token) as client:
            cold = [await _cold(client, site.url, token) for _ in range(3)]
            project = await _project(client, site.url, token)
            await _clone(client, project)
            warm = [await _clone(client, project) for _ in range(rounds)]
            work = [await _first_command(client, project) for _ in range(rounds)]
            pushes = await _pushes(client, project, rounds)
            at_once = await asyncio.gather(*(_first_command(client, project) for _ in range(SESSIONS)))
    return [
        Row(f"clone of {size} into a sandbox, cold, p50", median(cold), "s", median(clones), 5),
        Row("the same with a warm mirror, p50", median(warm), "s", median(clones), 1),
        Row("session create → first command in the checkout, warm, p50", median(work), "s", median(clones), 2),
        Row(f"the same, {SESSIONS} at once, p99", percentile(at_once, 0.99), "s", None, None),
        Row("push of one commit, p50", median(pushes), "s", None, None),
    ]


def fill(site: Repository) -> None:
    """Create files that hardly compress, changed in many commits, in one pack as on a server."""
    chance = random.Random(50)
    each = MEGABYTES * 1_000_000 // (FILES + COMMITS)
    lines: list[bytes] = []

    def blob(path: str) -> bytes:
        data = chance.randbytes(each)
        return f"M 100644 inline {path}\n".encode() + f"data {len(data)}\n".encode() + data + b"\n"

    for number in range(COMMITS):
        lines.append(f"commit refs/heads/main\ncommitter A <a@example.org> {1_700_000_000 + number} +0000\n".encode())
        lines.append(b"data 11\nfeat: more\n\n" + (b"from refs/heads/main^0\n" if number == 0 else b""))
        paths = [f"src/{index % 20}/{index}.bin" for index in range(FILES)] if number == 0 else []
        paths.append(f"src/{number % 20}/{chance.randrange(FILES)}.bin")
        lines += [blob(path) for path in paths]
    site.git("fast-import", "--quiet", stdin=b"".join(lines))
    site.git("repack", "-q", "-a", "-d")


def plain_clone(url: str, token: str) -> float:
    with _folder() as folder:
        begun = time.perf_counter()
        subprocess.run(["git", "clone", "-q", url.replace("://", f"://x:{token}@"), str(folder / "clone")], check=True)
        return time.perf_counter() - begun


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="sandyard-bench-"))
    try:
        yield path
    finally:
        shutil.rmtree(path)


async def _project(client: httpx.AsyncClient, url: str, token: str) -> str:
    body = {"name": "large", "repository": url, "token": token}
    return str((await client.post("/projects", json=body)).raise_for_status().json()["id"])


async def _cold(client: httpx.AsyncClient, url: str, token: str) -> float:
    project = await _project(client, url, token)
    seconds = await _clone(client, project)
    (await client.delete(f"/projects/{project}")).raise_for_status()
    return seconds


async def _clone(client: httpx.AsyncClient, project: str) -> float:
    """Into a sandbox that is ready."""
    sandbox = (await client.post("/sandboxes", json={"projectId": project})).raise_for_status().json()["id"]
    begun = time.perf_counter()
    answer = await client.post("/git/clone", json={"sandboxId": sandbox})
    seconds = time.perf_counter() - begun
    assert answer.status_code == 200, answer.text
    (await client.delete(f"/sandboxes/{sandbox}")).raise_for_status()
    return seconds


async def _first_command(client: httpx.AsyncClient, project: str) -> float:
    begun = time.perf_counter()
    session = (await client.post("/sessions", json={"projectId": project})).raise_for_status().json()
    await _wait_for_checkout(client, session["sandboxId"])
    ran = await client.post(
        f"/sandboxes/{session['sandboxId']}/execute",
        json={"command": "git log -1 --format=%s", "cwd": "/home/user/workspace"},
    )
    seconds = time.perf_counter() - begun
    assert ran.json()["stdout"] == "feat: more\n", ran.text
    (await client.delete(f"/sessions/{session['id']}")).raise_for_status()
    return seconds


async def _wait_for_checkout(client: httpx.AsyncClient, sandbox: str) -> None:
    """Wait until the checkout exists."""
    operation = (
        (await client.get("/git/operations", params={"sandboxId": sandbox})).raise_for_status().json()["items"][0]
    )
    while operation["status"] in ("queued", "running"):
        await asyncio.sleep(0.01)
        operation = (await client.get(f"/git/operations/{operation['id']}")).raise_for_status().json()
    assert operation["status"] == "completed", operation


async def _pushes(client: httpx.AsyncClient, project: str, rounds: int) -> list[float]:
    session: dict[str, Any] = (await client.post("/sessions", json={"projectId": project})).raise_for_status().json()
    sandbox = session["sandboxId"]
    await _wait_for_checkout(client, sandbox)
    samples = []
    for number in range(rounds):
        upload = f"/sandboxes/{sandbox}/files?path=/home/user/workspace/{number}.txt"
        (await client.put(upload, content=b"x")).raise_for_status()
        commit = {"sandboxId": sandbox, "message": "feat: one more"}
        (await client.post("/git/commit", json=commit)).raise_for_status()
        begun = time.perf_counter()
        (await client.post("/git/push", json={"sandboxId": sandbox})).raise_for_status()
        samples.append(time.perf_counter() - begun)
    (await client.delete(f"/sessions/{session['id']}")).raise_for_status()
    return samples
