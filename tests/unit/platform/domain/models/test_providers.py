"""Providers: who may add one and where it may be, write-only keys, and which one an agent gets."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import AsyncIterator

import httpx
import pytest
from sqlalchemy import select

from sandyard.kit.destinations import Destinations, PrivateAddressError
from sandyard.kit.dns_lookup import Address
from sandyard.kit.errors import ConflictError, ForbiddenError, InvalidInputError, NotFoundError
from sandyard.kit.secret import Secret
from sandyard.platform.db.models import ModelProvider
from sandyard.platform.domain.models import provider_check
from sandyard.platform.domain.models.apis import ModelRequest, build_url, filter_request_headers, parse_request
from sandyard.platform.domain.models.clients import ServerClients
from sandyard.platform.domain.models.model import ModelApi, NoModelError, Price
from sandyard.platform.domain.models.provider_check import check_provider
from sandyard.platform.domain.models.providers import Providers
from sandyard.platform.domain.models.service import choose_model
from sandyard.platform.domain.paging import PageRequest
from tests.unit.platform.domain.models.people import KEY, Speaker
from tests.unit.platform.world import ROOT, World

CHAT = {"kind": ModelApi.OPENAI_CHAT, "key": Secret(KEY)}


@pytest.fixture
def providers(world: World) -> Providers:
    return Providers(world.database, world.projects, world.vault, world.clock)


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The addresses that host names resolve to for the platform."""
    known = {"models.example.org": "93.184.215.14", "inside.example.org": "10.1.2.3"}

    async def found(host: str) -> list[Address]:
        if host not in known:
            raise OSError("unknown")
        return [ipaddress.ip_address(known[host])]

    monkeypatch.setattr("sandyard.kit.dns_lookup.query_name_servers", found)
    return known


async def test_permissions(world: World, providers: Providers, names: dict[str, str]) -> None:
    owner, member = (await world.create_person("owner")).principal, (await world.create_person("member")).principal
    stranger = (await world.create_person("stranger")).principal
    project = await world.projects.create(owner, "website")
    await world.projects.add_member(owner, project.id, member.user_id)
    with pytest.raises(ForbiddenError):
        await providers.create(owner, name="all", kind=ModelApi.ANTHROPIC)
    everybodys = await providers.create(ROOT, name="all", kind=ModelApi.ANTHROPIC, key=Secret(KEY))
    url = "https://models.example.org"
    own = await providers.create(owner, name="own", project_id=project.id, base_url=url, **CHAT)
    with pytest.raises(ForbiddenError):
        await providers.create(member, name="x", project_id=project.id, base_url=url, **CHAT)
    with pytest.raises(NotFoundError):
        await providers.create(stranger, name="x", project_id=project.id, base_url=url, **CHAT)
    for person, seen in ((owner, [own, everybodys]), (member, [own, everybodys]), (stranger, [everybodys])):
        assert {item.id for item in (await providers.list(person, PageRequest())).items} == {item.id for item in seen}
    with pytest.raises(NotFoundError):
        await providers.get(stranger, own.id)
    with pytest.raises(ForbiddenError):
        await providers.update(owner, everybodys.id, name="mine")
    with pytest.raises(ForbiddenError):
        await providers.delete(member, own.id)
    assert [row.id for row in await providers.list_usable(project.id)] == [own.id, everybodys.id]
    assert await providers.find(own.id, None) is None
    await providers.delete(owner, own.id)
    kinds = [event.kind for event in await world.list_events() if event.kind.startswith("model_provider")]
    assert kinds == ["model_provider.created", "model_provider.created", "model_provider.deleted"]


