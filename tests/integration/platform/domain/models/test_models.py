"""Agents in real sandboxes, their models behind the platform: served, counted, limited, and never given the key."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from sqlalchemy import select

from sandyard.kit.destinations import Destinations
from sandyard.kit.errors import SandyardError
from sandyard.platform.db.database import DatabaseUnavailableError
from sandyard.platform.db.models import ModelCall, Sandbox
from sandyard.platform.domain.models import gateway
from sandyard.platform.domain.models.apis import Asked
from sandyard.platform.domain.models.faults import Cause, Fault
from sandyard.platform.domain.models.gateway import _parse_body
from sandyard.platform.domain.models.ledger import UNFINISHED
from sandyard.platform.domain.models.model import ModelApi
from sandyard.platform.domain.models.service import Models
from sandyard.platform.domain.models.tunnel import Answering, Asking, Room, TunnelError
from sandyard.platform.domain.models.tunnel_keeper import UP_S, TunnelKeeper
from sandyard.platform.domain.sandboxes.e2b import SandboxNotRunningError
from tests.integration.platform.domain.sandboxes.yard import DEADLINE, Yard, until
from tests.unit.platform.domain.models.people import KEY, Scene, Speaker, played
from tests.unit.platform.domain.models.upstream import Reply, Seen, Upstream, chat

HELLO = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}


async def calls(scene: Scene) -> list[ModelCall]:
    async with scene.yard.services.database.reading() as session:
        return list(await session.scalars(select(ModelCall).order_by(ModelCall.id)))


async def test_an_agent_asks_its_model(yard: Yard, upstream: Upstream) -> None:
    scene = await played(yard, upstream)
    turn = await scene.turn()
    with yard.services.models.counted(scene.sandbox.id, turn):
        said = await scene.run(f"print(ask(body={HELLO!r})[:2])")
    assert said.startswith("(200, ")
    seen = upstream.seen[0]
    assert (seen.method, seen.target, seen.json) == ("POST", "/v1/chat/completions", HELLO)
    assert seen.headers["authorization"] == f"Bearer {KEY}"
    assert seen.headers["accept-encoding"] == "identity"
    assert scene.endpoint.capability.reveal() not in repr(seen)
    (row,) = await calls(scene)
    assert (row.session_id, row.turn_id, row.model, row.status) == (scene.session.id, turn.id, "tiny", 200)
    assert (row.input_tokens, row.output_tokens, row.cache_read_tokens, row.cost_micros) == (10, 5, 4, 20)
    spent = await yard.services.models.usage(turn_id=turn.id)
    assert (spent.calls, spent.tokens, spent.cost_usd, spent.unpriced) == (1, 15, 0.00002, 0)


async def test_a_stream_arrives_as_it_is_made(yard: Yard, upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model goes on only when the agent has said, by another request, that it has what came so far."""
    monkeypatch.setattr(gateway, "NOTE_S", 0)
    confirmed = asyncio.Queue[str]()

    async def handler(seen: Seen, reply: Reply) -> None:
        if not seen.json.get("stream"):
            confirmed.put_nowait(seen.json["messages"][0]["content"])
            await chat(seen, reply)
            return
        assert seen.json["stream_options"] == {"include_usage": True}
        await reply.stream()
        for number in range(3):
            await reply.event({"choices": [{"delta": {"content": str(number)}}]})
            assert await confirmed.get() == str(number)
        under_way = next(row for row in await calls(scene) if row.error == UNFINISHED)
        assert (under_way.output_tokens or 0) >= 2, "counted even if the platform dies now"
        await reply.event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}})
        await reply.event("[DONE]")
        await reply.end()

    upstream.handler = handler
    scene = await played(yard, upstream)
    said = await scene.run(
        """
stream, heard = opened(body={"model": "tiny", "stream": True, "messages": []}), []
for line in stream:
    line = line.decode().strip()
    if line.startswith("data: {") and json.loads(line[6:])["choices"]:
        heard.append(json.loads(line[6:])["choices"][0]["delta"]["content"])
        ask(body={"model": "tiny", "messages": [{"role": "user", "content": heard[-1]}]})
print(heard, line)"""
    )
    assert said.strip() == "['0', '1', '2']"
    streamed = next(row for row in await calls(scene) if row.input_tokens == 7)
    assert (streamed.output_tokens, streamed.status, streamed.error) == (3, 200, None)


