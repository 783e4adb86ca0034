"""Rules for requests, with real traffic: headers that are added on the way out, and attempts to steal them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from sandyard.engine.certificates.authority import Authority
from sandyard.engine.contract import HostRule, NetworkPolicy
from sandyard.engine.drivers.machine.net import NetSlot, Network, NetworkSettings, links
from sandyard.engine.drivers.machine.net.netlink import Netlink
from sandyard.engine.drivers.machine.net.policy import parse_policy
from sandyard.engine.drivers.machine.net.proxy import host_detection, listener
from sandyard.kit.errors import NotFoundError, UnsupportedError
from tests.integration.engine.drivers.machine.net import topology as topologies
from tests.integration.engine.drivers.machine.net.topology import (
    HOST,
    LAN,
    MIRROR,
    WEB,
    Topology,
    dial,
    inside,
    within,
)

PLAIN = "198.51.100.30"
SECRET = "planted-value"
RULE = HostRule("web.test", (("Authorization", "Bearer ${secret}"), ("X-Team", "red")))
RULES = NetworkPolicy(rules=(RULE,))


@dataclass
class SecretFiller:
    """Fills in secrets. `${secret}` is the only placeholder."""

    authority: Authority
    secrets: dict[str, str] = field(default_factory=lambda: {"${secret}": SECRET})

    async def fill(self, value: str) -> str:
        if "${" in value and not self.secrets:
            raise NotFoundError("secret 'secret' not found.")
        for name, secret in self.secrets.items():
            value = value.replace(name, secret)
        return value

    def holds_secret(self, value: str) -> bool:
        return "${" in value

    async def make_context(self, host: str) -> ssl.SSLContext:
        return self.authority.make_server_context([host])


class Site:
    """A web server on the outside. It responds with each request as it arrived, and records it in `seen`."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, ValueError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                body = await self._read_body(head, reader)
                self.seen.append(head + body)
                if b"upgrade: websocket" in head.lower():
                    writer.write(
                        b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
                    )
                    while data := await reader.read(1000):
                        writer.write(data.upper())
                response = head + body
                if head.startswith(b"GET /stream"):
                    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                    for number in range(3):
                        writer.write(b"2\r\n%d\n\r\n" % number)
                        await asyncio.sleep(0.05)
                    writer.write(b"0\r\n\r\n")
                else:
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(response), response))
        writer.close()

    async def _read_body(self, head: bytes, reader: asyncio.StreamReader) -> bytes:
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                return await reader.readexactly(int(line.partition(b":")[2]))
            if line.startswith(b"transfer-encoding:"):
                return await reader.readuntil(b"0\r\n\r\n")
        return b""


@dataclass
class ProxyHarness:
    topology: Topology
    network: Network
    filler: SecretFiller
    slot: NetSlot
    public: Path  # the certificate authority of the servers on the outside
    web: Site = field(default_factory=Site)
    other: Site = field(default_factory=Site)
    plain: Site = field(default_factory=Site)

    async def send(
        self, request: str, address: str = WEB, host: str = "web.test", *, port: int = 443, trust: Path | None = None
    ) -> str:
        """Send a request from inside the sandbox on a new connection and return the response."""
        ca = trust or self.filler.authority.certificate
        return await inside(self.slot.netns_path, lambda: _send_request(request, address, host, port, ca))


def _send_request(request: str, address: str, host: str, port: int, ca: Path) -> str:
    with socket.create_connection((address, port), timeout=10) as raw:
        connection = raw
        if port == 443:
            context = ssl.create_default_context(cafile=str(ca))
            context.set_alpn_protocols(["h2", "http/1.1"])
            connection = context.wrap_socket(raw, server_hostname=host)
        connection.sendall(request.replace("\n", "\r\n").encode())
        response = b""
        with contextlib.suppress(TimeoutError):
            connection.settimeout(1.0)
            while data := connection.recv(65536):
                response += data
        return response.decode()


