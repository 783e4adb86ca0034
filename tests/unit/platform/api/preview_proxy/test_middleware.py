"""Requests to the host name of a preview, with a test server in place of a sandbox."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from fastapi import FastAPI

from sandyard.kit.errors import SandyardError
from sandyard.platform.api import previews as previews_api
from sandyard.platform.api.preview_proxy.middleware import PLAIN_COOKIE, SECURE_COOKIE
from sandyard.platform.db.models import Sandbox
from sandyard.platform.domain.previews.model import PreviewSleepingError
from sandyard.platform.domain.previews.service import Previews
from sandyard.platform.domain.sandboxes.activity import Activity
from sandyard.platform.domain.sandboxes.e2b import Route
from sandyard.platform.domain.sandboxes.lifecycle import Lifecycle
from sandyard.platform.domain.sandboxes.repository import build_sandbox_row
from tests.unit.platform.api.sockets import connect
from tests.unit.platform.world import Person, World, client, open_world

HELLO = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-Frame-Options: DENY\r\n\r\nhello"


@dataclass
class Server:
    """Sends the same answer to every request and closes the connection."""

    port: int = 0
    says: bytes = HELLO
    requests: list[bytes] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            self.requests.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(self.says)
            await writer.drain()
        writer.close()


@dataclass
class Scene:
    world: World
    app: FastAPI
    server: Server
    previews: Previews
    owner: Person
    box: Sandbox
    wakes: list[bool]
    fails: SandyardError | None = None

    def url(self, path: str = "/") -> str:
        assert self.previews.addresses is not None
        host = f"3000-{self.box.id.removeprefix('sbx_')}.{self.previews.addresses.domain}"
        return f"{self.previews.addresses.scheme}://{host}{path}"

    async def opening(self, path: str = "/") -> str:
        async with client(self.app, self.owner, base=self.world.settings.url) as web:
            answer = await web.post(f"/api/v1/sandboxes/{self.box.id}/previews", json={"port": 3000, "path": path})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["url"])

    @contextlib.asynccontextmanager
    async def browser(self) -> AsyncIterator[httpx.AsyncClient]:
        """Yield a browser that is signed in to the preview and keeps its cookies."""
        async with client(self.app, base="http://unused") as web:
            answer = await web.get(await self.opening())
            assert answer.status_code == 303, answer.text
            kept = [item.partition(";")[0] for item in answer.headers.get_list("set-cookie")]
            web.cookies.clear()
            web.headers["Cookie"] = "; ".join(kept)
            yield web


async def scene_in(folder: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> AsyncIterator[Scene]:
    server = Server()
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.port = listener.sockets[0].getsockname()[1]
    async with open_world(folder, **settings) as world:
        owner = await world.create_person("owner")
        box = build_sandbox_row(owner.principal.user_id, template="base", idle_seconds=300)
        box.status, box.engine_id = "running", "i1"
        async with world.database.transaction() as tx:
            tx.add(box)
        lifecycle = Lifecycle(
            world.database, world.engine, world.vault, Activity(world.clock), instance="test", idle_margin_s=60
        )
        parts = {"tickets": world.users, "vault": world.vault, "settings": world.settings, "clock": world.clock}
        previews = Previews(world.database, lifecycle, **parts)  # type: ignore[arg-type]
        world.previews = previews  # type: ignore[attr-defined]
        scene = Scene(world, world.app(previews_api.router), server, previews, owner, box, [])

        @contextlib.asynccontextmanager
        async def reaching(preview: object, *, wake: bool) -> AsyncIterator[Route]:
            scene.wakes.append(wake)
            if scene.fails is not None:
                raise scene.fails
            yield Route(f"http://127.0.0.1:{server.port}", {"E2b-Sandbox-Id": "i1"}, keeps_host=True)

        monkeypatch.setattr(previews, "open_route", reaching)
        yield scene
        await previews.close()
    listener.close()


@pytest.fixture
async def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    async for made in scene_in(tmp_path, monkeypatch):
        yield made


@pytest.fixture
async def public(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    names = {"public_url": "https://yard.example.com", "preview_domain": "previews.example.net"}
    async for made in scene_in(tmp_path, monkeypatch, **names):
        yield made


async def test_on_localhost_cookies_work_in_frames_and_tabs(scene: Scene) -> None:
    async with client(scene.app) as web:
        answer = await web.get(await scene.opening("/a?b=c&d"))
        assert (answer.status_code, answer.headers["location"]) == (
            303,
            scene.url("/a?b=c&d").replace(".localhost", ".localhost:8700"),
        )
        framed, plain = answer.headers.get_list("set-cookie")
        assert framed.startswith(f"{SECURE_COOKIE}=")
        assert framed.endswith("Path=/; Max-Age=2592000; HttpOnly; Secure; SameSite=None; Partitioned")
        assert plain.startswith(f"{PLAIN_COOKIE}=")
        assert plain.endswith("Path=/; Max-Age=2592000; HttpOnly; SameSite=Lax")
        assert answer.headers["cache-control"] == "no-store"
    async with scene.browser() as web:
        answer = await web.get(scene.url("/x"))
        assert (answer.status_code, answer.text) == (200, "hello")
        assert answer.headers["x-frame-options"] == "DENY", "the server's own header"
        assert answer.headers.get_list("content-security-policy") == ["frame-ancestors 'none'"], "the same for a policy"
        assert b"sandyard" not in scene.server.requests[-1].lower()


async def check_framing(scene: Scene, ancestors: str) -> None:
    """Check who may show the preview, and the platform's own page in its place, in a frame."""
    scene.server.says = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nContent-Security-Policy: default-src https:\r\n\r\n"
    async with scene.browser() as web:
        answer = await web.get(scene.url())
        assert answer.headers.get_list("content-security-policy") == ["default-src https:", ancestors]
        web.headers["Cookie"] = ""
        own_page = await web.get(scene.url())
        assert own_page.status_code == 401
        assert own_page.headers.get_list("content-security-policy")[1:] == [ancestors]


