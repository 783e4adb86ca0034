"""The engine over TLS, as a team's server has it: a domain whose every name leads there, and port 443. Clients are told the
domain and a key, and nothing else."""

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
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from cryptography.hazmat.primitives import serialization
from e2b import Sandbox
from websockets.asyncio.client import connect
from websockets.typing import Subprotocol

from sandyard.engine.certificates.authority import Authority
from sandyard.engine.certificates.files import key_pem
from sandyard.kit.listen import free_port

from .engine import Engine
from .names import Names
from .test_previews import ECHO, WEBSOCKETS
from .waiting import until

DOMAIN = "sandyard.test"
JS = Path(__file__).parent / "js"

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="port 443, a name server and a mount namespace are root's")


@dataclass
class Team:
    """A server at `address`, with a name server there."""

    engine: Engine
    address: str
    names: Names
    domain: str = DOMAIN

    @property
    def authority(self) -> Path:
        return self.engine.data / "tls" / self.domain.partition(":")[0] / "ca.pem"

    def environment(self) -> dict[str, str]:
        """What a user sets, and who is to be trusted, which with a public certificate is nobody new."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("E2B_", "SSL_CERT_"))}
        return kept | {
            "E2B_DOMAIN": self.domain,
            "E2B_API_KEY": self.engine.key,
            "SSL_CERT_FILE": str(self.authority),
            "NODE_EXTRA_CA_CERTS": str(self.authority),
            "CURL_CA_BUNDLE": str(self.authority),
        }

    def run(self, *command: str, cwd: Path | None = None) -> str:
        """What a program prints that finds the server by its name."""
        done = subprocess.run(
            self.names.seen_by(*command),
            cwd=cwd,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def connect(self, name: str) -> ssl.SSLSocket:
        """A TLS connection to the server under this name, verified."""
        context = ssl.create_default_context(cafile=str(self.authority))
        return context.wrap_socket(socket.create_connection((self.address, 443), timeout=10), server_hostname=name)


def some_address() -> str:
    """Of this machine's loopback, where nobody else has the ports 53 and 443."""
    return f"127.{secrets.randbelow(200) + 20}.{secrets.randbelow(250) + 1}.{secrets.randbelow(250) + 1}"


@pytest.fixture(scope="module")
def team() -> Iterator[Team]:
    address = some_address()
    engine = Engine({"TLS_HOST": address, "TLS_PORT": "443", "DOMAIN": DOMAIN, "POOL_SIZE": "2"})
    names = Names(DOMAIN, address, address)
    engine.start()
    yield Team(engine, address, names)
    names.close()
    left = engine.stop()
    assert not left, f"the engine left behind: {left}"


@pytest.fixture
def sandbox(team: Team) -> Iterator[Sandbox]:
    made = Sandbox.create(api_key=team.engine.key, api_url=team.engine.url, sandbox_url=team.engine.url)
    yield made
    made.kill()


PYTHON = """
import asyncio, json
from e2b import AsyncSandbox, Sandbox
sandbox = Sandbox.create()
told = {"host": sandbox.get_host(3000), "id": sandbox.sandbox_id}
told["ran"] = sandbox.commands.run("echo $((6 * 7))").stdout.strip()
lines = []
sandbox.commands.run("for n in 1 2 3; do echo $n; sleep 0.1; done", on_stdout=lines.append)
told["lines"] = "".join(lines).split()
sandbox.files.write("greeting", "hello" * 100_000)
told["read"] = len(sandbox.files.read("greeting"))
told["url"] = sandbox.download_url("greeting")
terminal = sandbox.commands.run("cat", background=True, stdin=True)
terminal.send_stdin("typed")
terminal.close_stdin()
told["typed"] = terminal.wait().stdout
told["listed"] = sandbox.sandbox_id in [one.sandbox_id for one in Sandbox.list().next_items()]
async def again():
    same = await AsyncSandbox.connect(sandbox.sandbox_id)
    return (await same.commands.run("echo async")).stdout.strip()
told["async"] = asyncio.run(again())
sandbox.pause()
Sandbox.connect(sandbox.sandbox_id)
told["resumed"] = sandbox.commands.run("echo on").stdout.strip()
told["killed"] = sandbox.kill()
print(json.dumps(told))
"""


