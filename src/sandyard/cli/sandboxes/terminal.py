"""The client side of a shell's WebSocket: sends keys, receives output and reconnects after a drop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, Literal
from urllib.parse import urlencode

from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as connect_websocket
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, WebSocketException

from sandyard.cli.config import Login
from sandyard.cli.connection import quote_segment
from sandyard.cli.errors import ApiError, NoResponseError

FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS, GIVE_UP_SECONDS = 0.5, 5.0, 300.0
INTERRUPT = b"\x03"
CLEAR = b"\x1b[H\x1b[2J"
REPLAY_SECONDS = 0.5
FIRST_REFUSAL_CODE = 4400
"""From this close code on, the server sent a reason: the code is 4000 plus the HTTP status it would have returned."""
MAX_PENDING_INPUTS = 64 * 1024
"""How many inputs, usually one key each, are kept while there is no connection."""


class Terminal:
    """One shell. `run` returns its exit code. Until then `send_input` and `send_size` may be called at any time."""

    def __init__(
        self,
        login: Login,
        sandbox_id: str,
        terminal: str | None,
        *,
        write: Callable[[bytes], None],
        size: Callable[[], tuple[int, int]],
    ) -> None:
        self._login = login
        self._sandbox_id = sandbox_id
        self._id = terminal
        self._write = write
        self._size = size
        self._outbox: asyncio.Queue[str | bytes] = asyncio.Queue()
        self._connected = False
        self._given_up = asyncio.Event()
        self._exit_code: int | None = None
        self._replay_deadline: float | None = None

    def send_input(self, data: bytes) -> None:
        """Send typed input, or keep it until there is a connection. Ctrl-C without a connection gives up."""
        if not self._connected and INTERRUPT in data:
            self._given_up.set()
        elif self._connected or self._outbox.qsize() < MAX_PENDING_INPUTS:
            self._outbox.put_nowait(data)

    def send_size(self) -> None:
        columns, rows = self._size()
        self._outbox.put_nowait(json.dumps({"type": "resize", "cols": columns, "rows": rows}))

    async def run(self) -> int:
        """Run until the shell ends. Raises NoResponseError if the server stays unreachable and ApiError if it refuses."""
        pause, lost_at = FIRST_PAUSE_SECONDS, None
        loop = asyncio.get_running_loop()
        while True:
            try:
                async with self._open() as socket:
                    self._connected, pause, lost_at = True, FIRST_PAUSE_SECONDS, None
                    await self._exchange(socket)
                reason = "the connection was closed"
            except InvalidStatus as error:
                refusal = _to_api_error(error)
                if self._id is None or not refusal.is_transient:
                    raise refusal from None
                reason = refusal.message
            except ConnectionClosed as error:
                if error.rcvd is not None and FIRST_REFUSAL_CODE <= error.rcvd.code < FIRST_REFUSAL_CODE + 200:
                    raise ApiError(
                        error.rcvd.reason or "The server refused the connection.", error.rcvd.code - 4000
                    ) from None
                reason = str(error)
            except (OSError, TimeoutError, WebSocketException, InvalidHandshake) as error:
                reason = str(error) or type(error).__name__
            self._connected = False
            if self._exit_code is not None:
                return self._exit_code
            if self._id is None:
                raise NoResponseError(f"Could not open a shell: {reason.rstrip('.')}.")
            lost_at = lost_at or loop.time()
            if self._given_up.is_set() or loop.time() - lost_at > GIVE_UP_SECONDS:
                raise NoResponseError(
                    f"The connection was lost. The shell is still running: reconnect with --terminal {self._id}."
                )
            self._write(b"\r\n[connection lost, reconnecting; press Ctrl-C to give up]\r\n")
            try:
                async with asyncio.timeout(pause):
                    await self._given_up.wait()
            except TimeoutError:
                pause = min(MAX_PAUSE_SECONDS, pause * 2)

    def _open(self) -> connect_websocket:
        columns, rows = self._size()
        query: dict[str, Any] = {"cols": columns, "rows": rows} | ({"terminal": self._id} if self._id else {})
        base = "ws" + self._login.url.removeprefix("http")
        address = f"{base}/api/v1/sandboxes/{quote_segment(self._sandbox_id)}/terminal?{urlencode(query)}"
        token = self._login.token
        headers = {"Authorization": f"Bearer {token.reveal()}"} if token else {}
        proxy: Literal[True] | None = None if self._login.is_local else True
        return connect_websocket(address, additional_headers=headers, proxy=proxy, max_size=None, open_timeout=30)

    async def _exchange(self, socket: ClientConnection) -> None:
        sender = asyncio.create_task(self._send(socket))
        try:
            async for message in socket:
                if isinstance(message, bytes):
                    self._show(message)
                else:
                    self._handle_message(json.loads(message))
                if self._exit_code is not None:
                    return
        finally:
            sender.cancel()

    def _handle_message(self, message: Any) -> None:
        match message.get("type"):
            case "opened":
                reconnected, self._id = self._id is not None, message["terminal"]
                self._replay_deadline = asyncio.get_running_loop().time() + REPLAY_SECONDS if reconnected else None
            case "closed" if message.get("ended"):
                self._exit_code = message.get("exitCode") or 0

    def _show(self, data: bytes) -> None:
        """Write output. After a reconnect, the first data is the shell's whole saved output, which replaces what is on the screen."""
        if self._replay_deadline is not None:
            if asyncio.get_running_loop().time() < self._replay_deadline:
                self._write(CLEAR)
            self._replay_deadline = None
        self._write(data)

    async def _send(self, socket: ClientConnection) -> None:
        while True:
            message = await self._outbox.get()
            try:
                await socket.send(message)
            except ConnectionClosed:
                if isinstance(message, bytes):
                    self._outbox.put_nowait(message)
                return


def _to_api_error(error: InvalidStatus) -> ApiError:
    status = error.response.status_code
    try:
        detail = json.loads(error.response.body or b"{}").get("detail")
    except (ValueError, AttributeError):
        detail = None
    return ApiError(detail or f"The server refused the terminal with status {status}.", status)
