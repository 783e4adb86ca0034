"""The agent's HTTP: what is malformed is refused, what is unfinished harms nobody, and connections are kept."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.engine.guest.client import Agent, Client, envelope

Dial = Callable[[], Client]


def test_health_and_keep_alive(client: Client) -> None:
    for _ in range(3):
        answer = client.request("GET", "/health")
        assert (answer.status, answer.body) == (204, b"")


def test_close_is_honoured(client: Client) -> None:
    assert client.request("GET", "/health", headers={"Connection": "close"}).headers["connection"] == "close"
    assert client.file.read() == b""


def test_pipelined_requests_are_answered_in_order(client: Client) -> None:
    client.sock.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\nGET /envs HTTP/1.1\r\nHost: x\r\n\r\n")
    assert client.answer().status == 204
    assert client.answer().json["E2B_SANDBOX"] == "true"


def test_a_request_may_arrive_byte_by_byte(client: Client) -> None:
    for byte in b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n":
        client.sock.sendall(bytes([byte]))
    assert client.answer().status == 204


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
def test_malformed_requests_are_refused_and_the_connection_is_closed(client: Client, raw: bytes, status: int) -> None:
    client.sock.sendall(raw)
    answer = client.answer()
    assert answer.status == status
    assert answer.json["code"] == status
    with contextlib.suppress(ConnectionResetError):  # with bytes of ours unread
        assert client.file.read() == b""


def test_unknown_paths_and_methods(client: Client) -> None:
    assert client.request("GET", "/nowhere").status == 404
    assert client.request("DELETE", "/health").status == 405
    assert client.request("GET", "/process.Process/List").status == 405
    assert client.request("POST", "/process.Process/Nothing", b"{}", {"Content-Type": "application/json"}).status == 404


@pytest.mark.parametrize("path", ["/process.Process/List", "/process.Process/Start"])
def test_only_json_is_spoken(client: Client, path: str) -> None:
    assert client.request("POST", path, b"\0", {"Content-Type": "application/proto"}).status == 415


@pytest.mark.parametrize("body", [b"{", b"[]", b"nonsense", b'{"path": 5}', b'{"path": {}}', b"[" * 100_000])
def test_malformed_json_is_an_invalid_argument(client: Client, body: bytes) -> None:
    answer = client.request("POST", "/filesystem.Filesystem/Stat", body, {"Content-Type": "application/json"})
    assert answer.status == 400
    assert answer.json["code"] == "invalid_argument"
    assert client.request("GET", "/health").status == 204


@pytest.mark.parametrize(
    "body", [b"", b"\0\0", envelope(b"{"), envelope({})[:-1], envelope({}, flags=1), b"\0\xff\xff\xff\xff"]
)
def test_malformed_streams_end_with_an_error(client: Client, body: bytes) -> None:
    answer = client.request("POST", "/process.Process/Start", body, {"Content-Type": "application/connect+json"})
    assert answer.status == 200
    assert answer.body[0] == 2
    assert json.loads(answer.body[5:])["error"]["code"] in ("invalid_argument", "unimplemented", "resource_exhausted")
    assert client.request("GET", "/health").status == 204


def test_a_client_may_vanish_at_any_point_of_a_request(agent: Agent, dial: Dial, home: Path) -> None:
    body = envelope({"process": {"cmd": "/bin/true"}})
    whole = (
        b"POST /process.Process/Start HTTP/1.1\r\nContent-Type: application/connect+json\r\nContent-Length: %d\r\n\r\n"
    )
    whole = whole % len(body) + body
    for cut in range(0, len(whole), 7):
        sock = agent.connect()
        sock.sendall(whole[:cut])
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
        assert time.monotonic() < deadline, "half a file is left"
        time.sleep(0.01)
    assert dial().request("GET", "/health").status == 204


def test_the_expectation_of_a_continue_is_met(client: Client, home: Path) -> None:
    headers = {"Content-Type": "application/octet-stream", "Content-Length": "5", "Expect": "100-continue"}
    client.send("POST", "/files?path=waited", headers=headers)
    assert client.file.readline() == b"HTTP/1.1 100 Continue\r\n"
    assert client.file.readline() == b"\r\n"
    client.sock.sendall(b"hello")
    assert client.answer().status == 200
    assert (home / "waited").read_bytes() == b"hello"


def test_browsers_may_ask(client: Client) -> None:
    headers = {"Origin": "http://a", "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x-y"}
    answer = client.request("OPTIONS", "/process.Process/Start", headers=headers)
    assert answer.status == 204
    assert answer.headers["access-control-allow-headers"] == "x-y"
    assert client.request("GET", "/envs", headers={"Origin": "http://a"}).headers["access-control-allow-origin"] == "*"


def test_an_error_comes_before_the_body_that_caused_it(client: Client, home: Path) -> None:
    """A client that is refused while it still sends gets its answer, and the connection goes on."""
    client.sock.setblocking(True)
    size = 20 << 20
    headers = {"Content-Type": "application/octet-stream", "Content-Length": str(size)}
    client.send("POST", "/files?path=x&username=nobody-here", headers=headers)
    assert client.answer().status == 401
    client.sock.sendall(bytes(size))
    assert client.request("GET", "/health").status == 204


def test_many_connections_at_once(agent: Agent) -> None:
    socks: list[socket.socket] = [agent.connect() for _ in range(200)]
    for sock in socks:
        sock.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    for sock in socks:
        assert sock.recv(100).startswith(b"HTTP/1.1 204")
        sock.close()
