from __future__ import annotations

import gzip
import os
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from sandyard.platform.api.app import build
from sandyard.platform.api.outer_middleware import HEADERS
from sandyard.platform.api.web import accepts_gzip, is_page
from tests.unit.platform.world import World, client

PAGE = b"<!doctype html><title>Sandyard</title>"
SCRIPT = b"export const answer = 42;\n" * 50
BROWSER = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
IMAGE = {"Accept": "image/avif,image/webp,*/*;q=0.8"}


@pytest.fixture
def static(tmp_path: Path) -> Path:
    """A small web application, laid out as `make web` does."""
    folder = tmp_path / "built" / "static"
    (folder / "assets").mkdir(parents=True)
    (folder / "index.html").write_bytes(PAGE)
    (folder / "icon.svg").write_bytes(b"<svg/>")
    (folder / "assets" / "app-1a2b3c4d.js").write_bytes(SCRIPT)
    (folder / "assets" / "app-1a2b3c4d.js.gz").write_bytes(gzip.compress(SCRIPT))
    (folder / "assets" / "app-1a2b3c4d.css").write_bytes(b"body{}")
    (folder / "assets" / "font-1a2b3c4d.woff2").write_bytes(b"\0font")
    (folder / ".stamp").write_bytes(b"of the build")
    (folder.parent / "secret.txt").write_bytes(b"not of the web")
    return folder


@pytest.fixture
async def web(world: World, static: Path) -> AsyncIterator[httpx.AsyncClient]:
    app = build(world, (), static=static)  # type: ignore[arg-type]
    async with client(app) as made:
        made.headers["Accept-Encoding"] = "identity"
        yield made


@pytest.mark.parametrize(
    "path", ["/", "/projects", "/projects/prj_1/board", "/sign-in", "/apiary", "/index.html", "//x"]
)
async def test_pages(web: httpx.AsyncClient, path: str) -> None:
    answer = await web.get(f"http://localhost:8700{path}", headers=BROWSER)
    assert (answer.status_code, answer.content) == (200, PAGE)
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'" and policy["script-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert "http:" not in policy["frame-src"].split() and "*" not in policy["frame-src"].split()
    for name in ("X-Content-Type-Options", "X-Frame-Options", "Referrer-Policy"):
        assert answer.headers[name] == HEADERS[name]
    assert answer.headers["x-request-id"]


async def test_assets_are_served_and_cached(web: httpx.AsyncClient) -> None:
    for name, kind in {
        "/assets/app-1a2b3c4d.js": "text/javascript; charset=utf-8",
        "/assets/app-1a2b3c4d.css": "text/css; charset=utf-8",
        "/assets/font-1a2b3c4d.woff2": "font/woff2",
    }.items():
        answer = await web.get(name)
        assert (answer.status_code, answer.headers["content-type"]) == (200, kind)
        assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
    icon = await web.get("/icon.svg", headers=IMAGE)
    assert (icon.headers["content-type"], icon.headers["cache-control"]) == ("image/svg+xml; charset=utf-8", "no-cache")


async def test_serves_compressed_assets(web: httpx.AsyncClient) -> None:
    path = "/assets/app-1a2b3c4d.js"
    plain, packed = await web.get(path), await web.get(path, headers={"Accept-Encoding": "br, gzip"})
    assert "content-encoding" not in plain.headers and packed.headers["content-encoding"] == "gzip"
    assert plain.content == packed.content == SCRIPT
    assert int(packed.headers["content-length"]) < int(plain.headers["content-length"]) == len(SCRIPT)
    assert plain.headers["vary"] == packed.headers["vary"] == "Accept-Encoding"
    assert plain.headers["etag"] != packed.headers["etag"]
    style = await web.get("/assets/app-1a2b3c4d.css", headers={"Accept-Encoding": "gzip"})
    assert "content-encoding" not in style.headers, "too small to compress"


async def test_not_modified(web: httpx.AsyncClient) -> None:
    tag = (await web.get("/")).headers["etag"]
    for given in (tag, f'"other", W/{tag}'):
        again = await web.get("/", headers={"If-None-Match": given})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
        assert again.headers["cache-control"] == "no-cache"
    assert (await web.get("/", headers={"If-None-Match": '"other"'})).status_code == 200


