"""Provider-side tools in a request: web search, fetching URLs, running code, calling other servers.

They run in the provider's network, bypass the sandbox's network settings, and cost more than the counted tokens. An agent's request may use
them only if its project allows them by name. Anything not known to run on the agent's side counts as provider-side.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any

from sandyard.platform.domain.models.model import ModelApi

REMOTE_FILES = "remote_files"
"""An image or a file that the provider fetches from a URL."""
_DATE_SUFFIX = re.compile(r"_\d{8}$")
_AGENT_SIDE_ANTHROPIC = (
    "custom",
    "bash",
    "text_editor",
    "computer",
    "memory",
    "tool_search_tool_regex",
    "tool_search_tool_bm25",
)
_AGENT_SIDE_OPENAI = (
    "function",
    "custom",
    "local_shell",
    "apply_patch",
    "computer",
    "computer_use_preview",
    "tool_search",
)
_AGENT_SIDE_GEMINI = ("function_declarations", "computer_use")
_SEARCHING_MODELS = re.compile(r"search-preview|search-api|deep-research|:online\b|(?:^|/)(?:sonar|compound)(?:[-:]|$)")
"""Matches names of models that search by themselves."""
_ROUTING_FIELDS = ("models", "route", "fallbacks", "preset")
"""Fields that make a router such as OpenRouter use another model than the named and priced one, or settings stored there."""
_EXTENSION_FIELDS = ("plugins", "search_parameters", "search_options", "enable_search")
"""Fields for provider-side tools of other servers with APIs like OpenAI's or Anthropic's."""
_SKIPPED_FIELDS = frozenset((*_EXTENSION_FIELDS, "web_search_options", "mcp_servers", "tools", "metadata"))
_SKIPPED_FIELDS_BY_API: Mapping[ModelApi, frozenset[str]] = {
    ModelApi.ANTHROPIC: _SKIPPED_FIELDS | {"input", "citations"},
    ModelApi.OPENAI: _SKIPPED_FIELDS | {"functions", "annotations", "action", "operation", "outputs", "results"},
    ModelApi.OPENAI_CHAT: _SKIPPED_FIELDS | {"functions", "annotations"},
    ModelApi.GEMINI: _SKIPPED_FIELDS | {"args", "response"},
}
"""Fields that are not searched for URLs.

These are the agent's own tools with their arguments and results, quotations, and fields that are checked separately.
"""
_TEXT_FIELDS = frozenset(
    # text by people, models and tools
    "text content input output prompt suffix system instructions thinking thought reasoning reasoning_content reasoning_text refusal "
    "summary arguments code logs stdout stderr query queries title context cited_text quote name description displayName display_name "
    "user stop stop_sequences stopSequences "
    # JSON schemas
    "$schema $id $ref default const enum example examples pattern".split()
)
"""Names of values that are read but never fetched, even if they start with a URL.

