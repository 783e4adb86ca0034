"""A connection for a rule's host: request by request, streamed both ways, over one connection to the real host.

The two belong together: if either side ends, the other is closed. An incomplete reply never looks complete.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus

import h11

from sandyard.engine.contract import HostRule, Outbound
from sandyard.engine.drivers.machine.net.proxy import rewriter
from sandyard.engine.drivers.machine.net.proxy.dialler import RefusedError
from sandyard.kit.pacing import take_turn

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

_MAX_HEAD_BYTES = 64 << 10
_READ_BYTES = 64 << 10
_FIRST_REQUEST_TIMEOUT_S, _NEXT_REQUEST_TIMEOUT_S = 30.0, 120.0  # for the first request's head, and between requests
_REJECTION_TIMEOUT_S = 2.0
_CLOSE_TIMEOUT_S = 10.0
_WRITE_TIMEOUT_S = 120.0  # after which a peer that accepts no data is disconnected
_MAX_AHEAD_BYTES = 64 << 10  # bytes a client may send beyond the current request


class PeerClosedError(Exception):
    """A peer closed the connection unexpectedly."""


@dataclass(slots=True)
class _Side:
    """One of the two connections: its bytes and their parser."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    http: h11.Connection

    async def read_event(self) -> object:
        """Return the next event; `h11.PAUSED` if nothing more is expected now. Raises PeerClosedError if the peer violates the
        protocol."""
        while True:
            try:
                event = self.http.next_event()
            except h11.RemoteProtocolError as error:
                raise PeerClosedError(str(error)) from error
            if event is not h11.NEED_DATA:
                await take_turn()  # one read may contain ten thousand events
                return event
            self.http.receive_data(await self.reader.read(_READ_BYTES))

    async def send(self, event: h11.Event) -> None:
        data = self.http.send(event)
        if data:
            self.writer.write(data)
            async with asyncio.timeout(_WRITE_TIMEOUT_S):
                await self.writer.drain()


