"""MCP tools: files in sandboxes, read and written in pieces of a size suitable for a model."""

from __future__ import annotations

import base64
import binascii
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Annotated, Literal

from pydantic import Field

from sandyard.kit.errors import InvalidInputError
from sandyard.platform.api.files import Entry
from sandyard.platform.api.mcp.arguments import Path, SandboxId
from sandyard.platform.api.mcp.tool import Call, Toolbox
from sandyard.platform.api.paging import PageRequest
from sandyard.platform.api.schema import Input, Model, example

tools = Toolbox()
READ_LIMIT, READ_DEFAULT = 128 * 1024, 64 * 1024
MAX_OFFSET = 64 * 1024 * 1024
MAX_CONTENT = 700_000
MAX_ENTRIES = 500


class ReadFile(Input):
    model_config = example(sandboxId="sbx_00mwhnkzb5gfh26ygacc", path="/home/user/workspace/README.md")

    sandbox_id: SandboxId
    path: Path
    offset: int = Field(default=0, ge=0, le=MAX_OFFSET, description="The byte to start at.")
    limit: int = Field(default=READ_DEFAULT, ge=1, le=READ_LIMIT, description="Maximum number of bytes.")


class FilePiece(Model):
    model_config = example(
        path="/home/user/workspace/README.md", offset=0, end=7, total=7, encoding="utf-8", content="# Hello"
    )

    path: str
    offset: int
    end: int = Field(description="The offset of the next piece.")
    total: int | None = Field(description="The file's size, if known.")
    complete: bool = Field(description="True if the piece reaches the end of the file.")
    encoding: Literal["utf-8", "base64"] = Field(description="base64 if the content is not text.")
    content: str


class WriteFile(Input):
    model_config = example(
        sandboxId="sbx_00mwhnkzb5gfh26ygacc", path="/home/user/workspace/hello.py", content="print('hello')\n"
    )

    sandbox_id: SandboxId
    path: Path
    content: str = Field(max_length=MAX_CONTENT, description="The whole file. Replaces the existing content.")
    encoding: Literal["utf-8", "base64"] = Field(default="utf-8", description="Use base64 if the content is not text.")


class Written(Model):
    model_config = example(path="/home/user/workspace/hello.py", size=15)

    path: str
    size: int


class ListFiles(Input):
    model_config = example(sandboxId="sbx_00mwhnkzb5gfh26ygacc", path="/home/user/workspace", depth=2)

    sandbox_id: SandboxId
    path: Annotated[Path, Field(default=".")]
    depth: int = Field(default=1, ge=1, le=10, description="How many levels of folders to list.")


class FileList(Model):
    items: list[Entry]
    truncated: bool = Field(description="True if there are more entries. List one folder at a time.")


@tools.add("read_file", title="Read a file", reads=True)
async def read_file(call: Call, arguments: ReadFile) -> FilePiece:
    """Read a file in a sandbox, or a part of it. Text is returned as is, anything else as base64. Resumes a paused sandbox."""
    call.add_audit_detail(path=arguments.path)
    total, chunks = await call.services.sandboxes.download_file(call.caller, arguments.sandbox_id, arguments.path)
    data, more = await _read_piece(chunks, arguments.offset, arguments.limit)
    text = _decode_text(data, more=more)
    if text is not None:
        data = text.encode()
    end = arguments.offset + len(data)
    return FilePiece(
        path=arguments.path,
        offset=arguments.offset,
        end=end,
        total=total,
        complete=not more,
        encoding="base64" if text is None else "utf-8",
        content=base64.b64encode(data).decode() if text is None else text,
    )


@tools.add("write_file", title="Write a file", destroys=True, repeats=True)
async def write_file(call: Call, arguments: WriteFile) -> Written:
    """Write a file in a sandbox. Creates missing folders and replaces an existing file. Resumes a paused sandbox."""
    call.add_audit_detail(path=arguments.path)
    data = _decode_content(arguments)

    async def body() -> AsyncIterator[bytes]:
        yield data

    size = await call.services.sandboxes.upload_file(
        call.caller, arguments.sandbox_id, arguments.path, body(), len(data)
    )
    return Written(path=arguments.path, size=size)


@tools.add("list_files", title="List files", reads=True)
async def list_files(call: Call, arguments: ListFiles) -> FileList:
    """List a folder of a sandbox. Resumes a paused sandbox."""
    found = await call.services.sandboxes.list_files(
        call.caller, arguments.sandbox_id, arguments.path, arguments.depth, PageRequest(MAX_ENTRIES)
    )
    return FileList(items=[Entry.from_file(entry) for entry in found.items], truncated=found.next_cursor is not None)


async def _read_piece(chunks: AsyncIterator[bytes], offset: int, limit: int) -> tuple[bytes, bool]:
    """Return these bytes and whether there are more. Reads no further than needed."""
    piece, position = bytearray(), 0
    async with aclosing(chunks):  # type: ignore[type-var]  # a generator
        async for chunk in chunks:
            piece += chunk[max(0, offset - position) :]
            position += len(chunk)
            if len(piece) > limit:
                break
    return bytes(piece[:limit]), len(piece) > limit


def _decode_text(data: bytes, *, more: bool) -> str | None:
    """Decode the piece; None if it is not text. A character cut in two is left to the next piece."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        if not more or error.reason != "unexpected end of data" or error.start == 0:
            return None
        text = data[: error.start].decode()
    return None if "\0" in text else text


def _decode_content(arguments: WriteFile) -> bytes:
    if arguments.encoding == "utf-8":
        return arguments.content.encode()
    try:
        return base64.b64decode(arguments.content, validate=True)
    except binascii.Error:
        raise InvalidInputError("`content` is not valid base64.") from None
