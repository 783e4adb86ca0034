"""The files in deploy/proxy with the real nginx and Caddy in front of a real platform and engine."""

from __future__ import annotations

import asyncio
import hashlib
import os
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from e2b import Sandbox
from websockets.asyncio.client import connect

from sandyard.kit.listen import free_port
from tests.acceptance.preview_client import PORT, create_preview_url, start_server
from tests.harness.deployment import DEPLOY, find_program, running_program
from tests.harness.engine import Engine, serving
from tests.harness.platform import Platform, ok, running, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
YARD, PREVIEWS, SANDBOXES = "yard.example.com", "previews.example.net", "sandboxes.example.com"
PASSWORD = "correct horse battery"
FILES = {"nginx": "nginx.conf", "caddy": "Caddyfile"}


class Site:
    """A proxy, as clients see it whose name server knows its names."""

    def __init__(self, port: int, plain_port: int, authority: Path) -> None:
        self.port = port
        self.plain_port = plain_port
        self.context = ssl.create_default_context(cafile=str(authority))
        self._client = httpx.Client(verify=self.context, timeout=60)
        self.cookies: dict[str, str] = {}

    def request(self, method: str, host: str, path: str, **options: Any) -> httpx.Response:
        with self.stream(method, host, path, **options) as response:
            response.read()
            return response

    @contextmanager
    def stream(self, method: str, host: str, path: str, **options: Any) -> Iterator[httpx.Response]:
        headers = {"Host": f"{host}:{self.port}", **options.pop("headers", {})}
        url, extensions = f"https://127.0.0.1:{self.port}{path}", {"sni_hostname": host}
        with self._client.stream(method, url, headers=headers, extensions=extensions, **options) as response:
            yield response


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with serving(POOL_SIZE="0", DOMAIN=SANDBOXES) as engine:
        yield engine


@pytest.fixture(scope="module", params=sorted(FILES))
def ports(request: pytest.FixtureRequest) -> tuple[str, int, int]:
    find_program(request.param)
    return request.param, free_port(), free_port()


@pytest.fixture(scope="module")
def platform(engine: Engine, ports: tuple[str, int, int]) -> Iterator[Platform]:
    _, port, _ = ports
    urls = {"PUBLIC_URL": f"https://{YARD}:{port}", "PREVIEW_DOMAIN": f"{PREVIEWS}:{port}"}
    with running(engine, None, **urls) as platform:
        yield platform


@pytest.fixture(scope="module")
def site(
    engine: Engine, platform: Platform, ports: tuple[str, int, int], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    name, port, plain_port = ports
    folder = tmp_path_factory.mktemp(name)
    certificate, key = _create_certificate(folder)
    config = (DEPLOY / "proxy" / FILES[name]).read_text()
    config = config.replace("127.0.0.1:8700", f"127.0.0.1:{platform.port}").replace(
        "127.0.0.1:8701", f"127.0.0.1:{engine.port}"
    )
    for domain in (YARD, PREVIEWS, SANDBOXES):
        for file, replacement in (("fullchain", certificate), ("privkey", key)):
            path = f"/etc/letsencrypt/live/{domain}/{file}.pem"
            assert path in config
            config = config.replace(path, str(replacement))
    if name == "nginx":
        command = _write_nginx_config(folder, config, port, plain_port)
    else:
        options = (
            f"{{\n\tadmin off\n\thttp_port {plain_port}\n\thttps_port {port}\n\tstorage file_system {folder}\n}}\n"
        )
        (folder / "Caddyfile").write_text(options + config)
        command = [find_program("caddy"), "run", "--config", "Caddyfile"]
    with running_program(command, folder / "log"):
        site = Site(port, plain_port, certificate)
        until(lambda: _responds(site))
        yield site


def _create_certificate(folder: Path) -> tuple[Path, Path]:
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    names = [name for domain in (YARD, PREVIEWS, SANDBOXES) for name in (domain, f"*.{domain}")]
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-days", "2", "-subj", "/CN=test", "-out", str(certificate), "-keyout", str(key)),
            *("-addext", "subjectAltName=" + ",".join(f"DNS:{name}" for name in names)),
        ],
        check=True,
        capture_output=True,
    )
    return certificate, key


