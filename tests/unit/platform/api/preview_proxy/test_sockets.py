"""WebSockets of previews through the platform's own server, with a test server in place of a sandbox."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Subprotocol

from sandyard.platform.domain.previews.service import Previews
from tests.harness.websocket_frames import PING, TEXT, frame, serving
from tests.unit.platform.api.preview_proxy.preview_harness import PreviewHarness, create_preview_harness
from tests.unit.turns import count_parts


@contextlib.asynccontextmanager
async def serve_previews(folder: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    async with (
        create_preview_harness(folder, monkeypatch) as harness,
        harness.browser() as web,
        serving(harness.app) as port,
        asyncio.timeout(20),
    ):
        headers = {
            "Cookie": web.headers["Cookie"],
            "Origin": harness.url("").replace(".localhost", ".localhost:8700"),
        }
        yield harness, port, headers


def open_websocket(harness: PreviewHarness, port: int, headers: dict[str, str], **options: object) -> connect:
    host = urlsplit(harness.url()).netloc
    return connect(f"ws://{host}/x?y", host="127.0.0.1", port=port, additional_headers=headers, proxy=None, **options)  # type: ignore[arg-type]


async def test_forwards_messages_and_close_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def echo(socket: ServerConnection) -> None:
        assert socket.request is not None
        asked.update(socket.request.headers.raw_items())
        async for message in socket:
            if message == "close":
                await socket.close(4321, "as you wish")
                return
            await socket.send(message)

    asked: dict[str, str] = {}
    async with (
        serve_previews(tmp_path, monkeypatch) as (harness, port, headers),
        serve(
            echo,
            "127.0.0.1",
            0,
            subprotocols=[Subprotocol("chat")],
            max_size=None,
        ) as server,
    ):
        harness.server.port = server.sockets[0].getsockname()[1]
        async with open_websocket(harness, port, headers, subprotocols=["one", "chat"], max_size=None) as client:
            assert client.subprotocol == "chat"
            assert client.protocol.extensions, "browser and server negotiate compression"
            for message in ("hello", "", b"\x00\xff", b"x" * 300_000):
                await client.send(message)
                assert await client.recv() == message
            await client.send("close")
            with pytest.raises(ConnectionClosed):
                await client.recv()
            assert (client.close_code, client.close_reason) == (4321, "as you wish")
    assert asked["e2b-sandbox-id"] == "i1"
    assert "sandyard" not in str(asked).lower(), "the platform's cookie is not forwarded"


async def test_forwards_many_frames_unparsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flood = frame(TEXT, masked=False) * 50_000 + frame(PING, masked=False) * 50_000 + frame(TEXT, b"end", masked=False)

    async def server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n" + flood)
        heard.append(await reader.readexactly(len(sent)))
        writer.close()

    heard: list[bytes] = []
    sent = frame(TEXT) * 50_000 + frame(PING) * 50_000
    async with serve_previews(tmp_path, monkeypatch) as (harness, port, headers):
        listener = await asyncio.start_server(server, "127.0.0.1", 0)
        harness.server.port = listener.sockets[0].getsockname()[1]
        turns = count_parts(monkeypatch)
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
        asked = {"Host": urlsplit(harness.url()).netloc, "Connection": "Upgrade", "Upgrade": "websocket", **headers}
        asked |= {"Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA=="}
        writer.write(
            b"GET / HTTP/1.1\r\n" + b"".join(f"{name}: {value}\r\n".encode() for name, value in asked.items()) + b"\r\n"
        )
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
        assert await reader.readexactly(len(flood)) == flood
        writer.write(sent)
        assert await reader.read() == b"", "closing the server's end closes the browser's"
        listener.close()
    assert heard == [sent]
    assert sum(turns) < 100, "only the request's headers were parsed"


async def test_pongs_do_not_count_as_activity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touched: list[int] = []
    done = asyncio.Event()

    async def server(socket: ServerConnection) -> None:
        await (await socket.ping())
        touched.append(-1)
        await socket.recv()
        done.set()

    monkeypatch.setattr(Previews, "touch", lambda *_: touched.append(1))
    async with (
        serve_previews(tmp_path, monkeypatch) as (harness, port, headers),
        serve(server, "127.0.0.1", 0) as listening,
    ):
        harness.server.port = listening.sockets[0].getsockname()[1]
        async with open_websocket(harness, port, headers) as client:
            await client.pong(b"")
            while not touched:
                await asyncio.sleep(0.005)
            await client.send("typed")
            await done.wait()
    assert touched == [-1, 1]


async def test_server_refuses_upgrade(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serve_previews(tmp_path, monkeypatch) as (harness, port, headers):
        for reply, status in (
            (b"HTTP/1.1 418 I'm a teapot\r\nContent-Length: 3\r\n\r\nno!", 418),
            (b"HTTP/1.1 426 Upgrade Required\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nno!\r\n0\r\n\r\n", 426),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 9000000\r\n\r\n" + b"x" * 9_000_000, 502),
            (b"nonsense", 502),
            (b"", 502),
        ):
            harness.server.reply = reply
            with pytest.raises(InvalidStatus) as refused:
                await open_websocket(harness, port, headers)
            assert refused.value.response.status_code == status
            assert status == 502 or refused.value.response.body == b"no!"
        harness.server.port = 1
        with pytest.raises(InvalidStatus) as refused:
            await open_websocket(harness, port, headers)
        assert refused.value.response.status_code == 503
