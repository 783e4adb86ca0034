"""Serve the web application to browsers where no route matches. `make web` builds it into `static/`, and it is part of the wheel.

No authentication is needed, because it contains no user data: it gets everything from the API.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import mimetypes
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from sandyard.platform.domain.previews.addresses import list_frame_sources
from sandyard.platform.settings import PlatformSettings

STATIC = Path(__file__).parents[1] / "static"
PAGE = "/index.html"
ASSETS = "/assets/"
NON_PAGE_SEGMENTS = frozenset(("api", "mcp", "health", "ready", "metrics", "assets"))
"""First path segments that are never pages, even if nothing exists there."""
CACHE_FOREVER = "public, max-age=31536000, immutable"  # an asset's name contains a hash of its content
REVALIDATE = "no-cache"
NOT_BUILT_MESSAGE = """\
The web application has not been built. In a clone of the repository, run:

    make web

and reload this page. Everything else works without it: the command line (`sandyard --help`) and the API (/api/v1).
"""
Version = frozenset[tuple[str, int, int, int]]
"""Path, inode, time and size of each file."""
_TYPES = {  # the machine's own table may lack these or differ
    ".css": "text/css",
    ".html": "text/html",
    ".ico": "image/x-icon",
    ".js": "text/javascript",
    ".json": "application/json",
    ".map": "application/json",
    ".mjs": "text/javascript",
    ".svg": "image/svg+xml",
    ".ttf": "font/ttf",
    ".txt": "text/plain",
    ".wasm": "application/wasm",
    ".webmanifest": "application/manifest+json",
    ".woff2": "font/woff2",
}
_TEXT_TYPES = ("text/", "application/json", "application/manifest+json", "image/svg+xml")


def make_policy(settings: PlatformSettings) -> str:
    """Return the Content-Security-Policy: a page may load its own files, use its own API and WebSockets, and show previews in frames."""
    parts = {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self' 'unsafe-inline'",  # terminals and editors use style attributes for positioning
        "img-src": "'self' data: blob:",
        "font-src": "'self' data:",
        "connect-src": "'self'",
        "manifest-src": "'self'",
        "worker-src": "'self' blob:",
        "frame-src": list_frame_sources(settings),
        "base-uri": "'none'",
        "form-action": "'self'",
        "frame-ancestors": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in parts.items())


@dataclass(frozen=True, slots=True)
class StaticFile:
    """A file of the web application. `gzipped`: the compressed content, or None if that saves too little."""

    content: bytes
    gzipped: bytes | None
    tag: str
    media_type: str
    immutable: bool


class WebApplication:
    """Serve the web application behind all routes. `fallback` handles requests for anything else than files and pages."""

    def __init__(self, fallback: ASGIApp, settings: PlatformSettings, folder: Path = STATIC) -> None:
        self._fallback = fallback
        self._policy = make_policy(settings)
        self._folder = folder
        self._files: Mapping[str, StaticFile] = {}
        self._loaded_version: Version = frozenset()
        self._loading = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = None
        if scope["type"] == "http" and scope["method"] in ("GET", "HEAD"):
            response = await self._find_response(scope["path"], Headers(scope=scope), head=scope["method"] == "HEAD")
        await (response or self._fallback)(scope, receive, send)

    async def _find_response(self, path: str, headers: Headers, *, head: bool) -> Response | None:
        page = is_page(path, headers.get("accept", ""))
        # an asset that is not in memory may have been written after the page that refers to it
        if page or (path not in self._files and path.startswith(ASSETS)) or not self._files:
            await self._reload_if_changed()
        found = self._files.get(path)
        if found is None and page:
            found = self._files.get(PAGE)
            if found is None:
                return PlainTextResponse(NOT_BUILT_MESSAGE, 503)
        return None if found is None else self._make_response(found, headers, head=head)

    def _make_response(self, file: StaticFile, headers: Headers, *, head: bool) -> Response:
        gzipped = file.gzipped if accepts_gzip(headers.get("accept-encoding", "")) else None
        tag = f'"{file.tag}"' if gzipped is None else f'"{file.tag}-gz"'
        response_headers = {
            "ETag": tag,
            "Cache-Control": CACHE_FOREVER if file.immutable else REVALIDATE,
            "Content-Security-Policy": self._policy,  # also for scripts: a worker uses the policy of its own file
            "Vary": "Accept-Encoding",
        }
        if tag in (tag_text.strip().removeprefix("W/") for tag_text in headers.get("if-none-match", "").split(",")):
            return Response(None, 304, response_headers)
        content = file.content if gzipped is None else gzipped
        if gzipped is not None:
            response_headers["Content-Encoding"] = "gzip"
        response_headers |= {"Content-Type": file.media_type, "Content-Length": str(len(content))}
        return Response(b"" if head else content, 200, response_headers)

    async def _reload_if_changed(self) -> None:
        """Load all files into memory if one of them was added, removed or replaced, so that a page and its assets come from the same
        build. Comparing only the page is not enough: some programs write it before the assets."""
        async with self._loading:
            version = await asyncio.to_thread(_get_version, self._folder)
            if version == self._loaded_version:
                return
            try:
                self._files = await asyncio.to_thread(lambda: dict(_read_files(self._folder)))
            except OSError:  # a file was replaced while it was read: the next request finds what replaced it
                return
            self._loaded_version = version


def _get_version(folder: Path) -> Version:
    """Return a value that changes whenever a file in the folder is added, removed or replaced."""
    found = set()
    for file in folder.rglob("*"):
        with contextlib.suppress(OSError):  # removed in the meantime
            state = file.stat()
            found.add((str(file), state.st_ino, state.st_mtime_ns, state.st_size))
    return frozenset(found)


def is_page(path: str, accept: str) -> bool:
    """Return whether the browser's router should handle the path.

    Clients that accept anything get a page where one could be. Clients that want only an image or a script do not.
    """
    first, last = path[1:].partition("/")[0], path.rpartition("/")[2]
    if first in NON_PAGE_SEGMENTS:
        return False
    if "text/html" in accept.lower():
        return True
    return accept.strip() in ("", "*/*") and "." not in last


def accepts_gzip(accept: str) -> bool:
    """Return whether the Accept-Encoding header allows gzip; `q=0` means it does not."""
    for encoding in accept.lower().split(","):
        name, _, options = encoding.partition(";")
        if name.strip() in ("gzip", "*"):
            return options.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def _read_files(folder: Path) -> Iterator[tuple[str, StaticFile]]:
    """Yield the files by URL path. Only files in the folder are served, for any request path."""
    for file in sorted(folder.rglob("*")):
        name = "/" + file.relative_to(folder).as_posix()
        if file.suffix == ".gz" or "/." in name or not file.is_file():
            continue
        content, gzipped = file.read_bytes(), file.with_name(f"{file.name}.gz")
        yield (
            name,
            StaticFile(
                content=content,
                gzipped=gzipped.read_bytes() if gzipped.is_file() else None,
                tag=hashlib.sha256(content).hexdigest()[:32],
                media_type=_get_media_type(file),
                immutable=name.startswith(ASSETS),
            ),
        )


def _get_media_type(file: Path) -> str:
    found = _TYPES.get(file.suffix.lower()) or mimetypes.guess_type(file.name)[0] or "application/octet-stream"
    return f"{found}; charset=utf-8" if found.startswith(_TEXT_TYPES) else found
