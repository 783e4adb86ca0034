"""`POST /files`: raw (`application/octet-stream`) or `multipart/form-data` with one or more files; and `POST
/files/compose`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import posixpath
import secrets
from typing import Any

from sandyard.engine.guest.files import encoding, metadata
from sandyard.engine.guest.files.multipart import BUFFER_SIZE, MultipartReader, parse_boundary
from sandyard.engine.guest.files.target import Target
from sandyard.engine.guest.sandbox import PathError, Sandbox
from sandyard.engine.guest.users import User
from sandyard.engine.guest.wire import protojson
from sandyard.engine.guest.wire.http1 import Exchange, HttpError

_COPY_STEP = 16 << 20


class Uploads:
    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    async def post(self, exchange: Exchange) -> None:
        """Write the files in the request's body, and reply with their descriptions."""
        request = exchange.request
        source = encoding.decode_body(request.body, request.headers)
        user = self._sandbox.get_file_user(request.query("username"))
        file_metadata = metadata.parse_headers(request.headers)
        content_type = request.headers.get("content-type", "")
        media_type = content_type.partition(";")[0].strip().lower()
        upload = _Upload(self._sandbox, source, user, file_metadata, request.body.length)
        path = request.query("path")
        if media_type == "application/octet-stream":
            if path is None:
                raise HttpError(400, "path query parameter is required for raw body upload")
            files = [await upload.write_raw(path)]
        elif media_type.startswith("multipart/"):
            boundary = parse_boundary(content_type)
            if not boundary or len(boundary) > 200:
                raise HttpError(400, "error parsing multipart form: no multipart boundary param in Content-Type")
            files = await upload.write_multipart(boundary, path)
        else:
            expected = "expected multipart/form-data or application/octet-stream"
            raise HttpError(400, f"unsupported content type: {content_type}, {expected}")
        await exchange.reply_json(200, [_make_printable(info) for info in files])

    async def compose(self, exchange: Exchange) -> None:
        """Concatenate files into a new one, which appears complete or not at all, and then remove them."""
        try:
            message = protojson.parse(await exchange.request.body.read_all(16 << 20))
            names = protojson.get_texts(message, "source_paths")
            destination_name = protojson.get_text(message, "destination")
            named = protojson.get_value(message, "username")
            username = None if named is None else protojson.get_text(message, "username")
        except protojson.FieldError as error:
            raise HttpError(400, f"invalid request body: {error}") from None
        if not names:
            raise HttpError(400, "source_paths must not be empty")
        if not destination_name:
            raise HttpError(400, "destination is required")
        user = self._sandbox.get_file_user(username)
        destination = self._resolve(destination_name, user)
        sources = [self._find_source(name, destination, user) for name in names]
        # A temporary name in the same directory, so that an existing file stays until the new one is complete.
        partial = f"{destination}.compose-{secrets.token_hex(8)}.tmp"
        with Target(self._sandbox, partial, user, {}, None) as target:
            for source in sources:
                await _append(self._sandbox, source, target)
            try:
                os.rename(self._sandbox.to_host_path(partial), self._sandbox.to_host_path(destination))
            except OSError as error:
                raise HttpError(500, f"error finalizing compose: {error.strerror}") from None
        for source in sources:
            with contextlib.suppress(OSError):
                os.unlink(source)
        info = {"path": destination, "name": posixpath.basename(destination), "type": "file"}
        await exchange.reply_json(200, _make_printable(info))

    def _resolve(self, path: str, user: User) -> str:
        try:
            return self._sandbox.resolve(path, user)
        except PathError as error:
            raise HttpError(400, f"error resolving path: {error}") from None

    def _find_source(self, name: str, destination: str, user: User) -> str:
        path = self._resolve(name, user)
        host = self._sandbox.to_host_path(path)
        if _is_same_entry(host, self._sandbox.to_host_path(destination)):
            raise HttpError(400, f'source path "{name}" cannot be the same as destination')
        if not os.path.exists(host):
            raise HttpError(404, f"source file not found: {name}")
        if not os.path.isfile(host):
            raise HttpError(400, f"source path is not a regular file: {name}")
        return host


class _Upload:
    """The files of one request, all with the same owner and metadata."""

    def __init__(
        self,
        sandbox: Sandbox,
        source: encoding.Source,
        user: User,
        file_metadata: dict[str, str],
        body_length: int | None,
    ) -> None:
        self._sandbox = sandbox
        self._source = source
        self._user = user
        self._metadata = file_metadata
        self._body_length = body_length

    async def write_raw(self, path: str) -> dict[str, Any]:
        with self._open_target(path) as target:
            view = memoryview(bytearray(min(BUFFER_SIZE, max(self._body_length or BUFFER_SIZE, 1))))
            while count := await self._source.read_into(view):
                target.write(view[:count])
            await target.finish()
        return target.get_info()

    async def write_multipart(self, boundary: str, path: str | None) -> list[dict[str, Any]]:
        reader = MultipartReader(self._source, boundary)
        written: dict[str, dict[str, Any]] = {}
        while (part := await reader.next_part()) is not None:
            if part.name != "file":
                continue
            name = part.filename if path is None else path
            if not name:
                raise HttpError(400, "error getting multipart custom part file name: filename not found")
            resolved = self._resolve(name)
            if resolved in written:
                already = [uploaded for uploaded in written if uploaded != resolved]
                also = f", also the following files were uploaded: {', '.join(already)}" if len(already) > 1 else ""
                raise HttpError(
                    400,
                    f"you cannot upload multiple files to the same path '{resolved}' in one upload request, "
                    f"only the first specified file was uploaded{also}",
                )
            with self._open_target(resolved) as target:
                await reader.read_part(target.write)
                await target.finish()
            written[resolved] = target.get_info()
        return list(written.values())

    def _open_target(self, path: str) -> Target:
        return Target(self._sandbox, self._resolve(path), self._user, self._metadata, self._body_length)

    def _resolve(self, path: str) -> str:
        try:
            return self._sandbox.resolve(path, self._user)
        except PathError as error:
            raise HttpError(400, f"error resolving path: {error}") from None


def _is_same_entry(one: str, other: str) -> bool:
    """Return whether two paths name the same entry of a directory. Two links to one file are different entries."""
    (folder, name), (other_folder, other_name) = posixpath.split(one), posixpath.split(other)
    return name == other_name and os.path.realpath(folder) == os.path.realpath(other_folder)


async def _append(sandbox: Sandbox, source: str, target: Target) -> None:
    """Append a file to another one inside the kernel, sharing its extents if the file system supports it."""
    try:
        fd = sandbox.open_file(source, os.O_RDONLY)
    except OSError as error:
        raise HttpError(500, f"error opening source file {sandbox.to_sandbox_path(source)}: {error.strerror}") from None
    try:
        more = True
        while more:
            more = target.copy_from(fd, _COPY_STEP) > 0
            await asyncio.sleep(0)
    finally:
        os.close(fd)


def _make_printable(info: dict[str, Any]) -> dict[str, Any]:
    return {key: protojson.make_printable(value) if isinstance(value, str) else value for key, value in info.items()}
