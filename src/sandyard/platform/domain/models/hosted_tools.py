"""Provider-side tools in a request: web search, fetching URLs, running code, calling other servers.

They run in the provider's network, bypass the sandbox's network settings, and cost more than the counted tokens. An agent's request may use
them only if its project allows them by name. Anything not known to run on the agent's side counts as provider-side.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any

from sandyard.platform.domain.models.model import ModelApi

REMOTE_FILES = "remote_files"
"""An image or a file that the provider fetches from a URL."""
_DATE_SUFFIX = re.compile(r"_(?:\d{8}|\d{4}_\d{2}_\d{2})$")
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
_EXTENSION_FIELDS = ("plugins", "search_parameters", "search_options", "enable_search", "extra_body")
"""Fields for provider-side tools of other servers with APIs like OpenAI's or Anthropic's."""
_SEPARATE_FIELDS = frozenset((*_EXTENSION_FIELDS, "web_search_options", "mcp_servers", "metadata"))
"""Fields of the body that are checked separately, or that the provider only stores. Inside other objects they have no such exception."""
CHECKED_FIELDS = (
    _SEPARATE_FIELDS
    | frozenset(_ROUTING_FIELDS)
    | frozenset("tools functions container prompt cachedContent cached_content".split())
)
"""Fields of the body that decide about provider-side tools."""
_TOOL_FIELD = re.compile(r"tool(?:set)?s?$|^functions$|^definition$", re.IGNORECASE)
"""Matches names of fields that contain definitions of tools: `tools` of a body or an input item, `tool` of a content block."""
_HOSTED_TYPES = frozenset(
    "web_search web_search_preview web_fetch file_search code_interpreter code_execution image_generation programmatic_tool_calling "
    "mcp mcp_toolset advisor".split()
)
"""Types of objects that count as provider-side tools wherever they are, in case a provider adds new places for tools."""
_REFERENCE_TYPES = ("tool_reference", "tool_definition")
"""Objects in place of a tool: the name of a tool that is defined elsewhere, or an object that contains the definition."""
_SCHEMA_FIELDS = frozenset("schema responseSchema response_schema responseJsonSchema response_json_schema".split())
_TOOL_SCHEMA_FIELDS = _SCHEMA_FIELDS | frozenset(
    "parameters input_schema inputSchema output_schema parametersJsonSchema parameters_json_schema response input_examples".split()
)
_OPAQUE_FIELDS = _SCHEMA_FIELDS | {"annotations", "citations"}
"""JSON schemas and quotations."""
_OPAQUE_OPENAI_CALL_FIELDS = _OPAQUE_FIELDS | frozenset("arguments action operation outputs results".split())
_OPAQUE_ANTHROPIC_CALL_FIELDS = _OPAQUE_FIELDS | {"input"}
_OPAQUE_GEMINI_CALL_FIELDS = _OPAQUE_FIELDS | {"args", "response"}
_GEMINI_CALLS = frozenset("functioncall functionresponse toolcall toolresponse".split())
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
    names = [*_list_body_features(kind, body), *_list_nested_tools(kind, body), *_list_routing_features(body, model)]
    remote = [REMOTE_FILES] if _has_fetched_url(kind, body) else []
    return list(dict.fromkeys(name[:100] for name in [*names, *remote]))


def list_refused_tools(used: Iterable[str], provider: str, allowed: Iterable[str]) -> list[str]:
    """Return the tools that a project does not allow. Entries of `allowed` are `tool`, for any provider, or `PROVIDER/tool`."""
    allowed_names = set(allowed)
    return [name for name in used if name not in allowed_names and f"{provider}/{name}" not in allowed_names]


def list_objects(kind: ModelApi, body: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], bool]]:
    """Yield every object below the body that the provider may interpret, and whether it defines a tool."""
    return ((value, place.is_tool) for _, value, place in _walk(kind, body) if isinstance(value, dict))


def _list_body_features(kind: ModelApi, body: Mapping[str, Any]) -> Iterator[str]:
    if kind is ModelApi.ANTHROPIC:
        if body.get("mcp_servers"):
            yield "mcp_servers"
        if body.get("container"):
            yield "code_execution"
    elif kind is not ModelApi.GEMINI:
        if body.get("web_search_options") is not None:
            yield "web_search"
        if isinstance(body.get("prompt"), dict):  # a prompt stored at the provider, with its own tools
            yield "prompt"


def _list_nested_tools(kind: ModelApi, body: Mapping[str, Any]) -> Iterator[str]:
    """Yield the tools of the body, and those that its messages and input items add."""
    calls, finished = list[tuple[Any, str]](), set[str]()
    for _, value, place in _walk(kind, body):
        if not isinstance(value, dict):
            continue
        if kind is ModelApi.GEMINI:
            yield from _list_gemini_tools(value, is_tool=place.is_tool)
            continue
        name = _normalize_type(value.get("type"), "function")
        if place.is_tool:
            yield from _list_tool(kind, name, value)
        elif name in _HOSTED_TYPES:
            yield _rename(name)
        elif name == "container_upload":
            yield "code_execution"
        elif name == "mcp_approval_response" and value.get("approve"):
            yield "mcp"
        elif name in ("server_tool_use", "mcp_tool_use"):
            calls.append((value.get("id"), "mcp_servers" if name == "mcp_tool_use" else str(value.get("name")).lower()))
        elif isinstance(call_id := value.get("tool_use_id"), str):
            finished.add(call_id)
    for call_id, name in calls:  # without a result, the provider would still run it
        is_finished = isinstance(call_id, str) and call_id in finished
        if not is_finished and name not in _AGENT_SIDE_ANTHROPIC:
            yield name


def _list_tool(kind: ModelApi, name: str, tool: Mapping[str, Any]) -> Iterator[str]:
    if kind is ModelApi.ANTHROPIC:
        agent_side: Container[str] = (*_AGENT_SIDE_ANTHROPIC, *_REFERENCE_TYPES, "function")
    else:
        agent_side = (*_AGENT_SIDE_OPENAI, "namespace", "allowed_tools")
    if name == "shell" and kind is not ModelApi.ANTHROPIC:
        environment = tool.get("environment")
        if environment is not None and not (isinstance(environment, dict) and environment.get("type") == "local"):
            yield "code_interpreter"
    elif name not in agent_side:
        yield _rename(name)


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


def _list_gemini_tools(part: Mapping[str, Any], *, is_tool: bool) -> Iterator[str]:
    for key, value in part.items():
        name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", key).lower()
        is_stored = name == "cached_content" and value  # content stored at the provider, with its own tools
        if is_stored or (is_tool and name not in _AGENT_SIDE_GEMINI):
            yield name


def _has_fetched_url(kind: ModelApi, body: Mapping[str, Any]) -> bool:
    """Return whether the body contains a URL that the provider may fetch. The tools of the body are checked separately."""
    return any(
        isinstance(value, str) and not place.is_in_own_tools and name not in _TEXT_FIELDS and _is_url(value)
        for name, value, place in _walk(kind, body)
    )


@dataclass(frozen=True, slots=True)
class _Place:
    """The position of a value: it is a tool, part of a tool, or part of the body's own list of tools."""

    is_tool: bool = False
    is_in_tool: bool = False
    is_in_own_tools: bool = False


