"""Media types of files, by name or, if that is unknown, by their first bytes."""

from __future__ import annotations

_TEXT = "; charset=utf-8"
_BY_EXTENSION = {
    "avif": "image/avif", "bmp": "image/bmp", "css": "text/css" + _TEXT, "csv": "text/csv" + _TEXT, "gif": "image/gif",
    "gz": "application/gzip", "htm": "text/html" + _TEXT, "html": "text/html" + _TEXT, "ico": "image/x-icon",
    "jpeg": "image/jpeg", "jpg": "image/jpeg", "js": "text/javascript" + _TEXT, "json": "application/json",
    "md": "text/markdown" + _TEXT, "mjs": "text/javascript" + _TEXT, "mp3": "audio/mpeg", "mp4": "video/mp4",
    "pdf": "application/pdf", "png": "image/png", "py": "text/x-python" + _TEXT, "svg": "image/svg+xml",
    "tar": "application/x-tar", "txt": "text/plain" + _TEXT, "wasm": "application/wasm", "wav": "audio/x-wav",
    "webm": "video/webm", "webp": "image/webp", "woff2": "font/woff2", "xml": "text/xml" + _TEXT,
    "zip": "application/zip",
}  # fmt: skip
_BY_START = (
    (b"%PDF-", "application/pdf"), (b"\x89PNG\r\n\x1a\n", "image/png"), (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"), (b"PK\x03\x04", "application/zip"), (b"\x1f\x8b\x08", "application/x-gzip"),
)  # fmt: skip
_BINARY = frozenset(range(32)) - frozenset(b"\t\n\x0c\r\x1b")


def guess_media_type(path: str, first_bytes: bytes | None) -> str:
    """Return the media type for the path's extension, otherwise for the first bytes of the file (None if not read)."""
    dot = path.rfind(".")
    extension = path[dot + 1 :].lower() if dot > path.rfind("/") else ""
    known = _BY_EXTENSION.get(extension)
    if known is not None:
        return known
    if first_bytes is None:
        return "application/octet-stream"
    for beginning, kind in _BY_START:
        if first_bytes.startswith(beginning):
            return kind
    return "application/octet-stream" if _BINARY.intersection(first_bytes) else "text/plain" + _TEXT
