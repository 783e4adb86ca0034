"""Parse the body of an agent's request: its model, its provider-side tools, and options that would change its price or hide its usage."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sandyard.kit import bounded_json
from sandyard.platform.domain.models.apis import ModelRequest
from sandyard.platform.domain.models.hosted_tools import CHECKED_FIELDS, list_hosted_tools, list_objects
from sandyard.platform.domain.models.model import ModelApi
from sandyard.platform.domain.models.tunnel import BODY_LIMIT

MAX_VALUES = 200_000
"""Maximum number of JSON values in a request. Long contexts and images are long strings, which are limited only by the body size."""
_PRICE_OPTIONS: Mapping[str, frozenset[str]] = {
    "service_tier": frozenset("auto default standard standard_only flex unspecified".split()),
    "serviceTier": frozenset("auto default standard standard_only flex unspecified".split()),
    "speed": frozenset(("standard",)),
}
"""Options that can raise the price of a request above the configured one, with the values that do not."""


def _index_by_casefold(names: Iterable[str]) -> Mapping[str, str]:
    """Return the names, each by its casefolded form."""
    return {name.casefold(): name for name in names}


_BODY_FIELDS = _index_by_casefold(
    (
        *CHECKED_FIELDS,
        *_PRICE_OPTIONS,
        *"model messages input contents system systemInstruction system_instruction instructions tool_choice toolConfig "
        "tool_config stream stream_options background previous_response_id conversation generationConfig generation_config".split(),
    )
)
_TOOL_FIELDS = _index_by_casefold(
    "type name tools function custom definition environment container server_url connector_id tunnel_id".split()
)
_PART_FIELDS, _STREAM_FIELDS = _index_by_casefold(("type",)), _index_by_casefold(("include_usage",))


class InvalidBodyError(Exception):
    """The body cannot be sent. The message is for the agent."""

    def __init__(self, message: str, *, status: int = 400, code: str = "invalid_argument") -> None:
        super().__init__(message)
        self.status, self.code = status, code


@dataclass(frozen=True, slots=True)
class ParsedBody:
    """A checked request. `body`: what to send to the provider. `hosted_tools`: the provider-side tools that it uses."""

    model: str | None
    body: bytes
    hosted_tools: list[str]


def parse_body(body: bytes, target: ModelRequest, kind: ModelApi) -> ParsedBody:
    """Check a request, and make the provider report its usage.

    Raises TooManyValuesError, and InvalidBodyError if the body is not a JSON object, is ambiguous, or has an option that costs more.
    """
    try:
        document: Any = bounded_json.parse(
            body, largest=BODY_LIMIT, values=MAX_VALUES, object_pairs_hook=_refuse_duplicates
        )
    except bounded_json.TooManyValuesError:  # also a ValueError
        raise
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise InvalidBodyError("The request body is not a JSON object, or has duplicate keys.")
    _check_spelling(kind, document)
    _check_price(document)
    model = target.gemini_model if ":" in target.path else document.get("model")
    if _request_usage_report(document, target):
        body = json.dumps(document).encode()
    model = model[:200] if isinstance(model, str) else None
    return ParsedBody(model, body, list_hosted_tools(kind, document, model))


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Reject duplicate keys, because the provider might use the value that was not checked here."""
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError("duplicate key")
    return document


def _check_spelling(kind: ModelApi, document: Mapping[str, Any]) -> None:
    """Reject fields that differ from a checked field only in case: some servers ignore case, and would use them instead."""
    if len({name.casefold() for name in document}) != len(document):
        raise InvalidBodyError("The request body has two fields whose names differ only in case.")
    _refuse_misspelled(document, _BODY_FIELDS)
    options = document.get("stream_options")
    if isinstance(options, dict):
        _refuse_misspelled(options, _STREAM_FIELDS)
    if kind is not ModelApi.GEMINI:  # there, a tool's fields are its type, and are checked in any case
        for part, is_tool in list_objects(kind, document):
            _refuse_misspelled(part, _TOOL_FIELDS if is_tool else _PART_FIELDS)


def _refuse_misspelled(fields: Iterable[str], known: Mapping[str, str]) -> None:
    for name in fields:
        correct = known.get(name.casefold(), name)
        if name != correct:
            raise InvalidBodyError(f"The field {name!r} of the request body must be spelled {correct!r}.")


def _check_price(document: Mapping[str, Any]) -> None:
    for name, allowed in _PRICE_OPTIONS.items():
        value = document.get(name)
        if value is None or (isinstance(value, str) and value.lower() in allowed):
            continue
        raise InvalidBodyError(
            f"This {name} is not available to agents, because it changes the price of the request. "
            f"Use {', '.join(sorted(allowed))}, or leave it out.",
            status=403,
            code="price_option_refused",
        )


def _request_usage_report(document: dict[str, Any], target: ModelRequest) -> bool:
    """Make the provider report the usage. Returns whether the document was changed."""
    stream = document.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise InvalidBodyError("The field 'stream' of the request body must be true, false or null.")
    changed = bool(document.pop("background", None))  # the usage of a background request is not reported
    options = document.get("stream_options")
    options = options if isinstance(options, dict) else {}
    if target.is_chat and stream and options.get("include_usage") is not True:
        document["stream_options"] = {**options, "include_usage": True}
        changed = True
    return changed
