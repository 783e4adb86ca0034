"""Connections and requests of the guest agent, without its process."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct

import pytest

from sandyard.engine.guest import loop as loop_module
from sandyard.engine.guest.config import GuestConfig
from sandyard.engine.guest.endpoints import AgentEndpoints
from sandyard.engine.guest.loop import Loop, report_error
from sandyard.engine.guest.sandbox import Sandbox
from sandyard.engine.guest.server import Server
from sandyard.engine.guest.wire import connect, protojson
from sandyard.engine.guest.wire.connection import Connection


def make_server(sandbox: Sandbox, loop: Loop) -> Server:
    async def refuse(*_args: object) -> None:
        raise AssertionError("the request should not have reached its handler")

    relay = AgentEndpoints(loop, sandbox).relay
    return Server(
        sandbox,
        http={("GET", "/relay"): relay},
        unary={},
        server_streams={"/stream": refuse},
        client_streams={},
    )


def test_a_relay_whose_port_is_reset_releases_its_descriptors() -> None:
    loop = Loop()
    server = make_server(Sandbox(GuestConfig(root="/usr/..")), loop)
    ours, theirs = socket.socketpair()
    number = ours.fileno()
    listener = socket.create_server(("127.0.0.1", 0))

    async def main() -> None:
        serving = loop.create_task(server.serve_connection(Connection(loop, ours)))
        theirs.sendall(b"GET /relay?port=%d HTTP/1.1\r\nHost: x\r\n\r\n" % listener.getsockname()[1])
        client = Connection(loop, theirs)
        async with asyncio.timeout(10):
            assert await client.take_until(b"\r\n\r\n", 1000, 10)
            accepted, _ = listener.accept()
            # Closing it now resets the connection.
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            accepted.close()
            await serving
        client.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        # The next connection with the same descriptor must be readable.
        near, far = socket.socketpair()
        if far.fileno() == number:
            near, far = far, near
        elif near.fileno() != number:
            os.dup2(near.fileno(), number)
            near.close()
            near = socket.socket(fileno=number)
        following = Connection(loop, near)
        loop.call_later(0.01, far.send, b"hello")
        assert await following.fill(2)
        following.close()
        far.close()

    loop.run(main())
    loop.close()
    listener.close()


def send(request: bytes) -> bytes:
    """Return the server's response to one request."""
    loop = Loop()
    server = make_server(Sandbox(GuestConfig(root="/usr/..")), loop)
    ours, theirs = socket.socketpair()
    theirs.sendall(request)
    theirs.shutdown(socket.SHUT_WR)
    loop.run(server.serve_connection(Connection(loop, ours)))
    loop.close()
    with theirs:
        return theirs.recv(1 << 16)


def test_a_message_that_is_too_long_is_refused_with_its_reason() -> None:
    head = (
        f"POST /stream HTTP/1.1\r\nContent-Type: {connect.STREAM_TYPE}\r\nContent-Length: {connect.MESSAGE_LIMIT + 1}"
    )
    response = send(f"{head}\r\n\r\n".encode())
    assert b"resource_exhausted" in response


def test_an_invalid_request_is_refused_with_the_reason_of_its_status() -> None:
    assert send(b"GET / HTTP/3\r\n\r\n").startswith(b"HTTP/1.1 505 HTTP Version Not Supported\r\n")


def test_an_error_message_with_a_lone_surrogate_is_sent() -> None:
    rendered = connect.RpcError("not_found", "tag \ud800 and byte \udcff").render()
    assert rendered["message"] == "tag \ufffd and byte \ufffd"
    assert json.loads(protojson.render(rendered)) == rendered


@pytest.mark.parametrize("message", ["\u00fc" * 5000, ""])
def test_reports_are_no_longer_than_a_pipe_accepts_at_once(monkeypatch: pytest.MonkeyPatch, message: str) -> None:
    reading, writing = os.pipe()
    monkeypatch.setattr(loop_module, "_LOG_FD", writing)
    names: dict[str, int] = {}
    try:
        names["\u00fc" * 5000]
    except KeyError:
        report_error(message)
    assert 0 < len(os.read(reading, 1 << 16)) <= 4096
    os.close(reading)
    os.close(writing)
