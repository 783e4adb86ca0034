"""Accept connections and dispatch each request to its handler. All errors are turned into responses here."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from sandyard.engine.guest.engine_proof import PROOF_BYTES, ProofChecker
from sandyard.engine.guest.loop import Loop, report_error
from sandyard.engine.guest.sandbox import Sandbox
from sandyard.engine.guest.wire import connect, protojson
from sandyard.engine.guest.wire.connect import RpcError
from sandyard.engine.guest.wire.connection import Connection, PeerGoneError
from sandyard.engine.guest.wire.http1 import REASONS, BodyError, Exchange, HttpError, Request, read_request

HttpHandler = Callable[[Exchange], Awaitable[None]]
UnaryHandler = Callable[[Request, protojson.Message], Awaitable[protojson.Message | bytes]]  # bytes: already encoded
ServerStreamHandler = Callable[[Exchange, protojson.Message], Awaitable[None]]

_PROOF_TIMEOUT_S = 10.0
_BACKLOG = 1024  # on a unix socket, further clients are refused instead of queued

_PREFLIGHT = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Methods": "HEAD, GET, POST, PUT, PATCH, DELETE",
    "Access-Control-Max-Age": "7200",
}


class Server:
    """`http` maps (method, path) to handlers; the others map paths of the Connect protocol to calls of their kind."""

    def __init__(
        self,
        sandbox: Sandbox,
        *,
        http: Mapping[tuple[str, str], HttpHandler],
        unary: Mapping[str, UnaryHandler],
        server_streams: Mapping[str, ServerStreamHandler],
        client_streams: Mapping[str, HttpHandler],
    ) -> None:
        self._sandbox = sandbox
        self._http = http
        self._paths = {path for _, path in http}
        self._unary = unary
        self._server_streams = server_streams
        self._client_streams = client_streams
        secret = sandbox.config.engine_secret
        self._proofs = ProofChecker(secret) if secret is not None else None
        # Keeps running tasks alive, because asyncio refers to them only weakly.
        self._tasks: set[asyncio.Task[None]] = set()

    def listen(self, loop: Loop, sock: socket.socket) -> None:
        """Accept connections from now on."""
        sock.setblocking(False)
        sock.listen(_BACKLOG)
        loop.add_reader(sock.fileno(), partial(self._accept, loop, sock))

    def _accept(self, loop: Loop, sock: socket.socket) -> None:
        for _ in range(64):
            try:
                peer, address = sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    raise
                loop.remove_reader(sock.fileno())  # otherwise it would be called again at once
                loop.call_later(0.1, self.listen, loop, sock)
                return
            if peer.family == socket.AF_UNIX:
                serving = self.serve_connection(Connection(loop, peer))
            elif self._sandbox.config.engine_address in (None, address[0]):
                peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                serving = self._serve_tcp(Connection(loop, peer), address[1])
            else:
                peer.close()
                continue
            task = loop.create_task(serving)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve_tcp(self, conn: Connection, port: int) -> None:
        """Serve a connection from the source port `port` if the engine has opened it, otherwise close it."""
        if self._proofs is not None:
            try:
                while conn.buffered < PROOF_BYTES and await conn.fill(_PROOF_TIMEOUT_S):
                    pass
                accepted = self._proofs.accept(conn.take(PROOF_BYTES), port)
            except PeerGoneError:
                accepted = False
            if not accepted:
                conn.close()
                return
        await self.serve_connection(conn)

    async def serve_connection(self, conn: Connection) -> None:
        """Handle the requests of one connection, one after the other, until either side ends it."""
        try:
            while True:
                try:
                    request = await read_request(conn)
                except HttpError as error:
                    await _reject(conn, error)
                    return
                if request is None:
                    return
                exchange = Exchange(conn, request)
                await self._handle(exchange)
                await exchange.wait_until_confirmed()
                if not exchange.keep_alive or not await request.body.drain():
                    return
        except PeerGoneError:
            pass
        except Exception:  # a failing connection must not end the agent
            report_error()
        finally:
            conn.close()

    async def _handle(self, exchange: Exchange) -> None:
        request = exchange.request
        path = request.path
        if request.method == "OPTIONS":
            requested_headers = request.headers.get("access-control-request-headers", "*")
            await exchange.reply(204, headers={**_PREFLIGHT, "Access-Control-Allow-Headers": requested_headers})
        elif path in self._unary:
            await self._call(exchange, self._call_unary, stream=False)
        elif path in self._server_streams:
            await self._call(exchange, self._call_server_stream, stream=True)
        elif path in self._client_streams:
            await self._call(exchange, self._client_streams[path], stream=True)
        else:
            await self._serve_http(exchange)

    async def _serve_http(self, exchange: Exchange) -> None:
        request = exchange.request
        handler = self._http.get((request.method, request.path))
        try:
            if handler is None:
                if request.path in self._paths:
                    await exchange.reply(405)
                else:
                    await exchange.reply(404, b"404 page not found\n", {"Content-Type": "text/plain; charset=utf-8"})
                return
            await handler(exchange)
        except HttpError as error:
            await _reply_error(exchange, error.status, error.message)
        except BodyError as error:
            exchange.keep_alive = False
            await _reply_error(exchange, 400, str(error))
        except PeerGoneError:
            raise
        except Exception as error:  # the client must get a response
            report_error()
            await _reply_error(exchange, 500, f"internal error: {type(error).__name__}")

    async def _call(self, exchange: Exchange, call: HttpHandler, *, stream: bool) -> None:
        """Run a call of the Connect protocol, and send an error response if it raises."""
        if not await connect.check_method_and_type(exchange, connect.STREAM_TYPE if stream else connect.UNARY_TYPE):
            return
        failure: RpcError
        try:
            self._sandbox.check_named_user(exchange.request)
            await call(exchange)
        except RpcError as error:
            failure = error
        except protojson.FieldError as error:
            failure = RpcError("invalid_argument", str(error))
        except PeerGoneError:
            raise
        except Exception as error:  # the client must get a response
            report_error()
            failure = RpcError("internal", f"internal error: {type(error).__name__}")
        else:
            return
        await connect.reply_error(exchange, failure, stream=stream)

    async def _call_unary(self, exchange: Exchange) -> None:
        message = await connect.read_unary_message(exchange.request)
        result = await self._unary[exchange.request.path](exchange.request, message)
        body = result if isinstance(result, bytes) else protojson.render(result)
        await exchange.reply(200, body, {"Content-Type": "application/json"})

    async def _call_server_stream(self, exchange: Exchange) -> None:
        message = await connect.read_single_message(exchange.request)
        await self._server_streams[exchange.request.path](exchange, message)


async def _reply_error(exchange: Exchange, status: int, message: str) -> None:
    """Send envd's error body, or close the connection if a partial response was already sent."""
    if exchange.started:
        raise PeerGoneError
    await exchange.reply_json(status, {"code": status, "message": protojson.make_printable(message)})


async def _reject(conn: Connection, error: HttpError) -> None:
    """Send the error of a request that could not be parsed, so that there is no Exchange."""
    body = protojson.render({"code": error.status, "message": error.message})
    head = f"HTTP/1.1 {error.status} {REASONS[error.status]}\r\nContent-Type: application/json\r\nConnection: close\r\n"
    await conn.send(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