GET = "GET / HTTP/1.1\nHost: web.test\nConnection: close\n\n"


@pytest.fixture
async def harness(topology: Topology, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ProxyHarness]:
    monkeypatch.setitem(topologies.ZONE, "plain.test", [("A", PLAIN)])
    public = Authority.load(tmp_path / "public")
    filler = SecretFiller(Authority.load(tmp_path / "egress"))
    settings = NetworkSettings(pool=1, resolv_conf=topology.resolv_conf, egress_ca_file=public.certificate)
    network = Network("test", topology.state / "net", settings, filler)
    await network.open(())
    proxy_harness = ProxyHarness(topology, network, filler, await network.acquire(0), public.certificate)
    with within(topology.outside), Netlink() as netlink:
        netlink.request(links.add_address(links.LOOPBACK, IPv4Address(PLAIN)))
    servers = [
        await _start_site(topology, proxy_harness.web, WEB, 443, public.make_server_context(["web.test"])),
        await _start_site(
            topology, proxy_harness.other, MIRROR, 443, public.make_server_context(["mirror.test", "other.test"])
        ),
        await _start_site(topology, proxy_harness.plain, PLAIN, 80, None),
        await _start_site(topology, proxy_harness.other, LAN, 443, public.make_server_context(["rebind.test"])),
    ]
    try:
        yield proxy_harness
    finally:
        await network.close(remove=True)
        for server in servers:
            server.close()


async def _start_site(
    topology: Topology, site: Site, address: str, port: int, tls: ssl.SSLContext | None
) -> asyncio.Server:
    with within(topology.outside):
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address, port))
    return await asyncio.start_server(site.serve, sock=sock, ssl=tls)


async def test_requests_to_the_host_of_a_rule_get_its_headers(harness: ProxyHarness) -> None:
    await harness.network.set_policy(0, RULES)
    response = await harness.send(
        "POST /a?b=c HTTP/1.1\nHost: web.test\nauthorization: mine\nX-Mine: 1\nContent-Length: 5\nConnection: close\n\nhello"
    )
    assert response.startswith("HTTP/1.1 200 OK")
    (seen,) = harness.web.seen
    assert seen.startswith(b"POST /a?b=c HTTP/1.1\r\n")
    assert seen.endswith(b"\r\n\r\nhello")
    lines = seen.split(b"\r\n")
    assert b"X-Team: red" in lines
    assert b"X-Mine: 1" in lines
    assert [line for line in lines if line.lower().startswith(b"authorization")] == [
        b"Authorization: Bearer planted-value"
    ]


async def test_every_request_on_a_connection_gets_the_headers(harness: ProxyHarness) -> None:
    await harness.network.set_policy(0, RULES)
    chunked = "POST / HTTP/1.1\nHost: web.test\nTransfer-Encoding: chunked\n\n3\nabc\n0\n\n"
    response = await harness.send(
        "GET /1 HTTP/1.1\nHost: web.test\n\n" + chunked + "GET /stream HTTP/1.1\nHost: web.test\n\n"
    )
    assert response.count("HTTP/1.1 200 OK") == 3
    assert "0\n" in response
    assert "2\n" in response
    assert harness.web.connections == 1
    assert [b"Bearer planted-value" in seen for seen in harness.web.seen] == [True] * 3
    assert harness.web.seen[1].endswith(b"\r\n\r\n3\r\nabc\r\n0\r\n\r\n")


async def test_requests_to_other_hosts_are_forwarded_unchanged(harness: ProxyHarness) -> None:
    await harness.network.set_policy(0, RULES)
    response = await harness.send(GET, MIRROR, "other.test", trust=harness.public)
    assert response.startswith("HTTP/1.1 200 OK")
    assert (harness.other.seen[0], b"planted" in harness.other.seen[0]) == (GET.replace("\n", "\r\n").encode(), False)
    assert await inside(harness.slot.netns_path, lambda: dial(WEB)) == "ok", "other protocols pass too"
    assert ("tcp", WEB, HOST) in harness.topology.internet.seen


