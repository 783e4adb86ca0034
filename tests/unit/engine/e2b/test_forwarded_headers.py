"""Forwarded headers sent to a user's server, and servers that use TLS themselves."""

from __future__ import annotations

import asyncio
import json
import ssl
from pathlib import Path
from typing import Any

import pytest

from sandyard.engine.certificates.authority import Authority
from sandyard.engine.e2b.dataplane.forwarded_headers import find_tls_server_name, make_forwarded_headers
from sandyard.engine.e2b.dataplane.target import Target
from sandyard.engine.sandboxes.model import Network
from tests.unit.engine.e2b.support import (
    GatewayHarness,
    read_chunk,
    read_reply_head,
    read_request,
    reply,
    request,
    sandbox,
)
from tests.unit.engine.e2b.test_relay import Reader, Writer
from tests.unit.engine.e2b.test_tunnel import echo_uppercase, upgrade

TARGET = Target("iabc", 8000)


def get_forwarded_headers(
    *headers: tuple[str, str], client: str = "192.0.2.7", scheme: str = "http", **network: Any
) -> dict[str, str]:
    scope = {
        "headers": [(name.encode(), value.encode()) for name, value in headers],
        "client": (client, 1234),
        "scheme": scheme,
    }
    pairs = make_forwarded_headers(TARGET, sandbox(network=Network(config=network)), scope)
    return {name.decode(): value.decode() for name, value in pairs}


def test_host_scheme_and_address_are_forwarded() -> None:
    assert get_forwarded_headers(("host", "8000-iabc.example.com"), scheme="https") == {
        "host": "8000-iabc.example.com",
        "x-forwarded-host": "8000-iabc.example.com",
        "x-forwarded-proto": "https",
        "x-forwarded-for": "192.0.2.7",
    }


CLAIMED = (
    ("host", "8000-iabc.example.com"),
    ("x-forwarded-host", "yard.example.com"),
    ("x-forwarded-proto", "https"),
    ("x-forwarded-for", "198.51.100.1"),
)


def test_forwarded_headers_of_a_local_proxy_are_trusted() -> None:
    headers_sent = get_forwarded_headers(*CLAIMED, client="127.0.0.1")
    assert headers_sent["x-forwarded-host"] == "yard.example.com"
    assert headers_sent["x-forwarded-proto"] == "https"
    assert headers_sent["x-forwarded-for"] == "198.51.100.1, 127.0.0.1"


def test_forwarded_headers_of_remote_clients_are_ignored() -> None:
    headers_sent = get_forwarded_headers(*CLAIMED)
    assert headers_sent["x-forwarded-host"] == "8000-iabc.example.com"
    assert headers_sent["x-forwarded-proto"] == "http"
    assert headers_sent["x-forwarded-for"] == "192.0.2.7"


def test_a_masked_host_replaces_only_the_host_header() -> None:
    headers_sent = get_forwarded_headers(("host", "8000-iabc.example.com"), maskRequestHost="localhost:${PORT}")
    assert headers_sent["host"] == "localhost:8000"
    assert headers_sent["x-forwarded-host"] == "8000-iabc.example.com"


@pytest.mark.parametrize(
    ("host", "network", "name"),
    [
        ("8000-iabc.example.com:3443", {"httpsPorts": [8000]}, "8000-iabc.example.com"),
        ("8000-iabc.example.com", {"httpsPorts": [8001]}, None),
        ("8000-iabc.example.com", {}, None),
        ("x", {"httpsPorts": [8000], "maskRequestHost": "inside.test:${PORT}"}, "inside.test"),
        ("[::1]:80", {"httpsPorts": [8000]}, "localhost"),
        (".bad.", {"httpsPorts": [8000]}, "localhost"),
    ],
)
def test_the_tls_server_name_is_taken_from_the_host(host: str, network: dict[str, Any], name: str | None) -> None:
    scope = {"headers": [(b"host", host.encode())]}
    assert find_tls_server_name(TARGET, sandbox(network=Network(config=network)), scope) == name