async def test_allowed_addresses(world: World, providers: Providers, names: dict[str, str]) -> None:
    owner = (await world.create_person("owner")).principal
    mine = {"project_id": (await world.projects.create(owner, "website")).id, **CHAT}
    names |= {"translated.example.org": "64:ff9b::7f00:1", "tunnelled.example.org": "2002:a00:1::1"}
    private = (
        "http://models.example.org",
        "https://inside.example.org",
        "https://127.0.0.1",
        "https://169.254.169.254",
        "https://translated.example.org",
        "https://tunnelled.example.org",
    )
    for number, url in enumerate(private):
        with pytest.raises(ForbiddenError):
            await providers.create(owner, name="x", base_url=url, **mine)
        assert (await providers.create(ROOT, name=f"x{number}", base_url=url, **mine)).base_url == url
    wrong = (
        "ftp://a.example",
        "https://",
        "https://u:p@models.example.org",
        "https://models.example.org?x=1",
        "nothing",
    )
    for url in wrong:
        with pytest.raises(InvalidInputError):
            await providers.create(ROOT, name="y", base_url=url, **mine)
    with pytest.raises(InvalidInputError):
        await providers.create(owner, name="y", base_url="https://nowhere.example.org", **mine)
    with pytest.raises(InvalidInputError, match="needs a URL"):
        await providers.create(ROOT, name="y", kind=ModelApi.OPENAI_CHAT)
    kept = await providers.create(ROOT, name="y", base_url="https://Models.example.org/api/", **mine)
    assert kept.base_url == "https://models.example.org/api"


async def test_keys_are_write_only(world: World, providers: Providers) -> None:
    made = await providers.create(ROOT, name="a", kind=ModelApi.OPENAI, key=Secret(KEY), models=["m", "m", "n"])
    assert (made.hint, made.base_url, made.models) == ("…4b35", "https://api.openai.com", ("m", "n"))
    async with world.database.reading() as session:
        row = (await session.scalars(select(ModelProvider))).one()
    assert row.key is not None and KEY.encode() not in row.key
    assert await providers.reveal(row) == Secret(KEY)
    with pytest.raises(ConflictError):
        await providers.update(ROOT, made.id, base_url="https://elsewhere.example.org")
    moved = await providers.update(ROOT, made.id, base_url="https://elsewhere.example.org", key=Secret("x"))
    assert (moved.hint, moved.base_url) == ("…", "https://elsewhere.example.org")
    assert (await providers.update(ROOT, made.id, key=None)).hint == "no key"
    with pytest.raises(InvalidInputError) as error:
        await providers.update(ROOT, made.id, key=Secret("with space"))
    assert "with space" not in str(error.value)
    with pytest.raises(ConflictError):
        await providers.create(ROOT, name="a", kind=ModelApi.GEMINI)
    priced = await providers.update(ROOT, made.id, prices={"m": Price(input=1, output=2)})
    assert priced.prices == {"m": Price(input=1, output=2)}


def row(name: str, kind: ModelApi, *models: str) -> ModelProvider:
    return ModelProvider(id=f"prv_{name}", name=name, kind=kind.value, models=list(models))


def test_selects_provider_for_agent() -> None:
    claude, plain, any_ = (
        row("claude", ModelApi.ANTHROPIC, "sonnet"),
        row("plain", ModelApi.OPENAI_CHAT, "small", "large"),
        row("any", ModelApi.OPENAI),
    )
    both = Speaker(apis=(ModelApi.ANTHROPIC, ModelApi.OPENAI_CHAT))

    def chosen(model: str | None, *rows: ModelProvider) -> tuple[str, ModelApi, str | None]:
        provider, api, name = choose_model(rows, both, model)
        return provider.name, api, name

    assert chosen(None, plain, claude) == ("claude", ModelApi.ANTHROPIC, "sonnet")
    assert chosen("large", plain, claude) == ("plain", ModelApi.OPENAI_CHAT, "large")
    assert chosen("plain/other", plain, claude) == ("plain", ModelApi.OPENAI_CHAT, "other")
    assert chosen("other", plain, claude, any_) == ("any", ModelApi.OPENAI_CHAT, "other")
    with pytest.raises(NoModelError, match="large, small, sonnet"):
        chosen("other", plain, claude)
    with pytest.raises(NoModelError, match="no OpenAI API key is set up"):
        choose_model([claude], Speaker(apis=(ModelApi.OPENAI,)), None)


