"""Test the engine over TLS, as on a team's server: a domain with a wildcard record, and port 443. Clients are configured only with the
domain and a key."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import os
import secrets
import shlex
import shutil
import socket
import ssl
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from e2b import Sandbox
from websockets.asyncio.client import connect
from websockets.typing import Subprotocol

from sandyard.engine.certificates.authority import Authority
from sandyard.engine.certificates.files import encode_key
from sandyard.kit.listen import free_port
from tests.harness.engine import Engine
from tests.protocol.preview_programs import ECHO, WEBSOCKETS
from tests.protocol.tls_engine import DOMAIN, TlsEngine, random_loopback_address

from .name_server import NameServer
from .waiting import until

JS = Path(__file__).parent / "js"

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="needs root for port 443, a name server and a mount namespace"
)


@pytest.fixture
def sandbox(tls_engine: TlsEngine) -> Iterator[Sandbox]:
    created = Sandbox.create(
        api_key=tls_engine.engine.key, api_url=tls_engine.engine.url, sandbox_url=tls_engine.engine.url
    )
    yield created
    created.kill()


PYTHON = """
import asyncio, json
from e2b import AsyncSandbox, Sandbox
sandbox = Sandbox.create()
report = {"host": sandbox.get_host(3000), "id": sandbox.sandbox_id}
report["ran"] = sandbox.commands.run("echo $((6 * 7))").stdout.strip()
lines = []
sandbox.commands.run("for n in 1 2 3; do echo $n; sleep 0.1; done", on_stdout=lines.append)
report["lines"] = "".join(lines).split()
sandbox.files.write("greeting", "hello" * 100_000)
report["read"] = len(sandbox.files.read("greeting"))
report["url"] = sandbox.download_url("greeting")
terminal = sandbox.commands.run("cat", background=True, stdin=True)
terminal.send_stdin("typed")
terminal.close_stdin()
report["typed"] = terminal.wait().stdout
report["listed"] = sandbox.sandbox_id in [info.sandbox_id for info in Sandbox.list().next_items()]
async def connect_again():
    same = await AsyncSandbox.connect(sandbox.sandbox_id)
    return (await same.commands.run("echo async")).stdout.strip()
report["async"] = asyncio.run(connect_again())
sandbox.pause()
Sandbox.connect(sandbox.sandbox_id)
report["resumed"] = sandbox.commands.run("echo on").stdout.strip()
report["killed"] = sandbox.kill()
print(json.dumps(report))
"""


def test_the_python_sdk_needs_only_a_domain_and_a_key(tls_engine: TlsEngine) -> None:
    report = json.loads(tls_engine.run(sys.executable, "-c", PYTHON))
    assert report["host"] == f"3000-{report['id']}.{DOMAIN}"
    assert report["url"].startswith(f"https://49983-{report['id']}.{DOMAIN}/files?")
    expected = {"ran": "42", "lines": ["1", "2", "3"], "read": 500_000, "typed": "typed", "listed": True}
    expected |= {"async": "async", "resumed": "on", "killed": True}
    assert {name: report[name] for name in expected} == expected


JAVASCRIPT = """
import { Sandbox } from 'e2b'
const sandbox = await Sandbox.create()
const report = { id: sandbox.sandboxId, host: sandbox.getHost(3000) }
report.ran = (await sandbox.commands.run('echo $((6 * 7))')).stdout.trim()
await sandbox.files.write('greeting', 'hello')
report.read = await sandbox.files.read('greeting')
const seen = new Promise((resolve) => sandbox.files.watchDir('.', (event) => resolve(event.name)).then(() =>
  sandbox.files.write('watched', 'x')))