def test_the_python_sdk_needs_a_domain_and_a_key(team: Team) -> None:
    told = json.loads(team.run(sys.executable, "-c", PYTHON))
    assert told["host"] == f"3000-{told['id']}.{DOMAIN}"
    assert told["url"].startswith(f"https://49983-{told['id']}.{DOMAIN}/files?")
    expected = {"ran": "42", "lines": ["1", "2", "3"], "read": 500_000, "typed": "typed", "listed": True}
    expected |= {"async": "async", "resumed": "on", "killed": True}
    assert {name: told[name] for name in expected} == expected


JAVASCRIPT = """
import { Sandbox } from 'e2b'
const sandbox = await Sandbox.create()
const told = { id: sandbox.sandboxId, host: sandbox.getHost(3000) }
told.ran = (await sandbox.commands.run('echo $((6 * 7))')).stdout.trim()
await sandbox.files.write('greeting', 'hello')
told.read = await sandbox.files.read('greeting')
const seen = new Promise((resolve) => sandbox.files.watchDir('.', (event) => resolve(event.name)).then(() =>
  sandbox.files.write('watched', 'x')))
told.watched = await seen
await sandbox.commands.run('python3 -m http.server 3000', { background: true, timeoutMs: 0 })
for (let tries = 0; tries < 100; tries++) {
  const answer = await fetch(`https://${told.host}/greeting`)
  if (answer.ok) { told.fetched = await answer.text(); break }
  await answer.text()
  await new Promise((resolve) => setTimeout(resolve, 100))
}
told.killed = await sandbox.kill()
console.log(JSON.stringify(told))
process.exit(0)
"""


def node() -> str:
    found = shutil.which("node", path=f"{JS.parents[2] / '.venv-node/bin'}{os.pathsep}{os.environ['PATH']}")
    assert found, "node is missing: `make setup-test` brings it"
    return found


def test_the_javascript_sdk_needs_a_domain_and_a_key(team: Team) -> None:
    told = json.loads(team.run(node(), "--input-type=module", "-e", JAVASCRIPT, cwd=JS))
    assert told["host"] == f"3000-{told['id']}.{DOMAIN}"
    expected = {"ran": "42", "read": "hello", "watched": "watched", "fetched": "hello", "killed": True}
    assert {name: told[name] for name in expected} == expected


ABOUT = """
from e2b import Sandbox
sandbox = Sandbox.create()
print(sandbox.get_host(3000).removeprefix(f"3000-{sandbox.sandbox_id}"), sandbox.commands.run("echo on").stdout.strip())
sandbox.kill()
"""
ABOUT_JS = """
import { Sandbox } from 'e2b'
const sandbox = await Sandbox.create()
const ran = await sandbox.commands.run('echo on')
console.log(sandbox.getHost(3000).replace(`3000-${sandbox.sandboxId}`, ''), ran.stdout.trim())
await sandbox.kill()
process.exit(0)
"""


def test_names_below_localhost_do_as_well_where_they_are_found() -> None:
    """A certificate for `*.localhost` is one that clients refuse: each name has its own."""
    port = free_port()
    engine = Engine({"TLS_PORT": str(port), "POOL_SIZE": "0", "DRIVER": "fake"})
    names = Names("localhost", "127.0.0.1", some_address())
    own = Team(engine, "127.0.0.1", names, f"localhost:{port}")
    engine.start()
    try:
        for command in ((sys.executable, "-c", ABOUT), (node(), "--input-type=module", "-e", ABOUT_JS)):
            assert own.run(*command, cwd=JS) == f".localhost:{port} on\n"
    finally:
        names.close()
        engine.stop()


def test_curl_sees_http_1_1_and_a_certificate_it_can_check(team: Team) -> None:
    said = team.run(
        "curl", "-sS", "-o", "/dev/null", "-w", "%{http_code} %{http_version}", f"https://api.{DOMAIN}/health"
    )
    assert said == "204 1.1"


@pytest.mark.parametrize("name", [f"api.{DOMAIN}", DOMAIN, "localhost", "api.localhost", "8000-iabc.localhost"])
def test_names_it_answers_to(team: Team, name: str) -> None:
    with team.connect(name) as line:
        assert line.selected_alpn_protocol() is None
        assert line.version() in ("TLSv1.2", "TLSv1.3")


def test_names_it_does_not_answer_to(team: Team) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        team.connect("sandyard.example").close()


