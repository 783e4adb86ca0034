"""An agent's requests to MCP servers through the platform: streamed in both directions, with headers that the agent
never sees."""

from __future__ import annotations

import asyncio
import functools
import json
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from sandyard.kit.errors import NotFoundError
from sandyard.kit.secret import Secret
from sandyard.platform.db.models import Session
from sandyard.platform.domain.mcp_servers.error_messages import explain_response
from sandyard.platform.domain.mcp_servers.gateway import McpGateway
from sandyard.platform.domain.mcp_servers.model import SERVER_FAILED, McpServerInfo, McpTestFailedError
from sandyard.platform.domain.mcp_servers.service import ID_PREFIX, McpServerDraft, McpServers
from sandyard.platform.domain.models.capability import Capabilities
from sandyard.platform.domain.models.gateway import RequestOrigin
from sandyard.platform.domain.models.redaction import make_header_redactor
from sandyard.platform.domain.models.tunnel import TunnelRequest
from sandyard.platform.domain.sandboxes.e2b.guest import tunnel
from sandyard.platform.domain.sandboxes.model import utc_now
from tests.unit.platform.domain.models.upstream import Handler, Reply, Seen, Upstream
from tests.unit.platform.world import ROOT, World

KEY = "mcp-planted-8c1f0a97d2e64b35"
TOOLS = {"tools": [{"name": "search", "inputSchema": {}}, {"name": "create", "inputSchema": {}}]}


