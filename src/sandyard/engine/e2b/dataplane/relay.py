"""One request into a sandbox and its reply, streamed both ways at the speed of the slower side.

Rules for every exchange
- Nothing is buffered: each chunk of a body is forwarded before the next one is read.
- If the client disconnects, the exchange in the sandbox ends. If the sandbox disconnects, the client's connection is
  closed: an incomplete reply never looks complete, and a closed connection makes SDKs check whether their sandbox is
  still alive. (E2B's own proxy ends streams with an `unavailable` error instead, which JavaScript clients up to 2.51
  treat as a timeout.)
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from sandyard.engine.e2b.dataplane.asgi import CLOSE, DELIVERY, Headers, Message, Receive, Scope, Send
from sandyard.engine.e2b.dataplane.reply import Head, UpstreamError
from sandyard.engine.e2b.dataplane.upstream import Upstream
from sandyard.kit.headers import HOP_BY_HOP

NOT_FORWARDED = HOP_BY_HOP | {b"expect"}  # the server itself sends "100 Continue"
FRAMING = frozenset((b"content-length", b"transfer-encoding"))
RECEIPTS = b"x-delivery-receipts"
"""Asks the agent to expect receipts for its reply, and in the reply confirms that it does: an agent of an earlier
engine does not."""
REPEATABLE = frozenset(("GET", "HEAD", "OPTIONS"))


class StaleConnectionError(UpstreamError):
    """A pooled connection was closed before the sandbox saw the request, so it can be retried on another one."""


class ClientGoneError(Exception):
    """The client disconnected."""


@dataclass(frozen=True, slots=True)
class Request:
    """The request sent into the sandbox. `chunked`: the length of its body is not known beforehand. `receipts`: the
    agent is offered receipts for its reply."""

    method: str
    head: bytes
    chunked: bool
    receipts: bool = False


def filter_end_to_end(headers: Headers) -> Headers:
    """Return the headers without those that concern only one connection."""
    kept = [pair for pair in headers if pair[0] not in NOT_FORWARDED]
    if len(kept) == len(headers):
        return kept
    listed = {
        token.strip().lower() for name, value in headers if name == b"connection" for token in value.split(b",")
    } - {b"close", b"keep-alive"}
    return [pair for pair in kept if pair[0] not in listed] if listed else kept


def build_request(
    scope: Scope, *, keep_alive: bool, drop: frozenset[bytes] = frozenset(), add: Headers | None = None
) -> Request:
    """Build the request for the sandbox: same method, target and body, with the end-to-end headers."""
    headers: Headers = scope["headers"]
    chunked = any(name == b"transfer-encoding" for name, _ in headers)
    target: bytes = scope["raw_path"] or b"/"
    if scope["query_string"]:
        target += b"?" + scope["query_string"]
    lines = [b"%b %b HTTP/1.1" % (scope["method"].encode(), target)]
    kept = [pair for pair in filter_end_to_end(headers) if pair[0] not in drop and pair[0] not in FRAMING]
    # Use the common capitalisation: some programs in sandboxes look for exactly "Host:".
    lines += [b"%b: %b" % (name.title(), value) for name, value in kept + (add or [])]
    # The body's framing follows how it was parsed, regardless of contradictory client headers: otherwise the agent
    # could treat a body as the next request.
    if chunked:
        lines.append(b"Transfer-Encoding: chunked")
    elif (length := next((value for name, value in headers if name == b"content-length"), None)) is not None:
        lines.append(b"Content-Length: " + length)
    lines.append(b"Connection: keep-alive\r\n\r\n" if keep_alive else b"Connection: close\r\n\r\n")
    offered = any(name == RECEIPTS for name, _ in add or ())
    return Request(scope["method"], b"\r\n".join(lines), chunked, offered)


def _encode_chunk(body: bytes, more: bool, chunked: bool) -> bytes:
    if not chunked:
        return body
    data = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
    return data if more else data + b"0\r\n\r\n"


class Exchange:
    """One request and its reply. Call `receive_first`, then `run`."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._first: Message = {}
        self._sent = False
        self._client_gone = False

    async def receive_first(self) -> None:
        """Receive the first chunk of the request's body, which is nearly always all of it. Raises ClientGoneError."""
        self._first = await self._receive()
        if self._first["type"] == "http.disconnect":
            raise ClientGoneError

    async def run(self, request: Request, upstream: Upstream) -> bool:
        """Run the exchange and return whether the connection can be reused. Raises ClientGoneError, and UpstreamError
        while nothing was sent to the client. May be run again on another connection after StaleConnectionError."""
        body, more = self._first.get("body", b""), self._first.get("more_body", False)
        upstream.begin(request.method, request.head + _encode_chunk(body, more, request.chunked))
        self._sent = not more
        forwarding = asyncio.ensure_future(self._forward_body(upstream, request.chunked))
        try:
            head = await upstream.read_head()
            self._first = {}  # a stream may last for hours, and its first chunk is already sent
            if not await self._forward_reply(head, upstream, receipts=request.receipts):
                await self._cut_connection(forwarding)
        except UpstreamError as error:
            if self._client_gone:
                raise ClientGoneError from error
            if upstream.silent and not more and request.method in REPEATABLE:
                raise StaleConnectionError from error
            raise
        finally:
            forwarding.cancel()
            usable = upstream.finish(sent=self._sent)
        return usable

    async def _forward_body(self, upstream: Upstream, chunked: bool) -> None:
        """Send the rest of the request's body, then watch whether the client is still connected."""
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self._client_gone = True
                upstream.abort("The client disconnected.")
                return
            body, more = message.get("body", b""), message.get("more_body", False)
            if self._sent:
                continue
            if data := _encode_chunk(body, more, chunked):
                upstream.write(data)
                await upstream.drain()
            self._sent = not more

    async def _forward_reply(self, head: Head, upstream: Upstream, *, receipts: bool) -> bool:
        """Forward the reply. Return False if it was interrupted and the client's connection has to be closed."""
        send = self._send
        headers = filter_end_to_end(head.headers)
        deliver = send
        if receipts and (RECEIPTS, b"1") in headers:
            headers.remove((RECEIPTS, b"1"))
            deliver = self._deliver_with_receipts(upstream)
        if head.status in (204, 304):  # may announce a length for a body that is not sent
            headers = [pair for pair in headers if pair[0] != b"content-length"]
        await send({"type": "http.response.start", "status": head.status, "headers": headers})
        more = True
        try:
            while more:
                chunk = await upstream.read_body()
                more = not upstream.complete
                await deliver({"type": "http.response.body", "body": chunk, "more_body": more})
        except UpstreamError:
            return self._client_gone
        finally:
            if deliver is not send:
                self._scope["extensions"][DELIVERY]["end"]()
        return True

    def _deliver_with_receipts(self, upstream: Upstream) -> Send:
        """Report to the agent after each chunk how much the client's connection has received. What a killed engine had
        not delivered is then sent again to the client that connects next."""
        extension = self._scope["extensions"][DELIVERY]
        extension["begin"]()
        upstream.write_through()
        total = 0

        async def deliver(message: Message) -> None:
            nonlocal total
            await self._send(message)
            if not message["body"]:
                return
            if not await extension["settled"]():
                # the agent waits for a receipt on this connection, so it cannot be reused
                upstream.abort("The client disconnected.")
                return
            total += len(message["body"])
            upstream.write(total.to_bytes(8))

        return deliver

    async def _cut_connection(self, forwarding: asyncio.Future[None]) -> None:
        """Close the client's connection in the middle of its reply. Data sent before still arrives."""
        extension = self._scope.get("extensions", {}).get(CLOSE)
        if extension is not None:
            extension["close"]()
            await asyncio.wait((forwarding,))