report.watched = await seen
await sandbox.commands.run('python3 -m http.server 3000', { background: true, timeoutMs: 0 })
for (let tries = 0; tries < 100; tries++) {
  const answer = await fetch(`https://${report.host}/greeting`)
  if (answer.ok) { report.fetched = await answer.text(); break }
  await answer.text()
  await new Promise((resolve) => setTimeout(resolve, 100))
}
report.killed = await sandbox.kill()
console.log(JSON.stringify(report))
process.exit(0)
"""


def find_node() -> str:
    path = shutil.which("node", path=f"{JS.parents[2] / '.venv-node/bin'}{os.pathsep}{os.environ['PATH']}")
    assert path, "node is missing: run `make setup-test`"
    return path


def test_the_javascript_sdk_needs_only_a_domain_and_a_key(tls_engine: TlsEngine) -> None:
    report = json.loads(tls_engine.run(find_node(), "--input-type=module", "-e", JAVASCRIPT, cwd=JS))
    assert report["host"] == f"3000-{report['id']}.{DOMAIN}"
    expected = {"ran": "42", "read": "hello", "watched": "watched", "fetched": "hello", "killed": True}
    assert {name: report[name] for name in expected} == expected


SCRIPT = """
from e2b import Sandbox
sandbox = Sandbox.create()
print(sandbox.get_host(3000).removeprefix(f"3000-{sandbox.sandbox_id}"), sandbox.commands.run("echo on").stdout.strip())
sandbox.kill()
"""
SCRIPT_JS = """
import { Sandbox } from 'e2b'
const sandbox = await Sandbox.create()
const ran = await sandbox.commands.run('echo on')
console.log(sandbox.getHost(3000).replace(`3000-${sandbox.sandboxId}`, ''), ran.stdout.trim())
await sandbox.kill()
process.exit(0)
"""


def test_subdomains_of_localhost_work_if_they_resolve() -> None:
    """Clients refuse a certificate for `*.localhost`, so each name has its own."""
    port = free_port()
    engine = Engine({"TLS_PORT": str(port), "POOL_SIZE": "0", "DRIVER": "fake"})
    name_server = NameServer("localhost", "127.0.0.1", random_loopback_address())
    local = TlsEngine(engine, "127.0.0.1", name_server, f"localhost:{port}")
    engine.start()
    try:
        for command in ((sys.executable, "-c", SCRIPT), (find_node(), "--input-type=module", "-e", SCRIPT_JS)):
            assert local.run(*command, cwd=JS) == f".localhost:{port} on\n"
    finally:
        name_server.close()
        engine.stop()


def test_curl_accepts_the_certificate_and_uses_http_1_1(tls_engine: TlsEngine) -> None:
    output = tls_engine.run(
        "curl", "-sS", "-o", "/dev/null", "-w", "%{http_code} %{http_version}", f"https://api.{DOMAIN}/health"
    )
    assert output == "204 1.1"


@pytest.mark.parametrize("name", [f"api.{DOMAIN}", DOMAIN, "localhost", "api.localhost", "8000-iabc.localhost"])
def test_known_host_names_get_a_certificate(tls_engine: TlsEngine, name: str) -> None:
    with tls_engine.connect(name) as connection:
        assert connection.selected_alpn_protocol() is None
        assert connection.version() in ("TLSv1.2", "TLSv1.3")


def test_unknown_host_names_get_no_certificate(tls_engine: TlsEngine) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        tls_engine.connect("sandyard.example").close()


def start_server(tls_engine: TlsEngine, sandbox: Sandbox, source: str) -> None:
    sandbox.files.write("server.py", source)
    sandbox.commands.run("python3 server.py", background=True, timeout=0)
    connect_command = "python3 -c \"import socket; socket.create_connection(('127.0.0.1', 8000))\""
    until(lambda: sandbox.commands.run(f"{connect_command} 2>/dev/null && echo open || true").stdout == "open\n")


def test_previews_over_tls(tls_engine: TlsEngine, sandbox: Sandbox) -> None:
    start_server(tls_engine, sandbox, ECHO)
    url = f"https://8000-{sandbox.sandbox_id}.{DOMAIN}"
    output = tls_engine.run("curl", "-sS", "--data-binary", "x" * 1000, f"{url}/a?b=c")
    assert output == f"POST /a?b=c 8000-{sandbox.sandbox_id}.{DOMAIN} None {'x' * 1000}"
    headers = json.loads(tls_engine.run("curl", "-sS", f"{url}/headers"))
    assert headers["x-forwarded-proto"] == "https"
    assert headers["x-forwarded-host"] == f"8000-{sandbox.sandbox_id}.{DOMAIN}"


def curl_in_sandbox(sandbox: Sandbox, url: str, *options: str) -> str:
    """Run curl in a sandbox and return the body and the status."""
    command = ["curl", "-sS", "-m", "20", "-w", " %{http_code}", *options, url]
    return sandbox.commands.run(f"{shlex.join(command)} 2>&1 || true").stdout.strip()


def test_sandboxes_reach_previews_and_the_api_by_public_name(tls_engine: TlsEngine, sandbox: Sandbox) -> None:
    """A sandbox reaches its own preview, that of another sandbox, and the API, as at E2B: with the usual tokens and no setup inside."""
    start_server(tls_engine, sandbox, ECHO)
    host = f"8000-{sandbox.sandbox_id}.{DOMAIN}"
    other = Sandbox.create(
        api_key=tls_engine.engine.key, api_url=tls_engine.engine.url, sandbox_url=tls_engine.engine.url
    )
    try:
        for client in (sandbox, other):
            assert curl_in_sandbox(client, f"https://{host}/a") == f"GET /a {host} None  200"
        script = f"import urllib.request as u; print(u.urlopen('https://{host}/python').read().decode())"
        assert f"GET /python {host}" in sandbox.commands.run(f"python3 -c {shlex.quote(script)}").stdout
        node_script = f"fetch('https://{host}/node').then(r => r.text()).then(console.log)"
        assert f"GET /node {host}" in sandbox.commands.run(f"node -e {shlex.quote(node_script)}").stdout
        assert curl_in_sandbox(other, f"https://49983-{sandbox.sandbox_id}.{DOMAIN}/files?path=server.py").endswith(
            " 401"
        )
        assert curl_in_sandbox(other, f"https://api.{DOMAIN}/v2/sandboxes").endswith(" 401")
        assert sandbox.sandbox_id in curl_in_sandbox(
            other, f"https://api.{DOMAIN}/v2/sandboxes", "-H", f"X-API-KEY: {tls_engine.engine.key}"
        )
        headers = json.loads(
            curl_in_sandbox(other, f"https://{host}/headers", "-H", "X-Forwarded-For: 1.2.3.4").removesuffix(" 200")
        )
        assert "1.2.3.4" not in headers["x-forwarded-for"], "X-Forwarded-For from a sandbox must not be trusted"
    finally:
        other.kill()


def test_large_bodies_over_tls(tls_engine: TlsEngine, sandbox: Sandbox, tmp_path: Path) -> None:
    start_server(tls_engine, sandbox, ECHO)
    body = tmp_path / "body"
    body.write_bytes(secrets.token_bytes(8_000_000))
    url = f"https://8000-{sandbox.sandbox_id}.{DOMAIN}/"
    command = ["curl", "-sS", "--data-binary", f"@{body}", "-o", str(tmp_path / "answer"), "--limit-rate", "6M", url]
    tls_engine.run(*command)
    assert (tmp_path / "answer").read_bytes().endswith(body.read_bytes())


async def test_websockets_over_tls(tls_engine: TlsEngine, sandbox: Sandbox) -> None:
    # Not the synchronous client: it reads and writes one TLS connection in two threads, which loses data in Python 3.11.
    await asyncio.to_thread(start_server, tls_engine, sandbox, WEBSOCKETS)
    name = f"8000-{sandbox.sandbox_id}.{DOMAIN}"
    context = ssl.create_default_context(cafile=str(tls_engine.authority))
    connection = connect(
        f"wss://{name}/x",
        host=tls_engine.address,
        port=443,
        ssl=context,
        subprotocols=[Subprotocol("chat")],
        max_size=None,
        proxy=None,
    )
    async with connection as created, asyncio.timeout(60):
        assert await created.recv() == f"/x {name}"
        for message in ("hello", b"x" * 3_000_000):
            await created.send(message)
            assert await created.recv() == message


def test_killing_a_sandbox_closes_its_connections(tls_engine: TlsEngine, sandbox: Sandbox) -> None:
    start_server(tls_engine, sandbox, WEBSOCKETS)
    with tls_engine.connect(f"8000-{sandbox.sandbox_id}.{DOMAIN}") as connection:
        host = f"8000-{sandbox.sandbox_id}.{DOMAIN}"
        connection.sendall(
            f"GET / HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n".encode()
        )
        assert connection.recv(65536).startswith(b"HTTP/1.1 101")
        sandbox.kill()
        connection.settimeout(10)
        with pytest.raises((OSError, AssertionError)):
            while True:
                assert connection.recv(65536)


def test_plain_http_is_redirected_to_https(tls_engine: TlsEngine) -> None:
    def request(method: str, host: str) -> httpx.Response:
        url = f"http://{tls_engine.address}/a%2Fb?c=d"
        return httpx.request(method, url, headers={"Host": host}, content=b"x" * 1000, trust_env=False)

    for host in (f"api.{DOMAIN}", f"8000-iabc.{DOMAIN.upper()}", f"{DOMAIN}:80", DOMAIN, "8000-iabc.localhost"):
        for method in ("GET", "POST"):
            response = request(method, host)
            assert response.status_code == 308
            assert response.headers["location"] == f"https://{host.lower().removesuffix(':80')}/a%2Fb?c=d"
    for host in ("elsewhere.example", f"{DOMAIN}.elsewhere.example", tls_engine.address, f"evil/.{DOMAIN}", ""):
        response = request("GET", host)
        assert response.status_code in (400, 404), "other hosts must not be redirected"
        assert "location" not in response.headers
    output = tls_engine.run(
        "curl", "-sSL", "-o", "/dev/null", "-w", "%{http_code} %{url_effective}", f"http://api.{DOMAIN}/health"
    )
    assert output == f"204 https://api.{DOMAIN}/health"


def test_invalid_tls_data_does_not_affect_other_connections(tls_engine: TlsEngine) -> None:
    for junk in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff" + b"\0" * 100, b""):
        with socket.create_connection((tls_engine.address, 443), timeout=10) as connection:
            connection.sendall(junk)
            connection.shutdown(socket.SHUT_WR)
            with pytest.raises((OSError, AssertionError)):
                while True:
                    assert connection.recv(65536)
    with tls_engine.connect(f"api.{DOMAIN}") as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: api\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 204")


@pytest.mark.slow
def test_a_renewed_certificate_file_is_used_without_a_restart(tmp_path: Path) -> None:
    folder = tmp_path / "live"
    folder.mkdir()

    def renew() -> bytes:
        authority = Authority.load(tmp_path / secrets.token_hex(4))
        for name, data in zip(("cert.pem", "key.pem"), _issue_certificate(authority, "localhost"), strict=True):
            (folder / name).write_bytes(data)
        return authority.pem

    def is_trusted(pem: bytes) -> bool:
        context = ssl.create_default_context(cadata=pem.decode())
        try:
            return httpx.get(f"https://localhost:{port}/health", verify=context, trust_env=False).status_code == 204
        except httpx.ConnectError:
            return False

    first, port = renew(), free_port()
    files = {"TLS_CERT": str(folder / "cert.pem"), "TLS_KEY": str(folder / "key.pem"), "TLS_PORT": str(port)}
    engine = Engine({**files, "POOL_SIZE": "0", "DRIVER": "fake"})
    engine.start()
    try:
        assert is_trusted(first)
        pid = engine.process.pid if engine.process else 0
        second = renew()
        until(lambda: is_trusted(second))
        assert not is_trusted(first)
        (folder / "key.pem").write_bytes(b"half")
        time.sleep(1.1)
        assert is_trusted(second), "an unusable certificate must not replace the current one"
        assert engine.process
        assert engine.process.pid == pid
        assert engine.process.poll() is None
        context = ssl.create_default_context(cadata=second.decode())
        with context.wrap_socket(
            socket.create_connection(("127.0.0.1", port)), server_hostname="localhost"
        ) as idle_connection:
            idle_connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert idle_connection.recv(65536).startswith(b"HTTP/1.1 204")
            engine.process.terminate()
            engine.process.wait(20)
        assert "graceful shutdown exceeded" not in engine.tail(), (
            "a connection that the client does not close must not delay the shutdown"
        )
    finally:
        engine.stop()


def _issue_certificate(authority: Authority, name: str) -> tuple[bytes, bytes]:
    """Return a certificate and its key, as another program would write them."""
    key = ec.generate_private_key(ec.SECP256R1())
    leaf = authority.issue_certificate((name,), key.public_key(), dt.datetime.now(dt.UTC).replace(microsecond=0))
    return leaf.public_bytes(serialization.Encoding.PEM), encode_key(key)
