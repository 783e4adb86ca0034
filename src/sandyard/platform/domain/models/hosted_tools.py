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
_DATED = re.compile(r"_\d{8}$")
_OWN_ANTHROPIC = (
    "custom",
    "bash",
    "text_editor",
    "computer",
    "memory",
    "tool_search_tool_regex",
    "tool_search_tool_bm25",
)
_OWN_OPENAI = ("function", "custom", "local_shell", "apply_patch", "computer", "computer_use_preview", "tool_search")
_OWN_GEMINI = ("function_declarations", "computer_use")
_SEARCHES = re.compile(r"search-preview|search-api|deep-research|:online\b|(?:^|/)(?:sonar|compound)(?:[-:]|$)")
"""Matches names of models that search by themselves."""
_ROUTING = ("models", "route", "fallbacks", "preset")
"""Fields that make a router such as OpenRouter use another model than the named and priced one, or settings stored there."""
_OF_PROVIDERS = ("plugins", "search_parameters", "search_options", "enable_search")
"""Fields of servers with APIs like OpenAI's or Anthropic's."""
_NOT_FOLLOWED = frozenset((*_OF_PROVIDERS, "web_search_options", "mcp_servers", "tools", "metadata"))
_NOT_FOLLOWED_BY: Mapping[ModelApi, frozenset[str]] = {
    ModelApi.ANTHROPIC: _NOT_FOLLOWED | {"input", "citations"},
    ModelApi.OPENAI: _NOT_FOLLOWED | {"functions", "annotations", "action", "operation", "outputs", "results"},
    ModelApi.OPENAI_CHAT: _NOT_FOLLOWED | {"functions", "annotations"},
    ModelApi.GEMINI: _NOT_FOLLOWED | {"args", "response"},
}
"""Fields that are not searched for URLs.

These are the agent's own tools with their arguments and results, quotations, and fields that are checked separately.
"""
_TEXT = frozenset(
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
_QUOTED = frozenset(
    "search_result web_search_result web_search_result_location search_result_location web_fetch_result url_citation".split()
)
"""Types of objects whose `url` and `source` only name the origin of something."""
_ADDRESS = re.compile(r"https?:|file:|[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_SPACE = "".join(map(chr, range(33)))
"""Characters that URL parsers skip before a URL; tabs and line breaks also inside."""


def list_hosted_tools(kind: ModelApi, told: Mapping[str, Any], model: str | None) -> list[str]:
    """Return the names of the provider-side tools in this request, each once.

    Names are without dates and in lowercase: `web_search`, `code_execution`, `mcp_servers`, `remote_files`.
    """
    if kind is ModelApi.ANTHROPIC:
        found = _anthropic(told)
    elif kind is ModelApi.GEMINI:
        found = _gemini(told)
    else:
        found = _openai(told)
    remote = [REMOTE_FILES] if _fetches(told, _NOT_FOLLOWED_BY[kind]) else []
    names = [*found, *_routed(told, model), *remote]
    return list(dict.fromkeys(name[:100] for name in names))


def list_refused_tools(used: Iterable[str], provider: str, allowed: Iterable[str]) -> list[str]:
    """Return the tools that a project does not allow. It names a tool of any provider, or `PROVIDER/tool`."""
    known = set(allowed)
    return [name for name in used if name not in known and f"{provider}/{name}" not in known]


def _anthropic(told: Mapping[str, Any]) -> Iterator[str]:
    for name in ("mcp_servers", "container"):
        if told.get(name):
            yield name if name == "mcp_servers" else "code_execution"
    for tool in _list(told.get("tools")):
        name = _DATED.sub("", _word(tool.get("type"), "custom"))
        if name not in _OWN_ANTHROPIC:
            yield name


def _openai(told: Mapping[str, Any]) -> Iterator[str]:
    if told.get("web_search_options") is not None:
        yield "web_search"
    if isinstance(told.get("prompt"), dict):  # a prompt stored at the provider, with its own tools
        yield "prompt"
    yield from _openai_tools(told.get("tools"))


def _routed(told: Mapping[str, Any], model: str | None) -> Iterator[str]:
    """Yield what model names and router settings request, in any of the protocols."""
    others = told.get("models")
    named = [model, told.get("model"), *(others if isinstance(others, list) else [others])]
    for name in (one.lower() for one in named if isinstance(one, str)):
        if _SEARCHES.search(name):
            yield "web_search"
        if "@preset" in name:
            yield "preset"
    for name in (*_ROUTING, *_OF_PROVIDERS):
        if told.get(name):
            yield name


def _openai_tools(tools: Any) -> Iterator[str]:
    for tool in _list(tools):
        name = _DATED.sub("", re.sub(r"_\d{4}_\d{2}_\d{2}$", "", _word(tool.get("type"), "function")))
        if name == "namespace":
            yield from _openai_tools(tool.get("tools"))
        elif name == "shell":
            place = tool.get("environment")
            if place is not None and not (isinstance(place, dict) and place.get("type") == "local"):
                yield "code_interpreter"
        elif name not in _OWN_OPENAI:
            yield "web_search" if name == "web_search_preview" else name


def _gemini(told: Mapping[str, Any]) -> Iterator[str]:
    for tool in _list(told.get("tools")):
        for key in tool:
            name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", key).lower()
            if name not in _OWN_GEMINI:
                yield name


def _fetches(told: Mapping[str, Any], but: Container[str]) -> bool:
    """Return whether it contains something that the provider may fetch. Not recursive, because bodies can be deeply nested."""
    waiting: list[tuple[str, Any]] = [("", told)]
    while waiting:
        key, one = waiting.pop()
        if isinstance(one, str):
            if key not in _TEXT and _is_address(one):
                return True
        elif isinstance(one, list):
            waiting += [(key, inner) for inner in one]
        elif isinstance(one, dict):
            text = _text_in(one)
            waiting += [(name, inner) for name, inner in one.items() if name not in but and name not in text]
    return False


def _text_in(part: Mapping[str, Any]) -> Container[str]:
    """Return the names of values that are only read in an object of this type."""
    kind = part.get("type")
    if kind == "text":
        return ("text", "data")
    return ("url", "source") if isinstance(kind, str) and kind in _QUOTED else ()


def _is_address(value: str) -> bool:
    beginning = value.lstrip(_SPACE)[:100]
    return _ADDRESS.match(re.sub(r"[\t\r\n]", "", beginning)) is not None


def _list(value: Any) -> list[dict[str, Any]]:
    """Return the list of tools. Entries that are not objects are ignored, because no API accepts them."""
    found = value if isinstance(value, list) else [value]
    return [one for one in found if isinstance(one, dict)]


def _word(value: Any, usual: str) -> str:
    return value.lower() if isinstance(value, str) else usual if value is None else "unknown"
