"""Why an MCP server does not answer, in a sentence that names it."""

from __future__ import annotations

import httpx

from sandyard.kit.connection_faults import describe_unreachable
from sandyard.kit.errors import SandyardError


def refusal_of_answer(name: str, response: httpx.Response, *, keyed: bool) -> str | None:
    """None: it is an answer. `keyed`: it was shown headers of its own."""
    status = response.status_code
    if response.is_success:
        return None
    if status in (401, 403):
        return (
            f"The MCP server {name} rejected the configured headers ({status}). Check their values in the project settings."
            if keyed
            else f"The MCP server {name} needs a key ({status}). Give it as a header, such as Authorization."
        )
    if response.is_redirect:
        where = str(response.headers.get("location", ""))[:200]
        return f"The MCP server {name} redirects to another address ({where}), which is not followed. Use that one, if it is right."
    if status == 404:
        return f"The MCP server {name} has nothing at this URL (404)."
    if status == 405:
        return f"{name} does not accept MCP (streamable HTTP) at this URL (405)."
    return f"The MCP server {name} answered with an error ({status})."


def refusal_of_error(name: str, url: str, error: Exception) -> str:
    """For a request that got no answer."""
    if isinstance(error, SandyardError):
        return f"The MCP server {name} may not be reached: {error.message}"
    if isinstance(error, httpx.TimeoutException):
        return f"The MCP server {name} did not answer in time."
    return describe_unreachable(f"The MCP server {name}", url, error)