@dataclass
class Answer:
    """The answer that an agent got."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    ended: bool = False
    came: asyncio.Event = field(default_factory=asyncio.Event)

    async def send_head(self, status: int, headers: Iterable[tuple[str, str]]) -> None:
        self.status, self.headers = status, dict(headers)

    async def send_data(self, data: bytes) -> None:
        self.body += data
        self.came.set()

    async def end(self) -> None:
        self.ended = True


@dataclass
class McpHarness:
    world: World
    servers: McpServers
    gateway: McpGateway
    upstream: Upstream
    server: McpServerInfo
    other_project: str
    noted: list[tuple[str, str, str]] = field(default_factory=list)

    def make_origin(self, session_id: str = "ses_1") -> RequestOrigin:
        return RequestOrigin("sbx_1", session_id, lambda: "trn_1")

    async def ask(
        self,
        body: Any = None,
        *,
        method: str = "POST",
        target: str | None = None,
        capability: str | None = None,
        session_id: str = "ses_1",
        answer: Answer | None = None,
        **headers: str,
    ) -> Answer:
        shown = capability if capability is not None else Capabilities(self.world.vault).derive("sbx_1").reveal()
        given = [("authorization", f"Bearer {shown}"), ("content-type", "application/json")]
        given += [(name.replace("_", "-"), value) for name, value in headers.items()]
        data = b"" if body is None else json.dumps(body).encode()
        asking = TunnelRequest(method, target if target is not None else f"/{self.server.id}", tuple(given), data)
        answer = answer or Answer()
        await self.gateway.serve(self.make_origin(session_id), asking, answer)
        return answer


def answering(status: int, body: bytes, **headers: str) -> Handler:
    async def handler(seen: Seen, reply: Reply) -> None:
        await reply.send(body, status=status, **headers)

    return handler


@pytest.fixture
async def harness(world: World, servers: McpServers, upstream: Upstream) -> AsyncIterator[McpHarness]:
    root = (await world.create_person("root", "admin")).principal
    project = await world.projects.create(root, "website")
    other = await world.projects.create(root, "other")
    async with world.database.transaction() as tx:
        for number, project_id in ((1, project.id), (2, other.id), (3, None)):
            session = {"id": f"ses_{number}", "project_id": project_id, "owner_id": root.user_id, "title": "s"}
            tx.add(Session(**session, template="base", created_at=utc_now(), updated_at=utc_now()))
    headers = {"Authorization": Secret(f"Bearer {KEY}"), "X-Team": Secret("team-blue-0123456789")}
    wanted = McpServerDraft(name="issues", url=f"{upstream.url}/mcp?team=blue", headers=headers)
    server = await servers.create(ROOT, project.id, wanted)
    gateway = McpGateway(servers, Capabilities(world.vault))
    made = McpHarness(world, servers, gateway, upstream, server, other.id)

    async def note(turn_id: str, code: str, message: str) -> None:
        made.noted.append((turn_id, code, message))

    gateway.failure_hooks.append(note)
    yield made
    await gateway.close()


async def test_adds_headers_of_server(harness: McpHarness) -> None:
    async def handler(seen: Seen, reply: Reply) -> None:
        await reply.send({"jsonrpc": "2.0", "id": 1, "result": {}}, mcp_session_id="s-1", set_cookie="a=b")

    harness.upstream.handler = handler
    body = {"jsonrpc": "2.0", "id": 1, "method": "initialize"}
    answer = await harness.ask(
        body,
        mcp_protocol_version="2025-06-18",
        mcp_session_id="s-1",
        x_team="mine",
        cookie="c=d",
        accept="text/event-stream",
    )
    assert (answer.status, json.loads(answer.body)["id"], answer.ended) == (200, 1, True)
    assert answer.headers["mcp-session-id"] == "s-1"
    assert "set-cookie" not in answer.headers
    (seen,) = harness.upstream.seen
    assert (seen.method, seen.target, seen.json) == ("POST", "/mcp?team=blue", body)
    assert seen.headers["authorization"] == f"Bearer {KEY}"
    assert seen.headers["x-team"] == "team-blue-0123456789"
    assert (seen.headers["mcp-protocol-version"], seen.headers["accept"]) == ("2025-06-18", "text/event-stream")
    assert "cookie" not in seen.headers
    assert "syc_" not in repr(seen)


async def test_stream_is_not_buffered(harness: McpHarness) -> None:
    confirmed = asyncio.Event()

    async def handler(seen: Seen, reply: Reply) -> None:
        await reply.stream()
        await reply.event({"method": "notifications/progress"})
        await confirmed.wait()
        await reply.event({"id": 2})
        await reply.end()

    harness.upstream.handler = handler
    for method in ("POST", "GET"):
        confirmed.clear()
        answer = Answer()
        asking = asyncio.ensure_future(harness.ask(method=method, answer=answer, last_event_id="7"))
        async with asyncio.timeout(10):
            await answer.came.wait()
        assert b"progress" in answer.body
        assert not answer.ended
        confirmed.set()
        await asking
        assert b'"id": 2' in answer.body
        assert answer.ended
    assert [(seen.method, seen.headers["last-event-id"]) for seen in harness.upstream.seen] == [
        ("POST", "7"),
        ("GET", "7"),
    ]


async def test_drops_body_after_sending(harness: McpHarness) -> None:
    answers = asyncio.Event()

    async def slow(seen: Seen, reply: Reply) -> None:
        await answers.wait()
        await reply.send({})

    harness.upstream.handler = slow
    shown = Capabilities(harness.world.vault).derive("sbx_1").reveal()
    asking = TunnelRequest("POST", f"/{harness.server.id}", (("authorization", f"Bearer {shown}"),), b"{}")
    answer = Answer()
    serving = asyncio.ensure_future(harness.gateway.serve(harness.make_origin(), asking, answer))
    async with asyncio.timeout(10):
        while asking.body:
            await asyncio.sleep(0.01)
    assert not serving.done()
    answers.set()
    await serving
    (seen,) = harness.upstream.seen
    assert (answer.status, seen.body, seen.headers["content-length"]) == (200, b"{}", "2")


async def test_closes_connection_when_agent_disconnects(harness: McpHarness) -> None:
    async def handler(seen: Seen, reply: Reply) -> None:
        await reply.stream()
        await reply.event({"id": 1})
        await asyncio.Event().wait()

    harness.upstream.handler = handler
    answer = Answer()
    asking = asyncio.ensure_future(harness.ask(method="GET", answer=answer))
    async with asyncio.timeout(10):
        await answer.came.wait()
        asking.cancel()
        await asyncio.wait([asking])
        await harness.upstream.left.wait()


async def test_other_methods(harness: McpHarness) -> None:
    async def handler(seen: Seen, reply: Reply) -> None:
        await reply.head(204)

    harness.upstream.handler = handler
    answer = await harness.ask(method="DELETE", mcp_session_id="s-1")
    assert (answer.status, harness.upstream.seen[0].headers["mcp-session-id"]) == (204, "s-1")
    for method in ("PUT", "PATCH", "OPTIONS", "HEAD", "CONNECT"):
        assert (await harness.ask(method=method)).status == 405
    assert (await harness.ask({}, content_encoding="gzip")).status == 415
    assert (await harness.ask({}, target=f"/{harness.server.id}?x=1")).status == 400
    assert (await harness.ask({}, target=f"/{harness.server.id}/admin")).status == 404
    assert len(harness.upstream.seen) == 1


def test_tunnel_recognizes_mcp_requests(harness: McpHarness) -> None:
    """It recognizes them by the prefix of their ids and repeats none of them."""
    assert f"/{ID_PREFIX}" == tunnel.ONCE_PREFIX
    assert harness.server.id.startswith(ID_PREFIX)
    assert harness.gateway.handles(f"/{harness.server.id}")
    assert not harness.gateway.handles("/mdl_1/v1/messages")


async def test_rejects_strangers_and_other_projects(harness: McpHarness) -> None:
    assert (await harness.ask({}, capability="")).status == 403
    assert (await harness.ask({}, capability=Capabilities(harness.world.vault).derive("sbx_2").reveal())).status == 403
    for session_id in ("ses_2", "ses_3", "ses_none"):
        answer = await harness.ask({}, session_id=session_id)
        assert (answer.status, json.loads(answer.body)["error"]["code"]) == (404, -32000)
    assert (await harness.ask({}, target="/mcp_nobodys")).status == 404
    command = await harness.servers.create(ROOT, harness.server.project_id, McpServerDraft(name="inside", command="x"))
    assert (await harness.ask({}, target=f"/{command.id}")).status == 404
    await harness.servers.delete(ROOT, harness.server.project_id, harness.server.id)
    assert (await harness.ask({})).status == 404
    assert harness.upstream.seen == []


async def test_redacts_key_in_answer(harness: McpHarness) -> None:
    async def echo(seen: Seen, reply: Reply) -> None:
        credentials = seen.headers["authorization"] + " " + seen.headers["x-team"]
        await reply.stream(x_echo=credentials, www_authenticate=f"Bearer {KEY}", **{f"X-{KEY.upper()}": "1"})
        for letter in credentials.encode():
            await reply.chunk(bytes([letter]))
        await reply.end()

    harness.upstream.handler = echo
    answer = await harness.ask({})
    received = repr((answer.headers, answer.body))
    assert KEY not in received.lower()
    assert "team-blue-0123456789" not in received
    assert b"*" * len(KEY) in answer.body
    assert "www-authenticate" not in answer.headers


async def test_member_who_left_cannot_use_keys(harness: McpHarness) -> None:
    member = await harness.world.create_person("mo")
    await harness.world.projects.add_member(ROOT, harness.server.project_id, member.principal.user_id)
    async with harness.world.database.transaction() as tx:
        session = {
            "id": "ses_mo",
            "project_id": harness.server.project_id,
            "owner_id": member.principal.user_id,
            "title": "s",
        }
        tx.add(Session(**session, template="base", created_at=utc_now(), updated_at=utc_now()))
    assert (await harness.ask({}, session_id="ses_mo")).status == 200
    await harness.world.projects.remove_member(ROOT, harness.server.project_id, member.principal.user_id)
    assert (await harness.ask({}, session_id="ses_mo")).status == 404


async def test_reports_refusal_once_per_session(harness: McpHarness) -> None:
    """No agent tries to have a person log in, or follows a redirect to another server."""
    words = {"location": f"http://127.0.0.1:1/{KEY}", "www-authenticate": "Bearer resource_metadata=x"}
    for status, expected in ((401, 403), (401, 403), (403, 403), (307, 502)):
        harness.upstream.handler = answering(status, b"no", **words)
        answer = await harness.ask({})
        assert answer.status == expected
        assert not {"location", "www-authenticate"} & set(answer.headers)
        assert KEY not in repr(answer)
    await harness.gateway.close()
    ((turn, code, message),) = harness.noted
    assert (turn, code) == ("trn_1", SERVER_FAILED)
    assert "issues rejected the configured headers (401)" in message


async def test_discards_cookies(harness: McpHarness) -> None:
    """All projects share the platform's connections: a cookie of one would be sent with the key of another."""

    async def handler(seen: Seen, reply: Reply) -> None:
        await reply.send({}, set_cookie="sid=the-first-projects; Path=/")

    harness.upstream.handler = handler
    second = await harness.servers.create(
        ROOT, harness.other_project, McpServerDraft(name="issues", url=f"{harness.upstream.url}/mcp")
    )
    assert (await harness.ask({})).status == 200
    assert (await harness.ask({}, target=f"/{second.id}", session_id="ses_2")).status == 200
    assert [seen.headers.get("cookie") for seen in harness.upstream.seen] == [None, None]