def serve(team: Team, sandbox: Sandbox, source: str) -> None:
    sandbox.files.write("server.py", source)
    sandbox.commands.run("python3 server.py", background=True, timeout=0)
    opened = "python3 -c \"import socket; socket.create_connection(('127.0.0.1', 8000))\""
    until(lambda: sandbox.commands.run(f"{opened} 2>/dev/null && echo open || true").stdout == "open\n")


def test_previews_over_tls(team: Team, sandbox: Sandbox) -> None:
    serve(team, sandbox, ECHO)
    url = f"https://8000-{sandbox.sandbox_id}.{DOMAIN}"
    said = team.run("curl", "-sS", "--data-binary", "x" * 1000, f"{url}/a?b=c")
    assert said == f"POST /a?b=c 8000-{sandbox.sandbox_id}.{DOMAIN} None {'x' * 1000}"
    heard = json.loads(team.run("curl", "-sS", f"{url}/headers"))
    assert heard["x-forwarded-proto"] == "https"
    assert heard["x-forwarded-host"] == f"8000-{sandbox.sandbox_id}.{DOMAIN}"


def inside(sandbox: Sandbox, url: str, *options: str) -> str:
    """What curl says in a sandbox: the body, and its status."""
    command = ["curl", "-sS", "-m", "20", "-w", " %{http_code}", *options, url]
    return sandbox.commands.run(f"{shlex.join(command)} 2>&1 || true").stdout.strip()


def test_sandboxes_reach_public_names(team: Team, sandbox: Sandbox) -> None:
    """Their own preview, that of another sandbox, and the API, as at E2B: with the usual tokens, and no other set-up inside."""
    serve(team, sandbox, ECHO)
    host = f"8000-{sandbox.sandbox_id}.{DOMAIN}"
    other = Sandbox.create(api_key=team.engine.key, api_url=team.engine.url, sandbox_url=team.engine.url)
    try:
        for asking in (sandbox, other):
            assert inside(asking, f"https://{host}/a") == f"GET /a {host} None  200"
        script = f"import urllib.request as u; print(u.urlopen('https://{host}/python').read().decode())"
        assert f"GET /python {host}" in sandbox.commands.run(f"python3 -c {shlex.quote(script)}").stdout
        node = f"fetch('https://{host}/node').then(r => r.text()).then(console.log)"
        assert f"GET /node {host}" in sandbox.commands.run(f"node -e {shlex.quote(node)}").stdout
        assert inside(other, f"https://49983-{sandbox.sandbox_id}.{DOMAIN}/files?path=server.py").endswith(" 401")
        assert inside(other, f"https://api.{DOMAIN}/v2/sandboxes").endswith(" 401")
        assert sandbox.sandbox_id in inside(
            other, f"https://api.{DOMAIN}/v2/sandboxes", "-H", f"X-API-KEY: {team.engine.key}"
        )
        heard = json.loads(
            inside(other, f"https://{host}/headers", "-H", "X-Forwarded-For: 1.2.3.4").removesuffix(" 200")
        )
        assert "1.2.3.4" not in heard["x-forwarded-for"], "a sandbox is no proxy whose word counts"
    finally:
        other.kill()


def test_large_bodies_over_tls(team: Team, sandbox: Sandbox, tmp_path: Path) -> None:
    serve(team, sandbox, ECHO)
    body = tmp_path / "body"
    body.write_bytes(secrets.token_bytes(8_000_000))
    url = f"https://8000-{sandbox.sandbox_id}.{DOMAIN}/"
    said = ["curl", "-sS", "--data-binary", f"@{body}", "-o", str(tmp_path / "answer"), "--limit-rate", "6M", url]
    team.run(*said)
    assert (tmp_path / "answer").read_bytes().endswith(body.read_bytes())


async def test_websockets_over_tls(team: Team, sandbox: Sandbox) -> None:
    # Not the synchronous client: it reads and writes one TLS connection in two threads, which loses data in Python 3.11.
    await asyncio.to_thread(serve, team, sandbox, WEBSOCKETS)
    name = f"8000-{sandbox.sandbox_id}.{DOMAIN}"
    context = ssl.create_default_context(cafile=str(team.authority))
    connection = connect(
        f"wss://{name}/x",
        host=team.address,
        port=443,
        ssl=context,
        subprotocols=[Subprotocol("chat")],
        max_size=None,
        proxy=None,
    )
    async with connection as made, asyncio.timeout(60):
        assert await made.recv() == f"/x {name}"
        for message in ("hello", b"x" * 3_000_000):
            await made.send(message)
            assert await made.recv() == message


