"""Access control for traffic into sandboxes. The agent trusts its socket, so all checks are made here, before anything
is forwarded.

- To the agent: `X-Access-Token`, except for `/health` and for `/files` with a signature in its URL.
- To the code interpreter: the same token to run code. Requests about its contexts need no token, because E2B's SDKs
  send none there; if one is sent, it must be correct.
- To any other port: no token, unless the sandbox is private; then `e2b-traffic-access-token`, for the interpreter as
  well.
- Requests that only the engine may make to the agent (`/init` and everything below `/_sandyard`) are refused from
  outside.
"""

from __future__ import annotations

from sandyard.engine.contract import AGENT_PORT, INTERPRETER_PORT
from sandyard.engine.e2b.dataplane import pages
from sandyard.engine.e2b.dataplane.asgi import Scope, get_header
from sandyard.engine.e2b.dataplane.pages import Page
from sandyard.engine.e2b.dataplane.signature import verify
from sandyard.engine.e2b.dataplane.target import Target, parse_signed_file
from sandyard.engine.sandboxes.model import Sandbox
from sandyard.kit.errors import SandyardError, UnauthenticatedError
from sandyard.kit.secret import Secret

ACCESS_TOKEN = b"x-access-token"
TRAFFIC_TOKEN = b"e2b-traffic-access-token"
UNAUTHORIZED = "unauthorized access, please provide a valid access token or method signing if supported"


def check_access(scope: Scope, target: Target, sandbox: Sandbox) -> Page | None:
    """Return the response to a request that is not allowed, or None if it is."""
    if target.port == AGENT_PORT:
        return _check_agent_access(scope, sandbox)
    if target.port == INTERPRETER_PORT and _lacks_token(scope, sandbox.access_token):
        return pages.plain(401, UNAUTHORIZED)
    if sandbox.traffic_token is None:
        return None
    sent_token = get_header(scope["headers"], TRAFFIC_TOKEN)
    if sent_token is None:
        return pages.missing_traffic_token(target)
    return None if sandbox.traffic_token.matches(sent_token) else pages.wrong_traffic_token(target)


def is_authenticated(scope: Scope, target: Target, sandbox: Sandbox) -> bool:
    """Return whether an allowed request has shown more than a public port requires. For a sandbox without a token, its
    id is enough."""
    if target.port == AGENT_PORT:
        return bool(scope["path"].strip("/") != "health")
    token = sandbox.access_token
    return sandbox.traffic_token is not None or (
        token is not None and token.matches(get_header(scope["headers"], ACCESS_TOKEN))
    )


def _lacks_token(scope: Scope, token: Secret | None) -> bool:
    """Return whether a request to the code interpreter lacks the required token. A CORS preflight needs none."""
    path: str = scope["path"].strip("/")
    if token is None or path == "health" or scope["method"] == "OPTIONS":
        return False
    sent_token = get_header(scope["headers"], ACCESS_TOKEN)
    if sent_token is None and path.partition("/")[0] == "contexts":
        return False
    return not token.matches(sent_token)


def _check_agent_access(scope: Scope, sandbox: Sandbox) -> Page | None:
    """Check a request to the agent. Errors use envd's own words and format, because clients take them for envd's."""
    path: str = scope["path"].strip("/")
    if path == "init" or path.partition("/")[0] == "_sandyard":
        return pages.plain(401, UNAUTHORIZED)
    token = sandbox.access_token
    if token is None or path == "health":
        return None
    sent_token = get_header(scope["headers"], ACCESS_TOKEN)
    if token.matches(sent_token):
        return None
    if scope["path"] != "/files":
        return pages.plain(401, UNAUTHORIZED)
    try:
        _check_signature(scope, token, sent_token)
    except SandyardError as error:
        return pages.plain(error.status, error.message)
    return None


def _check_signature(scope: Scope, token: Secret, sent_token: str | None) -> None:
    if sent_token:
        raise UnauthenticatedError("access token present in header but does not match")
    signed = parse_signed_file(scope)
    if signed is None:
        raise UnauthenticatedError("missing signature query parameter")
    verify(signed, token)
