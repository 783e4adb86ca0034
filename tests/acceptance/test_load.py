"""Many sandboxes, sessions, cards and open pages at once. `SANDYARD_IDLE_SANDBOXES` (200) and `SANDYARD_CARDS` (1000) set how many."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from e2b import AsyncSandbox, Sandbox, SandboxQuery

from tests.harness.engine import Engine, serving
from tests.harness.platform import Platform, ok, running
from tests.proof.record import record

IDLE = int(os.environ.get("SANDYARD_IDLE_SANDBOXES", "200"))
CARDS = int(os.environ.get("SANDYARD_CARDS", "1000"))
BURST, CHECKED = 100, 20
SESSIONS, STREAMS = 50, 200
CLIENTS = 16
SETTINGS = {
    "CREATES_PER_MINUTE": "1000000",
    "EXECUTES_PER_MINUTE": "1000000",
    "RUNNING_SANDBOXES_PER_USER": "0",
    "IDLE_SECONDS": "3600",
    "MAX_CONNECTIONS": "2000",
}
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.fixture
def engine() -> Iterator[Engine]:
    limits = {"DEFAULT_MEMORY_MB": "128", "DEFAULT_DISK_MB": "256", "MAX_SANDBOXES": str(IDLE + BURST + SESSIONS)}
    with serving(POOL_SIZE="8", **limits) as engine:
        yield engine


@pytest.fixture
def platform(engine: Engine) -> Iterator[Platform]:
    with running(engine, **SETTINGS) as platform:
        yield platform


def test_many_sandboxes(engine: Engine) -> None:
    """A hundred creates at once, then many idle sandboxes: all exist, and those that are asked respond."""

    async def create_at_once() -> list[AsyncSandbox]:
        return list(
            await asyncio.gather(*(AsyncSandbox.create(timeout=3600, request_timeout=300) for _ in range(BURST)))
        )

    began = time.monotonic()
    burst = asyncio.run(create_at_once())
    burst_s = time.monotonic() - began
    with ThreadPoolExecutor(CLIENTS) as clients:
        idle = list(clients.map(lambda _: Sandbox.create(timeout=3600, request_timeout=300), range(IDLE - BURST)))
        known = {sandbox.sandbox_id for sandbox in (*burst, *idle)}
        pages, listed = Sandbox.list(query=SandboxQuery(), limit=100), set()
        while pages.has_next:
            listed |= {info.sandbox_id for info in pages.next_items()}
        assert listed == known
        asked = sorted(known)[:: max(1, len(known) // CHECKED)]
        outputs = clients.map(lambda name: Sandbox.connect(name, timeout=3600).commands.run("hostname").stdout, asked)
        assert all(outputs)
        assert all(clients.map(_kill, known))
    with engine.client() as client:
        assert client.get("/v2/sandboxes").json() == []
    record({"creates at once": BURST, "idle sandboxes": len(known)}, creates_at_once_took=f"{burst_s:.1f} s")


def _kill(sandbox_id: str) -> bool:
    return Sandbox.kill(sandbox_id)


def test_many_users(platform: Platform) -> None:
    """Sessions at work, a board with many cards, and many open pages that all see a change."""
    client = platform.client
    project = ok(client.post("/projects", json={"name": "load"}), 201)["id"]

    def add_card(number: int) -> None:
        ok(client.post("/tasks", json={"projectId": project, "title": f"Card {number}"}), 201)

    with ThreadPoolExecutor(CLIENTS) as clients:

        def use_session(number: int) -> str:
            session = ok(client.post("/sessions", json={"title": f"Session {number}", "projectId": project}), 201)
            command = {"command": f"echo {number}"}
            return str(
                ok(client.post(f"/sandboxes/{session['sandbox']['id']}/execute", json=command))["stdout"]
            ).strip()

        list(clients.map(add_card, range(CARDS)))
        assert list(clients.map(use_session, range(SESSIONS))) == [str(number) for number in range(SESSIONS)]
    began = time.monotonic()
    board = client.get("/board", params={"projectId": project})
    board_s = time.monotonic() - began
    assert board.status_code == 200
    (counts,) = ok(client.get("/tasks/counts"))["items"]
    assert counts["columns"]["backlog"] == CARDS
    seen = asyncio.run(_count_notified_pages(platform, lambda: add_card(CARDS)))
    assert seen == STREAMS
    record(
        {"sessions": SESSIONS, "cards": CARDS, "open pages": STREAMS},
        {"events": STREAMS - seen},
        board_loaded_in=f"{board_s * 1000:.0f} ms, {len(board.content) >> 10} KiB",
    )


async def _count_notified_pages(platform: Platform, change: Callable[[], None]) -> int:
    """Open the event stream of many pages, make a change, and return how many of them have received it."""
    limits = httpx.Limits(max_connections=STREAMS)
    async with httpx.AsyncClient(headers=platform.client.headers, limits=limits, timeout=60) as browser:
        opened = asyncio.Semaphore(0)

        async def watch() -> bool:
            async with browser.stream("GET", f"{platform.url}/api/v1/events") as response:
                assert response.status_code == 200, await response.aread()
                opened.release()
                async for line in response.aiter_lines():
                    if '"task.created"' in line:
                        return True
            return False

        async with asyncio.TaskGroup() as pages:
            watching = [pages.create_task(watch()) for _ in range(STREAMS)]
            for _ in watching:
                await opened.acquire()
            await asyncio.to_thread(change)
        return sum(page.result() for page in watching)