async def test_head(web: httpx.AsyncClient) -> None:
    answer = await web.head("/projects", headers=BROWSER)
    assert (answer.status_code, answer.content, answer.headers["content-length"]) == (200, b"", str(len(PAGE)))


@pytest.mark.parametrize(
    "path", ["/api", "/api/v1/nothing", "/api/v2/projects", "/assets/gone-00000000.js", "/assets", "/mcp/x"]
)
async def test_unknown_paths_are_not_pages(web: httpx.AsyncClient, path: str) -> None:
    answer = await web.get(path, headers=BROWSER)
    assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")
    assert answer.json()["code"] == "not_found"
    assert answer.headers["cache-control"] == "no-store"


async def test_routes_take_precedence(web: httpx.AsyncClient) -> None:
    assert (await web.get("/health", headers=BROWSER)).json()["status"] == "ok"
    assert (await web.get("/api/v1/projects", headers=BROWSER)).status_code == 401
    for answer in (await web.post("/projects"), await web.delete("/"), await web.get("/robot.png", headers=IMAGE)):
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


@pytest.mark.parametrize(
    "path", ["/../secret.txt", "/assets/../../secret.txt", "/assets/%2e%2e/%2e%2e/secret.txt", "/.stamp"]
)
async def test_serves_only_built_files(web: httpx.AsyncClient, path: str) -> None:
    """However the path is encoded."""
    answer = await web.get(httpx.URL("http://localhost:8700").copy_with(raw_path=path.encode()))
    assert b"not of the web" not in answer.content and b"of the build" not in answer.content
    assert answer.status_code in (200, 404)


async def test_serves_new_build_while_running(web: httpx.AsyncClient, static: Path) -> None:
    before = await web.get("/")
    (static / "assets" / "app-9z8y7x6w.js").write_bytes(b"1")
    (static / "index.new").write_bytes(b"<!doctype html>new")
    (static / "index.new").rename(static / "index.html")
    os.utime(static / "index.html", (1, 1))
    after = await web.get("/")
    assert after.content == b"<!doctype html>new" and after.headers["etag"] != before.headers["etag"]
    assert (await web.get("/assets/app-9z8y7x6w.js")).content == b"1"


async def test_serves_assets_written_after_their_page(web: httpx.AsyncClient, static: Path) -> None:
    """A build in place may write the page first: what was loaded in between must not stay."""
    assert (await web.get("/assets/late-9z8y7x6w.js")).status_code == 404
    assert (await web.get("/")).content == PAGE
    (static / "assets" / "late-9z8y7x6w.js").write_bytes(b"1")
    assert (await web.get("/assets/late-9z8y7x6w.js")).content == b"1"
    (static / "assets" / "late-9z8y7x6w.js").write_bytes(b"12")
    assert (await web.get("/", headers=BROWSER)).status_code == 200
    assert (await web.get("/assets/late-9z8y7x6w.js")).content == b"12"


async def test_not_built(world: World, tmp_path: Path) -> None:
    async with client(build(world, (), static=tmp_path / "nowhere")) as web:  # type: ignore[arg-type]
        answer = await web.get("/", headers=BROWSER)
        assert answer.status_code == 503 and "make web" in answer.text
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
        assert (await web.get("/assets/app.js")).status_code == 404
        assert (await web.get("/health")).status_code == 200


@pytest.mark.parametrize(
    ("accept", "is_one"),
    [("text/html", True), ("*/*", True), ("", True), ("image/png,*/*", False), ("application/json", False)],
)
def test_is_page(accept: str, is_one: bool) -> None:
    assert is_page("/projects", accept) is is_one
    assert not is_page("/metrics", accept)


@pytest.mark.parametrize(
    ("accept", "does"),
    [("gzip", True), ("br;q=1.0, gzip;q=0.5", True), ("*", True), ("gzip;q=0", False), ("br", False), ("", False)],
)
def test_accepts_gzip(accept: str, does: bool) -> None:
    assert accepts_gzip(accept) is does
