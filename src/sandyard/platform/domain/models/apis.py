"""The providers' protocols: allowed requests, authentication headers and error formats."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlencode

from sandyard.kit.secret import Secret
from sandyard.platform.domain.models.model import ModelApi

DEFAULT_URLS = {
    ModelApi.ANTHROPIC: "https://api.anthropic.com",
    ModelApi.OPENAI: "https://api.openai.com",
    ModelApi.GEMINI: "https://generativelanguage.googleapis.com",
}
SUPPORTED_APIS: Mapping[ModelApi, tuple[ModelApi, ...]] = {
    ModelApi.ANTHROPIC: (ModelApi.ANTHROPIC,),
    ModelApi.OPENAI: (ModelApi.OPENAI, ModelApi.OPENAI_CHAT),
    ModelApi.OPENAI_CHAT: (ModelApi.OPENAI_CHAT,),
    ModelApi.GEMINI: (ModelApi.GEMINI,),
}
"""The APIs that a provider of a kind serves: OpenAI itself serves both of its APIs."""

_MODELS_ROUTE = ("GET", r"/v1/models(/(?!\.+$)[A-Za-z0-9._:@-]+)?", False)
_CHAT_ROUTES = (("POST", r"/v1/chat/completions", True), ("POST", r"/v1/embeddings", True), _MODELS_ROUTE)
_MODEL_NAME = r"(?!\.+(?:[:/]|$))[A-Za-z0-9._-]+"
_ROUTES: Mapping[ModelApi, tuple[tuple[str, str, bool], ...]] = {  # method, pattern of the path, counted
    ModelApi.ANTHROPIC: (
        ("POST", r"/v1/messages", True),
        ("POST", r"/v1/messages/count_tokens", False),
        _MODELS_ROUTE,
    ),
    ModelApi.OPENAI: (("POST", r"/v1/responses", True), *_CHAT_ROUTES),
    ModelApi.OPENAI_CHAT: _CHAT_ROUTES,
    ModelApi.GEMINI: (
        ("POST", rf"/v1(?:beta)?/models/{_MODEL_NAME}:(?:generateContent|streamGenerateContent|embedContent)", True),
        ("POST", rf"/v1(?:beta)?/models/{_MODEL_NAME}:countTokens", False),
        ("GET", rf"/v1(?:beta)?/models(?:/{_MODEL_NAME})?", False),
    ),
}
_VERSION_SUFFIX = re.compile(r"/v[0-9][a-z0-9]*$")
_HOP_BY_HOP_HEADERS = frozenset(
    "connection keep-alive proxy-connection proxy-authenticate proxy-authorization te trailer transfer-encoding upgrade".split()
)
_FORWARDED_REQUEST_HEADERS = frozenset(
    # every client
    "accept accept-language content-type user-agent "
    # Anthropic's and Google's SDKs
    "anthropic-version anthropic-beta anthropic-dangerous-direct-browser-access x-app x-goog-api-client x-server-timeout "
    # Codex
    "openai-beta originator version session_id session-id conversation_id thread-id x-client-request-id x-openai-subagent "
    "x-openai-memgen-request x-openai-internal-codex-responses-lite x-responsesapi-include-timing-metrics "
    # OpenCode
    "x-session-affinity x-session-id x-parent-session-id http-referer x-title".split()
)
_FORWARDED_REQUEST_HEADER_PREFIXES = ("x-stainless-", "x-claude-code-", "x-codex-", "x-opencode-")
"""Headers of the built-in agents and the providers' SDKs.

All others are dropped, because they may select another account, project or server: `openai-organization`, `anthropic-workspace-id`,
`x-goog-user-project`, and the headers of routers such as Portkey and Helicone.
"""
_ACCEPTED_TYPES = frozenset(("application/json", "text/event-stream", "*/*"))
"""Formats of responses in which token usage is found."""
_FORWARDED_PARAMETERS: Mapping[ModelApi, Mapping[str, frozenset[str] | None]] = {
    ModelApi.ANTHROPIC: {"beta": frozenset(("true", "false")), "limit": None, "after_id": None, "before_id": None},
    ModelApi.OPENAI: {"client_version": None, "api-version": None},
    ModelApi.OPENAI_CHAT: {"client_version": None, "api-version": None},
    ModelApi.GEMINI: {"alt": frozenset(("sse", "json")), "pageSize": None, "pageToken": None},
}
"""Query parameters that agents need, with the allowed values; None allows any value.

All others are dropped: some contain credentials, and Google's system parameters can leave token usage out of the response or encode it.
"""
_DROPPED_RESPONSE_HEADERS = _HOP_BY_HOP_HEADERS | frozenset(
    "set-cookie location content-encoding alt-svc strict-transport-security".split()
)
_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
}
_GEMINI_STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    402: "FAILED_PRECONDITION",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
}

Headers = list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """A request for a path of a provider's API. `counted`: it uses a model and so costs something."""

    path: str
    query: str
    counted: bool

    @property
    def is_chat(self) -> bool:
        return self.path.endswith("/chat/completions")

    @property
    def may_continue(self) -> bool:
        """Whether it may continue a conversation that the provider stores, so that its input may be larger than its body."""
        return self.path.endswith("/responses")

    @property
    def gemini_model(self) -> str:
        return self.path.rpartition("/")[2].partition(":")[0]