async def test_on_localhost_only_the_platform_may_show_a_preview_in_a_frame(scene: Scene) -> None:
    await check_framing(scene, "frame-ancestors 'self' http://127.0.0.1:8700 http://localhost:8700")


async def test_over_https_only_the_platform_may_show_a_preview_in_a_frame(public: Scene) -> None:
    platform = "https://yard.example.com http://localhost:8700 http://127.0.0.1:8700"
    await check_framing(public, f"frame-ancestors 'self' {platform}")


async def test_over_https_there_is_one_secure_cookie(public: Scene) -> None:
    url = await public.opening()
    assert url.startswith(public.url("/?sandyard_ticket="))
    async with client(public.app) as web:
        [cookie] = (await web.get(url)).headers.get_list("set-cookie")
    assert cookie.startswith(f"{SECURE_COOKIE}=")
    assert "; Secure; SameSite=None; Partitioned" in cookie
    async with public.browser() as web:
        assert (await web.get(public.url())).text == "hello"
        assert b"x-forwarded-proto: https" in public.server.requests[-1].lower()
        web.headers["Cookie"] = web.headers["Cookie"].replace(SECURE_COOKIE, PLAIN_COOKIE)
        assert (await web.get(public.url())).status_code == 401, "ignores a cookie that other sites could have set"
    async with client(public.app, base="https://yard.example.com") as web:
        assert (await web.get("/health")).status_code == 200
        assert (await web.get("https://any.previews.example.net/health")).status_code == 404


async def test_rejects_requests_without_credentials(scene: Scene) -> None:
    async with client(scene.app, scene.owner) as web:
        for url in (
            scene.url(),
            scene.url("/api/v1/me"),
            scene.url("/?sandyard_ticket=guess"),
            scene.url("/?sandyard_ticket"),
        ):
            answer = await web.get(url)
            assert answer.status_code == 401
            assert "Open this preview from Sandyard" in answer.text
            assert answer.headers["content-security-policy"].startswith("default-src 'none'")
        assert (await web.post(await scene.opening())).status_code == 401, "only navigation uses a ticket"
    assert not scene.server.requests
    messages = await connect(scene.app, urlsplit(scene.url("/echo")).path, {"host": urlsplit(scene.url()).netloc})
    assert messages[0]["status"] == 401


