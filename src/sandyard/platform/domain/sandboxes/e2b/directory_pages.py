"""Pages of a sandbox's folder listing, with bounded time and memory.

The protocol's ListDir has no pages: the SDK would read any number of entries and decode them in the event loop. Our engine
returns a page if the request has these headers. Other engines return all entries, and the page is selected here.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import httpx
from e2b import AsyncSandbox
from e2b.envd.api import ahandle_envd_api_transport_exception_with_health, format_envd_api_exception
from e2b.envd.utils import authentication_header
from e2b.exceptions import FileNotFoundException

from sandyard.kit.text import make_storable
from sandyard.platform.domain.sandboxes.e2b.errors import EngineError, EngineInvalidError

FIRST, LIMIT = "X-Sandyard-List-First", "X-Sandyard-List-Limit"
MAX_BYTES = 32 << 20
"""Maximum size of a response. 100,000 entries with typical names have 23 MiB."""
MAX_ENTRY_BYTES = 512 << 10
TYPICAL_ENTRY_BYTES = 16 << 10
_URL = "/filesystem.Filesystem/ListDir"
_TIMEOUT_S = 60.0
_HEAD = re.compile(r'\s*\{\s*(?:"next"\s*:\s*(?P<next>null|[0-9]{1,9})\s*,\s*)?(?:"entries"\s*:\s*\[)?')
_BETWEEN = re.compile(r"[\s,]*")
_KINDS = {"FILE_TYPE_FILE": "file", "FILE_TYPE_DIRECTORY": "dir", "FILE_TYPE_SYMLINK": "symlink"}
_decoder = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class FileEntry:
    """An entry of a folder. `kind` is file, dir, symlink or other."""

    name: str
    path: str
    kind: str
    size: int
    mode: int
    owner: str
    group: str
    modified_at: datetime
    symlink_target: str | None = None


@dataclass(frozen=True, slots=True)
class FilePage:
    """A page of entries. `next` is the number of the next page's first entry, None on the last page."""

    entries: list[FileEntry]
    next: int | None


async def read_page(sandbox: AsyncSandbox, path: str, depth: int, first: int, limit: int) -> FilePage:
    """Return at most `limit` entries starting at number `first`. Raises EngineInvalidError if the response is too large."""
    files = sandbox.files
    headers = {
        **authentication_header(files._envd_version),
        FIRST: str(first),
        LIMIT: str(limit),
        "Accept-Encoding": "identity",
    }
    try:
        async with (
            asyncio.timeout(_TIMEOUT_S),
            files._envd_api.stream(
                "POST", _URL, json={"path": path, "depth": depth}, headers=headers, timeout=_TIMEOUT_S
            ) as reply,
        ):
            body = await read_body(reply)
    except httpx.TransportError as error:
        raise await ahandle_envd_api_transport_exception_with_health(error, files._envd_health_api) from None
    if not reply.is_success:
        raise _to_exception(reply.status_code, body)
    return await asyncio.to_thread(decode, body, first, limit)


async def read_body(reply: httpx.Response) -> bytes:
    if reply.headers.get("content-encoding", "identity") != "identity":
        raise EngineError("The sandbox sent a list of files in an encoding that was not requested.")
    body = bytearray()
    async for chunk in reply.aiter_raw():
        body += chunk
        if len(body) > MAX_BYTES:
            raise EngineInvalidError(
                "The folder has too many entries, or their names are too long. List a smaller folder or with less depth, or "
                "use a command such as `find`."
            )
    return bytes(body)


def _to_exception(status: int, body: bytes) -> Exception:
    text = body[:2000].decode(errors="replace")
    try:
        message = json.loads(text)["message"]
    except (ValueError, KeyError, TypeError, RecursionError):
        message = text
    failure: Exception = format_envd_api_exception(status, str(message), {404: FileNotFoundException})
    return failure


def decode(body: bytes, first: int, limit: int) -> FilePage:
    """Decode a response. Run it in a thread; it decodes entry by entry, so that other threads are never blocked.

    Skips entries of an unknown type, as the SDK does. Raises EngineError if the response is not a list.
    """
    try:
        return _parse_page(body.decode(), first, limit)
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise EngineError("The sandbox sent a list of files that cannot be read.") from error


def _parse_page(text: str, first: int, limit: int) -> FilePage:
    head = _HEAD.match(text)
    if head is None:
        raise ValueError("not an object")
    found = _iterate_entries(text, head.end())
    if head["next"] is not None:
        page = list(islice(found, limit))
        following = None if head["next"] == "null" else int(head["next"])
        if following is not None and following <= first:
            raise ValueError("the next page does not follow this one")
    else:
        page = list(islice(found, first, first + limit))
        following = None if next(found, None) is None else first + limit
    return FilePage([_to_entry(entry) for entry in page if entry.get("type") in _KINDS], following)


def _iterate_entries(text: str, start: int) -> Iterator[dict[str, Any]]:
    while True:
        start = _BETWEEN.match(text, start).end()  # type: ignore[union-attr] # it also matches the empty string
        if text[start : start + 1] != "{":
            if text[start : start + 1] not in ("]", "}"):
                raise ValueError("the list is not terminated")
            return
        try:
            entry, length = _decoder.raw_decode(text[start : start + TYPICAL_ENTRY_BYTES])
        except ValueError:
            entry, length = _decoder.raw_decode(text[start : start + MAX_ENTRY_BYTES])
        yield entry
        start += length


def _to_entry(fields: dict[str, Any]) -> FileEntry:
    target = fields.get("symlinkTarget")
    return FileEntry(
        name=make_storable(fields.get("name", "")),
        path=make_storable(fields.get("path", "")),
        kind="symlink" if fields.get("isSymlink") is True else _KINDS[fields["type"]],
        size=_parse_number(fields.get("size", 0)),
        mode=_parse_number(fields.get("mode", 0)),
        owner=make_storable(fields.get("owner", "")),
        group=make_storable(fields.get("group", "")),
        modified_at=_parse_time(fields.get("modifiedTime")),
        symlink_target=None if target is None else make_storable(target),
    )


def _parse_number(value: Any) -> int:
    text = str(value)
    if not text.isascii() or not text.isdigit() or len(text) > 19:
        raise ValueError("not a valid number")
    return int(text)


def _parse_time(value: Any) -> datetime:
    found = datetime.fromisoformat(value) if value is not None else datetime.fromtimestamp(0, UTC)
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
