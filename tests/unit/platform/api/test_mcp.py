"""/mcp: authentication, the protocol, and errors of calls. Needs no sandbox."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import httpx
import httpx2
import jsonschema
import pytest

from sandyard.platform.api.app import build
from sandyard.platform.api.mcp import tools as mcp_tools
from sandyard.platform.app import ROUTERS, open_services
from sandyard.platform.domain.audit.service import AuditQuery
from sandyard.platform.domain.paging import PageRequest
from sandyard.platform.domain.services import Services
from sandyard.platform.domain.users.model import Principal
from sandyard.platform.settings import PlatformSettings
from tests.harness.databases import with_schema
from tests.later import Later
from tests.unit.platform.api.mcp_client import call_failing_tool, call_tool, client, serving
from tests.unit.platform.world import ROOT, Person

if TYPE_CHECKING:
    from mcp.client import session as sessions
    from mcp.client import streamable_http
    from mcp.shared import exceptions
else:
    sessions, streamable_http = Later("mcp.client.session"), Later("mcp.client.streamable_http")
    exceptions = Later("mcp.shared.exceptions")

ACCEPT = {"Accept": "application/json, text/event-stream"}
INITIALIZE: dict[str, Any] = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}


class McpHarness:
    def __init__(self, services: Services, url: str) -> None:
        self.services, self.url = services, url

    async def create_person(self, name: str) -> Person:
        user = await self.services.users.create(ROOT, name, "member")
        principal = Principal(user.id, name, "member", "test")
        issued = await self.services.users.create_token(principal, "mcp")
        return Person(principal, issued.value.reveal())

    async def audit(self, action: str) -> list[Any]:
        return list((await self.services.audit.list(ROOT, AuditQuery(action=action), PageRequest(200))).items)


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[McpHarness]:
    settings = PlatformSettings.load({}, data_dir=with_schema(tmp_path), creates_per_minute=3)
    async with open_services(settings) as services, serving(build(services, ROUTERS)) as url:
        yield McpHarness(services, url)


@pytest.mark.filterwarnings("ignore:ping is removed")
@pytest.mark.parametrize("mode", ["2026-07-28", "auto", "legacy"])
async def test_protocol_of_each_mode(harness: McpHarness, mode: str) -> None:
    maria = await harness.create_person("maria")
    async with client(harness.url, maria.token, mode=mode) as mcp:
        if mode != "2026-07-28":  # this version has no `initialize`, so nothing is known before the first call
            assert mcp.server_info is not None and mcp.server_info.name == "sandyard"
            assert mcp.instructions is not None and "create_task" in mcp.instructions
        assert mcp.protocol_version == ("2025-11-25" if mode == "legacy" else "2026-07-28")
        listed = (await mcp.list_tools()).tools
        assert [tool.name for tool in listed] == list(mcp_tools.TOOLS)
        if mode == "legacy":
            await mcp.send_ping()
        with pytest.raises(exceptions.MCPError, match="Unknown tool"):
            await mcp.call_tool("format_disk", {})


async def test_older_clients_get_their_version(harness: McpHarness) -> None:
    maria = await harness.create_person("maria")
    async with httpx.AsyncClient(headers={**maria.headers, **ACCEPT}) as web:
        for version in ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"):
            asked = {**INITIALIZE, "params": {**INITIALIZE["params"], "protocolVersion": version}}
            answer = await web.post(harness.url, json=asked)
            assert answer.status_code == 200 and "mcp-session-id" not in answer.headers
            response = json.loads(answer.text.partition("data: ")[2])
            assert response["result"]["protocolVersion"] == version
            assert response["result"]["capabilities"] == {"tools": {"listChanged": False}}
        unknown = {**INITIALIZE, "params": {**INITIALIZE["params"], "protocolVersion": "1999-01-01"}}
        response = json.loads((await web.post(harness.url, json=unknown)).text.partition("data: ")[2])
        assert response["result"]["protocolVersion"] == "2025-11-25"
        refusal = await web.post(harness.url, json=INITIALIZE, headers={"MCP-Protocol-Version": "2999-01-01"})
        assert refusal.status_code == 400


def test_schemas() -> None:
    """Each tool has a description, and its examples match its schema."""
    for tool in mcp_tools.TOOLS.values():
        schema = tool.arguments_type.model_json_schema(by_alias=True)
        assert len(tool.description) > 30, tool.name
        assert schema["type"] == "object" and schema["examples"], tool.name
        for example in schema["examples"]:
            jsonschema.validate(example, schema)
            tool.arguments_type.model_validate(example)
        assert tool.result_type.model_json_schema(by_alias=True, mode="serialization")["type"] == "object"


async def test_requires_token(harness: McpHarness) -> None:
    maria = await harness.create_person("maria")
    async with httpx.AsyncClient(headers=ACCEPT) as web:
        for headers in (
            {},
            {"Authorization": "Bearer sy_wrong"},
            {"Authorization": "Basic eDp5"},
            {"Cookie": "sandyard_session=x"},
        ):
            answer = await web.post(harness.url, json=INITIALIZE, headers=headers)
            assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")
            assert answer.headers["www-authenticate"].startswith("Bearer")
        login = await web.post(f"{harness.url.removesuffix('/mcp')}/api/v1/login", json={"token": maria.token})
        assert login.status_code == 200 and web.cookies
        answer = await web.post(harness.url, json=INITIALIZE, headers={"X-Sandyard-CSRF": login.json()["key"]})
        assert answer.status_code == 401  # a cookie is not a token


async def test_rejects_other_origins(harness: McpHarness) -> None:
    maria = await harness.create_person("maria")
    host = harness.url.removeprefix("http://").removesuffix("/mcp")
    async with httpx.AsyncClient(headers={**maria.headers, **ACCEPT}, timeout=60) as web:
        for origin in ("https://evil.example", "null", "http://127.0.0.1:1"):
            answer = await web.post(harness.url, json=INITIALIZE, headers={"Origin": origin})
            assert answer.status_code == 403, origin
        answer = await web.post(harness.url, json=INITIALIZE, headers={"Host": "evil.example"})
        assert (answer.status_code, answer.json()["code"]) == (421, "wrong_host")
        answer = await web.post(harness.url, json=INITIALIZE, headers={"Origin": f"http://{host}"})
        assert answer.status_code == 200
        for method in ("GET", "DELETE", "OPTIONS"):
            assert (await web.request(method, harness.url)).status_code == 405
        answer = await web.post(harness.url, content=b"x" * (1 << 21), headers={"Content-Type": "application/json"})
        assert answer.status_code == 413
        for body in (b"", b"[]", b"{", b'{"jsonrpc": "2.0"}', b"[" * 4_000):
            answer = await web.post(harness.url, content=body, headers={"Content-Type": "application/json"})
            assert answer.status_code == 400, body[:20]


async def test_bad_call_names_error(harness: McpHarness) -> None:
    maria = await harness.create_person("maria")
    async with client(harness.url, maria.token) as mcp:
        code, message = await call_failing_tool(mcp, "run_command", sandboxId="sbx_x")
        assert code == "invalid_argument" and "command: Field required" in message
        code, message = await call_failing_tool(mcp, "list_projects", limit=1000, colour="red")
        assert "limit: " in message and "colour: " in message
        code, message = await call_failing_tool(mcp, "write_file", sandboxId="sbx_x", path="a\0b", content="")
        assert code == "invalid_argument" and "NUL" in message
        code, message = await call_failing_tool(mcp, "get_session", sessionId="ses_nobodys")
        assert (code, message) == ("not_found", "There is no session 'ses_nobodys'. (not_found)")
        found = await harness.audit("mcp.get_session")
        assert [(item.user_name, item.target, item.outcome) for item in found] == [
            ("maria", "ses_nobodys", "not_found")
        ]
        assert found[0].means.startswith("token:") and found[0].address == "127.0.0.1" and found[0].request_id


async def test_unexpected_error_shows_no_details(harness: McpHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object, **__: object) -> None:
        raise RuntimeError("the password is swordfish")

    maria = await harness.create_person("maria")
    monkeypatch.setattr(harness.services.projects, "list", broken)
    async with client(harness.url, maria.token) as mcp:
        code, message = await call_failing_tool(mcp, "list_projects")
    assert code == "internal" and "swordfish" not in message
    assert [item.outcome for item in await harness.audit("mcp.list_projects")] == ["internal"]


async def test_lists_projects_of_caller(harness: McpHarness) -> None:
    maria, otto = await harness.create_person("maria"), await harness.create_person("otto")
    project = await harness.services.projects.create(maria.principal, "website")
    async with client(harness.url, maria.token) as mcp:
        found = await call_tool(mcp, "list_projects")
        assert [item["id"] for item in found["items"]] == [project.id]
    async with client(harness.url, otto.token) as mcp:
        assert (await call_tool(mcp, "list_projects"))["items"] == []
        for tool, arguments in (
            ("create_session", {"projectId": project.id}),
            ("list_sessions", {"projectId": project.id}),
        ):
            result = await mcp.call_tool(tool, arguments)
            assert "website" not in str(result)
            if tool == "create_session":
                assert result.meta is not None and result.meta["code"] == "not_found"


async def test_shares_rate_limits_with_api(harness: McpHarness) -> None:
    maria = await harness.create_person("maria")
    async with client(harness.url, maria.token) as mcp:
        codes = [(await call_failing_tool(mcp, "create_sandbox"))[0] for _ in range(4)]
    assert codes[3] == "rate_limited" and "rate_limited" not in codes[:3]
    assert len(await harness.audit("mcp.create_sandbox")) == 3
    async with httpx.AsyncClient(headers=maria.headers) as web:  # the API uses the same bucket
        answer = await web.post(f"{harness.url.removesuffix('/mcp')}/api/v1/sandboxes", json={})
    assert answer.status_code == 429


async def test_rejects_revoked_token_at_next_call(harness: McpHarness) -> None:
    maria = await harness.create_person("maria")
    async with client(harness.url, maria.token) as mcp:
        await call_tool(mcp, "list_projects")
        tokens = await harness.services.users.list_tokens(maria.principal, PageRequest())
        for token in tokens.items:
            await harness.services.users.revoke_token(maria.principal, token.id)
        with pytest.raises(exceptions.MCPError):
            await call_tool(mcp, "list_projects")


async def test_client_continues_after_restart(tmp_path: Path) -> None:
    """The same client and address with another platform: the client need not initialize again."""
    settings = PlatformSettings.load({}, data_dir=with_schema(tmp_path))
    current: list[str] = []

    class Follow(httpx2.AsyncHTTPTransport):
        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            request.url = httpx2.URL(current[-1])
            return await super().handle_async_request(request)

    async with open_services(settings) as services, serving(build(services, ROUTERS)) as url:
        harness = McpHarness(services, url)
        maria = await harness.create_person("maria")
        current.append(url)
        web = httpx2.AsyncClient(headers=maria.headers, transport=Follow(), timeout=30)
        streams = streamable_http.streamable_http_client("http://127.0.0.1:1/mcp", http_client=web)
        read, write = await streams.__aenter__()
        session = await sessions.ClientSession(read, write).__aenter__()
        await session.initialize()
        assert not (await session.call_tool("list_projects", {})).is_error
    async with open_services(settings) as services, serving(build(services, ROUTERS)) as url:
        current.append(url)
        with anyio.fail_after(30):
            assert not (await session.call_tool("list_projects", {})).is_error
        await session.__aexit__(None, None, None)
        await streams.__aexit__(None, None, None)
        await web.aclose()