async def test_the_key_is_nowhere_in_the_sandbox(yard: Yard, upstream: Upstream) -> None:
    async def echo(seen: Seen, reply: Reply) -> None:
        """A provider that says what it was told: in a header, in pieces, in an error."""
        told = seen.headers["authorization"].encode()
        if seen.json.get("fail"):
            await reply.whole(b'{"error": {"message": "bad key %s"}}' % told, status=401, x_echo=told.decode())
            return
        await reply.stream(x_echo=told.decode())
        for letter in told:
            await reply.chunk(bytes([letter]))
        await reply.end()

    upstream.handler = echo
    scene = await played(yard, upstream)
    said = await scene.run("for body in ({'fail': 1}, {'model': 'tiny'}): print(ask(body=body))")
    assert "*" * len(KEY) in said
    searched = await scene.yard.run(
        scene.sandbox,
        "ps axeww; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n'; env; "
        "grep -rlaF 'planted-8c1f0a97' /tmp /home /root /etc /var /run 2>/dev/null; true",
    )
    rows = await calls(scene)
    events = await yard.kinds(about="")
    for text in (said, searched, repr([(row.error, row.model) for row in rows]), repr(events)):
        assert KEY not in text
    assert [row.status for row in rows] == [401, 200]
    database = Path(str(yard.services.database.url.database))
    assert not any(KEY.encode() in path.read_bytes() for path in database.parent.glob("platform.db*"))


async def test_strangers_and_other_paths_are_refused(yard: Yard, upstream: Upstream) -> None:
    scene = await played(yard, upstream)
    said = await scene.run(
        """
good = said["capability"]
print([ask("/v1/chat/completions", {}, {"Authorization": shown})[0] for shown in ("", "Bearer x", "Bearer " + good[:-1])])
others = [("/v1/models?key=" + good, {}), ("/v1/models", {"x-api-key": good})]
print(*(ask(path, None, {"Authorization": "", **shown}, "GET")[0] for path, shown in others))
print([ask(path, {}, method=method)[0] for method, path in (("POST", "/v1/files"), ("GET", "/v1/chat/completions"), ("POST", "/v1/messages"),
    ("GET", "/v1/models/../files"), ("GET", "/v1/models/..%2ffiles"), ("DELETE", "/v1/models/x"))])
where = where._replace(path="/prv_other")
print(ask(body={})[0])"""
    )
    assert said.split("\n")[:4] == ["[401, 401, 401]", "200 200", "[404, 404, 404, 404, 404, 404]", "404"]
    assert [seen.target for seen in upstream.seen] == ["/v1/models", "/v1/models"]
    assert await calls(scene) == []


async def test_a_budget_is_reached(yard: Yard, upstream: Upstream) -> None:
    scene = await played(yard, upstream, tasks={"monthlyBudget": {"tokens": 25}})
    turn, told = await scene.turn(), []

    async def hear(turn_id: str, sentence: str) -> None:
        told.append((turn_id, sentence))

    yard.services.models.over_budget.append(hear)
    await yard.services.models.check_budget(scene.session)
    with yard.services.models.counted(scene.sandbox.id, turn):
        said = await scene.run(f"for _ in range(3): print(json.dumps(ask(body={HELLO!r})))")
    statuses = [json.loads(line) for line in said.splitlines()]
    assert [status for status, _, _ in statuses] == [200, 200, 402]
    error = json.loads(statuses[2][1])["error"]
    assert "25 tokens" in error["message"]
    assert (error["code"], statuses[2][2]["x-should-retry"]) == ("over_budget", "false")
    assert len(upstream.seen) == 2
    await until(
        lambda: _two(told), "the turn is told, after the call that went beyond it and at the one that was refused"
    )
    assert {turn_id for turn_id, _ in told} == {turn.id}
    assert [row.status for row in await calls(scene)] == [200, 200, 0]


async def _two(told: list[tuple[str, str]]) -> bool:
    return len(told) == 2


async def test_an_answer_that_is_not_awaited_is_counted(yard: Yard, upstream: Upstream) -> None:
    """Whoever leaves before the provider says what it took would spend without end."""

    async def endless(seen: Seen, reply: Reply) -> None:
        if "stream" not in seen.json:
            await reply.whole({"words": "y" * 400})
            return
        await reply.stream()
        while True:
            await reply.event({"choices": [{"delta": {"content": "x"}}]})
            await asyncio.sleep(0.01)

    upstream.handler = endless
    scene = await played(yard, upstream)
    await scene.run(
        "stream = opened(body={'model': 'tiny', 'stream': True, 'messages': ['x' * 4000]})\nstream.readline(); stream.close()\n"
        "ask(body={'model': 'tiny', 'messages': ['x' * 4000]})"
    )
    await until(lambda: _counted(scene), "it is counted")
    for row in await calls(scene):
        assert (row.input_tokens or 0) >= 1000, row.error
        assert (row.output_tokens or 0) >= 1


