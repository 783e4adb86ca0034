"""Uploads of files for COPY: no API key but a token in the link, and the body is written to disk as it arrives."""

from __future__ import annotations

from collections.abc import AsyncIterator
from urllib.parse import parse_qs, quote

from fastapi import Request, Response

from sandyard.engine.builds.service import Builds
from sandyard.engine.e2b.control.errors import make_error_response
from sandyard.engine.e2b.dataplane.asgi import App, Receive, Scope, Send, discard_body, get_header
from sandyard.kit.errors import InvalidInputError, SandyardError

PREFIX = "/uploads/"


def make_link(request: Request, files_hash: str, token: str) -> str:
    """Return the address under which this client reaches the engine. A proxy that terminates TLS reports that in a
    header; a client that forges it only affects itself."""
    forwarded = request.headers.get("x-forwarded-proto", "")
    scheme = forwarded if forwarded in ("http", "https") else request.url.scheme
    return f"{scheme}://{request.headers.get('host', '')}{PREFIX}{files_hash}?token={quote(token)}"


def make_app(builds: Builds) -> App:
    async def handle(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            response = await _store_upload(builds, scope, receive)
        except SandyardError as error:
            await discard_body(receive)
            response = make_error_response(error.status, error.message)
            response.headers["Connection"] = "close"
        await response(scope, receive, send)

    return handle


async def _store_upload(builds: Builds, scope: Scope, receive: Receive) -> Response:
    if scope["method"] != "PUT":
        return make_error_response(405, f"{PREFIX} supports only PUT.")
    token = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
    length = get_header(scope["headers"], b"content-length")
    declared_size = int(length) if length is not None and length.isdigit() else None
    await builds.upload(scope["path"].removeprefix(PREFIX), token, _iterate_body(receive), declared_size)
    return Response(status_code=200)


async def _iterate_body(receive: Receive) -> AsyncIterator[bytes]:
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise InvalidInputError("The upload was interrupted.")
        if message.get("body"):
            yield message["body"]
        if not message.get("more_body", False):
            return