def parse_request(kind: ModelApi, method: str, path: str, query: str) -> ModelRequest | None:
    """Return the request; None for everything that no agent needs: files, batches, other responses, fine-tuning, the account."""
    route_method = "GET" if method == "HEAD" else method
    for allowed_method, pattern, counted in _ROUTES[kind]:
        if allowed_method == route_method and re.fullmatch(pattern, path):
            kept = [
                (name, value)
                for name, value in parse_qsl(query, keep_blank_values=True)
                if _is_forwarded_parameter(kind, name, value)
            ]
            return ModelRequest(path, urlencode(kept), counted)
    return None


def _is_forwarded_parameter(kind: ModelApi, name: str, value: str) -> bool:
    forwarded = _FORWARDED_PARAMETERS[kind]
    if name not in forwarded:
        return False
    allowed = forwarded[name]
    return allowed is None or value in allowed


def list_capabilities(headers: Iterable[tuple[str, str]], query: str) -> list[str]:
    """Return the capabilities that the agent sent in place of a key, wherever its protocol puts them."""
    found = [value for name, value in parse_qsl(query) if name == "key"]
    for name, value in headers:
        if name == "authorization" and value[:7].lower() == "bearer ":
            found.append(value[7:].strip())
        elif name in ("x-api-key", "x-goog-api-key", "api-key"):
            found.append(value.strip())
    return found


def build_url(base_url: str, request: ModelRequest) -> str:
    """Return the URL of a request. The version of the base URL, such as `…/v4`, replaces that of the path."""
    base, path = base_url.rstrip("/"), request.path
    if _VERSION_SUFFIX.search(base):
        path = re.sub(r"^/v1(?:beta)?(?=/)", "", path)
    return base + path + (f"?{request.query}" if request.query else "")


def filter_request_headers(kind: ModelApi, headers: Iterable[tuple[str, str]], key: Secret | None) -> Headers:
    """Return those of the agent's headers that providers need, with the real key.

    The body was read as JSON in UTF-8, so that is how it is sent.
    """
    kept = [
        (name, "application/json" if name == "content-type" else value)
        for name, value in headers
        if _is_forwarded_header(name, value)
    ]
    return [*kept, ("accept-encoding", "identity"), *make_key_headers(kind, key)]


def _is_forwarded_header(name: str, value: str) -> bool:
    if name == "accept":
        return all(part.partition(";")[0].strip().lower() in _ACCEPTED_TYPES for part in value.split(","))
    return name in _FORWARDED_REQUEST_HEADERS or name.startswith(_FORWARDED_REQUEST_HEADER_PREFIXES)


def make_key_headers(kind: ModelApi, key: Secret | None) -> Headers:
    if key is None:
        return []
    if kind is ModelApi.ANTHROPIC:
        return [("x-api-key", key.reveal())]
    if kind is ModelApi.GEMINI:
        return [("x-goog-api-key", key.reveal())]
    return [("authorization", f"Bearer {key.reveal()}")]


def filter_response_headers(headers: Iterable[tuple[str, str]], *, decoded: bool) -> Headers:
    """Return the provider's headers without hop-by-hop headers. `decoded`: the body was decoded, so that its length is no longer correct."""
    dropped = _DROPPED_RESPONSE_HEADERS | {"content-length"} if decoded else _DROPPED_RESPONSE_HEADERS
    return [(name.lower(), value) for name, value in headers if name.lower() not in dropped]


def format_refusal(kind: ModelApi, status: int, code: str, message: str) -> tuple[Headers, bytes]:
    """Return an error in the format of this provider's clients. The SDKs of Anthropic and OpenAI check `x-should-retry` first."""
    error: dict[str, Any]
    if kind is ModelApi.ANTHROPIC:
        error = {"type": "error", "error": {"type": _ANTHROPIC_TYPES.get(status, "api_error"), "message": message}}
    elif kind is ModelApi.GEMINI:
        status_name = _GEMINI_STATUSES.get(status, "UNAVAILABLE")
        error = {"error": {"code": status, "message": message, "status": status_name}}
    else:
        error_type = (
            "insufficient_quota" if status == 402 else "invalid_request_error" if status < 500 else "server_error"
        )
        error = {"error": {"message": message, "type": error_type, "param": None, "code": code}}
    body = json.dumps(error).encode()
    headers = [("content-type", "application/json"), ("content-length", str(len(body)))]
    return [*headers, ("x-should-retry", "true" if status >= 500 else "false")], body