Under any other name, a URL counts as fetched by the provider.
"""
_QUOTING_TYPES = frozenset(
    "search_result web_search_result web_search_result_location search_result_location web_fetch_result url_citation".split()
)
"""Types of objects whose `url` and `source` only name the origin of something."""
_URL = re.compile(r"https?:|file:|[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_SKIPPED_BEFORE_URL = "".join(map(chr, range(33)))
"""Characters that URL parsers skip before a URL; tabs and line breaks also inside."""


def list_hosted_tools(kind: ModelApi, body: Mapping[str, Any], model: str | None) -> list[str]:
    """Return the names of the provider-side tools in this request, each once.

    Names are without dates and in lowercase: `web_search`, `code_execution`, `mcp_servers`, `remote_files`.
    """
    if kind is ModelApi.ANTHROPIC:
        found = _list_anthropic_tools(body)
    elif kind is ModelApi.GEMINI:
        found = _list_gemini_tools(body)
    else:
        found = _list_openai_features(body)
    remote = [REMOTE_FILES] if _has_fetched_url(body, _SKIPPED_FIELDS_BY_API[kind]) else []
    names = [*found, *_list_routing_features(body, model), *remote]
    return list(dict.fromkeys(name[:100] for name in names))


def list_refused_tools(used: Iterable[str], provider: str, allowed: Iterable[str]) -> list[str]:
    """Return the tools that a project does not allow. Entries of `allowed` are `tool`, for any provider, or `PROVIDER/tool`."""
    allowed_names = set(allowed)
    return [name for name in used if name not in allowed_names and f"{provider}/{name}" not in allowed_names]


def _list_anthropic_tools(body: Mapping[str, Any]) -> Iterator[str]:
    for name in ("mcp_servers", "container"):
        if body.get(name):
            yield name if name == "mcp_servers" else "code_execution"
    for tool in _list_objects(body.get("tools")):
        name = _DATE_SUFFIX.sub("", _normalize_type(tool.get("type"), "custom"))
        if name not in _AGENT_SIDE_ANTHROPIC:
            yield name


def _list_openai_features(body: Mapping[str, Any]) -> Iterator[str]:
    if body.get("web_search_options") is not None:
        yield "web_search"
    if isinstance(body.get("prompt"), dict):  # a prompt stored at the provider, with its own tools
        yield "prompt"
    yield from _list_openai_tools(body.get("tools"))


def _list_routing_features(body: Mapping[str, Any], model: str | None) -> Iterator[str]:
    """Yield what model names and router settings request, in any of the protocols."""
    others = body.get("models")
    named = [model, body.get("model"), *(others if isinstance(others, list) else [others])]
    for name in (model_name.lower() for model_name in named if isinstance(model_name, str)):
        if _SEARCHING_MODELS.search(name):
            yield "web_search"
        if "@preset" in name:
            yield "preset"
    for name in (*_ROUTING_FIELDS, *_EXTENSION_FIELDS):
        if body.get(name):
            yield name


def _list_openai_tools(tools: Any) -> Iterator[str]:
    for tool in _list_objects(tools):
        name = _DATE_SUFFIX.sub("", re.sub(r"_\d{4}_\d{2}_\d{2}$", "", _normalize_type(tool.get("type"), "function")))
        if name == "namespace":
            yield from _list_openai_tools(tool.get("tools"))
        elif name == "shell":
            environment = tool.get("environment")
            if environment is not None and not (isinstance(environment, dict) and environment.get("type") == "local"):
                yield "code_interpreter"
        elif name not in _AGENT_SIDE_OPENAI:
            yield "web_search" if name == "web_search_preview" else name


def _list_gemini_tools(body: Mapping[str, Any]) -> Iterator[str]:
    for tool in _list_objects(body.get("tools")):
        for key in tool:
            name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", key).lower()
            if name not in _AGENT_SIDE_GEMINI:
                yield name


def _has_fetched_url(body: Mapping[str, Any], skipped: Container[str]) -> bool:
    """Return whether the body contains a URL that the provider may fetch. Not recursive, because bodies can be deeply nested."""
    pending: list[tuple[str, Any]] = [("", body)]
    while pending:
        key, value = pending.pop()
        if isinstance(value, str):
            if key not in _TEXT_FIELDS and _is_url(value):
                return True
        elif isinstance(value, list):
            pending += [(key, inner) for inner in value]
        elif isinstance(value, dict):
            text = _list_text_fields(value)
            pending += [(name, inner) for name, inner in value.items() if name not in skipped and name not in text]
    return False


def _list_text_fields(part: Mapping[str, Any]) -> Container[str]:
    """Return the names of values that are only read in an object of this type."""
    kind = part.get("type")
    if kind == "text":
        return ("text", "data")
    return ("url", "source") if isinstance(kind, str) and kind in _QUOTING_TYPES else ()


def _is_url(value: str) -> bool:
    beginning = value.lstrip(_SKIPPED_BEFORE_URL)[:100]
    return _URL.match(re.sub(r"[\t\r\n]", "", beginning)) is not None


def _list_objects(value: Any) -> list[dict[str, Any]]:
    """Return the list of tools. Entries that are not objects are ignored, because no API accepts them."""
    found = value if isinstance(value, list) else [value]
    return [entry for entry in found if isinstance(entry, dict)]


def _normalize_type(value: Any, default: str) -> str:
    return value.lower() if isinstance(value, str) else default if value is None else "unknown"