async def _counted(scene: Scene) -> bool:
    rows = await calls(scene)
    return len(rows) == 2 and all((row.output_tokens or 0) >= 1 for row in rows)


async def test_what_a_provider_might_read_otherwise_is_refused(yard: Yard, upstream: Upstream) -> None:
    scene = await played(yard, upstream)
    twice = '{"model": "dear", "model": "tiny", "messages": []}'
    said = await scene.run(f"print(ask(body={ {**HELLO, 'background': True}!r})[0])")
    assert said.strip() == "200"
    assert upstream.seen[0].json == HELLO
    assert _parse_body(twice.encode(), Asked("/v1/chat/completions", "", counted=True), ModelApi.OPENAI_CHAT) is None


async def test_what_the_provider_would_do_itself_is_refused(yard: Yard, upstream: Upstream) -> None:
    scene = await played(yard, upstream, agent={"hosted_tools": ["scripted/plugins", "other/web_search"]})
    searching, own = {**HELLO, "web_search_options": {}}, {**HELLO, "plugins": [{"id": "web"}]}
    said = await scene.run(f"print(ask(body={searching!r})); print(ask(body={own!r})[0])")
    refused, allowed = said.strip().splitlines()
    assert refused.startswith("(403, ")
    assert '"code": "hosted_tool_refused"' in refused and "agent.hostedTools" in refused and "web_search" in refused
    assert allowed == "200"
    assert [seen.json for seen in upstream.seen] == [own]


async def test_dollars_need_a_price(yard: Yard, upstream: Upstream) -> None:
    scene = await played(yard, upstream, tasks={"monthlyBudget": {"usd": 1}})
    said = await scene.run("print(ask(body={'model': 'unknown'})[:2], ask(body={'model': 'tiny'})[0])")
    assert "402" in said
    assert "is unknown" in said
    assert said.strip().endswith("200")


async def test_a_provider_that_fails(yard: Yard, upstream: Upstream) -> None:
    async def broken(seen: Seen, reply: Reply) -> None:
        if seen.json["model"] == "half":
            await reply.head(200, content_type="application/json", content_length="100")
            reply.writer.write(b"{")
        reply.writer.close()

    upstream.handler = broken
    scene = await played(yard, upstream)
    said = await scene.run(
        """
print(ask(body={"model": "none"})[0])
try: ask(body={"model": "half"})
except http.client.IncompleteRead: print("cut")"""
    )
    assert said.split() == ["502", "cut"]
    rows = await calls(scene)
    assert [row.status for row in rows] == [0, 200]
    assert all(row.error for row in rows)


async def test_a_provider_that_refuses_the_key(yard: Yard, upstream: Upstream) -> None:
    """The turn is told by the platform, with the provider's name; what passes by itself is only noted."""
    answers = [(529, "overloaded"), (200, "ok"), (401, f"no such key: {KEY}")]

    async def refuse(seen: Seen, reply: Reply) -> None:
        status, words = answers.pop(0)
        await reply.whole({"error": {"message": words}}, status=status)

    upstream.handler = refuse
    scene = await played(yard, upstream)
    models, turn, told = yard.services.models, await scene.turn(), list[tuple[str, Fault]]()

    async def hear(turn_id: str, fault: Fault) -> None:
        told.append((turn_id, fault))

    models.refused[:] = [hear]
    with models.counted(scene.sandbox.id, turn):
        await scene.run(f"print(ask(body={HELLO!r}))")
        fault = models.fault(turn.id)
        assert fault is not None
        assert (fault.cause, told) == (Cause.BUSY, [])
        await scene.run(f"print(ask(body={HELLO!r}))")
        assert models.fault(turn.id) is None
        said = await scene.run(f"print(ask(body={HELLO!r}))")
        assert said.startswith("(401, ")

        async def heard() -> bool:
            return bool(told)

        await until(heard, "the turn is told")
        assert told == [(turn.id, models.fault(turn.id))]
    assert told[0][1].sentence == "scripted rejected the API key (401). It said: no such key: ***"
    assert models.fault(turn.id) is None


