"""Decode a page of a folder from the engine's response."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from sandyard.platform.domain.sandboxes.e2b import directory_pages
from sandyard.platform.domain.sandboxes.e2b.directory_pages import FileEntry, FilePage, decode
from sandyard.platform.domain.sandboxes.e2b.errors import EngineError, EngineInvalidError


def make_entry(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "path": f"/{name}", "type": "FILE_TYPE_FILE", **more}


def list_names(page: FilePage) -> list[str]:
    return [item.name for item in page.entries]


def make_response(*entries: dict[str, Any], **more: Any) -> bytes:
    return json.dumps({**more, "entries": entries}).encode()


def test_decodes_entry_like_sdk() -> None:
    raw = make_entry(
        "a", size="9223372036854775807", mode=420, permissions="-rw-r--r--", owner="user", group="staff",
        modifiedTime="2026-01-31T10:00:00.123456789Z", symlinkTarget="/b", isSymlink=True, metadata={"k": "v"},
    )  # fmt: skip
    moment = datetime(2026, 1, 31, 10, 0, 0, 123456, UTC)
    expected = FileEntry("a", "/a", "symlink", 2**63 - 1, 0o644, "user", "staff", moment, "/b")
    assert decode(make_response(raw), 0, 10) == FilePage([expected], None)
    folder = decode(make_response({"name": "d", "type": "FILE_TYPE_DIRECTORY"}), 0, 10).entries[0]
    assert (folder.kind, folder.size, folder.modified_at) == ("dir", 0, datetime.fromtimestamp(0, UTC))


def test_engine_without_paging() -> None:
    whole = make_response(*(make_entry(str(number)) for number in range(5)))
    assert (list_names(decode(whole, 0, 5)), decode(whole, 0, 5).next) == (list("01234"), None)
    assert (list_names(decode(whole, 1, 2)), decode(whole, 1, 2).next) == (["1", "2"], 3)
    assert decode(whole, 7, 2) == FilePage([], None)
    for nothing in (b"{}", b' { "entries" : [ ] } '):
        assert decode(nothing, 0, 5) == FilePage([], None)


def test_engine_with_paging() -> None:
    page = decode(
        make_response(make_entry("x"), make_entry("socket", type="FILE_TYPE_UNSPECIFIED"), next=102), 100, 1000
    )
    assert (list_names(page), page.next) == (["x"], 102)
    assert decode(make_response(make_entry("x"), next=None), 100, 1000).next is None


def test_decodes_long_names() -> None:
    long = "x" * directory_pages.TYPICAL_ENTRY_BYTES
    assert list_names(decode(make_response(make_entry(long), make_entry("short")), 0, 10)) == [long, "short"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"\xff",
        b'{"entries":[{"name":"a"',
        b'{"entries":[1]}',
        b'{"entries":[' + b'{"a":' * 5000 + b"1" + b"}" * 5000 + b"]}",
        make_response(make_entry("a", size="9" * 5000)),
        make_response(make_entry("a", owner=1)),
        make_response(make_entry("a", modifiedTime="yesterday")),
        make_response(make_entry("a" * directory_pages.MAX_ENTRY_BYTES)),
        make_response(make_entry("a"), next=0),
    ],
    ids=["empty", "list", "bytes", "cut", "number", "deep", "size", "owner", "time", "long", "endless"],
)
def test_rejects_invalid_response(body: bytes) -> None:
    with pytest.raises(EngineError, match="cannot be read"):
        decode(body, 0, 10)


async def test_limits_bytes_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory_pages, "MAX_BYTES", 1000)
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 1
            yield b"x" * 400

    with pytest.raises(EngineInvalidError, match="names are too long"):
        await directory_pages.read_body(httpx.Response(200, content=endless()))
    assert sent == 3
    with pytest.raises(EngineError, match="encoding"):
        await directory_pages.read_body(httpx.Response(200, headers={"Content-Encoding": "gzip"}, content=endless()))