def _write_nginx_config(folder: Path, config: str, port: int, plain_port: int) -> list[str]:
    """Put the file into a minimal main configuration, as Debian's includes it, with all paths in `folder`."""
    config = config.replace("listen 80;", f"listen 127.0.0.1:{plain_port};")
    config = config.replace("listen 443 ssl http2;", f"listen 127.0.0.1:{port} ssl http2;")
    (folder / "sandyard.conf").write_text(config)
    paths = "\n".join(
        f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    user = "user root;" if os.geteuid() == 0 else ""
    (folder / "nginx.conf").write_text(
        f"daemon off; {user} pid {folder}/pid; error_log stderr;\n"
        f"events {{}}\nhttp {{ access_log off; {paths} include {folder}/sandyard.conf; }}\n"
    )
    return [find_program("nginx"), "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", "stderr"]


def _responds(site: Site) -> bool:
    try:
        return site.request("GET", YARD, "/health").status_code == 200
    except httpx.TransportError:
        return False


@pytest.fixture(scope="module")
def sandbox(platform: Platform, site: Site) -> str:
    return start_server(platform)


def test_plain_http_is_redirected(site: Site) -> None:
    answer = httpx.get(f"http://127.0.0.1:{site.plain_port}/board", headers={"Host": YARD})
    assert answer.status_code == 308
    assert urlsplit(answer.headers["location"]).scheme == "https"
    assert urlsplit(answer.headers["location"]).path == "/board"


def test_signing_in_sets_a_secure_cookie(site: Site, platform: Platform) -> None:
    ok(platform.client.post("/users", json={"name": "maria", "password": PASSWORD}), 201)
    answer = site.request("POST", YARD, "/api/v1/login", json={"name": "maria", "password": PASSWORD})
    assert answer.status_code == 200, answer.text
    assert "; secure" in answer.headers["set-cookie"].lower()


def test_metrics_are_not_public(site: Site, platform: Platform) -> None:
    assert site.request("GET", YARD, "/metrics").status_code == 401
    with_token = {"Authorization": f"Bearer {platform.token}"}
    assert site.request("GET", YARD, "/metrics", headers=with_token).status_code == 200
    assert httpx.get(f"{platform.url}/metrics").status_code == 200


def test_events_arrive_at_once(site: Site, platform: Platform) -> None:
    headers = {"Authorization": f"Bearer {platform.token}", "Accept": "text/event-stream"}
    with site.stream("GET", YARD, "/api/v1/events", headers=headers) as response:
        lines = response.iter_lines()
        ok(platform.client.put("/secrets/PROXY", json={"value": "x"}))
        assert any("secret." in line for line in lines)


def test_large_files_pass(site: Site, platform: Platform, sandbox: str) -> None:
    content = os.urandom(24 << 20)
    path = f"/api/v1/sandboxes/{sandbox}/files?path=/home/user/large"
    headers = {"Authorization": f"Bearer {platform.token}"}
    assert site.request("PUT", YARD, path, content=content, headers=headers).is_success
    found = site.request("GET", YARD, path, headers=headers)
    assert hashlib.sha256(found.content).digest() == hashlib.sha256(content).digest()


def test_previews_have_their_own_names(site: Site, platform: Platform, sandbox: str) -> None:
    url = urlsplit(create_preview_url(platform, sandbox, path="/hello"))
    host = f"{PORT}-{sandbox.removeprefix('sbx_')}.{PREVIEWS}"
    assert (url.scheme, url.netloc) == ("https", f"{host}:{site.port}")
    assert site.request("GET", host, "/hello").status_code == 401
    opened = site.request("GET", host, f"{url.path}?{url.query}")
    assert opened.status_code == 303, opened.text
    cookie = opened.headers["set-cookie"].partition(";")[0]
    page = site.request("GET", host, "/hello", headers={"Cookie": cookie})
    assert page.json()["headers"]["x-forwarded-proto"] == "https"
    with site.stream("GET", host, "/drip", headers={"Cookie": cookie}) as response:
        assert next(response.iter_lines()) == "data: 0"
    assert asyncio.run(_echo(site, host, cookie)) == "through the proxy"


async def _echo(site: Site, host: str, cookie: str) -> object:
    headers = {"Cookie": cookie, "Origin": f"https://{host}:{site.port}"}
    async with connect(
        f"wss://{host}:{site.port}/echo",
        host="127.0.0.1",
        port=site.port,
        ssl=site.context,
        server_hostname=host,
        additional_headers=headers,
        proxy=None,
    ) as socket:
        await socket.send("through the proxy")
        return await socket.recv()


def test_e2b_clients_reach_the_engine_and_its_sandboxes(site: Site, engine: Engine) -> None:
    api = f"api.{SANDBOXES}"
    assert site.request("GET", api, "/v2/sandboxes").status_code == 401
    sandbox = Sandbox.create(timeout=120)
    try:
        found = site.request("GET", api, f"/sandboxes/{sandbox.sandbox_id}", headers={"X-API-KEY": engine.key})
        assert found.json()["state"] == "running"
        sandbox.commands.run("echo from a sandbox > index.html; python3 -m http.server 3000", background=True)
        host = f"3000-{sandbox.sandbox_id}.{SANDBOXES}"
        until(lambda: site.request("GET", host, "/").text == "from a sandbox\n")
    finally:
        sandbox.kill()
