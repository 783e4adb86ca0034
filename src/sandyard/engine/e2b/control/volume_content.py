"""The files of volumes, for clients outside of sandboxes: a separate application, authorised by a volume's own token,
with bodies of any size."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, FastAPI, Query, Request, Response
from fastapi.responses import StreamingResponse
from starlette.requests import ClientDisconnect

from sandyard.engine.contract import FileEntry, FileOwner, FileReader, VolumeFiles
from sandyard.engine.e2b.control import errors, views
from sandyard.engine.e2b.control.guard import get_credential
from sandyard.engine.e2b.control.wire import EntryMetadata
from sandyard.engine.e2b.dataplane.asgi import Receive, discard_body
from sandyard.engine.volumes.service import Volumes
from sandyard.kit.errors import SandyardError, UnauthenticatedError

PREFIX = "/volumecontent/"
CHUNK_BYTES = 1 << 20
"""Bytes passed to the driver at once; with fewer, the handover to a thread would cost more than the write."""
# sandboxes may set any file time; these limits keep it within what a datetime can represent
_MIN_TIME, _MAX_TIME = -(1 << 34), 253_402_300_799

PathParam = Annotated[str, Query(min_length=1)]
Id = Annotated[int | None, Query(ge=0, le=65535)]
Mode = Annotated[int | None, Query(ge=0, le=0o7777)]


async def _get_files(volume_id: str, request: Request) -> VolumeFiles:
    """Authorise with the volume's own token. It grants access to nothing else, and an API key is not accepted."""
    volumes: Volumes = request.app.state.volumes
    volume = volumes.get(volume_id)
    if not volume.token.matches(get_credential(request.scope["headers"])):
        raise UnauthenticatedError("The volume's token is missing or not valid. GET /volumes/{id} returns it.")
    return volumes.get_files(volume)


Files = Annotated[VolumeFiles, Depends(_get_files)]


@dataclass(slots=True)
class _BodyReader:
    """Reads a body as it arrives, in chunks that are large enough to be worth a system call."""

    receive: Receive
    ended: bool = False

    async def iterate_chunks(self) -> AsyncIterator[bytes]:
        buffer = bytearray()
        while not self.ended:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            buffer += message.get("body", b"")
            self.ended = not message.get("more_body", False)
            if len(buffer) >= CHUNK_BYTES or (self.ended and buffer):
                yield bytes(buffer)
                buffer.clear()


def make_app(volumes: Volumes) -> FastAPI:
    app = FastAPI(title="Volumes", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    errors.install(app)
    app.state.volumes = volumes
    root = PREFIX + "{volume_id}"

    @app.get(root + "/path")
    async def get_metadata(files: Files, path: PathParam) -> Response:
        return _make_response(await files.stat(path))

    @app.patch(root + "/path")
    async def change(files: Files, path: PathParam, body: EntryMetadata) -> Response:
        return _make_response(await files.change(path, FileOwner(body.uid, body.gid, body.mode)))

    @app.delete(root + "/path")
    async def remove(files: Files, path: PathParam) -> Response:
        await files.remove(path)
        return Response(status_code=204)

    @app.get(root + "/dir")
    async def list_folder(
        files: Files, path: PathParam, depth: Annotated[int, Query(ge=0, le=2**32 - 1)] = 1
    ) -> Response:
        entries = await files.list(path, depth)  # up to tens of thousands
        return Response(await asyncio.to_thread(_render_entries, entries), media_type="application/json")

    @app.post(root + "/dir")
    async def make_folder(
        files: Files, path: PathParam, *, uid: Id = None, gid: Id = None, mode: Mode = None, force: bool = False
    ) -> Response:
        return _make_response(await files.make_dir(path, FileOwner(uid, gid, mode), force=force), 201)

    @app.get(root + "/file")
    async def read(files: Files, path: PathParam) -> Response:
        reader = await files.open(path)
        headers = {"Content-Length": str(reader.size)}
        return StreamingResponse(_stream_file(reader), headers=headers, media_type="application/octet-stream")

    @app.put(root + "/file")
    async def write(
        request: Request,
        files: Files,
        path: PathParam,
        *,
        uid: Id = None,
        gid: Id = None,
        mode: Mode = None,
        force: bool = False,
    ) -> Response:
        body = _BodyReader(request.receive)
        try:
            owner, reserve = FileOwner(uid, gid, mode), volumes.upload_reserve
            entry = await files.write(path, body.iterate_chunks(), owner, force=force, reserve=reserve)
            return _make_response(entry, 201)
        except ClientDisconnect:
            return Response(status_code=400)  # the client is gone
        except SandyardError:
            if not body.ended:
                await discard_body(request.receive)
            raise

    return app


async def _stream_file(reader: FileReader) -> AsyncIterator[bytes]:
    try:
        while chunk := await reader.read(CHUNK_BYTES):
            yield chunk
    finally:
        await reader.close()


def _make_response(entry: FileEntry, status: int = 200) -> Response:
    return Response(json.dumps(render_entry(entry)), status, media_type="application/json")


def _render_entries(entries: Sequence[FileEntry]) -> bytes:
    return json.dumps([render_entry(entry) for entry in entries]).encode()


def render_entry(entry: FileEntry) -> views.View:
    view = {
        "name": entry.name,
        "type": entry.kind.value,
        "path": entry.path,
        "size": entry.size,
        "mode": entry.mode,
        "uid": entry.uid,
        "gid": entry.gid,
        "atime": _format_time(entry.atime),
        "mtime": _format_time(entry.mtime),
        "ctime": _format_time(entry.ctime),
    }
    return view if entry.target is None else {**view, "target": entry.target}


def _format_time(seconds: float) -> str:
    return views.format_time(min(max(seconds, _MIN_TIME), _MAX_TIME))