def test_paths() -> None:
    chat = parse_request(ModelApi.OPENAI, "POST", "/v1/chat/completions", "key=x&a=b&client_version=1")
    assert chat == ModelRequest("/v1/chat/completions", "client_version=1", counted=True)
    assert build_url("https://a.example/api/", chat) == "https://a.example/api/v1/chat/completions?client_version=1"
    assert build_url("https://a.example/api/paas/v4", chat) == (
        "https://a.example/api/paas/v4/chat/completions?client_version=1"
    )
    gemini = parse_request(ModelApi.GEMINI, "POST", "/v1beta/models/gemini-2.5-pro:streamGenerateContent", "alt=sse")
    assert gemini is not None and gemini.gemini_model == "gemini-2.5-pro"
    assert build_url("https://g.example/v1beta", gemini).startswith("https://g.example/v1beta/models/gemini-2.5-pro:")
    count = parse_request(ModelApi.ANTHROPIC, "POST", "/v1/messages/count_tokens", "")
    assert count is not None and not count.counted
    for kind, method, path in (
        (ModelApi.OPENAI_CHAT, "POST", "/v1/responses"),
        (ModelApi.OPENAI, "GET", "/v1/responses/resp_1"),
        (ModelApi.ANTHROPIC, "POST", "/v1/messages/batches"),
        (ModelApi.GEMINI, "POST", "/v1beta/models/a/../b:generateContent"),
        (ModelApi.GEMINI, "GET", "/v1beta/files"),
    ):
        assert parse_request(kind, method, path, "") is None, path


def test_drops_query_parameters_that_change_answer() -> None:
    found = parse_request(
        ModelApi.GEMINI, "POST", "/v1beta/models/g:generateContent", "alt=sse&fields=a&%24fields=b&key=k"
    )
    assert found is not None
    assert found.query == "alt=sse"
    for kind, path in ((ModelApi.OPENAI, "/v1/models/.."), (ModelApi.GEMINI, "/v1/models/..")):
        assert parse_request(kind, "GET", path, "") is None
    assert parse_request(ModelApi.GEMINI, "POST", "/v1/models/..:generateContent", "") is None
    assert parse_request(ModelApi.GEMINI, "GET", "/v1/models/gemini-2.5-pro", "") is not None


@pytest.mark.parametrize(
    ("kind", "query", "kept"),
    [
        (ModelApi.GEMINI, "alt=proto&%24alt=proto&callback=cb&%24.xgafv=1&prettyPrint=false&Alt=sse", ""),
        (ModelApi.GEMINI, "alt=json&alt=proto", "alt=json"),
        (ModelApi.GEMINI, "pageSize=5&pageToken=x", "pageSize=5&pageToken=x"),
        (ModelApi.ANTHROPIC, "beta=true&access_token=x", "beta=true"),
        (ModelApi.OPENAI_CHAT, "access_token=x&api_key=y", ""),
    ],
)
def test_forwards_only_known_query_parameters(kind: ModelApi, query: str, kept: str) -> None:
    path = "/v1/models"
    assert parse_request(kind, "GET", path, query) == ModelRequest(path, kept, counted=False)


def test_forwards_only_known_headers() -> None:
    needed = [
        ("user-agent", "claude-cli/2"),
        ("accept", "application/json, text/event-stream;q=0.9"),
        ("anthropic-version", "2023-06-01"),
        ("anthropic-beta", "a,b"),
        ("openai-beta", "responses=experimental"),
        ("session_id", "1"),
        ("x-stainless-lang", "js"),
        ("x-codex-turn-state", "1"),
        ("x-claude-code-session-id", "1"),
        ("x-goog-api-client", "google-genai-sdk/1"),
    ]
    others = (
        "x-goog-fieldmask x-goog-user-project x-http-method-override x-mine openai-organization openai-project x-portkey-config "
        "anthropic-workspace-id x-openai-actor-authorization helicone-target-url x-original-url x-forwarded-host cookie authorization"
    )
    found = filter_request_headers(ModelApi.GEMINI, [*needed, *((name, "1") for name in others.split())], None)
    assert found == [*needed, ("accept-encoding", "identity")]