class ProxiedConnection:
    """Serves one connection. `get_rule` returns the current rule, or None if the host no longer has one. `dial` returns
    the connection to the host; raises RefusedError."""

    def __init__(
        self,
        client: Streams,
        host: str,
        *,
        secure: bool,
        get_rule: Callable[[], HostRule | None],
        outbound: Outbound,
        dial: Callable[[], Awaitable[Streams]],
    ) -> None:
        self._client = _Side(*client, h11.Connection(h11.SERVER, max_incomplete_event_size=_MAX_HEAD_BYTES))
        self._host = host
        self._secure = secure
        self._get_rule = get_rule
        self._outbound = outbound
        self._dial = dial
        self._server: _Side | None = None

    async def run(self) -> None:
        """Serve until the connection ends. Errors are reported to the client if that is still possible."""
        try:
            timeout_s = _FIRST_REQUEST_TIMEOUT_S
            while await self._handle_request(timeout_s):
                timeout_s = _NEXT_REQUEST_TIMEOUT_S
        except RefusedError as refused:
            await self._send_error(refused.status, refused.message)
        except (PeerClosedError, h11.LocalProtocolError, OSError):  # includes TimeoutError
            await self._send_error(502, f"{self._host} sent an invalid response or closed the connection.")
        finally:
            if self._server is not None:
                self._server.writer.transport.abort()
            await self._close()

    async def _handle_request(self, timeout_s: float) -> bool:
        """Handle one request and its response. Return whether there may be another."""
        request = await self._read_request(timeout_s)
        if request is None:
            return False
        rule = self._get_rule()
        if rule is None:
            return False
        head = await rewriter.rewrite_request(request, self._host, rule, self._outbound, secure=self._secure)
        if self._server is None:
            self._server = _Side(
                *await self._dial(), h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_HEAD_BYTES)
            )
        await self._server.send(head)
        if await self._relay(self._server):
            await self._forward_raw(self._server)
            return False
        for side in (self._client, self._server):
            if side.http.our_state is not h11.DONE or side.http.their_state is not h11.DONE:
                return False
            side.http.start_next_cycle()
        return True

    async def _read_request(self, timeout_s: float) -> h11.Request | None:
        """Return the next request, or None if the client or the server has ended, or the client is silent for too
        long."""
        reading = asyncio.ensure_future(self._client.read_event())
        watched: set[asyncio.Future[object]] = {reading}
        if self._server is not None:  # detects its end or unexpected data
            watched.add(asyncio.ensure_future(self._server.reader.read(1)))
        try:
            done, _ = await asyncio.wait(watched, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if done != {reading}:
                return None
            event = reading.result()
        except PeerClosedError as error:
            raise RefusedError(400, f"The request cannot be forwarded: {error}.") from error
        finally:
            for task in watched:
                task.cancel()
            await asyncio.gather(*watched, return_exceptions=True)
        return event if isinstance(event, h11.Request) else None

    async def _relay(self, server: _Side) -> bool:
        """Forward the body and the response. Return whether both sides switch to another protocol."""
        sending = asyncio.ensure_future(self._send_body(server))
        forwarding = asyncio.ensure_future(self._forward_response(server))
        try:
            await asyncio.wait({sending, forwarding}, return_when=asyncio.FIRST_COMPLETED)
            if not forwarding.done() and isinstance(sending.exception(), OSError):
                # a server that rejects the body may have sent the reason
                await asyncio.wait({forwarding}, timeout=_REJECTION_TIMEOUT_S)
            if not forwarding.done():
                sending.result()
            return await forwarding
        finally:
            for task in (sending, forwarding):
                task.cancel()
            await asyncio.gather(sending, forwarding, return_exceptions=True)

    async def _send_body(self, server: _Side) -> None:
        client = self._client
        while True:
            if client.http.they_are_waiting_for_100_continue:
                await client.send(h11.InformationalResponse(status_code=100, headers=[]))
            event = await client.read_event()
            if not isinstance(event, h11.Data):
                break
            await server.send(event)
        if not isinstance(event, h11.EndOfMessage):
            raise PeerClosedError("the client has gone")
        await server.send(h11.EndOfMessage())
        ahead = 0
        while ahead < _MAX_AHEAD_BYTES:  # further data is the next request; only the end of the connection matters here
            data = await client.reader.read(_READ_BYTES)
            if not data:
                raise PeerClosedError("the client has gone")
            client.http.receive_data(data)
            ahead += len(data)
        await asyncio.Event().wait()

    async def _forward_response(self, server: _Side) -> bool:
        while True:
            event = await server.read_event()
            if isinstance(event, h11.InformationalResponse):
                if event.status_code != 100:  # the client already got it from us
                    headers = rewriter.rewrite_response_headers(event)
                    await self._client.send(h11.InformationalResponse(status_code=event.status_code, headers=headers))
                if event.status_code == 101:
                    return True
            elif isinstance(event, h11.Response):
                headers = rewriter.rewrite_response_headers(event)
                if rewriter.ends_connection(event):
                    headers.append((b"Connection", b"close"))
                await self._client.send(
                    h11.Response(status_code=event.status_code, headers=headers, reason=event.reason)
                )
            elif isinstance(event, h11.Data):
                await self._client.send(event)
            elif isinstance(event, h11.EndOfMessage):
                await self._client.send(h11.EndOfMessage())
                return False
            else:
                raise PeerClosedError("the server has gone")

    async def _forward_raw(self, server: _Side) -> None:
        """Forward bytes unparsed until either side ends, after a protocol switch."""
        tasks = [
            asyncio.ensure_future(_copy_stream(side.http.trailing_data[0], side.reader, other.writer))
            for side, other in ((self._client, server), (server, self._client))
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _send_error(self, status: int, message: str) -> None:
        """Send an error if no response has begun."""
        http = self._client.http
        if http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        body = json.dumps({"code": status, "message": message}).encode()
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body))), ("Connection", "close")]
        with contextlib.suppress(OSError, h11.LocalProtocolError):
            await self._client.send(
                h11.Response(status_code=status, headers=headers, reason=HTTPStatus(status).phrase.encode())
            )
            await self._client.send(h11.Data(data=body))
            await self._client.send(h11.EndOfMessage())

    async def _close(self) -> None:
        writer = self._client.writer
        if self._client.http.our_state is h11.SEND_BODY:  # an incomplete response must not look complete
            writer.transport.abort()
            return
        writer.close()
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await writer.wait_closed()
        except (OSError, asyncio.CancelledError):
            writer.transport.abort()
            raise


async def _copy_stream(first: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    data = first or await reader.read(_READ_BYTES)
    while data:
        writer.write(data)
        async with asyncio.timeout(_WRITE_TIMEOUT_S):
            await writer.drain()
        data = await reader.read(_READ_BYTES)
