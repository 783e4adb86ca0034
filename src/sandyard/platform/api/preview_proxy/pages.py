"""Pages shown in place of a preview, and detection of the engine's own error responses."""

from __future__ import annotations

import html
import json
from enum import Enum
from http import HTTPStatus

from starlette.responses import HTMLResponse

HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:36rem;margin:20vh auto;padding:0 1rem;color:#222;background:#fff}"
    "h1{font-size:1.25rem}@media(prefers-color-scheme:dark){body{background:#111;color:#ddd}}"
)
_MAX_ERROR_BYTES = 16 << 10


class RouteFailure(Enum):
    """The reason why the engine itself responded in place of the sandbox."""

    CLOSED = "port is not open"
    MISSING = "sandbox was not found"


_TITLES = {"closed port error": RouteFailure.CLOSED, "sandbox not found": RouteFailure.MISSING}


def render_page(status: int, title: str, *sentences: str, refresh_s: int | None = None) -> HTMLResponse:
    refresh = f'<meta http-equiv="refresh" content="{refresh_s}">' if refresh_s else ""
    paragraphs = "".join(f"<p>{html.escape(message)}</p>" for message in sentences)
    head = f'<meta charset="utf-8">{refresh}<title>{html.escape(title)}</title><style>{_STYLE}</style>'
    text = f'<!doctype html><html lang="en"><head>{head}</head><body><h1>{html.escape(title)}</h1>{paragraphs}</body></html>'
    headers = HEADERS | ({"Retry-After": str(refresh_s or 1)} if status == HTTPStatus.SERVICE_UNAVAILABLE else {})
    return HTMLResponse(text, status, headers)


def render_not_allowed() -> HTMLResponse:
    return render_page(
        401,
        "Open this preview from Sandyard",
        "Previews are visible to people who may see the sandbox. Open it from the sandbox's panel in Sandyard, or use the URL "
        "that `sandyard sandbox preview` prints.",
        "If you came from there, your browser blocks cookies in frames: open the preview in its own tab.",
    )


def render_not_found() -> HTMLResponse:
    return render_page(404, "Preview not found", "The host name of a preview is a port, a hyphen and a sandbox id.")


def may_be_route_failure(status: int) -> bool:
    return status == HTTPStatus.BAD_GATEWAY


def is_complete(beginning: bytes) -> bool:
    """Return whether the response is longer than any page of the engine."""
    return len(beginning) >= _MAX_ERROR_BYTES


def find_route_failure(status: int, body: bytes) -> RouteFailure | None:
    """Return why an E2B endpoint cannot reach a sandbox or port, or None. It answers programs with JSON and browsers with a page.

    A sandbox that imitates these responses deceives only its own viewers.
    """
    if not may_be_route_failure(status) or is_complete(body):
        return None
    try:
        document = json.loads(body)
        message = str(document["message"]).lower() if "sandboxId" in document else ""
        return next((error for error in RouteFailure if error.value in message), None)
    except (ValueError, TypeError, KeyError, RecursionError):
        text = body.decode(errors="replace").lower()
        return next((error for title, error in _TITLES.items() if f"<title>{title}</title>" in text), None)