async def test_server_is_unreachable(harness: McpHarness) -> None:
    gone = McpServerDraft(url="http://127.0.0.1:9/mcp", headers={})
    await harness.servers.update(ROOT, harness.server.project_id, harness.server.id, gone)
    assert (await harness.ask({})).status == 502
    await harness.gateway.close()
    assert "could not be reached" in harness.noted[0][2]


async def test_rejects_name_that_becomes_private(harness: McpHarness, names: dict[str, str]) -> None:
    """It was public when the owner entered it."""
    owner = (await harness.world.create_person("owner")).principal
    project = await harness.world.projects.create(owner, "own")
    async with harness.world.database.transaction() as tx:
        session = {"id": "ses_4", "project_id": project.id, "owner_id": owner.user_id, "title": "s"}
        tx.add(Session(**session, template="base", created_at=utc_now(), updated_at=utc_now()))
    url = f"https://mcp.example.org:{harness.upstream.port}/mcp"
    made = await harness.servers.create(owner, project.id, McpServerDraft(name="moving", url=url))
    names["mcp.example.org"] = "127.0.0.1"
    answer = await harness.ask({}, target=f"/{made.id}", session_id="ses_4")
    assert answer.status == 502
    assert "private network" in answer.body.decode()
    found = await harness.servers.test(owner, project.id, made.id)
    assert (found.ok, "private network" in found.detail) == (False, True)
    assert harness.upstream.seen == []


