"""Upload, download, list and remove files in a sandbox."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Literal
from urllib.parse import quote

from fastapi import Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import Field

from sandyard.platform.api.audit_middleware import add_audit_detail, audited
from sandyard.platform.api.auth import Caller, StreamCaller
from sandyard.platform.api.dependencies import inject
from sandyard.platform.api.guard import streams_body
from sandyard.platform.api.large_responses import limit_large_responses
from sandyard.platform.api.paging import Page, PageRequest
from sandyard.platform.api.revocation import end_when_revoked, require_access, run_until_revoked
from sandyard.platform.api.routers import api_router
from sandyard.platform.api.sandboxes import SandboxId
from sandyard.platform.api.schema import Instant, Model, example
from sandyard.platform.domain.sandboxes import service
from sandyard.platform.domain.sandboxes.e2b import FileEntry

router = api_router("files")
Sandboxes = Annotated[service.Sandboxes, inject("sandboxes")]
Path = Annotated[
    str, Query(min_length=1, max_length=4096, description="Absolute, or relative to the user's home directory.")
]
BINARY = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}


class Entry(Model):
    model_config = example(name="main.py", path="/home/user/main.py", kind="file", size=120, mode=0o644)

    name: str
    path: str
    kind: Literal["file", "dir", "symlink", "other"]
    size: int
    mode: int = Field(description="Permission bits.", examples=[0o644])
    owner: str
    group: str
    modified_at: Instant
    symlink_target: str | None

    @classmethod
    def from_file(cls, entry: FileEntry) -> Entry:
        return cls.model_validate(entry)


class Uploaded(Model):
    model_config = example(path="/home/user/data.csv", size=1024)

    path: str
    size: int


@router.get(
    "/sandboxes/{sandbox_id}/files",
    name="file.download",
    response_class=StreamingResponse,
    responses={200: {"content": BINARY}},
)
@audited
async def download(
    request: Request, caller: StreamCaller, sandboxes: Sandboxes, sandbox_id: SandboxId, path: Path
) -> StreamingResponse:
    """Download a file. A 404 error names the path."""
    add_audit_detail(request, path=path)
    size, chunks = await sandboxes.download_file(caller, sandbox_id, path)
    name = quote(path.rsplit("/", 1)[-1] or "file", safe="")
    headers = {"Content-Disposition": f"attachment; filename*=UTF-8''{name}"}
    if size is not None:
        headers["Content-Length"] = str(size)
    allowed = end_when_revoked(request, caller, lambda: sandboxes.get_status(caller, sandbox_id), chunks)
    return StreamingResponse(allowed, media_type="application/octet-stream", headers=headers)


@router.put(
    "/sandboxes/{sandbox_id}/files",
    name="file.upload",
    openapi_extra={"requestBody": {"required": True, "content": BINARY}},
)
@streams_body
async def upload(request: Request, caller: Caller, sandboxes: Sandboxes, sandbox_id: SandboxId, path: Path) -> Uploaded:
    """Write a file and create missing parent folders. The body is the file's content, up to the size limit.

    An existing file is replaced when the whole body has arrived. The upload ends with an error when you lose access.
    """
    add_audit_detail(request, path=path)
    announced = request.headers.get("content-length", "")

    async def check_access() -> None:
        await sandboxes.get_status(caller, sandbox_id)

    async def read_body() -> AsyncIterator[bytes]:
        async for chunk in request.stream():
            yield chunk
        await require_access(request, caller, check_access)  # an error here leaves the upload incomplete

    work = sandboxes.upload_file(caller, sandbox_id, path, read_body(), int(announced) if announced.isdigit() else None)
    size = await run_until_revoked(request, caller, check_access, work)
    return Uploaded(path=path, size=size)


@router.delete("/sandboxes/{sandbox_id}/files", name="file.remove", status_code=204)
async def remove(request: Request, caller: Caller, sandboxes: Sandboxes, sandbox_id: SandboxId, path: Path) -> Response:
    """Delete a file, or a folder with all its contents."""
    add_audit_detail(request, path=path)
    await sandboxes.remove_file(caller, sandbox_id, path)
    return Response(status_code=204)


@router.get("/sandboxes/{sandbox_id}/files/list", name="file.list", dependencies=[limit_large_responses(slow=True)])
async def list_(
    caller: Caller,
    sandboxes: Sandboxes,
    sandbox_id: SandboxId,
    path: Path = ".",
    depth: Annotated[int, Query(ge=1, le=10)] = 1,
    limit: Annotated[int, Query(ge=1, le=10_000, description="Maximum number of items.")] = 1000,
    cursor: Annotated[
        str | None,
        Query(
            pattern=r"^[0-9]{1,9}$", description="`nextCursor` of the previous page. Leave it out for the first page."
        ),
    ] = None,
) -> Page[Entry]:
    """List a folder, sorted by name.

    A page has fewer entries than requested if their names are very long. Only the first 100,000 entries can be listed; use a command for
    more.
    """
    found = await sandboxes.list_files(caller, sandbox_id, path, depth, PageRequest(limit, cursor))
    return Page[Entry].from_listing(found, Entry.from_file)


@router.get("/sandboxes/{sandbox_id}/files/info", name="file.info")
async def info(caller: Caller, sandboxes: Sandboxes, sandbox_id: SandboxId, path: Path) -> Entry:
    """Get the name, kind, size, mode and owner of a file or folder. 404 if the path does not exist."""
    return Entry.from_file(await sandboxes.get_file_info(caller, sandbox_id, path))