_OUTSIDE, _TOOL, _IN_TOOL = _Place(), _Place(is_tool=True, is_in_tool=True), _Place(is_in_tool=True)
_OWN_TOOL = _Place(is_tool=True, is_in_tool=True, is_in_own_tools=True)
_IN_OWN_TOOL = _Place(is_in_tool=True, is_in_own_tools=True)


def _walk(kind: ModelApi, body: Mapping[str, Any]) -> Iterator[tuple[str, Any, _Place]]:
    """Yield the name and value of every object and string that a provider may interpret.

    Leaves out JSON schemas, arguments and results of tools, and quotations. Not recursive, because bodies can be deeply nested.
    """
    pending: list[tuple[str, Any, _Place]] = []
    for name, value in body.items():
        place = _OWN_TOOL if name in ("tools", "functions") else _get_place(name, _OUTSIDE)
        if name not in _SEPARATE_FIELDS:
            pending.append((name, value, place))
    pending.reverse()
    if kind is ModelApi.GEMINI:
        yield "", {name: value for name, value in body.items() if name not in _SEPARATE_FIELDS}, _OUTSIDE
    while pending:
        name, value, place = pending.pop()
        if isinstance(value, list):
            pending += [(name, inner, place) for inner in reversed(value)]
        elif isinstance(value, dict):
            yield name, value, place
            skipped, texts = _list_opaque_fields(kind, name, value, place), _list_text_fields(value)
            pending += [
                (field, inner, _get_place(field, place))
                for field, inner in value.items()
                if field not in skipped and not (field in texts and isinstance(inner, str))
            ]
        elif isinstance(value, str):
            yield name, value, place


def _get_place(field: str, parent: _Place) -> _Place:
    if _TOOL_FIELD.search(field):
        return _OWN_TOOL if parent.is_in_own_tools else _TOOL
    return _IN_OWN_TOOL if parent.is_in_own_tools else _IN_TOOL if parent.is_in_tool else _OUTSIDE


def _list_opaque_fields(kind: ModelApi, name: str, part: Mapping[str, Any], place: _Place) -> Set[str]:
    """Return the names of values in this object that the provider passes on without interpreting them."""
    if place.is_in_tool:
        return _TOOL_SCHEMA_FIELDS
    if kind is ModelApi.GEMINI:
        is_call = name.replace("_", "").lower() in _GEMINI_CALLS
        return _OPAQUE_GEMINI_CALL_FIELDS if is_call else _OPAQUE_FIELDS
    part_type = part.get("type")
    part_type = part_type if isinstance(part_type, str) else ""
    if kind is ModelApi.ANTHROPIC:
        return _OPAQUE_ANTHROPIC_CALL_FIELDS if part_type.endswith("tool_use") else _OPAQUE_FIELDS
    is_call = part_type.endswith("_call") or name == "function"
    return _OPAQUE_OPENAI_CALL_FIELDS if is_call else _OPAQUE_FIELDS


def _list_text_fields(part: Mapping[str, Any]) -> Container[str]:
    """Return the names of strings that are only read in an object of this type."""
    kind = part.get("type")
    if kind == "text":
        return ("text", "data")
    return ("url", "source") if isinstance(kind, str) and kind in _QUOTING_TYPES else ()


def _is_url(value: str) -> bool:
    beginning = value.lstrip(_SKIPPED_BEFORE_URL)[:100]
    return _URL.match(re.sub(r"[\t\r\n]", "", beginning)) is not None


def _normalize_type(value: Any, default: str) -> str:
    """Return the type in lowercase and without a date."""
    if not isinstance(value, str):
        return default if value is None else "unknown"
    return _DATE_SUFFIX.sub("", value.lower())


def _rename(name: str) -> str:
    return "web_search" if name == "web_search_preview" else name