# testing a server --------------------------------------------------------------------------------------------------------


async def _mcp(seen: Seen, reply: Reply, *, streamed: bool) -> None:
    if seen.method == "DELETE":
        await reply.head(204)
        return
    number, method = seen.json.get("id"), seen.json["method"]
    if number is None:
        await reply.send(b"", status=202)
        return
    result: dict[str, Any] = TOOLS
    if method == "initialize":
        info = {"name": f"tracker {KEY}", "version": "2"}
        result = {"protocolVersion": "2025-03-26", "capabilities": {"tools": {}}, "serverInfo": info}
    elif "cursor" not in seen.json["params"]:
        result = {"tools": [{"name": "first"}], "nextCursor": "2"}
    message = {"jsonrpc": "2.0", "id": number, "result": result}
    if streamed:
        await reply.stream(mcp_session_id="s-1")
        await reply.event({"jsonrpc": "2.0", "method": "notifications/message"})
        await reply.event(message)
        await asyncio.Event().wait()  # the stream may stay open after the answer
    await reply.send(message, mcp_session_id="s-1")


async def test_tests_server(harness: McpHarness) -> None:
    for streamed in (False, True):
        harness.upstream.handler = functools.partial(_mcp, streamed=streamed)
        harness.upstream.seen.clear()
        found = await harness.servers.test(ROOT, harness.server.project_id, harness.server.id)
        assert (found.ok, found.detail) == (True, "issues works: 3 tools.")
        assert found.tools == ("first", "search", "create")
        assert found.server == "tracker *** 2"
        assert [seen.method for seen in harness.upstream.seen] == ["POST", "POST", "POST", "POST", "DELETE"]
    assert {seen.headers["authorization"] for seen in harness.upstream.seen} == {f"Bearer {KEY}"}
    later = harness.upstream.seen[1:]
    assert {(seen.headers["mcp-session-id"], seen.headers["mcp-protocol-version"]) for seen in later} == {
        ("s-1", "2025-03-26")
    }


