"""The memory limit for model requests: one user does not block others, and sent requests take no memory."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from sandyard.kit.destinations import Destinations
from sandyard.kit.secret import Secret
from sandyard.platform.db.models import Session
from sandyard.platform.domain.models import tunnel
from sandyard.platform.domain.models.budgets import Budgets
from sandyard.platform.domain.models.capability import Capabilities
from sandyard.platform.domain.models.gateway import Gateway, RequestOrigin
from sandyard.platform.domain.models.ledger import Ledger
from sandyard.platform.domain.models.model import ModelApi
from sandyard.platform.domain.models.providers import Providers
from sandyard.platform.domain.models.service import MAX_REQUEST_BYTES
from sandyard.platform.domain.models.tunnel import (
    BODY_LIMIT,
    MEMORY_SHARES,
    SMALL_REQUEST,
    RequestMemory,
    RequestMemoryFullError,
    Serve,
    Tunnel,
)
from sandyard.platform.domain.sandboxes.model import utc_now
from tests.unit.platform.domain.models.upstream import Reply, Seen, Upstream, chat
from tests.unit.platform.world import ROOT, World

LARGE = 2 * SMALL_REQUEST


def test_largest_request_fits_into_share() -> None:
    assert MAX_REQUEST_BYTES // MEMORY_SHARES >= BODY_LIMIT


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nobody wait for memory."""
    monkeypatch.setattr(tunnel, "MEMORY_WAIT_S", 0)


@pytest.mark.usefixtures("hasty")
async def test_limits_user_to_share() -> None:
    room = RequestMemory(MEMORY_SHARES * LARGE)
    taken = await room.reserve("greedy", LARGE)
    for size in (LARGE, 1):  # in any of the user's sandboxes
        with pytest.raises(RequestMemoryFullError):
            await room.reserve("greedy", size)
    assert await room.reserve("other", LARGE)
    taken.release()
    taken.release()
    taken = await room.reserve("greedy", LARGE)
    with pytest.raises(RequestMemoryFullError):
        await room.reserve("greedy", 1)


@pytest.mark.usefixtures("hasty")
async def test_small_requests_fit_when_large_ones_do_not() -> None:
    room = RequestMemory(MEMORY_SHARES * LARGE)
    held = [await room.reserve(f"person {number}", LARGE) for number in range(MEMORY_SHARES)]
    with pytest.raises(RequestMemoryFullError):
        await room.reserve("other", LARGE)
    held += [await room.reserve("other", SMALL_REQUEST) for _ in range(2)]  # refused requests have released everything
    with pytest.raises(RequestMemoryFullError):
        await room.reserve("other", SMALL_REQUEST)