async def test_an_agent_that_leaves_ends_the_request(yard: Yard, upstream: Upstream) -> None:
    async def endless(seen: Seen, reply: Reply) -> None:
        await reply.stream()
        await reply.event({"choices": []})
        await asyncio.Event().wait()

    upstream.handler = endless
    scene = await played(yard, upstream)
    await scene.run(
        'stream = opened(body={"model": "tiny", "stream": True}); print(stream.readline()); import os; os._exit(0)'
    )
    async with asyncio.timeout(30):
        await upstream.left.wait()

    async def written() -> bool:
        return (await calls(scene))[0].error is not None and "disconnected" in str((await calls(scene))[0].error)

    await until(written, "the call is written down")


async def test_it_goes_on_after_a_break_and_a_sleep(yard: Yard, upstream: Upstream) -> None:
    asked = asyncio.Event()

    async def silent(seen: Seen, reply: Reply) -> None:
        asked.set()
        await asyncio.Event().wait()

    upstream.handler = silent
    scene = await played(yard, upstream)
    running = asyncio.ensure_future(scene.run(f"print(ask(body={HELLO!r})[0])"))
    await asked.wait()
    (row,) = await calls(scene)
    assert row.error == UNFINISHED, "what its row says should the platform die now"
    assert (row.input_tokens or 0) >= len(json.dumps(HELLO)) // 4
    assert (row.cost_micros or 0) > 0
    upstream.handler = chat
    await yard.door.shut()
    await yard.back()
    assert (await running).strip() == "200"  # it was asked again, and the agent has noticed nothing
    await yard.services.lifecycle.pause(await yard.row(scene.sandbox))
    assert (await scene.run(f"print(ask(body={HELLO!r})[0])")).strip() == "200"  # which has woken it


async def test_it_goes_on_after_a_moment_without_the_database(
    yard: Yard, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene, rows, away = await played(yard, upstream), yard.services.lifecycle.repository, asyncio.Event()
    real = rows.get

    async def get(sandbox_id: str) -> Sandbox:
        task = asyncio.current_task()
        if task is not None and getattr(task.get_coro(), "__name__", "") == "_keep" and not away.is_set():
            away.set()
            raise DatabaseUnavailableError
        return await real(sandbox_id)

    monkeypatch.setattr(rows, "get", get)
    await yard.door.shut()
    await yard.back()
    async with asyncio.timeout(DEADLINE):
        await away.wait()
    assert (await scene.run(f"print(ask(body={HELLO!r})[0])")).strip() == "200"


async def test_whoever_waits_for_one_that_is_ended_before_it_begins_is_told(yard: Yard) -> None:
    async def nobody(asking: Asking, answer: Answering) -> None:
        raise AssertionError

    async def never(error: SandyardError) -> None:
        raise AssertionError

    keeper = TunnelKeeper(yard.services.lifecycle, "sbx_none", "usr_none", nobody, Room(1), given_up=never)
    stopping = asyncio.create_task(stopped(keeper))  # begins before the keeper's own
    keeper.start()
    with pytest.raises(TunnelError):
        async with asyncio.timeout(UP_S / 2):
            await keeper.up()
    await stopping


async def stopped(keeper: TunnelKeeper) -> None:
    await keeper.stop()


async def test_another_process_takes_over(yard: Yard, upstream: Upstream) -> None:
    """As after kill -9: what waits in the sandbox is served by whoever comes next, under the same capability and port."""
    scene = await played(yard, upstream)
    services = yard.services
    await services.models.detach(scene.sandbox.id)
    running = asyncio.ensure_future(scene.run(f"print(ask(body={HELLO!r})[0])"))
    vault = services.models.providers._vault
    second = Models(
        services.database,
        services.lifecycle,
        services.projects,
        vault,
        settings=services.settings,
        clock=services.clock,
        destinations=Destinations(),
    )
    try:
        endpoint = await second.endpoint(scene.session, scene.sandbox, Speaker(), None)
        assert endpoint == scene.endpoint
        assert (await running).strip() == "200"
    finally:
        await second.close()


async def test_what_sleeps_is_not_woken(yard: Yard, upstream: Upstream) -> None:
    scene = await played(yard, upstream)
    await yard.services.models.detach(scene.sandbox.id)
    row = await yard.services.lifecycle.pause(await yard.row(scene.sandbox))
    with pytest.raises(SandboxNotRunningError):
        await yard.services.models.attach(scene.session, row)
    assert await yard.state(row) == "paused"
