"""Rules for requests, tried for real: headers that are put in on the way out, and everybody who wants them for himself."""

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
from sandyard.engine.drivers.namespace.net import NetSlot, Network, NetworkSettings, links
from sandyard.engine.drivers.namespace.net.netlink import Netlink
from sandyard.engine.drivers.namespace.net.policy import parse_policy
from sandyard.engine.drivers.namespace.net.proxy import host_detection, listener
from sandyard.kit.errors import NotFoundError, UnsupportedError
from tests.integration.engine.drivers.namespace.net import topology as topologies
from tests.integration.engine.drivers.namespace.net.topology import (
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
class Filling:
    """`${secret}` is the only placeholder."""

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

    def context(self, host: str) -> ssl.SSLContext:
        return self.authority.server_context([host])


class Site:
    """A web server of the outside. It tells each request back as it came, and keeps it in `seen`."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, ValueError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                body = await self._body(head, reader)
                self.seen.append(head + body)
                if b"upgrade: websocket" in head.lower():
                    writer.write(
                        b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
                    )
                    while data := await reader.read(1000):
                        writer.write(data.upper())
                answer = head + body
                if head.startswith(b"GET /stream"):
                    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                    for number in range(3):
                        writer.write(b"2\r\n%d\n\r\n" % number)
                        await asyncio.sleep(0.05)
                    writer.write(b"0\r\n\r\n")
                else:
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(answer), answer))
        writer.close()

    async def _body(self, head: bytes, reader: asyncio.StreamReader) -> bytes:
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                return await reader.readexactly(int(line.partition(b":")[2]))
            if line.startswith(b"transfer-encoding:"):
                return await reader.readuntil(b"0\r\n\r\n")
        return b""


@dataclass
class Yard:
    topology: Topology
    network: Network
    filling: Filling
    slot: NetSlot
    public: Path  # the authority of the outside's servers
    web: Site = field(default_factory=Site)
    other: Site = field(default_factory=Site)
    plain: Site = field(default_factory=Site)

    async def ask(
        self, request: str, address: str = WEB, host: str = "web.test", *, port: int = 443, trust: Path | None = None
    ) -> str:
        """What a program in the sandbox is told; the connection is its own, and ends with the answer."""
        ca = trust or self.filling.authority.certificate
        return await inside(self.slot.netns_path, lambda: _ask(request, address, host, port, ca))


def _ask(request: str, address: str, host: str, port: int, ca: Path) -> str:
    with socket.create_connection((address, port), timeout=10) as raw:
        connection = raw
        if port == 443:
            context = ssl.create_default_context(cafile=str(ca))
            context.set_alpn_protocols(["h2", "http/1.1"])
            connection = context.wrap_socket(raw, server_hostname=host)
        connection.sendall(request.replace("\n", "\r\n").encode())
        answer = b""
        with contextlib.suppress(TimeoutError):
            connection.settimeout(1.0)
            while data := connection.recv(65536):
                answer += data
        return answer.decode()


GET = "GET / HTTP/1.1\nHost: web.test\nConnection: close\n\n"


@pytest.fixture
async def yard(topology: Topology, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Yard]:
    monkeypatch.setitem(topologies.ZONE, "plain.test", [("A", PLAIN)])
    public = Authority.load(tmp_path / "public")
    filling = Filling(Authority.load(tmp_path / "egress"))
    settings = NetworkSettings(pool=1, resolv_conf=topology.resolv_conf, egress_ca_file=public.certificate)
    network = Network("test", topology.state / "net", settings, filling)
    await network.open(())
    made = Yard(topology, network, filling, await network.acquire(0), public.certificate)
    with within(topology.outside), Netlink() as netlink:
        netlink.request(links.add_address(links.LOOPBACK, IPv4Address(PLAIN)))
    servers = [
        await _site(topology, made.web, WEB, 443, public.server_context(["web.test"])),
        await _site(topology, made.other, MIRROR, 443, public.server_context(["mirror.test", "other.test"])),
        await _site(topology, made.plain, PLAIN, 80, None),
        await _site(topology, made.other, LAN, 443, public.server_context(["rebind.test"])),
    ]
    try:
        yield made
    finally:
        await network.close(remove=True)
        for server in servers:
            server.close()


async def _site(topology: Topology, site: Site, address: str, port: int, tls: ssl.SSLContext | None) -> asyncio.Server:
    with within(topology.outside):
        door = socket.socket()
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        door.bind((address, port))
    return await asyncio.start_server(site.serve, sock=door, ssl=tls)


async def test_a_request_to_a_rules_host_gets_its_headers(yard: Yard) -> None:
    await yard.network.set_policy(0, RULES)
    answer = await yard.ask(
        "POST /a?b=c HTTP/1.1\nHost: web.test\nauthorization: mine\nX-Mine: 1\nContent-Length: 5\nConnection: close\n\nhello"
    )
    assert answer.startswith("HTTP/1.1 200 OK")
    (seen,) = yard.web.seen
    assert seen.startswith(b"POST /a?b=c HTTP/1.1\r\n")
    assert seen.endswith(b"\r\n\r\nhello")
    lines = seen.split(b"\r\n")
    assert b"X-Team: red" in lines
    assert b"X-Mine: 1" in lines
    assert [line for line in lines if line.lower().startswith(b"authorization")] == [
        b"Authorization: Bearer planted-value"
    ]


async def test_several_requests_on_one_connection_and_streams(yard: Yard) -> None:
    await yard.network.set_policy(0, RULES)
    chunked = "POST / HTTP/1.1\nHost: web.test\nTransfer-Encoding: chunked\n\n3\nabc\n0\n\n"
    answer = await yard.ask(
        "GET /1 HTTP/1.1\nHost: web.test\n\n" + chunked + "GET /stream HTTP/1.1\nHost: web.test\n\n"
    )
    assert answer.count("HTTP/1.1 200 OK") == 3
    assert "0\n" in answer
    assert "2\n" in answer
    assert yard.web.connections == 1
    assert [b"Bearer planted-value" in seen for seen in yard.web.seen] == [True] * 3
    assert yard.web.seen[1].endswith(b"\r\n\r\n3\r\nabc\r\n0\r\n\r\n")


async def test_other_hosts_are_passed_on_untouched(yard: Yard) -> None:
    await yard.network.set_policy(0, RULES)
    answer = await yard.ask(GET, MIRROR, "other.test", trust=yard.public)
    assert answer.startswith("HTTP/1.1 200 OK")
    assert (yard.other.seen[0], b"planted" in yard.other.seen[0]) == (GET.replace("\n", "\r\n").encode(), False)
    assert await inside(yard.slot.netns_path, lambda: dial(WEB)) == "ok", "neither TLS nor HTTP"
    assert ("tcp", WEB, HOST) in yard.topology.internet.seen


async def test_the_name_is_resolved_by_the_engine(yard: Yard) -> None:
    """An address of one's own does not get what is for the host."""
    await yard.network.set_policy(0, RULES)
    answer = await yard.ask(GET, MIRROR)
    assert "Bearer planted-value" in answer, "the site tells it back"
    assert (len(yard.web.seen), yard.other.connections) == (1, 0)


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
async def test_what_could_be_read_in_two_ways_is_refused(yard: Yard, request_: str, status: int) -> None:
    await yard.network.set_policy(0, RULES)
    answer = await yard.ask(request_)
    assert answer.startswith(f"HTTP/1.1 {status} ")
    assert '"message"' in answer
    assert yard.web.connections == 0


async def test_a_body_has_one_length(yard: Yard) -> None:
    await yard.network.set_policy(0, RULES)
    await yard.ask(
        "POST / HTTP/1.1\nHost: web.test\nContent-Length: 50\nTransfer-Encoding: chunked\nConnection: close\n\n1\na\n0\n\n"
    )
    (seen,) = yard.web.seen
    assert b"content-length" not in seen.lower()
    assert seen.endswith(b"\r\n\r\n1\r\na\r\n0\r\n\r\n")


async def test_a_host_that_cannot_prove_itself_gets_nothing(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(topologies.ZONE, "web.test", [("A", MIRROR)])
    await yard.network.set_policy(0, RULES)
    answer = await yard.ask(GET)
    assert answer.startswith("HTTP/1.1 502 ")
    assert "certificate of web.test is not valid" in answer
    assert SECRET not in answer
    assert not yard.other.seen


async def test_plain_http_gets_headers_and_no_secret(yard: Yard) -> None:
    request = "GET / HTTP/1.1\nHost: plain.test\nConnection: close\n\n"
    await yard.network.set_policy(0, NetworkPolicy(rules=(HostRule("plain.test", (("X-Team", "red"),)),)))
    assert "X-Team: red" in await yard.ask(request, PLAIN, port=80)
    await yard.network.set_policy(0, NetworkPolicy(rules=(HostRule("*.test.test", RULE.headers),)))
    assert "planted" not in await yard.ask(request, PLAIN, port=80)
    await yard.network.set_policy(0, NetworkPolicy(rules=(HostRule("plain.test", RULE.headers),)))
    answer = await yard.ask(request, PLAIN, port=80)
    assert answer.startswith("HTTP/1.1 502 ")
    assert "Use https" in answer
    assert len(yard.plain.seen) == 2


async def test_a_secret_that_is_not_there_or_no_header(yard: Yard) -> None:
    await yard.network.set_policy(0, RULES)
    yard.filling.secrets = {"${secret}": "two\r\nX-Lines: 1"}
    answer = await yard.ask(GET)
    assert answer.startswith("HTTP/1.1 502 ")
    assert "X-Lines" not in answer
    yard.filling.secrets = {}
    answer = await yard.ask(GET)
    assert answer.startswith("HTTP/1.1 502 ")
    assert "secret 'secret' not found" in answer
    assert yard.web.connections == 0


async def test_rules_open_nothing(yard: Yard) -> None:
    rules = (RULE, HostRule("rebind.test", RULE.headers), HostRule("mirror.test", RULE.headers))
    everything = "0.0.0.0/0"
    # the host itself is not allowed; what was dialled is, but the name leads elsewhere
    await yard.network.set_policy(0, NetworkPolicy(deny_out=(everything,), allow_out=(WEB,), rules=rules))
    answer = await yard.ask("GET / HTTP/1.1\nHost: mirror.test\n\n", WEB, "mirror.test")
    assert answer.startswith("HTTP/1.1 502 ")
    assert "network policy" in answer
    with pytest.raises(ConnectionRefusedError):
        await yard.ask(GET, MIRROR)
    assert (await yard.ask(GET)).startswith("HTTP/1.1 200 ")
    # private addresses, by name and directly
    await yard.network.set_policy(0, NetworkPolicy(rules=rules))
    answer = await yard.ask("GET / HTTP/1.1\nHost: rebind.test\n\n", WEB, "rebind.test")
    assert answer.startswith("HTTP/1.1 502 ")
    for address in (LAN, HOST, str(yard.slot.gateway)):
        with pytest.raises(ConnectionRefusedError):
            await yard.ask(GET, address)
    assert yard.other.connections == 0
    # names that are allowed, and only they
    await yard.network.set_policy(0, NetworkPolicy(deny_out=(everything,), allow_out=("web.test",), rules=rules))
    await inside(yard.slot.netns_path, lambda: topologies.resolve(str(yard.slot.dns), "web.test"))
    assert (await yard.ask(GET)).startswith("HTTP/1.1 200 ")
    answer = await yard.ask("GET / HTTP/1.1\nHost: mirror.test\n\n", WEB, "mirror.test")
    assert answer.startswith("HTTP/1.1 502 ")
    assert yard.other.connections == 0


async def test_the_proxy_itself_is_out_of_reach(yard: Yard) -> None:
    await yard.network.set_policy(0, RULES)
    port = yard.network._uplink._proxy.port  # type: ignore[union-attr]
    for address in (str(yard.slot.gateway), HOST):
        assert await inside(yard.slot.netns_path, lambda to=address: dial(to, port)) == "ECONNREFUSED"
    # a sandbox without rules is not led there
    slot = await yard.network.acquire(1)
    assert await inside(slot.netns_path, lambda: dial(WEB)) == "ok"
    assert await inside(slot.netns_path, lambda: dial(str(slot.gateway), port)) == "ECONNREFUSED"


async def test_a_web_socket_passes(yard: Yard) -> None:
    await yard.network.set_policy(0, RULES)
    answer = await yard.ask("GET /ws HTTP/1.1\nHost: web.test\nConnection: Upgrade\nUpgrade: websocket\n\nframes")
    assert answer.startswith("HTTP/1.1 101 ")
    assert answer.endswith("FRAMES")
    assert b"Bearer planted-value" in yard.web.seen[0]


async def test_rules_change_while_a_sandbox_runs(yard: Yard) -> None:
    await yard.network.set_policy(0, RULES)
    assert "Bearer planted-value" in await yard.ask(GET)
    yard.filling.secrets = {"${secret}": "rotated"}
    assert "Bearer rotated" in await yard.ask(GET)
    await yard.network.set_policy(0, NetworkPolicy())
    answer = await yard.ask(GET, trust=yard.public)
    assert "rotated" not in answer
    assert "HTTP/1.1 200" in answer


async def test_rules_survive_the_engine(yard: Yard) -> None:
    await yard.network.set_policy(0, RULES)
    await yard.network.close()
    with pytest.raises(ConnectionRefusedError):
        await yard.ask(GET)
    settings = NetworkSettings(pool=1, resolv_conf=yard.topology.resolv_conf, egress_ca_file=yard.public)
    again = Network("test", yard.topology.state / "net", settings, yard.filling)
    await again.open([0])
    try:
        with pytest.raises(ConnectionError):
            await yard.ask(GET)  # shut, not open without its rules
        await again.set_policy(0, RULES)
        assert "Bearer planted-value" in await yard.ask(GET)
    finally:
        await again.close(remove=True)


async def test_nothing_keeps_the_network_of_a_sandbox_that_ended(yard: Yard) -> None:
    await yard.network.set_policy(0, RULES)
    before = yard.topology.cables()
    held = await inside(yard.slot.netns_path, lambda: [socket.create_connection((WEB, port)) for port in (80, 80)])
    held[0].send(b"something that is no request\n")
    await asyncio.sleep(0.3)
    for connection in held:
        connection.close()
    await yard.network.release(0)
    for _ in range(50):
        if len(before - yard.topology.cables()) == 1:
            return
        await asyncio.sleep(0.1)
    pytest.fail("the cable is still there")


async def test_connections_are_bounded(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "_OF_ONE", 3)
    await yard.network.set_policy(0, RULES)

    def work() -> list[str]:
        held, outcomes = [], []
        for _ in range(5):
            try:
                held.append(socket.create_connection((WEB, 80), timeout=5))
            except OSError:  # it may be cut before the last word of its beginning is here
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

    outcomes = await inside(yard.slot.netns_path, work)
    assert outcomes.count("ok") == 3


async def test_without_an_engine_that_fills_in_there_are_no_rules(network: Network) -> None:
    await network.acquire(0)
    with pytest.raises(UnsupportedError):
        await network.set_policy(0, RULES)


def test_hostile_greetings_take_no_time() -> None:
    """They are read in the engine's process: an expression that tries the same blanks in many ways would stop all of it."""
    began = time.process_time()
    for blanks in (b" \t" * 16000, b"\r" * 32000, b"\r\n" * 16000, b"a " * 16000):
        host_detection.parse_http(b"GET / HTTP/1.1\r\nHost:" + blanks + b"\x0b\r\r\n\r\n")
    assert time.process_time() - began < 1
    assert host_detection.parse_http(
        b"GET / HTTP/1.1\r\nhost: \tWeb.test.:80 \t\r\n\r\n"
    ) == host_detection.DetectedHost("web.test")
    assert host_detection.parse_http(
        b"GET / HTTP/1.1\r\nHost: " + b"a." * 1000 + b"test\r\n\r\n"
    ) == host_detection.DetectedHost(None)


def test_which_rule_counts() -> None:
    rules = tuple(HostRule(host, (("X", host),)) for host in ("a.b.test", "*.b.test", "*.x.b.test", "Upper.Test"))
    egress = parse_policy(NetworkPolicy(rules=rules))

    def found(name: str) -> str | None:
        rule = egress.find_rule(name)
        return rule and rule.host

    assert found("a.b.test") == "a.b.test"
    assert found("c.b.test") == "*.b.test"
    assert found("deep.c.b.test") == "*.b.test"
    assert found("y.x.b.test") == "*.x.b.test"
    assert found("b.test") is None
    assert found("upper.test") == "upper.test"
