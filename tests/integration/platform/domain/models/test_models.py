"""Model calls of agents in real sandboxes through the platform: served, counted, limited, without exposing the key."""

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
from sandyard.platform.domain.models.apis import ModelRequest
from sandyard.platform.domain.models.faults import Cause, Fault
from sandyard.platform.domain.models.ledger import UNFINISHED
from sandyard.platform.domain.models.model import ModelApi
from sandyard.platform.domain.models.request_body import InvalidBodyError, parse_body
from sandyard.platform.domain.models.service import Models
from sandyard.platform.domain.models.tunnel import RequestMemory, ResponseWriter, TunnelError, TunnelRequest
from sandyard.platform.domain.models.tunnel_keeper import OPEN_TIMEOUT_S, TunnelKeeper
from sandyard.platform.domain.sandboxes.e2b import SandboxNotRunningError
from tests.integration.platform.domain.sandboxes.platform_harness import DEADLINE, PlatformHarness, until
from tests.unit.platform.domain.models.people import KEY, ModelSession, Speaker, open_model_session
from tests.unit.platform.domain.models.upstream import Reply, Seen, Upstream, chat

HELLO = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}


async def list_calls(model_session: ModelSession) -> list[ModelCall]:
    async with model_session.platform.services.database.reading() as session:
        return list(await session.scalars(select(ModelCall).order_by(ModelCall.id)))


async def test_a_model_call_is_forwarded_and_counted(platform: PlatformHarness, upstream: Upstream) -> None:
    model_session = await open_model_session(platform, upstream)
    turn = await model_session.add_turn()
    with platform.services.models.count_for_turn(model_session.sandbox.id, turn):
        output = await model_session.run(f"print(ask(body={HELLO!r})[:2])")
    assert output.startswith("(200, ")
    seen = upstream.seen[0]
    assert (seen.method, seen.target, seen.json) == ("POST", "/v1/chat/completions", HELLO)
    assert seen.headers["authorization"] == f"Bearer {KEY}"
    assert seen.headers["accept-encoding"] == "identity"
    assert model_session.endpoint.capability.reveal() not in repr(seen)
    (row,) = await list_calls(model_session)
    assert (row.session_id, row.turn_id, row.model, row.status) == (model_session.session.id, turn.id, "tiny", 200)
    assert (row.input_tokens, row.output_tokens, row.cache_read_tokens, row.cost_micros) == (10, 5, 4, 20)
    spent = await platform.services.models.get_usage(turn_id=turn.id)
    assert (spent.calls, spent.tokens, spent.cost_usd, spent.unpriced) == (1, 15, 0.00002, 0)


