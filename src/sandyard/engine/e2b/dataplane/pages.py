"""Error responses of the data plane itself: JSON for programs, a page for browsers.

The messages, fields and status codes are those of E2B's proxy, because clients check for them.
"""

from __future__ import annotations

import html
import json
import re
from dataclasses import dataclass

from sandyard.engine.contract import INTERPRETER_PORT
from sandyard.engine.e2b.dataplane.asgi import Headers, Scope, Send, get_header
from sandyard.engine.e2b.dataplane.target import Target

CORS: Headers = [(b"access-control-allow-origin", b"*")]
NO_INTERPRETER = (
    "This sandbox has no code interpreter. Use the template code-interpreter-v1, once it is built "
    "(`sandyard template build code-interpreter`), or a template made from it."
)
_BROWSER = re.compile(r"mozilla|chrome|safari|firefox|edge|opera|msie", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Page:
    """`title` and `advice` are for people, `message` is for programs."""

    status: int
    message: str
    title: str
    advice: str
    sandbox_id: str | None = None
    port: int | None = None


def not_found(target: Target) -> Page:
    return Page(
        502,
        "The sandbox was not found",
        "Sandbox Not Found",
        f"The sandbox {target.sandbox_id} is not running: it ended, is paused, or never existed.",
        target.sandbox_id,
    )


def port_closed(target: Target) -> Page:
    if target.port == INTERPRETER_PORT:
        return plain(501, NO_INTERPRETER, target)
    return Page(
        502,
        "The sandbox is running but port is not open",
        "Closed Port Error",
        f"The sandbox {target.sandbox_id} is running, but there is no service running on port {target.port}. Start one.",
        target.sandbox_id,
        target.port,
    )


def missing_traffic_token(target: Target) -> Page:
    return Page(
        403,
        "Sandbox is secured with traffic access token. Token header 'e2b-traffic-access-token' is missing",
        "Missing Traffic Access Token",
        f"The sandbox {target.sandbox_id} is private: its previews require its token in the header "
        "'e2b-traffic-access-token'. To view it in a browser, open it from Sandyard, or ask its owner to allow public traffic.",
        target.sandbox_id,
    )


def wrong_traffic_token(target: Target) -> Page:
    return Page(
        403,
        "Sandbox is secured with traffic access token. Provided token in header 'e2b-traffic-access-token' is invalid",
        "Invalid Traffic Access Token",
        f"The token in the header 'e2b-traffic-access-token' is not valid for the sandbox {target.sandbox_id}.",
        target.sandbox_id,
    )


def plain(status: int, message: str, target: Target | None = None) -> Page:
    return Page(status, message, "Error", message, target.sandbox_id if target else None)


def render(page: Page, headers: Headers) -> tuple[bytes, bytes]:
    """Return content type and body in the format that the client accepts."""
    if _BROWSER.search(get_header(headers, b"user-agent") or ""):
        return b"text/html; charset=utf-8", _render_html(page)
    body: dict[str, str | int] = {"code": page.status, "message": page.message}
    if page.sandbox_id is not None:
        body["sandboxId"] = page.sandbox_id
    if page.port is not None:
        body["port"] = page.port
    return b"application/json; charset=utf-8", json.dumps(body).encode()


async def send_page(page: Page, scope: Scope, send: Send) -> None:
    content_type, body = render(page, scope["headers"])
    length = str(len(body)).encode()
    headers = [(b"content-type", content_type), (b"content-length", length), *CORS]
    if page.status in (429, 503):
        headers.append((b"retry-after", b"1"))
    await send({"type": "http.response.start", "status": page.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:36rem;margin:20vh auto;padding:0 1rem;color:#222}"
    "@media(prefers-color-scheme:dark){body{background:#111;color:#ddd}}"
)


def _render_html(page: Page) -> bytes:
    title, advice = html.escape(page.title), html.escape(page.advice)
    head = f'<head><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style></head>'
    return f'<html lang="en">{head}<body><h1>{title}</h1><p>{advice}</p></body></html>'.encode()
