"""Faults and usage of the model requests of a turn."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import select

from sandyard.kit.clock import SystemClock
from sandyard.kit.destinations import Destinations
from sandyard.kit.secret import Secret
from sandyard.platform.db.models import ModelCall, Session, Turn
from sandyard.platform.domain.models import gateway
from sandyard.platform.domain.models.faults import Cause, Fault
from sandyard.platform.domain.models.gateway import RequestOrigin
from sandyard.platform.domain.models.model import ModelApi
from sandyard.platform.domain.models.service import Models
from sandyard.platform.domain.models.tunnel import TunnelRequest
from sandyard.platform.domain.sandboxes.model import utc_now
from tests.unit.platform.domain.models.people import PRICE
from tests.unit.platform.domain.models.upstream import Reply, Seen, Upstream, chat
from tests.unit.platform.world import ROOT, World


class Answer:
    status = 0

    async def send_head(self, status: int, headers: Iterable[tuple[str, str]]) -> None:
        self.status = status

    async def send_data(self, data: bytes) -> None:
        pass

    async def end(self) -> None:
        pass


class Agent:
    """An agent in a sandbox, in a turn. Each of its requests is named by the model it asks for."""

    def __init__(self, models: Models, provider_id: str) -> None:
        self.models = models
        self._provider_id = provider_id

    async def ask(self, name: str, path: str = "chat/completions", text: str = "") -> int:
        capability = self.models.capabilities.derive("sbx_1").reveal()
        asking = TunnelRequest(
            "POST",
            f"/{self._provider_id}/v1/{path}",
            (("authorization", f"Bearer {capability}"), ("content-type", "application/json")),
            json.dumps({"model": name, "messages": [text]}).encode(),
        )
        answer = Answer()
        await self.models.gateway.serve(RequestOrigin("sbx_1", "s", lambda: "t"), asking, answer)
        return answer.status

    @property
    def fault(self) -> Fault | None:
        return self.models.get_fault("t")


@pytest.fixture
async def agent(world: World, upstream: Upstream) -> AsyncIterator[Agent]:
    owner, now = (await world.create_person("ann")).principal.user_id, utc_now()
    async with world.database.transaction() as tx:
        tx.add(Session(id="s", owner_id=owner, title="", template="base", created_at=now, updated_at=now))
        await tx.session.flush()
        turn = Turn(id="t", session_id="s", number=1, origin="person", status="running", usage={}, queued_at=now)
        tx.add(turn)
    lifecycle: Any = SimpleNamespace()
    frame: Any = {"settings": world.settings, "clock": SystemClock(), "destinations": Destinations()}
    models = Models(world.database, lifecycle, world.projects, world.vault, **frame)
    provider = await models.providers.create(
        ROOT,
        name="scripted",
        kind=ModelApi.OPENAI,
        base_url=upstream.url,
        key=Secret("sk-1"),
        models=["one", "two"],
        prices={"one": PRICE, "two": PRICE},
    )
    with models.count_for_turn("sbx_1", turn):
        yield Agent(models, provider.id)
    await models.close()


async def test_consecutive_requests(agent: Agent, upstream: Upstream) -> None:
    answers = [200, 503, 503, 200]

    async def reply_with(seen: Seen, reply: Reply) -> None:
        await reply.send({}, status=answers.pop(0))

    upstream.handler = reply_with
    for status in (200, 503, 503):
        assert await agent.ask("one") == status
        assert (agent.fault is None) == (status == 200)
    assert agent.fault is not None
    assert (agent.fault.cause, agent.fault.alone) == (Cause.BUSY, True)
    assert agent.fault.at > 0
    await agent.ask("one")
    assert agent.fault is None


@pytest.mark.parametrize("last", ["one", "two"])
async def test_request_fails_beside_answered_one(agent: Agent, upstream: Upstream, last: str) -> None:
    """It does not end the turn, whichever of them ends last."""
    waiting = {"one": asyncio.Event(), "two": asyncio.Event()}

    async def reply_late(seen: Seen, reply: Reply) -> None:
        name = seen.json["model"]
        if name == "two":
            await waiting[name].wait()
            await reply.send({}, status=503)
            return
        await reply.stream()
        await reply.event({"choices": []})
        await waiting[name].wait()
        await reply.end()

    upstream.handler = reply_late
    asked = {name: asyncio.create_task(agent.ask(name)) for name in ("one", "two")}
    while len(upstream.seen) < 2:
        await asyncio.sleep(0.001)
    first = "two" if last == "one" else "one"
    for name in (first, last):
        waiting[name].set()
        await asked[name]
    assert agent.fault is None or not agent.fault.alone
    assert (agent.fault is None) == (last == "one")


async def test_compressed_answer_is_a_fault(agent: Agent, upstream: Upstream) -> None:
    """Nobody asked for it, and a few bytes could become gigabytes."""

    async def compress(seen: Seen, reply: Reply) -> None:
        await reply.send(gzip.compress(b"{}"), content_encoding="gzip")

    upstream.handler = compress
    assert await agent.ask("one") == 502
    assert agent.fault is not None
    assert "compressed" in agent.fault.message


async def test_redirect_is_a_fault(agent: Agent, upstream: Upstream) -> None:
    async def redirect(seen: Seen, reply: Reply) -> None:
        await reply.send({}, status=307, location="https://elsewhere.example.org/")

    upstream.handler = redirect
    assert await agent.ask("one") == 307
    assert agent.fault is not None
    assert agent.fault.cause == Cause.ADDRESS
    upstream.handler = chat
    await agent.ask("one")
    assert agent.fault is None


WORD = {"choices": [{"delta": {"content": "x"}}]}
USAGE = {"choices": [], "usage": {"prompt_tokens": 8, "completion_tokens": 2}}


@pytest.mark.parametrize(
    ("events", "tokens"),
    [
        (None, None),  # no response yet
        ([WORD], None),
        ([WORD, USAGE], (8, 2)),  # many clients leave before the end
    ],
)
async def test_unreported_output_is_estimated_by_time(
    world: World,
    agent: Agent,
    upstream: Upstream,
    monkeypatch: pytest.MonkeyPatch,
    events: list[Any] | None,
    tokens: tuple[int, int] | None,
) -> None:
    monkeypatch.setattr(gateway, "TOKENS_PER_SECOND", 10**6)
    asked = asyncio.Event()

    async def think(seen: Seen, reply: Reply) -> None:
        if events is not None:
            await reply.stream()
            for event in events:
                await reply.event(event)
        asked.set()
        await asyncio.Event().wait()

    upstream.handler = think
    asking = asyncio.create_task(agent.ask("one"))
    async with asyncio.timeout(20):
        await asked.wait()
        await asyncio.sleep(0.05)  # the events are on their way, and time is what is counted
        asking.cancel()
        await asyncio.wait((asking,))
        await agent.models.close()  # waits for what is being written
        async with world.database.reading() as reading:
            (row,) = await reading.scalars(select(ModelCall))
    assert "disconnected" in str(row.error)
    if tokens is not None:
        assert (row.input_tokens, row.output_tokens) == tokens
    else:
        assert (row.output_tokens or 0) >= 50_000
        assert (row.cost_micros or 0) >= 50_000


async def test_unreported_input_includes_stored_context(world: World, agent: Agent, upstream: Upstream) -> None:
    """With the Responses API a small request may continue a large one."""
    asked = asyncio.Event()

    async def think(seen: Seen, reply: Reply) -> None:
        await reply.stream()
        asked.set()
        await asyncio.Event().wait()

    upstream.handler = think
    async with asyncio.timeout(20):
        for text in ("x" * 40_000, "go on"):
            asked.clear()
            asking = asyncio.create_task(agent.ask("one", "responses", text))
            await asked.wait()
            asking.cancel()
            await asyncio.wait((asking,))
            await agent.models.gateway.tasks.wait(5)
        async with world.database.reading() as reading:
            rows = list(await reading.scalars(select(ModelCall)))
    assert [(row.input_tokens or 0) >= 10_000 for row in rows] == [True, True]
