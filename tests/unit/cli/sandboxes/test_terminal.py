"""The WebSocket of a shell: dropped connections, rejections and the end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from http import HTTPStatus

import pytest
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.http11 import Request, Response

from sandyard.cli.config import Login
from sandyard.cli.errors import ApiError, NoResponseError
from sandyard.cli.sandboxes import terminal as terminal_module
from sandyard.cli.sandboxes.terminal import CLEAR, Terminal
from sandyard.kit.secret import Secret

Handler = Callable[[ServerConnection], Awaitable[None]]


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal_module, "FIRST_PAUSE_SECONDS", 0.01)


def open_shell(server: Server, shown: list[bytes], terminal: str | None = None) -> Terminal:
    port = next(iter(server.sockets)).getsockname()[1]
    login = Login(f"http://127.0.0.1:{port}", Secret("sy_test"))
    return Terminal(login, "sbx_1", terminal, write=shown.append, size=lambda: (100, 30))


def control(**message: object) -> str:
    return json.dumps(message)


async def test_input_and_output_are_passed_until_the_shell_ends() -> None:
    paths: list[str] = []

    async def handle(socket: ServerConnection) -> None:
        assert socket.request is not None
        paths.append(socket.request.path)
        assert socket.request.headers["Authorization"] == "Bearer sy_test"
        await socket.send(control(type="opened", terminal="trm_1"))
        assert await socket.recv() == b"ls\r"
        assert json.loads(await socket.recv()) == {"type": "resize", "cols": 100, "rows": 30}
        await socket.send(b"file\r\n")
        await socket.send(control(type="closed", ended=True))

    async with serve(handle, "127.0.0.1", 0) as server:
        shown: list[bytes] = []
        shell = open_shell(server, shown)
        shell.send_input(b"ls\r")
        shell.send_size()
        async with asyncio.timeout(20):
            assert await shell.run() == 0
    assert shown == [b"file\r\n"]
    assert paths == ["/api/v1/sandboxes/sbx_1/terminal?cols=100&rows=30"]


async def test_a_dropped_connection_is_reopened_and_the_screen_is_restored_once() -> None:
    paths: list[str] = []

    async def handle(socket: ServerConnection) -> None:
        assert socket.request is not None
        paths.append(socket.request.path)
        await socket.send(control(type="opened", terminal="trm_1"))
        if len(paths) == 1:
            await socket.send(b"before")
            socket.transport.abort()
            return
        await socket.send(b"before and after")
        await socket.send(control(type="closed", ended=len(paths) == 3))

    async with serve(handle, "127.0.0.1", 0) as server:
        shown: list[bytes] = []
        async with asyncio.timeout(20):
            assert await open_shell(server, shown).run() == 0
    assert [path.partition("&terminal=")[2] for path in paths] == ["", "trm_1", "trm_1"]
    text = b"".join(shown)
    assert text.startswith(b"before\r\n[connection lost, reconnecting")
    assert text.endswith(CLEAR + b"before and after")


async def test_ctrl_c_stops_reconnecting() -> None:
    async def handle(socket: ServerConnection) -> None:
        await socket.send(control(type="opened", terminal="trm_1"))

    async with serve(handle, "127.0.0.1", 0) as server:
        shown: list[bytes] = []
        shell = open_shell(server, shown)
        running = asyncio.create_task(shell.run())
        async with asyncio.timeout(20):
            while not any(b"connection lost" in piece for piece in shown):
                await asyncio.sleep(0.01)
            server.close()
            while not running.done():
                shell.send_input(b"\x03")
                await asyncio.sleep(0.01)
    with pytest.raises(NoResponseError, match="--terminal trm_1"):
        await running


@pytest.mark.parametrize(("status", "exit_code"), [(401, 4), (404, 3), (410, 3), (503, 5)])
async def test_a_rejected_connection_raises_its_message(status: int, exit_code: int) -> None:
    def refuse(socket: ServerConnection, request: Request) -> Response:
        return socket.respond(HTTPStatus(status), json.dumps({"detail": "That is not possible."}))

    async def handle(socket: ServerConnection) -> None:
        raise AssertionError

    async with serve(handle, "127.0.0.1", 0, process_request=refuse) as server:
        with pytest.raises(ApiError, match="not possible") as raised:
            await open_shell(server, []).run()
    assert raised.value.exit_code == exit_code


async def test_a_destroyed_sandbox_ends_the_shell() -> None:
    async def handle(socket: ServerConnection) -> None:
        await socket.send(control(type="opened", terminal="trm_1"))
        await socket.close(4410, "The sandbox was destroyed.")

    async with serve(handle, "127.0.0.1", 0) as server:
        with pytest.raises(ApiError, match="destroyed") as raised:
            await open_shell(server, []).run()
    assert raised.value.exit_code == 3


async def test_an_unreachable_server_is_reported() -> None:
    login = Login("http://127.0.0.1:1", None)
    with pytest.raises(NoResponseError):
        await Terminal(login, "sbx_1", None, write=print, size=lambda: (80, 24)).run()
