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
_SNIFFED = 16 << 10


class Trouble(Enum):
    """Why the engine itself responded."""

    CLOSED = "port is not open"
    MISSING = "sandbox was not found"


_TITLES = {"closed port error": Trouble.CLOSED, "sandbox not found": Trouble.MISSING}


def render_page(status: int, title: str, *sentences: str, refresh_s: int | None = None) -> HTMLResponse:
    again = f'<meta http-equiv="refresh" content="{refresh_s}">' if refresh_s else ""
    said = "".join(f"<p>{html.escape(sentence)}</p>" for sentence in sentences)
    head = f'<meta charset="utf-8">{again}<title>{html.escape(title)}</title><style>{_STYLE}</style>'
    text = f'<!doctype html><html lang="en"><head>{head}</head><body><h1>{html.escape(title)}</h1>{said}</body></html>'
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


def may_be_trouble(status: int) -> bool:
    return status == HTTPStatus.BAD_GATEWAY


def is_complete(held: bytes) -> bool:
    """Return whether the response is longer than any page of the engine."""
    return len(held) >= _SNIFFED


def render_error(status: int, body: bytes) -> Trouble | None:
    """Return why an E2B endpoint cannot reach a sandbox or port: it answers programs with JSON and browsers with a page.

    A sandbox that imitates these responses deceives only its own viewers.
    """
    if not may_be_trouble(status) or is_complete(body):
        return None
    try:
        said = json.loads(body)
        words = str(said["message"]).lower() if "sandboxId" in said else ""
        return next((one for one in Trouble if one.value in words), None)
    except (ValueError, TypeError, KeyError, RecursionError):
        text = body.decode(errors="replace").lower()
        return next((one for title, one in _TITLES.items() if f"<title>{title}</title>" in text), None)
