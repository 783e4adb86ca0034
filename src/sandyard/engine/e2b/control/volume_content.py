"""The files of volumes, for clients outside of sandboxes: a separate application, authorised by a volume's own token,
with bodies of any size."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, FastAPI, Query, Request, Response
from fastapi.responses import StreamingResponse
from starlette.requests import ClientDisconnect

from sandyard.engine.e2b.control import errors, views
from sandyard.engine.e2b.control.guard import credential
from sandyard.engine.e2b.control.wire import EntryMetadata
from sandyard.engine.e2b.dataplane.asgi import Receive, discard_body
from sandyard.engine.volumes.content import Content
from sandyard.engine.volumes.download import Download
from sandyard.engine.volumes.model import Entry, Owner
from sandyard.engine.volumes.service import Volumes
from sandyard.kit.errors import SandyardError, UnauthenticatedError

PREFIX = "/volumecontent/"
PIECE = 1 << 20
"""Bytes passed to a thread at once; with fewer, the handover would cost more than the write."""
_EARLIEST, _LATEST = (
    -(1 << 34),
    253_402_300_799,
)  # sandboxes may set any file time; this is the range that a calendar supports

PathParam = Annotated[str, Query(min_length=1)]
Id = Annotated[int | None, Query(ge=0, le=65535)]
Mode = Annotated[int | None, Query(ge=0, le=0o7777)]


async def _open_content(volume_id: str, request: Request) -> Content:
    """Authorise with the volume's own token. It grants access to nothing else, and an API key is not accepted."""
    volumes: Volumes = request.app.state.volumes
    volume = volumes.get(volume_id)
    if not volume.token.matches(credential(request.scope["headers"])):
        raise UnauthenticatedError("The volume's token is missing or not valid. GET /volumes/{id} returns it.")
    return volumes.content(volume)


Files = Annotated[Content, Depends(_open_content)]


@dataclass(slots=True)
class _Sender:
    """Yields a body as it arrives, in chunks worth a system call."""

    receive: Receive
    ended: bool = False

    async def pieces(self) -> AsyncIterator[bytes]:
        gathered = bytearray()
        while not self.ended:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            gathered += message.get("body", b"")
            self.ended = not message.get("more_body", False)
            if len(gathered) >= PIECE or (self.ended and gathered):
                yield bytes(gathered)
                gathered.clear()


def app(volumes: Volumes) -> FastAPI:
    made = FastAPI(title="Volumes", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    errors.install(made)
    made.state.volumes = volumes
    root = PREFIX + "{volume_id}"

    @made.get(root + "/path")
    async def look(files: Files, path: PathParam) -> Response:
        return _answer(await volumes.run(lambda: files.stat(path)))

    @made.patch(root + "/path")
    async def change(files: Files, path: PathParam, body: EntryMetadata) -> Response:
        return _answer(await volumes.run(lambda: files.change(path, Owner(body.uid, body.gid, body.mode))))

    @made.delete(root + "/path")
    async def remove(files: Files, path: PathParam) -> Response:
        await volumes.run(lambda: files.remove(path))
        return Response(status_code=204)

    @made.get(root + "/dir")
    async def list_folder(
        files: Files, path: PathParam, depth: Annotated[int, Query(ge=0, le=2**32 - 1)] = 1
    ) -> Response:
        def work() -> bytes:
            return json.dumps([view(entry) for entry in files.list(path, depth)]).encode()

        return Response(await volumes.run(work), media_type="application/json")

    @made.post(root + "/dir")
    async def make_folder(
        files: Files, path: PathParam, *, uid: Id = None, gid: Id = None, mode: Mode = None, force: bool = False
    ) -> Response:
        owner = Owner(uid, gid, mode)
        return _answer(await volumes.run(lambda: files.make_dir(path, owner, force=force)), 201)

    @made.get(root + "/file")
    async def read(files: Files, path: PathParam) -> Response:
        download = await volumes.run(lambda: Download.begin(files, path))
        headers = {"Content-Length": str(download.size)}
        return StreamingResponse(
            _stream_download(volumes, download), headers=headers, media_type="application/octet-stream"
        )

    @made.put(root + "/file")
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
        sender = _Sender(request.receive)
        try:
            upload = await volumes.begin(files, path, owner=Owner(uid, gid, mode), force=force)
            try:
                async for piece in sender.pieces():
                    await volumes.run(lambda data=piece: upload.write(data))  # type: ignore[misc]
                return _answer(await volumes.run(upload.finish), 201)
            finally:
                await volumes.run(upload.abandon)
        except ClientDisconnect:
            return Response(status_code=400)  # the client is gone
        except SandyardError:
            if not sender.ended:
                await discard_body(request.receive)
            raise

    return made


async def _stream_download(volumes: Volumes, download: Download) -> AsyncIterator[bytes]:
    try:
        while piece := await volumes.run(lambda: download.read(PIECE)):
            yield piece
    finally:
        await volumes.run(download.close)


def _answer(entry: Entry, status: int = 200) -> Response:
    return Response(json.dumps(view(entry)), status, media_type="application/json")


def view(entry: Entry) -> views.View:
    seen = {
        "name": entry.name,
        "type": entry.kind.value,
        "path": entry.path,
        "size": entry.size,
        "mode": entry.mode,
        "uid": entry.uid,
        "gid": entry.gid,
        "atime": _time(entry.atime),
        "mtime": _time(entry.mtime),
        "ctime": _time(entry.ctime),
    }
    return seen if entry.target is None else {**seen, "target": entry.target}


def _time(seconds: float) -> str:
    return views.format_time(min(max(seconds, _EARLIEST), _LATEST))