async def test_does_not_wait_for_end_of_test_session(harness: McpHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that never confirms the end of the session has passed the test nevertheless."""
    monkeypatch.setattr("sandyard.platform.domain.mcp_servers.probe.END_TIMEOUT_S", 0.1)

    async def endless(seen: Seen, reply: Reply) -> None:
        if seen.method != "DELETE":
            await _mcp(seen, reply, streamed=False)
            return
        await reply.stream()
        while True:
            await reply.chunk(b"more")
            await asyncio.sleep(0.01)

    async def silent(seen: Seen, reply: Reply) -> None:
        if seen.method != "DELETE":
            await _mcp(seen, reply, streamed=False)
            return
        await asyncio.Event().wait()

    for handler in (endless, silent):
        harness.upstream.handler = handler
        async with asyncio.timeout(4):
            found = await harness.servers.test(ROOT, harness.server.project_id, harness.server.id)
        assert (found.ok, found.detail) == (True, "issues works: 3 tools.")
        assert harness.upstream.seen[-1].method == "DELETE"


NONSENSE: list[tuple[dict[str, Any], dict[str, Any], dict[str, str], str]] = [
    ({}, {"tools": 5}, {}, "list of tools"),
    ({"protocolVersion": "zw\u00f6lf"}, TOOLS, {}, "protocol version"),
    ({"protocolVersion": ["2025-06-18"]}, TOOLS, {}, "protocol version"),
    ({}, TOOLS, {"mcp-session-id": "zw\u00f6lf"}, "session id"),
]


async def test_reports_invalid_answers(harness: McpHarness) -> None:
    for greeting, listed, headers, words in NONSENSE:

        async def handler(
            seen: Seen,
            reply: Reply,
            greeting: dict[str, Any] = greeting,
            listed: dict[str, Any] = listed,
            headers: dict[str, str] = headers,
        ) -> None:
            if seen.json.get("id") is None:
                await reply.send(b"", status=202)
                return
            first = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, **greeting}
            result = first if seen.json["method"] == "initialize" else listed
            await reply.send({"jsonrpc": "2.0", "id": seen.json["id"], "result": result}, **headers)

        harness.upstream.handler = handler
        found = await harness.servers.test(ROOT, harness.server.project_id, harness.server.id)
        assert (found.ok, words in found.detail) == (False, True), found


async def test_server_without_headers_requires_some_later(harness: McpHarness) -> None:
    """The session id that the server has set does not count as a configured header."""

    async def handler(seen: Seen, reply: Reply) -> None:
        if seen.json["method"] == "tools/list":
            await reply.send(b"", status=401)
        else:
            await _mcp(seen, reply, streamed=False)

    harness.upstream.handler = handler
    bare = await harness.servers.create(
        ROOT, harness.server.project_id, McpServerDraft(name="bare", url=f"{harness.upstream.url}/mcp")
    )
    found = await harness.servers.test(ROOT, harness.server.project_id, bare.id)
    assert (found.ok, "requires authentication (401)" in found.detail) == (False, True), found


async def test_project_is_deleted_during_test(harness: McpHarness) -> None:
    async def handler(seen: Seen, reply: Reply) -> None:
        if seen.method == "POST" and seen.json["method"] == "initialize":
            await harness.world.projects.delete(ROOT, harness.other_project)
        await _mcp(seen, reply, streamed=False)

    harness.upstream.handler = handler
    wanted = McpServerDraft(name="new", url=f"{harness.upstream.url}/mcp")
    with pytest.raises(NotFoundError, match="no project"):
        await harness.servers.create(ROOT, harness.other_project, wanted, test=True)


BROKEN = [
    (401, b"", "rejected the configured headers (401)"),
    (404, b"", "was not found at this URL (404)"),
    (302, b"", "redirects"),
    (500, b"", "returned an error (500)"),
    (200, b"<html>", "not like an MCP server"),
    (200, b'{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"too old"}}', "rejected initialize: too old"),
]


async def test_does_not_store_server_that_fails_test(harness: McpHarness) -> None:
    wanted = McpServerDraft(name="new", url=f"{harness.upstream.url}/mcp", headers={"X-Api-Key": Secret(KEY)})
    for status, body, words in BROKEN:
        harness.upstream.handler = answering(status, body)
        found = await harness.servers.test(ROOT, harness.server.project_id, harness.server.id)
        assert (found.ok, words in found.detail) == (False, True), found
        with pytest.raises(McpTestFailedError, match="Nothing was saved"):
            await harness.servers.create(ROOT, harness.server.project_id, wanted, test=True)
    nobody = r"could not be reached: no server is listening at http://127\.0\.0\.1:9/mcp\. Nothing was saved\.$"
    with pytest.raises(McpTestFailedError, match=nobody):
        wanted = McpServerDraft(name="new", url="http://127.0.0.1:9/mcp")
        await harness.servers.create(ROOT, harness.server.project_id, wanted, test=True)
    assert len(await harness.servers.list(ROOT, harness.server.project_id)) == 1


def test_key_is_redacted_before_url_is_cut() -> None:
    """A cut through the key would leave its beginning."""
    redactor = make_header_redactor([Secret(f"Bearer {KEY}")])
    for start in range(200 - len(KEY) - 5, 201):
        response = httpx.Response(302, headers={"location": "p" * start + KEY})
        assert "mcp-planted" not in (explain_response("issues", response, has_headers=True, redactor=redactor) or "")


async def test_key_is_redacted_before_error_message_is_cut(harness: McpHarness) -> None:
    for start in (300 - len(KEY) // 2, 300 - len(KEY) + 1):
        error = {"jsonrpc": "2.0", "id": 1, "error": {"code": -1, "message": "m" * start + KEY}}
        harness.upstream.handler = answering(200, json.dumps(error).encode())
        found = await harness.servers.test(ROOT, harness.server.project_id, harness.server.id)
        assert not found.ok
        assert "mcp-planted" not in found.detail


async def test_empty_lines_of_server_are_skipped(harness: McpHarness) -> None:
    async def handler(seen: Seen, reply: Reply) -> None:
        await reply.stream()
        await reply.chunk(b"\n" * (3 << 20))
        await reply.event({"jsonrpc": "2.0", "id": seen.json.get("id"), "result": {}})
        await reply.end()

    harness.upstream.handler = handler
    began = time.process_time()
    assert (await harness.servers.test(ROOT, harness.server.project_id, harness.server.id)).ok
    assert time.process_time() - began < 3
