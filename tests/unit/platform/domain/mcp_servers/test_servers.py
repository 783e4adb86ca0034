"""MCP servers of a project: permissions, validation, and write-only headers."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import select

from sandyard.kit.destinations import PrivateAddressError
from sandyard.kit.errors import ConflictError, ForbiddenError, InvalidInputError, NotFoundError
from sandyard.kit.secret import Secret
from sandyard.platform.db.models import McpServer
from sandyard.platform.domain.mcp_servers import model
from sandyard.platform.domain.mcp_servers.model import MAX_SERVERS, ServerType, make_acp_entry, make_fingerprint
from sandyard.platform.domain.mcp_servers.service import McpServerDraft, McpServers
from tests.unit.platform.world import ROOT, World

KEY = "mcp-planted-8c1f0a97d2e64b35"
URL = "https://mcp.example.org/mcp"
HEADERS = {"Authorization": Secret(f"Bearer {KEY}")}


async def test_permissions(world: World, servers: McpServers, names: dict[str, str]) -> None:
    owner, member = (await world.create_person("owner")).principal, (await world.create_person("member")).principal
    stranger = (await world.create_person("stranger")).principal
    project = await world.projects.create(owner, "website")
    await world.projects.add_member(owner, project.id, member.user_id)
    made = await servers.create(owner, project.id, McpServerDraft(name="issues", url=URL, headers=HEADERS))
    assert [item.name for item in await servers.list(member, project.id)] == ["issues"]
    change = McpServerDraft(name="other")
    for person, refused in ((member, ForbiddenError), (stranger, NotFoundError)):
        for verb in (
            servers.create(person, project.id, McpServerDraft(name="x", command="x")),
            servers.update(person, project.id, made.id, change),
            servers.delete(person, project.id, made.id),
            servers.test(person, project.id, made.id),
        ):
            with pytest.raises(refused):
                await verb
    another = await world.projects.create(owner, "another")
    for verb in (
        servers.get(owner, another.id, made.id),
        servers.update(owner, another.id, made.id, change),
        servers.delete(owner, another.id, made.id),
        servers.test(owner, another.id, made.id),
    ):
        with pytest.raises(NotFoundError):
            await verb
    await servers.delete(owner, project.id, made.id)
    assert await servers.list(owner, project.id) == []


async def test_headers_are_write_only(world: World, servers: McpServers, names: dict[str, str]) -> None:
    owner = (await world.create_person("owner")).principal
    project = await world.projects.create(owner, "website")
    given = {**HEADERS, "X-Team": Secret("blue")}
    made = await servers.create(owner, project.id, McpServerDraft(name="issues", url=URL, headers=given))
    assert [(header.name, header.hint) for header in made.headers] == [("Authorization", "…4b35"), ("X-Team", "…")]
    assert KEY not in repr(made)

    kept = McpServerDraft(headers={"authorization": None, "X-New": Secret("new-value-of-a-header")})
    changed = await servers.update(owner, project.id, made.id, kept)
    assert [header.name for header in changed.headers] == ["authorization", "X-New"]
    async with world.database.reading() as session:
        row = (await session.scalars(select(McpServer))).one()
    assert KEY.encode() not in (row.headers or b"")
    revealed = {name: value.reveal() for name, value in (await servers.reveal(row)).items()}
    assert revealed == {"authorization": f"Bearer {KEY}", "X-New": "new-value-of-a-header"}

    names["evil.example.org"] = "93.184.215.15"
    for moving in (
        McpServerDraft(url="https://evil.example.org/mcp"),
        McpServerDraft(url="https://evil.example.org/mcp", headers={"Authorization": None}),
        McpServerDraft(url="https://mcp.example.org:8443/mcp"),
    ):
        with pytest.raises(ConflictError, match=r"entered for https://mcp\.example\.org"):
            await servers.update(owner, project.id, made.id, moving)
    await servers.update(owner, project.id, made.id, McpServerDraft(url="https://mcp.example.org/v2?team=blue"))
    moved = McpServerDraft(url="https://evil.example.org/mcp", headers={})
    assert (await servers.update(owner, project.id, made.id, moved)).headers == ()


async def test_allowed_addresses(world: World, servers: McpServers, names: dict[str, str]) -> None:
    owner = (await world.create_person("owner")).principal
    project = await world.projects.create(owner, "website")
    for url, refused in (
        ("http://mcp.example.org/mcp", ForbiddenError),
        ("https://inside.example.org/mcp", PrivateAddressError),
        ("https://127.0.0.1/mcp", PrivateAddressError),
        ("https://localhost/mcp", PrivateAddressError),
        ("https://nowhere.example.org/mcp", InvalidInputError),
        ("https://user:word@mcp.example.org/mcp", InvalidInputError),
        ("https://mcp.example.org/mcp#part", InvalidInputError),
        ("ftp://mcp.example.org/mcp", InvalidInputError),
        ("mcp.example.org", InvalidInputError),
        ("https://mcp.example.org:0/", InvalidInputError),
    ):
        with pytest.raises(refused) as raised:
            await servers.create(owner, project.id, McpServerDraft(name="x", url=url))
        if refused is PrivateAddressError:
            assert "Only an administrator can use this URL" in raised.value.message
    inside = await servers.create(
        ROOT, project.id, McpServerDraft(name="inside", url="http://inside.example.org:8080/mcp")
    )
    assert inside.url == "http://inside.example.org:8080/mcp"
    with pytest.raises(ForbiddenError):
        await servers.update(owner, project.id, inside.id, McpServerDraft(url="https://inside.example.org/admin"))
    await servers.update(owner, project.id, inside.id, McpServerDraft(name="renamed"))
    same = McpServerDraft(url="http://Inside.example.org:8080/mcp", headers={"X-Team": Secret("blue")})
    changed = await servers.update(owner, project.id, inside.id, same)
    assert (changed.url, [header.name for header in changed.headers]) == (inside.url, ["X-Team"])


async def test_urls_of_a_former_administrator_are_checked(
    world: World, servers: McpServers, names: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for proxy in ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(proxy, raising=False)
    boss, maria = (await world.create_person("boss", "admin")).principal, (await world.create_person("maria")).principal
    other = (await world.create_person("other", "admin")).principal
    draft = McpServerDraft(name="inside", url="https://127.0.0.1:1/mcp")
    own, hers = await world.projects.create(boss, "own"), await world.projects.create(maria, "hers")
    mine, approved = await servers.create(boss, own.id, draft), await servers.create(boss, hers.id, draft)
    await world.users.update(other, boss.user_id, role="member")
    former = replace(boss, role="member")
    refused = (await servers.test(former, own.id, mine.id)).detail
    assert "private network" in refused and "An administrator can allow this URL by saving it again." in refused
    await servers.update(former, own.id, mine.id, draft)
    assert "private network" in (await servers.test(former, own.id, mine.id)).detail
    # an administrator has allowed it for a project of somebody else
    assert "private network" not in (await servers.test(maria, hers.id, approved.id)).detail
    await servers.update(other, own.id, mine.id, draft)
    assert "private network" not in (await servers.test(former, own.id, mine.id)).detail


async def test_proxy_resolves_names(
    world: World, servers: McpServers, names: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = (await world.create_person("owner")).principal
    project = await world.projects.create(owner, "website")
    monkeypatch.setenv("https_proxy", "http://proxy.example.org:3128")
    url = "https://nowhere.example.org/mcp"
    assert (await servers.create(owner, project.id, McpServerDraft(name="x", url=url))).url == url
    with pytest.raises(PrivateAddressError):
        await servers.create(owner, project.id, McpServerDraft(name="y", url="https://127.0.0.1/mcp"))


INVALID: list[dict[str, Any]] = [
    {"name": "no-kind"},
    {"command": "x"},
    {"name": "under_score", "command": "x"},
    {"name": "-dash", "command": "x"},
    {"name": "x" * 41, "command": "x"},
    {"name": "both", "command": "x", "url": URL},
    {"name": "both", "command": "x", "headers": {"X-A": Secret("b")}},
    {"name": "both", "url": URL, "env": {"A": "b"}},
    {"name": "blank", "command": " "},
    {"name": "env", "command": "x", "env": {"1A": "b"}},
    {"name": "env", "command": "x", "env": {f"A{n}": "b" for n in range(51)}},
    {"name": "type", "type": ServerType.HTTP, "command": "x"},
    {"name": "host", "url": URL, "headers": {"Host": Secret("evil")}},
    {"name": "session", "url": URL, "headers": {"Mcp-Session-Id": Secret("1")}},
    {"name": "line", "url": URL, "headers": {"X-A": Secret("b\r\nX-C: d")}},
    {"name": "twice", "url": URL, "headers": {"X-A": Secret("b"), "x-a": Secret("c")}},
    {"name": "unknown", "url": URL, "headers": {"X-A": None}},
]


async def test_rejects_invalid_servers(world: World, servers: McpServers, names: dict[str, str]) -> None:
    owner = (await world.create_person("owner")).principal
    project = await world.projects.create(owner, "website")
    for wanted in INVALID:
        with pytest.raises(InvalidInputError):
            await servers.create(owner, project.id, McpServerDraft(**wanted))


async def test_names_are_unique_and_number_is_limited(world: World, servers: McpServers) -> None:
    owner = (await world.create_person("owner")).principal
    project = await world.projects.create(owner, "website")
    first = await servers.create(owner, project.id, McpServerDraft(name="first", command="x"))
    second = await servers.create(owner, project.id, McpServerDraft(name="second", command="x"))
    with pytest.raises(ConflictError, match="already"):
        await servers.create(owner, project.id, McpServerDraft(name="FIRST", command="y"))
    with pytest.raises(ConflictError, match="already"):
        await servers.update(owner, project.id, second.id, McpServerDraft(name="First"))
    await servers.update(owner, project.id, first.id, McpServerDraft(name="First"))
    with pytest.raises(ConflictError, match="only in an agent's sandbox"):
        await servers.test(owner, project.id, first.id)
    for number in range(MAX_SERVERS - 2):
        await servers.create(owner, project.id, McpServerDraft(name=f"more-{number}", command="x"))
    with pytest.raises(ConflictError, match="at most"):
        await servers.create(owner, project.id, McpServerDraft(name="last", command="x"))


@pytest.mark.both_databases
async def test_concurrent_creates(world: World, servers: McpServers) -> None:
    owner = (await world.create_person("owner")).principal
    project = await world.projects.create(owner, "website")

    async def create(*names: str) -> list[object]:
        wanted = [servers.create(owner, project.id, McpServerDraft(name=name, command="x")) for name in names]
        return [
            candidate
            for candidate in await asyncio.gather(*wanted, return_exceptions=True)
            if isinstance(candidate, Exception)
        ]

    refused = await create("issues", "Issues", "ISSUES", "iSSUES")
    assert [type(item) for item in refused] == [ConflictError] * 3, refused
    for number in range(MAX_SERVERS - 3):
        await servers.create(owner, project.id, McpServerDraft(name=f"more-{number}", command="x"))
    refused = await create("a", "b", "c", "d", "e")
    assert [type(item) for item in refused] == [ConflictError] * 3, refused
    found = await servers.list(owner, project.id)
    assert len(found) == MAX_SERVERS
    changes = [
        servers.update(owner, project.id, one.id, McpServerDraft(name=name))
        for one, name in zip(found[:2], "nN", strict=True)
    ]
    results = await asyncio.gather(*changes, return_exceptions=True)
    assert [isinstance(result, ConflictError) for result in results].count(True) == 1, results


def _row(**fields: Any) -> McpServer:
    return McpServer(**{"id": "mcp_1", "name": "x", "type": "stdio", "args": [], "env": {}, **fields})


def test_entry_for_agent() -> None:
    command = _row(name="inside", command="python3", args=["-m", "notes"], env={"LEVEL": "info"})
    assert make_acp_entry(command, "", None) == {
        "name": "inside",
        "command": "python3",
        "args": ["-m", "notes"],
        "env": [{"name": "LEVEL", "value": "info"}],
    }
    url = _row(name="outside", type="http", url=URL)
    assert make_acp_entry(url, "http://127.0.0.1:4100", Secret("syc_1")) == {
        "type": "http",
        "name": "outside",
        "url": "http://127.0.0.1:4100/mcp_1",
        "headers": [{"name": "Authorization", "value": "Bearer syc_1"}],
    }
    assert make_fingerprint([]) == ""
    assert make_fingerprint([command]) != make_fingerprint([command, url])
    assert make_fingerprint([url]) == make_fingerprint([_row(name="outside", type="http", url="https://elsewhere")]), (
        "the gateway knows where it is"
    )
    assert make_fingerprint([command]) != make_fingerprint(
        [_row(name="inside", command="python3", args=["-m", "notes"])]
    )


def test_short_values_have_no_hint() -> None:
    assert model.make_hint(Secret("short")) == "…"
    assert model.make_hint(Secret("long-enough-to-be-known")) == "…nown"
