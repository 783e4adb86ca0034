"""Serve the web application to browsers where no route matches. `make web` builds it into `static/`, and it is part of the wheel.

No authentication is needed, because it contains no user data: it gets everything from the API.
"""

from __future__ import annotations

import asyncio
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
OTHERS = frozenset(("api", "mcp", "health", "ready", "metrics", "assets"))
"""First path segments that are never pages, even if nothing exists there."""
FOREVER = "public, max-age=31536000, immutable"  # an asset's name contains a hash of its content
ASK_AGAIN = "no-cache"
UNBUILT = """\
The web application has not been built. In a clone of the repository, run:

    make web

and reload this page. Everything else works without it: the command line (`sandyard --help`) and the API (/api/v1).
"""
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
_OF_TEXT = ("text/", "application/json", "application/manifest+json", "image/svg+xml")


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
class File:
    """`packed` is the content compressed with gzip, or None if that saves too little."""

    content: bytes
    packed: bytes | None
    tag: str
    media_type: str
    lasting: bool


class Web:
    """Serve the web application behind all routes. `otherwise` handles what is neither a file nor a page."""

    def __init__(self, otherwise: ASGIApp, settings: PlatformSettings, folder: Path = STATIC) -> None:
        self._otherwise = otherwise
        self._policy = make_policy(settings)
        self._folder = folder
        self._files: Mapping[str, File] = {}
        self._seen: tuple[int, int] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = None
        if scope["type"] == "http" and scope["method"] in ("GET", "HEAD"):
            answer = await self._answer(scope["path"], Headers(scope=scope), head=scope["method"] == "HEAD")
        await (answer or self._otherwise)(scope, receive, send)

    async def _answer(self, path: str, headers: Headers, *, head: bool) -> Response | None:
        page = is_page(path, headers.get("accept", ""))
        if page or not self._files:
            await self._look()
        found = self._files.get(path)
        if found is None and page:
            found = self._files.get(PAGE)
            if found is None:
                return PlainTextResponse(UNBUILT, 503)
        return None if found is None else self._made(found, headers, head=head)

    def _made(self, file: File, headers: Headers, *, head: bool) -> Response:
        packed = file.packed if accepts_gzip(headers.get("accept-encoding", "")) else None
        tag = f'"{file.tag}"' if packed is None else f'"{file.tag}-gz"'
        sent = {
            "ETag": tag,
            "Cache-Control": FOREVER if file.lasting else ASK_AGAIN,
            "Content-Security-Policy": self._policy,  # also for scripts: a worker uses the policy of its own file
            "Vary": "Accept-Encoding",
        }
        if tag in (one.strip().removeprefix("W/") for one in headers.get("if-none-match", "").split(",")):
            return Response(None, 304, sent)
        content = file.content if packed is None else packed
        if packed is not None:
            sent["Content-Encoding"] = "gzip"
        sent |= {"Content-Type": file.media_type, "Content-Length": str(len(content))}
        return Response(b"" if head else content, 200, sent)

    async def _look(self) -> None:
        """Load all files into memory if they were rebuilt, so that a page and its assets come from the same build."""
        try:
            state = (self._folder / PAGE[1:]).stat()
        except OSError:
            self._files, self._seen = {}, None
            return
        seen = (state.st_ino, state.st_mtime_ns)
        if seen != self._seen:
            self._files = await asyncio.to_thread(lambda: dict(_read(self._folder)))
            self._seen = seen


def is_page(path: str, accept: str) -> bool:
    """Return whether the browser's router should handle the path.

    Clients that accept anything get a page where one could be. Clients that want only an image or a script do not.
    """
    first, last = path[1:].partition("/")[0], path.rpartition("/")[2]
    if first in OTHERS:
        return False
    if "text/html" in accept.lower():
        return True
    return accept.strip() in ("", "*/*") and "." not in last


def accepts_gzip(accept: str) -> bool:
    """Return whether the Accept-Encoding header allows gzip; `q=0` means it does not."""
    for one in accept.lower().split(","):
        name, _, options = one.partition(";")
        if name.strip() in ("gzip", "*"):
            return options.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def _read(folder: Path) -> Iterator[tuple[str, File]]:
    """Yield the files by URL path. Only files in the folder are ever served, whatever the request path."""
    for file in sorted(folder.rglob("*")):
        name = "/" + file.relative_to(folder).as_posix()
        if file.suffix == ".gz" or "/." in name or not file.is_file():
            continue
        content, packed = file.read_bytes(), file.with_name(f"{file.name}.gz")
        yield (
            name,
            File(
                content=content,
                packed=packed.read_bytes() if packed.is_file() else None,
                tag=hashlib.sha256(content).hexdigest()[:32],
                media_type=_media_type(file),
                lasting=name.startswith(ASSETS),
            ),
        )


def _media_type(file: Path) -> str:
    found = _TYPES.get(file.suffix.lower()) or mimetypes.guess_type(file.name)[0] or "application/octet-stream"
    return f"{found}; charset=utf-8" if found.startswith(_OF_TEXT) else found