async def test_a_stream_is_delivered_piece_by_piece(
    platform: PlatformHarness, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model continues only when the agent has confirmed, with another request, what it received so far."""
    monkeypatch.setattr(gateway, "RECORD_USAGE_EVERY_S", 0)
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
        unfinished = next(row for row in await list_calls(model_session) if row.error == UNFINISHED)
        assert (unfinished.output_tokens or 0) >= 2, "it is counted even if the platform dies now"
        await reply.event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}})
        await reply.event("[DONE]")
        await reply.end()

    upstream.handler = handler
    model_session = await open_model_session(platform, upstream)
    output = await model_session.run(
        """
stream, heard = send_request(body={"model": "tiny", "stream": True, "messages": []}), []
for line in stream:
    line = line.decode().strip()
    if line.startswith("data: {") and json.loads(line[6:])["choices"]:
        heard.append(json.loads(line[6:])["choices"][0]["delta"]["content"])
        ask(body={"model": "tiny", "messages": [{"role": "user", "content": heard[-1]}]})
print(heard, line)"""
    )
    assert output.strip() == "['0', '1', '2']"
    streamed = next(row for row in await list_calls(model_session) if row.input_tokens == 7)
    assert (streamed.output_tokens, streamed.status, streamed.error) == (3, 200, None)


async def test_the_api_key_never_reaches_the_sandbox(platform: PlatformHarness, upstream: Upstream) -> None:
    async def echo(seen: Seen, reply: Reply) -> None:
        """Respond like a provider that echoes the key: in a header, in pieces, in an error."""
        authorization = seen.headers["authorization"].encode()
        if seen.json.get("fail"):
            await reply.send(
                b'{"error": {"message": "bad key %s"}}' % authorization, status=401, x_echo=authorization.decode()
            )
            return
        await reply.stream(x_echo=authorization.decode())
        for letter in authorization:
            await reply.chunk(bytes([letter]))
        await reply.end()

    upstream.handler = echo
    model_session = await open_model_session(platform, upstream)
    output = await model_session.run("for body in ({'fail': 1}, {'model': 'tiny'}): print(ask(body=body))")
    assert "*" * len(KEY) in output
    searched = await model_session.platform.run(
        model_session.sandbox,
        "ps axeww; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n'; env; "
        "grep -rlaF 'planted-8c1f0a97' /tmp /home /root /etc /var /run 2>/dev/null; true",
    )
    rows = await list_calls(model_session)
    events = await platform.list_event_kinds(prefix="")
    for text in (output, searched, repr([(row.error, row.model) for row in rows]), repr(events)):
        assert KEY not in text
    assert [row.status for row in rows] == [401, 200]
    database = Path(str(platform.services.database.url.database))
    assert not any(KEY.encode() in path.read_bytes() for path in database.parent.glob("platform.db*"))


async def test_wrong_capabilities_and_unknown_paths_are_rejected(platform: PlatformHarness, upstream: Upstream) -> None:
    model_session = await open_model_session(platform, upstream)
    output = await model_session.run(
        """
good = config["capability"]
print([ask("/v1/chat/completions", {}, {"Authorization": shown})[0] for shown in ("", "Bearer x", "Bearer " + good[:-1])])
others = [("/v1/models?key=" + good, {}), ("/v1/models", {"x-api-key": good})]
print(*(ask(path, None, {"Authorization": "", **shown}, "GET")[0] for path, shown in others))
print([ask(path, {}, method=method)[0] for method, path in (("POST", "/v1/files"), ("GET", "/v1/chat/completions"), ("POST", "/v1/messages"),
    ("GET", "/v1/models/../files"), ("GET", "/v1/models/..%2ffiles"), ("DELETE", "/v1/models/x"))])
where = where._replace(path="/prv_other")
print(ask(body={})[0])"""
    )
    assert output.split("\n")[:4] == ["[401, 401, 401]", "200 200", "[404, 404, 404, 404, 404, 404]", "404"]
    assert [seen.target for seen in upstream.seen] == ["/v1/models", "/v1/models"]
    assert await list_calls(model_session) == []


async def test_calls_over_the_budget_are_rejected(platform: PlatformHarness, upstream: Upstream) -> None:
    model_session = await open_model_session(platform, upstream, tasks={"monthlyBudget": {"tokens": 25}})
    turn, reported = await model_session.add_turn(), []

    async def record(turn_id: str, message: str) -> None:
        reported.append((turn_id, message))

    platform.services.models.over_budget_hooks.append(record)
    await platform.services.models.check_budget(model_session.session)
    with platform.services.models.count_for_turn(model_session.sandbox.id, turn):
        output = await model_session.run(f"for _ in range(3): print(json.dumps(ask(body={HELLO!r})))")
    statuses = [json.loads(line) for line in output.splitlines()]
    assert [status for status, _, _ in statuses] == [200, 200, 402]
    error = json.loads(statuses[2][1])["error"]
    assert "25 tokens" in error["message"]
    assert (error["code"], statuses[2][2]["x-should-retry"]) == ("over_budget", "false")
    assert len(upstream.seen) == 2
    await until(
        lambda: _has_two(reported),
        "the turn is notified after the call that exceeded the budget and at the rejected one",
    )
    assert {turn_id for turn_id, _ in reported} == {turn.id}
    assert [row.status for row in await list_calls(model_session)] == [200, 200, 0]


async def _has_two(reported: list[tuple[str, str]]) -> bool:
    return len(reported) == 2


async def test_an_abandoned_response_is_counted(platform: PlatformHarness, upstream: Upstream) -> None:
    """Otherwise a client could spend without limit by disconnecting before the provider reports the usage."""

    async def endless(seen: Seen, reply: Reply) -> None:
        if "stream" not in seen.json:
            await reply.send({"words": "y" * 400})
            return
        await reply.stream()
        while True:
            await reply.event({"choices": [{"delta": {"content": "x"}}]})
            await asyncio.sleep(0.01)

    upstream.handler = endless
    model_session = await open_model_session(platform, upstream)
    await model_session.run(
        "stream = send_request(body={'model': 'tiny', 'stream': True, 'messages': ['x' * 4000]})\nstream.readline(); stream.close()\n"
        "ask(body={'model': 'tiny', 'messages': ['x' * 4000]})"
    )
    await until(lambda: _are_counted(model_session), "the calls are counted")
    for row in await list_calls(model_session):
        assert (row.input_tokens or 0) >= 1000, row.error
        assert (row.output_tokens or 0) >= 1


async def _are_counted(model_session: ModelSession) -> bool:
    rows = await list_calls(model_session)
    return len(rows) == 2 and all((row.output_tokens or 0) >= 1 for row in rows)


async def test_an_ambiguous_request_body_is_rejected(platform: PlatformHarness, upstream: Upstream) -> None:
    model_session = await open_model_session(platform, upstream)
    twice = '{"model": "dear", "model": "tiny", "messages": []}'
    output = await model_session.run(f"print(ask(body={ {**HELLO, 'background': True}!r})[0])")
    assert output.strip() == "200"
    assert upstream.seen[0].json == HELLO
    with pytest.raises(InvalidBodyError, match="duplicate keys"):
        parse_body(twice.encode(), ModelRequest("/v1/chat/completions", "", counted=True), ModelApi.OPENAI_CHAT)


async def test_hosted_tools_are_rejected_unless_allowed(platform: PlatformHarness, upstream: Upstream) -> None:
    model_session = await open_model_session(
        platform, upstream, agent={"hosted_tools": ["scripted/plugins", "other/web_search"]}
    )
    with_search, with_plugins = {**HELLO, "web_search_options": {}}, {**HELLO, "plugins": [{"id": "web"}]}
    output = await model_session.run(f"print(ask(body={with_search!r})); print(ask(body={with_plugins!r})[0])")
    rejected, allowed = output.strip().splitlines()
    assert rejected.startswith("(403, ")
    assert '"code": "hosted_tool_refused"' in rejected and "agent.hostedTools" in rejected and "web_search" in rejected
    assert allowed == "200"
    assert [seen.json for seen in upstream.seen] == [with_plugins]


async def test_a_budget_in_dollars_needs_a_price(platform: PlatformHarness, upstream: Upstream) -> None:
    model_session = await open_model_session(platform, upstream, tasks={"monthlyBudget": {"usd": 1}})
    output = await model_session.run("print(ask(body={'model': 'unknown'})[:2], ask(body={'model': 'tiny'})[0])")
    assert "402" in output
    assert "is unknown" in output
    assert output.strip().endswith("200")


async def test_a_failed_call_to_the_provider_is_recorded(platform: PlatformHarness, upstream: Upstream) -> None:
    async def broken(seen: Seen, reply: Reply) -> None:
        if seen.json["model"] == "half":
            await reply.head(200, content_type="application/json", content_length="100")
            reply.writer.write(b"{")
        reply.writer.close()

    upstream.handler = broken
    model_session = await open_model_session(platform, upstream)
    output = await model_session.run(
        """
print(ask(body={"model": "none"})[0])
try: ask(body={"model": "half"})
except http.client.IncompleteRead: print("cut")"""
    )
    assert output.split() == ["502", "cut"]
    rows = await list_calls(model_session)
    assert [row.status for row in rows] == [0, 200]
    assert all(row.error for row in rows)


async def test_a_rejected_api_key_is_reported_to_the_turn(platform: PlatformHarness, upstream: Upstream) -> None:
    """The platform notifies the turn, with the provider's name; temporary failures are only recorded."""
    responses = [(529, "overloaded"), (200, "ok"), (401, f"no such key: {KEY}")]

    async def refuse(seen: Seen, reply: Reply) -> None:
        status, message = responses.pop(0)
        await reply.send({"error": {"message": message}}, status=status)

    upstream.handler = refuse
    model_session = await open_model_session(platform, upstream)
    models, turn, reported = platform.services.models, await model_session.add_turn(), list[tuple[str, Fault]]()

    async def record(turn_id: str, fault: Fault) -> None:
        reported.append((turn_id, fault))

    models.refusal_hooks[:] = [record]
    with models.count_for_turn(model_session.sandbox.id, turn):
        await model_session.run(f"print(ask(body={HELLO!r}))")
        fault = models.get_fault(turn.id)
        assert fault is not None
        assert (fault.cause, reported) == (Cause.BUSY, [])
        await model_session.run(f"print(ask(body={HELLO!r}))")
        assert models.get_fault(turn.id) is None
        output = await model_session.run(f"print(ask(body={HELLO!r}))")
        assert output.startswith("(401, ")

        async def is_reported() -> bool:
            return bool(reported)

        await until(is_reported, "the turn is notified")
        assert reported == [(turn.id, models.get_fault(turn.id))]
    assert reported[0][1].message == "scripted rejected the API key (401). It said: “no such key: ***”"
    assert models.get_fault(turn.id) is None


async def test_the_request_ends_when_the_agent_disconnects(platform: PlatformHarness, upstream: Upstream) -> None:
    async def endless(seen: Seen, reply: Reply) -> None:
        await reply.stream()
        await reply.event({"choices": []})
        await asyncio.Event().wait()

    upstream.handler = endless
    model_session = await open_model_session(platform, upstream)
    await model_session.run(
        'stream = send_request(body={"model": "tiny", "stream": True}); print(stream.readline()); import os; os._exit(0)'
    )
    async with asyncio.timeout(30):
        await upstream.left.wait()

    async def is_recorded() -> bool:
        return (await list_calls(model_session))[0].error is not None and "disconnected" in str(
            (await list_calls(model_session))[0].error
        )

    await until(is_recorded, "the call is recorded")
    assert (await platform.services.models.get_usage()).estimated == 1


async def test_calls_continue_after_an_engine_outage_and_a_pause(platform: PlatformHarness, upstream: Upstream) -> None:
    asked = asyncio.Event()

    async def silent(seen: Seen, reply: Reply) -> None:
        asked.set()
        await asyncio.Event().wait()

    upstream.handler = silent
    model_session = await open_model_session(platform, upstream)
    running = asyncio.ensure_future(model_session.run(f"print(ask(body={HELLO!r})[0])"))
    await asked.wait()
    (row,) = await list_calls(model_session)
    assert row.error == UNFINISHED, "the row is correct even if the platform dies now"
    assert (row.input_tokens or 0) >= len(json.dumps(HELLO)) // 4
    assert (row.cost_micros or 0) > 0
    upstream.handler = chat
    await platform.engine_proxy.stop()
    await platform.reconnect_engine()
    assert (await running).strip() == "200"  # the request was repeated without the agent noticing
    await platform.services.lifecycle.pause(await platform.reload(model_session.sandbox))
    assert (await model_session.run(f"print(ask(body={HELLO!r})[0])")).strip() == "200"  # the command has resumed it


async def test_the_tunnel_recovers_from_a_database_outage(
    platform: PlatformHarness, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_session, rows, failed = (
        await open_model_session(platform, upstream),
        platform.services.lifecycle.repository,
        asyncio.Event(),
    )
    real = rows.get

    async def get(sandbox_id: str) -> Sandbox:
        task = asyncio.current_task()
        if task is not None and getattr(task.get_coro(), "__name__", "") == "_keep_open" and not failed.is_set():
            failed.set()
            raise DatabaseUnavailableError
        return await real(sandbox_id)

    monkeypatch.setattr(rows, "get", get)
    await platform.engine_proxy.stop()
    await platform.reconnect_engine()
    async with asyncio.timeout(DEADLINE):
        await failed.wait()
    assert (await model_session.run(f"print(ask(body={HELLO!r})[0])")).strip() == "200"


async def test_waiting_fails_for_a_tunnel_that_is_stopped_before_it_starts(platform: PlatformHarness) -> None:
    async def serve_nothing(asking: TunnelRequest, answer: ResponseWriter) -> None:
        raise AssertionError

    async def never(error: SandyardError) -> None:
        raise AssertionError

    keeper = TunnelKeeper(
        platform.services.lifecycle, "sbx_none", "usr_none", serve_nothing, RequestMemory(1), on_give_up=never
    )
    stopping = asyncio.create_task(stop(keeper))  # starts before the keeper's own task
    keeper.start()
    with pytest.raises(TunnelError):
        async with asyncio.timeout(OPEN_TIMEOUT_S / 2):
            await keeper.wait_until_up()
    await stopping


async def stop(keeper: TunnelKeeper) -> None:
    await keeper.stop()


async def test_another_process_takes_over_the_tunnel(platform: PlatformHarness, upstream: Upstream) -> None:
    """As after kill -9: the next process serves the waiting requests, with the same capability and port."""
    model_session = await open_model_session(platform, upstream)
    services = platform.services
    await services.models.detach(model_session.sandbox.id)
    running = asyncio.ensure_future(model_session.run(f"print(ask(body={HELLO!r})[0])"))
    vault = services.models.providers.vault
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
        endpoint = await second.open_endpoint(model_session.session, model_session.sandbox, Speaker(), None)
        assert endpoint == model_session.endpoint
        assert (await running).strip() == "200"
    finally:
        await second.close()


async def test_attaching_does_not_resume_a_paused_sandbox(platform: PlatformHarness, upstream: Upstream) -> None:
    model_session = await open_model_session(platform, upstream)
    await platform.services.models.detach(model_session.sandbox.id)
    row = await platform.services.lifecycle.pause(await platform.reload(model_session.sandbox))
    with pytest.raises(SandboxNotRunningError):
        await platform.services.models.attach(model_session.session, row)
    assert await platform.get_engine_state(row) == "paused"