def test_response_format_and_body_encoding_cannot_be_changed() -> None:
    """Otherwise the usage could not be read, or the provider would read another body than the platform."""
    headers = [
        ("accept", "application/json, application/x-protobuf"),
        ("content-type", "application/json; charset=utf-7"),
    ]
    found = filter_request_headers(ModelApi.GEMINI, headers, None)
    assert found == [("content-type", "application/json"), ("accept-encoding", "identity")]


async def test_address_set_by_member_is_checked_at_every_request(
    world: World, providers: Providers, names: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name may resolve to another address by then."""
    for proxy in ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(proxy, raising=False)
    owner = (await world.create_person("owner")).principal
    project = await world.projects.create(owner, "website")
    url = "https://models.example.org"
    own = await providers.create(owner, name="own", project_id=project.id, base_url=url, **CHAT)
    names["models.example.org"] = "127.0.0.1"
    clients = ServerClients(Destinations(), timeout_s=5)

    async def client_for_own() -> httpx.AsyncClient:
        row = await providers.find(own.id, project.id)
        assert row is not None
        return clients.get_client(row.base_url, named_by_admin=row.named_by_admin)

    with pytest.raises(PrivateAddressError):
        await (await client_for_own()).get(url)
    row = await providers.find(own.id, project.id)
    assert row is not None
    verdict = await check_provider(await client_for_own(), row, None)
    assert not verdict.ok
    assert "private network" in verdict.detail
    await providers.update(ROOT, own.id, base_url=url)  # an administrator approves the address
    assert await client_for_own() is clients.get_client(url, named_by_admin=True)
    names["models.example.org"] = "93.184.215.14"
    await providers.update(owner, own.id, base_url=f"{url}/v2")
    assert await client_for_own() is clients.get_client(url, named_by_admin=False)
    await clients.close()


async def test_a_test_ends_although_the_server_sends_one_byte_after_another(
    world: World, providers: Providers, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def drip() -> AsyncIterator[bytes]:
        while True:
            yield b" "
            await asyncio.sleep(0.001)

    row = await providers.create(ROOT, name="slow", project_id=None, base_url="https://models.example.org", **CHAT)
    monkeypatch.setattr(provider_check, "TOTAL_SECONDS", 0.05)
    transport = httpx.MockTransport(lambda _: httpx.Response(200, content=drip()))
    async with httpx.AsyncClient(transport=transport) as client:
        verdict = await check_provider(client, row, None)
    assert not verdict.ok and "did not respond in time" in verdict.detail


async def test_addresses_of_a_former_administrator_are_checked(
    world: World, providers: Providers, names: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for proxy in ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(proxy, raising=False)
    boss, other = [(await world.create_person(name, "admin")).principal for name in ("boss", "other")]
    maria = (await world.create_person("maria")).principal
    own, hers = await world.projects.create(boss, "own"), await world.projects.create(maria, "hers")
    url = "https://127.0.0.1:1"
    mine, approved, shared = [
        await providers.create(boss, name="inside", project_id=project_id, base_url=url, **CHAT)
        for project_id in (own.id, hers.id, None)
    ]
    clients = ServerClients(Destinations(), timeout_s=5)

    async def connect(provider_id: str, project_id: str) -> str:
        row = await providers.find(provider_id, project_id)
        assert row is not None
        client = clients.get_client(row.base_url, named_by_admin=row.named_by_admin)
        return (await check_provider(client, row, None)).detail

    assert "private network" not in await connect(mine.id, own.id)
    await world.users.update(other, boss.user_id, role="member")
    refused = await connect(mine.id, own.id)
    assert "private network" in refused and "An administrator can allow this URL by saving it again." in refused
    for provider_id, project_id in ((approved.id, hers.id), (shared.id, own.id)):
        assert "private network" not in await connect(provider_id, project_id)
    await providers.update(other, mine.id, base_url=url)
    assert "private network" not in await connect(mine.id, own.id)
    await clients.close()
