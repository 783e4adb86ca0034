"""`GET /files`: serve a file, or a part of it, from the page cache, with the headers of Go's http.ServeContent."""

from __future__ import annotations

import asyncio
import os
import posixpath
import re
import zlib
from email.utils import formatdate, parsedate_to_datetime
from urllib.parse import quote

from sandyard.engine.guest.files import encoding
from sandyard.engine.guest.files.media import guess_media_type
from sandyard.engine.guest.sandbox import NotAFileError, PathError, Sandbox
from sandyard.engine.guest.wire.connection import PeerGoneError
from sandyard.engine.guest.wire.http1 import Exchange, HttpError, Request

_RANGE = re.compile(r"bytes=\s*(\d*)\s*-\s*(\d*)\s*")
_CONDITIONS = ("range", "if-modified-since", "if-none-match", "if-range")
_VIRTUAL_FILE_LIMIT = 1 << 20  # for files that have content but no size, like those in /proc
_SMALL_BYTES = 64 << 10
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")


class Downloads:
    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    async def get(self, exchange: Exchange) -> None:
        request = exchange.request
        user = self._sandbox.get_file_user(request.query("username"))
        requested = request.query("path") or ""
        try:
            path = self._sandbox.resolve(requested, user)
        except PathError as error:
            raise HttpError(400, f"error expanding and resolving path '{requested}': {error}") from None
        fd = self._open(path)
        try:
            whole = not any(name in request.headers for name in _CONDITIONS)
            coding = encoding.choose_encoding(request.headers, whole=whole)
            headers = {
                "Content-Disposition": _make_disposition(posixpath.basename(path)),
                "Vary": "Accept-Encoding",
            }
            if coding == encoding.GZIP:
                await _send_gzip(exchange, fd, path, headers)
            else:
                await _send_plain(exchange, fd, path, headers)
        finally:
            os.close(fd)

    def _open(self, path: str) -> int:
        try:
            return self._sandbox.open_file(self._sandbox.to_host_path(path), os.O_RDONLY)
        except (FileNotFoundError, NotADirectoryError):
            raise HttpError(404, f"path '{path}' does not exist") from None
        except IsADirectoryError:
            raise HttpError(400, f"path '{path}' is a directory") from None
        except NotAFileError:
            raise HttpError(400, f"path '{path}' is not a regular file") from None
        except OSError as error:
            raise HttpError(500, f"error opening file '{path}': {error.strerror}") from None


async def _send_gzip(exchange: Exchange, fd: int, path: str, headers: dict[str, str]) -> None:
    kind = guess_media_type(path, None)
    headers = {**headers, "Content-Encoding": encoding.GZIP, "Content-Type": kind}
    if exchange.request.method == "HEAD":
        await exchange.reply_head(200, headers)
        return
    await exchange.start(200, headers)
    deflate = zlib.compressobj(1, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    while data := os.read(fd, 256 << 10):
        piece = deflate.compress(data)
        if piece:
            await exchange.write(piece)
        await asyncio.sleep(0)
    await exchange.write(deflate.flush(), last=True)


async def _send_plain(exchange: Exchange, fd: int, path: str, headers: dict[str, str]) -> None:
    request = exchange.request
    status = os.fstat(fd)
    size = status.st_size
    try:
        first_bytes = os.pread(fd, 512, 0)
        content = _read_at_once(fd, size, first_bytes)
    except OSError as error:
        raise HttpError(500, f"error reading file '{path}': {error.strerror}") from None
    if content is not None:
        size = len(content)
    headers["Last-Modified"] = formatdate(status.st_mtime, usegmt=True)
    conditional_status = _check_preconditions(request, int(status.st_mtime))
    if conditional_status is not None:
        await exchange.reply(conditional_status, headers=headers)
        return
    headers["Content-Type"] = guess_media_type(path, first_bytes)
    headers["Accept-Ranges"] = "bytes"
    offset, count, code = 0, size, 200
    wanted = _parse_range(request, size, int(status.st_mtime))
    if wanted is not None:
        offset, count = wanted
        code = 206
        if count <= 0:
            headers |= {"Content-Range": f"bytes */{size}", "Content-Type": "text/plain; charset=utf-8"}
            await exchange.reply(416, b"invalid range: failed to overlap\n", headers)
            return
        headers["Content-Range"] = f"bytes {offset}-{offset + count - 1}/{size}"
    if content is not None:
        await exchange.reply(code, content[offset : offset + count], headers)
        return
    await exchange.reply_head(code, {**headers, "Content-Length": str(count)})
    if request.method == "GET" and await exchange.conn.send_file(fd, offset, count) < count:
        raise PeerGoneError  # the file became shorter, so the announced length cannot be sent


def _read_at_once(fd: int, size: int, first_bytes: bytes) -> bytes | None:
    """Return the content of a small file, which could otherwise become shorter while it is sent, or of a file of /proc or
    /sys, whose size is unknown. Return None for other files."""
    if first_bytes and not size:
        content = bytearray()
        # The kernel returns one page at a time.
        while len(content) < _VIRTUAL_FILE_LIMIT and (piece := os.pread(fd, 64 << 10, len(content))):
            content += piece
        return bytes(content)
    return os.pread(fd, size, 0) if size <= _SMALL_BYTES else None


def _check_preconditions(request: Request, modified: int) -> int | None:
    """Return 304 or 412 if a condition on the modification time requires it. There are no entity tags."""
    unmodified_since = _parse_time(request.headers.get("if-unmodified-since"))
    if unmodified_since is not None and modified > unmodified_since:
        return 412
    since = _parse_time(request.headers.get("if-modified-since"))
    if since is not None and "if-none-match" not in request.headers and modified <= since:
        return 304
    return None


def _parse_range(request: Request, size: int, modified: int) -> tuple[int, int] | None:
    """Return (offset, count) of a single requested range; a count of 0 if it is outside of the file. For several ranges
    the whole file is sent."""
    match = _RANGE.fullmatch(request.headers.get("range", ""))
    if match is None or match.group() == "bytes=-":
        return None
    if "if-range" in request.headers and _parse_time(request.headers["if-range"]) != modified:
        return None
    first, last = match.groups()
    if not first:
        count = min(_parse_number(last), size)
        return size - count, count
    offset = _parse_number(first)
    if offset >= size or (last and _parse_number(last) < offset):
        return offset, 0
    return offset, min(_parse_number(last), size - 1) - offset + 1 if last else size - offset


def _parse_number(digits: str) -> int:
    """Parse digits; more than 19 are cut off, because the number is larger than any file anyway."""
    return int(digits.lstrip("0")[:19] or 0)


def _parse_time(header: str | None) -> int | None:
    if not header:
        return None
    try:
        return int(parsedate_to_datetime(header).timestamp())
    except (ValueError, OverflowError):
        return None


def _make_disposition(name: str) -> str:
    if _TOKEN.fullmatch(name):
        return f"inline; filename={name}"
    if name.isascii() and name.isprintable():
        escaped = name.replace("\\", "\\\\").replace('"', '\\"')
        return f'inline; filename="{escaped}"'
    return f"inline; filename*=utf-8''{quote(os.fsencode(name), safe='')}"
