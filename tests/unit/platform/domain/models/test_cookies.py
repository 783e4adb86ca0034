"""HTTP clients that serve several users keep no cookies."""

from __future__ import annotations

from unittest import mock

import httpx
import pytest

from sandyard.kit.destinations import Destinations
from sandyard.kit.http_clients import GuardedTransport, discard_cookies
from sandyard.platform.db.models import ModelProvider
from sandyard.platform.domain.models.gateway import Gateway
from tests.unit.platform.domain.models import upstream as scripted
from tests.unit.platform.domain.models.upstream import Reply, Seen, Upstream


async def setting(seen: Seen, reply: Reply) -> None:
    await reply.send({}, set_cookie="sid=somebodys; Path=/")


async def ask_twice(client: httpx.AsyncClient, upstream: Upstream, url: str) -> list[str | None]:
    for _ in range(2):
        assert (await client.get(url)).headers["set-cookie"]
    return [seen.headers.get("cookie") for seen in upstream.seen]


async def test_client_discards_cookies() -> None:
    async with scripted.open_upstream() as upstream, httpx.AsyncClient() as client:
        upstream.handler = setting
        discard_cookies(client)
        assert await ask_twice(client, upstream, upstream.url) == [None, None]


async def test_model_gateway_discards_cookies() -> None:
    """Providers of two projects may be on one host, each with its own key."""
    parts = [mock.Mock() for _ in range(5)]
    gateway = Gateway(
        *parts,
        destinations=Destinations(),
        timeout_s=5,
        on_over_budget=mock.Mock(),
        on_outcome=mock.Mock(),
        on_refused=mock.Mock(),
    )
    async with scripted.open_upstream() as upstream:
        upstream.handler = setting
        for url in (upstream.url, "https://models.example.org"):
            client = gateway.get_client(ModelProvider(base_url=url, named_by_admin=True))
            upstream.seen.clear()
            assert await ask_twice(client, upstream, upstream.url) == [None, None]
    await gateway.close()


async def test_discards_cookies_through_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scripted.open_upstream() as upstream:
        upstream.handler = setting
        monkeypatch.setenv("http_proxy", upstream.url)
        monkeypatch.setenv("no_proxy", "")
        transport = GuardedTransport(Destinations())
        async with httpx.AsyncClient(transport=transport) as client:
            discard_cookies(client)
            assert await ask_twice(client, upstream, "http://mcp.example.org/") == [None, None]
            assert transport.proxied_client is not None
            assert not transport.proxied_client.cookies
