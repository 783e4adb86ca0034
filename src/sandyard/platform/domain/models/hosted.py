"""What a request has the provider do besides answering: search the web, fetch addresses, run code, call other servers.

These leave from the provider's network, past whatever a sandbox may reach, and cost more than the tokens that are counted. An agent's
request has none of them unless its project allows them by name. What is not known to be done by the agent itself counts as the
provider's.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any

from sandyard.platform.domain.agents.model import ModelApi

REMOTE_FILES = "remote_files"
"""An image or a file that the provider fetches from an address."""
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
_SEARCHES = re.compile(r"search-preview|search-api|deep-research|:online\b")
_NOT_FOLLOWED: Mapping[ModelApi, frozenset[str]] = {
    ModelApi.ANTHROPIC: frozenset(("tools", "input")),
    ModelApi.OPENAI: frozenset(("tools",)),
    ModelApi.OPENAI_CHAT: frozenset(("tools",)),
    ModelApi.GEMINI: frozenset(("tools", "args")),
}
"""What an agent's own tools are, and are given: nobody fetches what is written there."""
_ADDRESS = re.compile(r"\s*(https?|gs):", re.IGNORECASE)


def hosted_tools(kind: ModelApi, told: Mapping[str, Any], model: str | None) -> list[str]:
    """The names of what the provider is to do in this request, each once; empty: nothing. Names are without dates and in small
    letters: `web_search`, `code_execution`, `mcp_servers`, `remote_files`."""
    if kind is ModelApi.ANTHROPIC:
        found = _anthropic(told)
    elif kind is ModelApi.GEMINI:
        found = _gemini(told)
    else:
        found = _openai(told, model or "")
    names = [*found, *([REMOTE_FILES] if _fetches(told, _NOT_FOLLOWED[kind]) else [])]
    return list(dict.fromkeys(name[:100] for name in names))


def refused_tools(used: Iterable[str], provider: str, allowed: Iterable[str]) -> list[str]:
    """Those that a project does not allow: it names a tool, of any provider, or `PROVIDER/tool`."""
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


def _openai(told: Mapping[str, Any], model: str) -> Iterator[str]:
    if told.get("web_search_options") is not None or _SEARCHES.search(model):
        yield "web_search"
    for name in ("plugins", "search_parameters"):  # of servers that speak like OpenAI's
        if told.get(name):
            yield name
    yield from _openai_tools(told.get("tools"))


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


def _fetches(value: Any, but: Container[str]) -> bool:
    """Whether there is something in it that the provider would fetch. No recursion: bodies are as deep as one likes."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, list):
            waiting += one
        elif isinstance(one, dict):
            if _is_fetched(one):
                return True
            waiting += [inner for key, inner in one.items() if key not in but]
    return False


def _is_fetched(part: Mapping[str, Any]) -> bool:
    source, image = part.get("source"), part.get("image_url")
    file = part.get("fileData") or part.get("file_data")
    addresses = [
        source.get("url") if isinstance(source, dict) else None,
        image.get("url") if isinstance(image, dict) else image,
        part.get("file_url"),
        (file.get("fileUri") or file.get("file_uri")) if isinstance(file, dict) else None,
    ]
    return any(isinstance(one, str) and _ADDRESS.match(one) for one in addresses)


def _list(value: Any) -> list[dict[str, Any]]:
    """Tools as every API has them; one that is no object is nothing an API would take."""
    found = value if isinstance(value, list) else [value]
    return [one for one in found if isinstance(one, dict)]


def _word(value: Any, usual: str) -> str:
    return value.lower() if isinstance(value, str) else usual if value is None else "unknown"