class TestHttpsPorts:
    @pytest.fixture
    def untrusted_tls_context(self, tmp_path: Path) -> ssl.SSLContext:
        """The TLS context of a server whose certificate is not trusted."""
        return Authority.load(tmp_path).make_server_context(["somebody.else"])

    async def listen(self, harness: GatewayHarness, handler: Any, context: ssl.SSLContext | None) -> None:
        harness.sandboxes.records["iabc"] = sandbox(network=Network(config={"httpsPorts": [8000]}))
        await harness.sandboxes.listen(handler, 8000, tls=context)

    async def test_requests_and_bodies_are_relayed_over_tls(
        self, harness: GatewayHarness, untrusted_tls_context: ssl.SSLContext
    ) -> None:
        async def echo(reader: Reader, writer: Writer) -> None:
            line, headers, body = await read_request(reader)
            writer.write(reply(line.encode() + b" " + headers["x-forwarded-proto"].encode() + b" " + body))
            writer.close()

        await self.listen(harness, echo, untrusted_tls_context)
        status, _, body = await harness.send_request(request("POST", "/a?b", body=b"x" * 500_000, port=8000))
        assert status == 200
        assert body == b"POST /a?b HTTP/1.1 http " + b"x" * 500_000

    async def test_a_slow_reader_gets_the_whole_reply_of_a_server_that_has_disconnected(
        self, harness: GatewayHarness, untrusted_tls_context: ssl.SSLContext
    ) -> None:
        async def send_large_reply(reader: Reader, writer: Writer) -> None:
            await read_request(reader)
            writer.write(b"HTTP/1.0 200 OK\r\n\r\n" + b"x" * 9_000_000)  # ends with the connection
            await writer.drain()
            writer.close()

        await self.listen(harness, send_large_reply, untrusted_tls_context)
        reader, writer = await harness.connect()
        writer.write(request(port=8000))
        status, headers = await read_reply_head(reader)
        assert (status, headers["transfer-encoding"]) == (200, "chunked")
        size = 0
        while chunk := await read_chunk(reader):
            size += len(chunk)
            await asyncio.sleep(0.002)
        assert size == 9_000_000

    async def test_a_client_that_does_not_read_slows_down_the_server(
        self, harness: GatewayHarness, untrusted_tls_context: ssl.SSLContext
    ) -> None:
        sent = 0

        async def send_endless_reply(reader: Reader, writer: Writer) -> None:
            nonlocal sent
            await read_request(reader)
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            while sent < 1 << 30:
                writer.write(b"x" * 65536)
                await writer.drain()
                sent += 65536

        await self.listen(harness, send_endless_reply, untrusted_tls_context)
        _, writer = await harness.connect()
        writer.transport.pause_reading()
        writer.write(request(port=8000))
        before = -1
        while not sent or sent != before:
            before = sent
            await asyncio.sleep(0.3)
        assert sent < 64 << 20
        writer.transport.abort()

    async def test_upgraded_connections_are_relayed_over_tls(
        self, harness: GatewayHarness, untrusted_tls_context: ssl.SSLContext
    ) -> None:
        await self.listen(harness, echo_uppercase, untrusted_tls_context)
        reader, writer = await harness.connect()
        writer.write(upgrade())
        assert (await read_reply_head(reader))[0] == 101
        assert await reader.readexactly(7) == b"welcome"
        writer.write(b"a" * 300_000)
        assert await reader.readexactly(300_000) == b"A" * 300_000

    @pytest.mark.parametrize("raw_request", [request(port=8000), upgrade()])
    async def test_a_server_without_tls_is_reported(self, harness: GatewayHarness, raw_request: bytes) -> None:
        async def reply_without_tls(reader: Reader, writer: Writer) -> None:
            await reader.read(10)
            writer.write(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
            writer.close()

        await self.listen(harness, reply_without_tls, None)
        status, _, body = await harness.send_request(raw_request)
        assert status == 502
        assert "does not use TLS" in json.loads(body)["message"]

    async def test_a_closed_port_is_reported_as_closed(self, harness: GatewayHarness) -> None:
        harness.sandboxes.records["iabc"] = sandbox(network=Network(config={"httpsPorts": [8000]}))
        status, _, body = await harness.send_request(request(port=8000))
        assert status == 502
        assert "port is not open" in json.loads(body)["message"]