async def test_waiter_gets_released_memory() -> None:
    room = RequestMemory(MEMORY_SHARES * LARGE)
    taken = await room.reserve("one", LARGE)
    waiting = [asyncio.ensure_future(room.reserve("one", LARGE // 2)) for _ in range(3)]
    leaving = asyncio.ensure_future(room.reserve("one", LARGE))
    await asyncio.sleep(0)
    leaving.cancel()
    taken.release()
    done, pending = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    assert (len(done), len(pending)) == (2, 1)
    done.pop().result().release()
    await asyncio.wait(pending)


class Sandbox:
    """The sandbox's end of a tunnel, which sends the requested parts of request bodies."""

    def __init__(self) -> None:
        self._frames: asyncio.Queue[str] = asyncio.Queue()
        self._bodies: dict[int, bytes] = {}
        self._status: dict[int, int] = {}
        self._over: dict[int, asyncio.Event] = {}
        self.wanted = 0

    def ask(self, target: str, capability: str, body: bytes) -> int:
        number = len(self._over) + 1
        self._bodies[number], self._over[number] = body, asyncio.Event()
        headers = [["authorization", f"Bearer {capability}"]]
        frame = {"t": "req", "id": number, "method": "POST", "target": target, "headers": headers, "size": len(body)}
        self._frames.put_nowait(json.dumps(frame))
        return number

    async def status(self, number: int) -> int:
        """Return the status of a complete answer."""
        await self._over[number].wait()
        return self._status.get(number, 0)

    async def read_lines(self) -> AsyncIterator[str]:
        while True:
            yield await self._frames.get()

    def send_line(self, line: str) -> None:
        frame: dict[str, Any] = json.loads(line)
        number = frame.get("id", 0)
        if frame["t"] == "want":
            self.wanted += frame["n"]
            piece, self._bodies[number] = self._bodies[number][: frame["n"]], self._bodies[number][frame["n"] :]
            self._frames.put_nowait(json.dumps({"t": "body", "id": number, "d": base64.b64encode(piece).decode()}))
        elif frame["t"] == "head":
            self._status[number] = frame["status"]
        elif frame["t"] in ("fin", "cut"):
            self._over[number].set()

    async def drain(self) -> None:
        pass


@contextlib.asynccontextmanager
async def serve_sandbox(serve: Serve, room: RequestMemory, owner_id: str = "usr_1") -> AsyncIterator[Sandbox]:
    sandbox = Sandbox()
    running = asyncio.ensure_future(Tunnel(sandbox, serve, room, lambda port: None, owner_id=owner_id).run())
    try:
        async with asyncio.timeout(20):
            yield sandbox
    finally:
        running.cancel()
        await asyncio.wait([running])


@pytest.mark.usefixtures("hasty")
async def test_refuses_request_without_memory_before_sending() -> None:
    async def serve(asking: tunnel.TunnelRequest, answer: tunnel.ResponseWriter) -> None:
        raise AssertionError("there was no room")

    room = RequestMemory(MEMORY_SHARES * LARGE)
    taken = await room.reserve("usr_1", LARGE)
    async with serve_sandbox(serve, room) as sandbox:
        assert await sandbox.status(sandbox.ask("/", "", b"x" * LARGE)) == 503
        assert sandbox.wanted == 0
    taken.release()


async def test_sent_request_takes_no_memory(world: World, upstream: Upstream) -> None:
    """However long the answer takes."""
    answers, clock = asyncio.Event(), world.clock

    async def slow(seen: Seen, reply: Reply) -> None:
        await answers.wait()
        await chat(seen, reply)

    async def nothing(*_: object) -> None:
        return

    upstream.handler = slow
    root = (await world.create_person("root", "admin")).principal
    now = utc_now()
    async with world.database.transaction() as tx:
        tx.add(Session(id="ses_1", owner_id=root.user_id, title="s", template="base", created_at=now, updated_at=now))
    providers = Providers(world.database, world.projects, world.vault, clock)
    provider = await providers.create(
        ROOT, name="slow", kind=ModelApi.OPENAI_CHAT, base_url=upstream.url, key=Secret("k" * 20)
    )
    capabilities, ledger = Capabilities(world.vault), Ledger(world.database, clock)
    gateway = Gateway(
        world.database, providers, capabilities, Budgets(world.database, ledger, clock), ledger, destinations=Destinations(),
        timeout_s=60, on_over_budget=nothing, on_outcome=lambda *_: None, on_refused=nothing,
    )  # fmt: skip

    async def serve(asking: tunnel.TunnelRequest, answer: tunnel.ResponseWriter) -> None:
        await gateway.serve(RequestOrigin("sbx_1", "ses_1", lambda: None), asking, answer)

    body = json.dumps({"model": "tiny", "messages": [{"content": "x" * 300_000}]}).encode()
    async with serve_sandbox(serve, RequestMemory(MEMORY_SHARES * len(body))) as sandbox:
        ask = (f"/{provider.id}/v1/chat/completions", capabilities.derive("sbx_1").reveal(), body)
        numbers = [sandbox.ask(*ask) for _ in range(3)]  # there is memory for one of them
        while len(upstream.seen) < len(numbers):
            await asyncio.sleep(0.01)
        answers.set()
        assert [await sandbox.status(number) for number in numbers] == [200] * len(numbers)
    assert [(seen.body, seen.headers["content-length"]) for seen in upstream.seen] == [(body, str(len(body)))] * 3
    await gateway.close()