@pytest.mark.parametrize(
    ("headers", "passes"),
    [
        ({}, True),
        ({"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors", "Origin": "OWN"}, True),
        ({"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "navigate", "Origin": "null"}, True),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}, True),
        ({"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate"}, True),
        ({"Origin": "OWN"}, True),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors", "Origin": "SIBLING"}, True),
        ({"Origin": "http://3000-other.localhost:8700"}, False),
        ({"Origin": "http://localhost:8700"}, False),
        ({"Origin": "null"}, False),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Origin": "http://evil.example"}, False),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, False),
        ({"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors"}, False),
    ],
)
async def test_rejects_requests_of_other_origins(scene: Scene, headers: dict[str, str], passes: bool) -> None:
    own = scene.url("")
    names = {"OWN": own, "SIBLING": own.replace("3000-", "8000-")}
    async with scene.browser() as web:
        answer = await web.post(
            scene.url("/do"), headers={name: names.get(value, value) for name, value in headers.items()}
        )
    assert answer.status_code == (200 if passes else 403)
    assert bool(scene.server.requests) is passes


async def test_only_navigation_wakes_sandbox(scene: Scene) -> None:
    async with scene.browser() as web:
        for mode in ("navigate", "cors", "no-cors", None):
            await web.get(scene.url(), headers={"Sec-Fetch-Mode": mode} if mode else {})
        assert scene.wakes == [True, False, False, True]
        scene.fails = PreviewSleepingError()
        answer = await web.get(scene.url())
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert "paused" in answer.text


async def test_reports_path_shown_in_frame_to_its_user(scene: Scene) -> None:
    address = f"/api/v1/sandboxes/{scene.box.id}/previews"
    frame = {"Sec-Fetch-Dest": "iframe", "Sec-Fetch-Mode": "navigate"}
    async with client(scene.app, scene.owner, base=scene.world.settings.url) as owner, scene.browser() as web:
        assert (await owner.get(f"{address}/3000")).json() == {"path": None}
        for path, more in [
            ("/first?page=1", {"Sec-Fetch-Site": "cross-site"}),
            ("/script.js", {"Sec-Fetch-Dest": "script", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Site": "same-origin"}),
            ("/frame-of-its-own", {"Sec-Fetch-Site": "same-origin"}),
        ]:
            await web.get(scene.url(path), headers={**frame, **more})
        assert (await owner.get(f"{address}/3000")).json() == {"path": "/first?page=1"}
        await web.get(scene.url("/link"), headers={**frame, "Sec-Fetch-Site": "same-origin", "Sec-Fetch-User": "?1"})
        assert (await owner.get(f"{address}/3000")).json() == {"path": "/link"}
        assert (await owner.get(f"{address}/8000")).json() == {"path": None}
    stranger = await scene.world.create_person("stranger")
    async with client(scene.app, stranger, base=scene.world.settings.url) as other:
        assert (await other.get(f"{address}/3000")).status_code == 404


def _answer(status: str, body: bytes, kind: bytes = b"text/plain") -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s" % (status.encode(), kind, len(body), body)


async def test_forwards_bad_gateway_of_server(scene: Scene) -> None:
    body = b"<title>my upstream is away</title>" + b"." * 50_000
    scene.server.says = _answer("502 Bad Gateway", body)
    async with scene.browser() as web:
        answer = await web.get(scene.url())
    assert (answer.status_code, answer.content) == (502, body)


async def test_page_for_closed_port_refreshes_for_a_while(scene: Scene) -> None:
    body = b'{"code": 502, "message": "The sandbox is running but port is not open", "sandboxId": "i1", "port": 3000}'
    scene.server.says = _answer("502 Bad Gateway", body, b"application/json")
    async with scene.browser() as web:
        for refreshes in (True, True, False):
            answer = await web.get(scene.url())
            assert answer.status_code == 502
            assert "Nothing is listening on port 3000" in answer.text
            assert ('http-equiv="refresh"' in answer.text) is refreshes
            for _ in range(6 if refreshes else 0):
                await scene.world.clock.advance(10)
                scene.previews.record_closed_port(next(iter(scene.previews.closed_ports)))


@pytest.mark.parametrize("says", [b"", b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * 300_000])
async def test_server_that_does_not_speak_http(scene: Scene, says: bytes) -> None:
    scene.server.says = says
    async with scene.browser() as web:
        answer = await web.get(scene.url())
    assert answer.status_code == 502
    assert "closed the connection before it responded" in answer.text


async def test_engine_is_unreachable(scene: Scene) -> None:
    scene.server.port = 1
    async with scene.browser() as web:
        answer = await web.get(scene.url())
    assert answer.status_code == 503
    assert "engine could not be reached" in answer.text


async def test_internal_error_shows_no_details(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> Callable[[], None]:
        raise RuntimeError("secret words")

    async with scene.browser() as web:
        monkeypatch.setattr(scene.previews, "count_connection", broken)
        answer = await web.get(scene.url())
    assert answer.status_code == 500
    assert "secret words" not in answer.text


async def test_without_preview_domain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async for scene in scene_in(tmp_path, monkeypatch, public_url="https://yard.example.com"):
        async with client(scene.app, scene.owner, base="https://yard.example.com") as web:
            answer = await web.post(f"/api/v1/sandboxes/{scene.box.id}/previews", json={"port": 3000})
            assert (answer.status_code, answer.json()["code"]) == (501, "unsupported")
            assert "SANDYARD_PREVIEW_DOMAIN" in answer.json()["detail"]
            for body in ({}, {"port": 0}, {"port": 70000}, {"port": 3000, "path": 1}, {"port": 3000, "more": 1}):
                assert (await web.post(f"/api/v1/sandboxes/{scene.box.id}/previews", json=body)).status_code == 400
            stranger = await scene.world.create_person("stranger")
            hidden = await web.get(f"/api/v1/sandboxes/{scene.box.id}/ports", headers=stranger.headers)
            assert hidden.status_code == 404
