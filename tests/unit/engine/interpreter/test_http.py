"""The interpreter's HTTP server, over real sockets with test handlers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sandyard.engine.interpreter import http
from sandyard.engine.interpreter.http import BadRequestError, JsonLines, Request, Response


@asynccontextmanager
async def serving(handler: http.Handler) -> AsyncIterator[int]:
    server = await asyncio.start_server(
        lambda r, w: http.handle_connection(r, w, handler), "127.0.0.1", 0, limit=http.MAX_HEAD
    )
    async with server:
        yield server.sockets[0].getsockname()[1]


async def send_request(port: int, request: bytes) -> tuple[int, str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    response = (await reader.read()).decode()
    writer.close()
    head, _, body = response.partition("\r\n\r\n")
    return int(head.split(" ")[1]), body


async def test_request_bodies_are_parsed_and_malformed_requests_rejected() -> None:
    async def handle(request: Request) -> Response:
        return Response(200, [request.method, request.path, request.parse_json()])

    async with serving(handle) as port:
        plain = b'POST /a?b=c HTTP/1.1\r\nContent-Length: 7\r\n\r\n{"x":1}'
        assert await send_request(port, plain) == (200, '["POST","/a",{"x":1}]')
        chunked = b'POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{"x\r\n4\r\n":1}\r\n0\r\n\r\n'
        assert await send_request(port, chunked) == (200, '["POST","/a",{"x":1}]')
        assert await send_request(port, b"GET /a HTTP/1.1\r\n\r\n") == (200, '["GET","/a",{}]')
        assert (await send_request(port, b"POST /a HTTP/1.1\r\nContent-Length: 1\r\n\r\n{"))[0] == 400
        assert (await send_request(port, b"POST /a HTTP/1.1\r\nContent-Length: 1\r\n\r\n1"))[0] == 400
        assert (await send_request(port, b"POST /a HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n"))[0] == 413
        assert (await send_request(port, b"POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"))[0] == 400
        assert (await send_request(port, b"nonsense\r\n\r\n"))[0] == 400


async def test_lines_are_streamed_and_an_early_failure_sets_the_status() -> None:
    async def lines(fail: bool) -> JsonLines:
        if fail:
            raise BadRequestError("no", 500)
        yield {"a": "ü"}
        yield {"b": 2}

    async def handle(request: Request) -> JsonLines:
        return lines(request.path == "/fail")

    async with serving(handle) as port:
        status, body = await send_request(port, b"POST / HTTP/1.1\r\n\r\n")
        assert status == 200
        assert [json.loads(line) for line in body.split("\r\n") if line.startswith("{")] == [{"a": "ü"}, {"b": 2}]
        assert await send_request(port, b"POST /fail HTTP/1.1\r\n\r\n") == (500, "no")


async def test_a_client_that_disconnects_stops_the_handler() -> None:
    ended = asyncio.Event()

    async def lines() -> JsonLines:
        try:
            yield {"started": True}
            await asyncio.sleep(60)
        finally:
            ended.set()

    async def handle(request: Request) -> JsonLines:
        return lines()

    async with serving(handle) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST / HTTP/1.1\r\n\r\n")
        await reader.readuntil(b"started")
        assert not ended.is_set()
        writer.close()
        await asyncio.wait_for(ended.wait(), 5)
