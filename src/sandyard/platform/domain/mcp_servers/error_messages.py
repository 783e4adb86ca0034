"""Error messages of MCP servers."""

from __future__ import annotations

import httpx

from sandyard.kit.destinations import PrivateAddressError
from sandyard.kit.errors import SandyardError
from sandyard.kit.http_clients import describe_unreachable
from sandyard.platform.domain.models.redaction import Redactor


def explain_response(name: str, response: httpx.Response, *, has_headers: bool, redactor: Redactor) -> str | None:
    """Return why the response is an error, or None if it is not.

    `has_headers`: the request had configured headers, which `redactor` removes from the message.
    """
    status = response.status_code
    if response.is_success:
        return None
    if status in (401, 403):
        return (
            f"The MCP server {name} rejected the configured headers ({status}). Check their values in the project settings."
            if has_headers
            else f"The MCP server {name} requires authentication ({status}). Add a header, such as Authorization."
        )
    if response.is_redirect:
        location = redactor.redact(str(response.headers.get("location", "")))[:200]
        return f"The MCP server {name} redirects to another URL ({location}). Redirects are not followed. Check that URL and use it instead."
    if status == 404:
        return f"The MCP server {name} was not found at this URL (404)."
    if status == 405:
        return f"{name} does not accept MCP (streamable HTTP) at this URL (405)."
    return f"The MCP server {name} returned an error ({status})."


def explain_error(name: str, url: str, error: Exception) -> str:
    """Return why a request got no response."""
    if isinstance(error, PrivateAddressError):
        return f"Access to the MCP server {name} is not allowed: {error.message} An administrator can allow this URL by saving it again."
    if isinstance(error, SandyardError):
        return f"Access to the MCP server {name} is not allowed: {error.message}"
    if isinstance(error, httpx.TimeoutException):
        return f"The MCP server {name} did not respond in time."
    return describe_unreachable(f"The MCP server {name}", url, error)