async def test_the_name_is_resolved_by_the_engine(harness: ProxyHarness) -> None:
    """Connecting to another address does not divert the headers to it."""
    await harness.network.set_policy(0, RULES)
    response = await harness.send(GET, MIRROR)
    assert "Bearer planted-value" in response, "the site responds with the request"
    assert (len(harness.web.seen), harness.other.connections) == (1, 0)


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        ("GET / HTTP/1.1\nHost: other.test\n\n", 421),
        ("GET / HTTP/1.1\nHost: web.test:8443\n\n", 421),
        ("GET https://other.test/ HTTP/1.1\nHost: web.test\n\n", 400),
        ("TRACE / HTTP/1.1\nHost: web.test\n\n", 405),
        ("CONNECT other.test:443 HTTP/1.1\nHost: web.test\n\n", 405),
        ("GET / HTTP/1.1\nHost: web.test\nHost: other.test\n\n", 400),
        ("POST / HTTP/1.1\nHost: web.test\nContent-Length: 5\nContent-Length: 6\n\nhello!", 400),
        ("POST / HTTP/1.1\nHost: web.test\nTransfer-Encoding: chunked, identity\n\n0\n\n", 400),
        ("GET / HTTP/1.1\nHost: web.test\nX: " + "x" * 200_000 + "\n\n", 400),
        ("hello\n\n", 400),
    ],
    ids=[
        "another host",
        "another port",
        "a whole address",
        "trace",
        "tunnel",
        "two hosts",
        "two lengths",
        "an odd coding",
        "a long head",
        "no http",
    ],
)
async def test_ambiguous_requests_are_rejected(harness: ProxyHarness, request_: str, status: int) -> None:
    await harness.network.set_policy(0, RULES)
    response = await harness.send(request_)
    assert response.startswith(f"HTTP/1.1 {status} ")
    assert '"message"' in response
    assert harness.web.connections == 0


async def test_a_forwarded_body_has_only_one_length(harness: ProxyHarness) -> None:
    await harness.network.set_policy(0, RULES)
    await harness.send(
        "POST / HTTP/1.1\nHost: web.test\nContent-Length: 50\nTransfer-Encoding: chunked\nConnection: close\n\n1\na\n0\n\n"
    )
    (seen,) = harness.web.seen
    assert b"content-length" not in seen.lower()
    assert seen.endswith(b"\r\n\r\n1\r\na\r\n0\r\n\r\n")