def test_a_sandbox_that_ends_cuts_what_leads_into_it(team: Team, sandbox: Sandbox) -> None:
    serve(team, sandbox, WEBSOCKETS)
    with team.connect(f"8000-{sandbox.sandbox_id}.{DOMAIN}") as line:
        host = f"8000-{sandbox.sandbox_id}.{DOMAIN}"
        line.sendall(f"GET / HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n".encode())
        assert line.recv(65536).startswith(b"HTTP/1.1 101")
        sandbox.kill()
        line.settimeout(10)
        with pytest.raises((OSError, AssertionError)):
            while True:
                assert line.recv(65536)


def test_plain_http_is_redirected(team: Team) -> None:
    def ask(method: str, host: str) -> httpx.Response:
        url = f"http://{team.address}/a%2Fb?c=d"
        return httpx.request(method, url, headers={"Host": host}, content=b"x" * 1000, trust_env=False)

    for host in (f"api.{DOMAIN}", f"8000-iabc.{DOMAIN.upper()}", f"{DOMAIN}:80", DOMAIN, "8000-iabc.localhost"):
        for method in ("GET", "POST"):
            answer = ask(method, host)
            assert answer.status_code == 308
            assert answer.headers["location"] == f"https://{host.lower().removesuffix(':80')}/a%2Fb?c=d"
    for host in ("elsewhere.example", f"{DOMAIN}.elsewhere.example", team.address, f"evil/.{DOMAIN}", ""):
        answer = ask("GET", host)
        assert answer.status_code in (400, 404), "it leads nobody to somebody else's server"
        assert "location" not in answer.headers
    said = team.run(
        "curl", "-sSL", "-o", "/dev/null", "-w", "%{http_code} %{url_effective}", f"http://api.{DOMAIN}/health"
    )
    assert said == f"204 https://api.{DOMAIN}/health"


def test_what_is_no_tls_disturbs_nobody(team: Team) -> None:
    for junk in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff" + b"\0" * 100, b""):
        with socket.create_connection((team.address, 443), timeout=10) as line:
            line.sendall(junk)
            line.shutdown(socket.SHUT_WR)
            with pytest.raises((OSError, AssertionError)):
                while True:
                    assert line.recv(65536)
    with team.connect(f"api.{DOMAIN}") as line:
        line.sendall(b"GET /health HTTP/1.1\r\nHost: api\r\n\r\n")
        assert line.recv(65536).startswith(b"HTTP/1.1 204")


@pytest.mark.slow
def test_certificates_of_others_are_renewed_without_a_restart(tmp_path: Path) -> None:
    folder = tmp_path / "live"
    folder.mkdir()

    def renew() -> bytes:
        authority = Authority.load(tmp_path / secrets.token_hex(4))
        for name, data in zip(("cert.pem", "key.pem"), _issued(authority, "localhost"), strict=True):
            (folder / name).write_bytes(data)
        return authority.pem

    def works(pem: bytes) -> bool:
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
        assert works(first)
        pid = engine.process.pid if engine.process else 0
        second = renew()
        until(lambda: works(second))
        assert not works(first)
        (folder / "key.pem").write_bytes(b"half")
        time.sleep(1.1)
        assert works(second), "what cannot be used is not used"
        assert engine.process
        assert engine.process.pid == pid
        assert engine.process.poll() is None
        context = ssl.create_default_context(cadata=second.decode())
        with context.wrap_socket(socket.create_connection(("127.0.0.1", port)), server_hostname="localhost") as silent:
            silent.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert silent.recv(65536).startswith(b"HTTP/1.1 204")
            engine.process.terminate()
            engine.process.wait(20)
        assert "graceful shutdown exceeded" not in engine.tail(), "who does not say farewell is not waited for"
    finally:
        engine.stop()


def _issued(authority: Authority, name: str) -> tuple[bytes, bytes]:
    """A certificate and its key, as another program would write them."""
    leaf = authority._leaf((name,), dt.datetime.now(dt.UTC).replace(microsecond=0))
    return leaf.public_bytes(serialization.Encoding.PEM), key_pem(authority._leaf_key)
