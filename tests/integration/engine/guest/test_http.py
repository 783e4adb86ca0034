"""The guest agent's HTTP server: malformed requests are rejected, unfinished ones do no harm, and connections stay open."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.engine.guest.client import Client, GuestAgent, envelope

Dial = Callable[[], Client]


def test_one_connection_serves_several_requests(client: Client) -> None:
    for _ in range(3):
        response = client.request("GET", "/health")
        assert (response.status, response.body) == (204, b"")


def test_connection_close_is_honoured(client: Client) -> None:
    assert client.request("GET", "/health", headers={"Connection": "close"}).headers["connection"] == "close"
    assert client.file.read() == b""


def test_pipelined_requests_are_answered_in_order(client: Client) -> None:
    client.sock.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\nGET /envs HTTP/1.1\r\nHost: x\r\n\r\n")
    assert client.read_response().status == 204
    assert client.read_response().json["E2B_SANDBOX"] == "true"


def test_a_request_may_arrive_byte_by_byte(client: Client) -> None:
    for byte in b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n":
        client.sock.sendall(bytes([byte]))
    assert client.read_response().status == 204


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET nowhere HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\n\r\n", 505),
        (b"G@T / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nA: b\r\n folded\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nX: " + b"a" * 70_000 + b"\r\n\r\n", 431),
    ],
)
def test_malformed_requests_are_rejected_and_the_connection_is_closed(client: Client, raw: bytes, status: int) -> None:
    client.sock.sendall(raw)
    response = client.read_response()
    assert response.status == status
    assert response.json["code"] == status
    with contextlib.suppress(ConnectionResetError):  # when bytes that we sent are unread
        assert client.file.read() == b""


def test_unknown_paths_and_methods_are_rejected(client: Client) -> None:
    assert client.request("GET", "/nowhere").status == 404
    assert client.request("DELETE", "/health").status == 405
    assert client.request("GET", "/process.Process/List").status == 405
    assert client.request("POST", "/process.Process/Nothing", b"{}", {"Content-Type": "application/json"}).status == 404


@pytest.mark.parametrize("path", ["/process.Process/List", "/process.Process/Start"])
def test_content_types_other_than_json_are_rejected(client: Client, path: str) -> None:
    assert client.request("POST", path, b"\0", {"Content-Type": "application/proto"}).status == 415


@pytest.mark.parametrize("body", [b"{", b"[]", b"nonsense", b'{"path": 5}', b'{"path": {}}', b"[" * 100_000])
def test_malformed_json_is_an_invalid_argument(client: Client, body: bytes) -> None:
    response = client.request("POST", "/filesystem.Filesystem/Stat", body, {"Content-Type": "application/json"})
    assert response.status == 400
    assert response.json["code"] == "invalid_argument"
    assert client.request("GET", "/health").status == 204


@pytest.mark.parametrize(
    "body", [b"", b"\0\0", envelope(b"{"), envelope({})[:-1], envelope({}, flags=1), b"\0\xff\xff\xff\xff"]
)
def test_malformed_streams_end_with_an_error(client: Client, body: bytes) -> None:
    response = client.request("POST", "/process.Process/Start", body, {"Content-Type": "application/connect+json"})
    assert response.status == 200
    assert response.body[0] == 2
    assert json.loads(response.body[5:])["error"]["code"] in ("invalid_argument", "unimplemented", "resource_exhausted")
    assert client.request("GET", "/health").status == 204


def test_a_client_may_disconnect_at_any_point_of_a_request(agent: GuestAgent, dial: Dial, home: Path) -> None:
    body = envelope({"process": {"cmd": "/bin/true"}})
    whole = (
        b"POST /process.Process/Start HTTP/1.1\r\nContent-Type: application/connect+json\r\nContent-Length: %d\r\n\r\n"
    )
    whole = whole % len(body) + body
    for length in range(0, len(whole), 7):
        sock = agent.connect()
        sock.sendall(whole[:length])
        sock.close()
    upload = (
        b"POST /files?path=half HTTP/1.1\r\nContent-Type: application/octet-stream\r\nContent-Length: 1000\r\n\r\nabc"
    )
    sock = agent.connect()
    sock.sendall(upload)
    deadline = time.monotonic() + 10
    while not (home / "half").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    sock.close()
    while (home / "half").exists():
        assert time.monotonic() < deadline, "the partial file must be removed"
        time.sleep(0.01)
    assert dial().request("GET", "/health").status == 204


def test_expect_continue_is_answered(client: Client, home: Path) -> None:
    headers = {"Content-Type": "application/octet-stream", "Content-Length": "5", "Expect": "100-continue"}
    client.send("POST", "/files?path=waited", headers=headers)
    assert client.file.readline() == b"HTTP/1.1 100 Continue\r\n"
    assert client.file.readline() == b"\r\n"
    client.sock.sendall(b"hello")
    assert client.read_response().status == 200
    assert (home / "waited").read_bytes() == b"hello"


def test_cross_origin_requests_are_allowed(client: Client) -> None:
    headers = {"Origin": "http://a", "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x-y"}
    response = client.request("OPTIONS", "/process.Process/Start", headers=headers)
    assert response.status == 204
    assert response.headers["access-control-allow-headers"] == "x-y"
    assert client.request("GET", "/envs", headers={"Origin": "http://a"}).headers["access-control-allow-origin"] == "*"


def test_an_error_response_does_not_wait_for_the_request_body(client: Client, home: Path) -> None:
    """A client that is rejected while it still sends gets its response, and the connection stays usable."""
    client.sock.setblocking(True)
    size = 20 << 20
    headers = {"Content-Type": "application/octet-stream", "Content-Length": str(size)}
    client.send("POST", "/files?path=x&username=nobody-here", headers=headers)
    assert client.read_response().status == 401
    client.sock.sendall(bytes(size))
    assert client.request("GET", "/health").status == 204


def test_many_connections_are_served_at_once(agent: GuestAgent) -> None:
    socks: list[socket.socket] = [agent.connect() for _ in range(200)]
    for sock in socks:
        sock.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    for sock in socks:
        assert sock.recv(100).startswith(b"HTTP/1.1 204")
        sock.close()