async def test_a_host_without_a_valid_certificate_gets_no_request(
    harness: ProxyHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(topologies.ZONE, "web.test", [("A", MIRROR)])
    await harness.network.set_policy(0, RULES)
    response = await harness.send(GET)
    assert response.startswith("HTTP/1.1 502 ")
    assert "certificate of web.test is not valid" in response
    assert SECRET not in response
    assert not harness.other.seen


async def test_plain_http_requests_get_headers_but_no_secrets(harness: ProxyHarness) -> None:
    request = "GET / HTTP/1.1\nHost: plain.test\nConnection: close\n\n"
    await harness.network.set_policy(0, NetworkPolicy(rules=(HostRule("plain.test", (("X-Team", "red"),)),)))
    assert "X-Team: red" in await harness.send(request, PLAIN, port=80)
    await harness.network.set_policy(0, NetworkPolicy(rules=(HostRule("*.test.test", RULE.headers),)))
    assert "planted" not in await harness.send(request, PLAIN, port=80)
    await harness.network.set_policy(0, NetworkPolicy(rules=(HostRule("plain.test", RULE.headers),)))
    response = await harness.send(request, PLAIN, port=80)
    assert response.startswith("HTTP/1.1 502 ")
    assert "Use https" in response
    assert len(harness.plain.seen) == 2


async def test_a_missing_or_invalid_secret_fails_the_request(harness: ProxyHarness) -> None:
    await harness.network.set_policy(0, RULES)
    harness.filler.secrets = {"${secret}": "two\r\nX-Lines: 1"}
    response = await harness.send(GET)
    assert response.startswith("HTTP/1.1 502 ")
    assert "X-Lines" not in response
    harness.filler.secrets = {}
    response = await harness.send(GET)
    assert response.startswith("HTTP/1.1 502 ")
    assert "secret 'secret' not found" in response
    assert harness.web.connections == 0


async def test_rules_do_not_bypass_the_network_policy(harness: ProxyHarness) -> None:
    rules = (RULE, HostRule("rebind.test", RULE.headers), HostRule("mirror.test", RULE.headers))
    everything = "0.0.0.0/0"
    # the address that is dialled is allowed, but the name resolves to one that is not
    await harness.network.set_policy(0, NetworkPolicy(deny_out=(everything,), allow_out=(WEB,), rules=rules))
    response = await harness.send("GET / HTTP/1.1\nHost: mirror.test\n\n", WEB, "mirror.test")
    assert response.startswith("HTTP/1.1 502 ")
    assert "network policy" in response
    with pytest.raises(ConnectionRefusedError):
        await harness.send(GET, MIRROR)
    assert (await harness.send(GET)).startswith("HTTP/1.1 200 ")
    # private addresses, by name and directly
    await harness.network.set_policy(0, NetworkPolicy(rules=rules))
    response = await harness.send("GET / HTTP/1.1\nHost: rebind.test\n\n", WEB, "rebind.test")
    assert response.startswith("HTTP/1.1 502 ")
    for address in (LAN, HOST, str(harness.slot.gateway)):
        with pytest.raises(ConnectionRefusedError):
            await harness.send(GET, address)
    assert harness.other.connections == 0
    # only names that are allowed
    await harness.network.set_policy(0, NetworkPolicy(deny_out=(everything,), allow_out=("web.test",), rules=rules))
    await inside(harness.slot.netns_path, lambda: topologies.resolve(str(harness.slot.dns), "web.test"))
    assert (await harness.send(GET)).startswith("HTTP/1.1 200 ")
    response = await harness.send("GET / HTTP/1.1\nHost: mirror.test\n\n", WEB, "mirror.test")
    assert response.startswith("HTTP/1.1 502 ")
    assert harness.other.connections == 0


async def test_the_proxy_itself_is_unreachable(harness: ProxyHarness) -> None:
    await harness.network.set_policy(0, RULES)
    port = harness.network.proxy_port
    assert port is not None
    for address in (str(harness.slot.gateway), HOST):
        assert await inside(harness.slot.netns_path, lambda to=address: dial(to, port)) == "ECONNREFUSED"
    # a sandbox without rules is not redirected to the proxy
    slot = await harness.network.acquire(1)
    assert await inside(slot.netns_path, lambda: dial(WEB)) == "ok"
    assert await inside(slot.netns_path, lambda: dial(str(slot.gateway), port)) == "ECONNREFUSED"


async def test_web_sockets_pass_through_the_proxy(harness: ProxyHarness) -> None:
    await harness.network.set_policy(0, RULES)
    response = await harness.send("GET /ws HTTP/1.1\nHost: web.test\nConnection: Upgrade\nUpgrade: websocket\n\nframes")
    assert response.startswith("HTTP/1.1 101 ")
    assert response.endswith("FRAMES")
    assert b"Bearer planted-value" in harness.web.seen[0]


async def test_rules_and_secrets_can_change_while_a_sandbox_runs(harness: ProxyHarness) -> None:
    await harness.network.set_policy(0, RULES)
    assert "Bearer planted-value" in await harness.send(GET)
    harness.filler.secrets = {"${secret}": "rotated"}
    assert "Bearer rotated" in await harness.send(GET)
    await harness.network.set_policy(0, NetworkPolicy())
    response = await harness.send(GET, trust=harness.public)
    assert "rotated" not in response
    assert "HTTP/1.1 200" in response


async def test_a_slot_with_rules_is_blocked_until_a_restarted_engine_sets_them(harness: ProxyHarness) -> None:
    await harness.network.set_policy(0, RULES)
    await harness.network.close()
    with pytest.raises(ConnectionRefusedError):
        await harness.send(GET)
    settings = NetworkSettings(pool=1, resolv_conf=harness.topology.resolv_conf, egress_ca_file=harness.public)
    restarted = Network("test", harness.topology.state / "net", settings, harness.filler)
    await restarted.open([0])
    try:
        with pytest.raises(ConnectionError):
            await harness.send(GET)  # blocked, not open without its rules
        await restarted.set_policy(0, RULES)
        assert "Bearer planted-value" in await harness.send(GET)
    finally:
        await restarted.close(remove=True)


async def test_connections_through_the_proxy_do_not_keep_a_released_slot(harness: ProxyHarness) -> None:
    await harness.network.set_policy(0, RULES)
    before = harness.topology.interface_indexes()
    held = await inside(harness.slot.netns_path, lambda: [socket.create_connection((WEB, port)) for port in (80, 80)])
    held[0].send(b"something that is no request\n")
    await asyncio.sleep(0.3)
    for connection in held:
        connection.close()
    await harness.network.release(0)
    for _ in range(50):
        if len(before - harness.topology.interface_indexes()) == 1:
            return
        await asyncio.sleep(0.1)
    pytest.fail("the interface of the slot must be removed")


async def test_the_number_of_connections_is_limited(harness: ProxyHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "MAX_PER_SANDBOX", 3)
    await harness.network.set_policy(0, RULES)

    def use_connections() -> list[str]:
        held, outcomes = [], []
        for _ in range(5):
            try:
                held.append(socket.create_connection((WEB, 80), timeout=5))
            except OSError:  # it may be cut before the connect has finished
                outcomes.append("cut")
        for connection in held:
            try:
                connection.sendall(b"ping")
                outcomes.append("ok" if connection.recv(10) == b"ping" else "ended")
            except OSError:
                outcomes.append("cut")
        for connection in held:
            connection.close()
        return outcomes

    outcomes = await inside(harness.slot.netns_path, use_connections)
    assert outcomes.count("ok") == 3


async def test_rules_are_rejected_without_a_secret_filler(network: Network) -> None:
    await network.acquire(0)
    with pytest.raises(UnsupportedError):
        await network.set_policy(0, RULES)


def test_hostile_requests_are_parsed_quickly() -> None:
    """They are parsed in the engine's process: a regular expression that backtracks over blanks would block all of
    it."""
    started = time.process_time()
    for blanks in (b" \t" * 16000, b"\r" * 32000, b"\r\n" * 16000, b"a " * 16000):
        host_detection.parse_http(b"GET / HTTP/1.1\r\nHost:" + blanks + b"\x0b\r\r\n\r\n")
    assert time.process_time() - started < 1
    assert host_detection.parse_http(
        b"GET / HTTP/1.1\r\nhost: \tWeb.test.:80 \t\r\n\r\n"
    ) == host_detection.DetectedHost("web.test")
    assert host_detection.parse_http(
        b"GET / HTTP/1.1\r\nHost: " + b"a." * 1000 + b"test\r\n\r\n"
    ) == host_detection.DetectedHost(None)


def test_the_most_specific_rule_applies() -> None:
    rules = tuple(HostRule(host, (("X", host),)) for host in ("a.b.test", "*.b.test", "*.x.b.test", "Upper.Test"))
    egress = parse_policy(NetworkPolicy(rules=rules))

    def matching_host(name: str) -> str | None:
        rule = egress.find_rule(name)
        return rule and rule.host

    assert matching_host("a.b.test") == "a.b.test"
    assert matching_host("c.b.test") == "*.b.test"
    assert matching_host("deep.c.b.test") == "*.b.test"
    assert matching_host("y.x.b.test") == "*.x.b.test"
    assert matching_host("b.test") is None
    assert matching_host("upper.test") == "upper.test"
