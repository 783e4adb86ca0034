"""Validation messages for people, in place of Pydantic's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sandyard.platform.domain.mcp_servers import model as mcp_servers

_VARIABLE = "Use letters, digits and _; do not start with a digit"
PATTERNS: Mapping[str, str] = {
    r"^[A-Za-z0-9][A-Za-z0-9._@-]*$": "Use letters, digits and . _ @ -; start with a letter or digit",
    rf"^{mcp_servers.NAME}$": "Use letters, digits and hyphens; start and end with a letter or digit",
    rf"^{mcp_servers.ENV_NAME}$": _VARIABLE,
    r"^[A-Za-z_][A-Za-z0-9_]*$": _VARIABLE,
    r"^[a-z][a-z0-9-]*$": "Use lowercase letters, digits and hyphens; start with a letter",
    r"^[^<>\r\n\x00]+$": "Use one line without < and >",
    r"^[^<>\s\x00]+$": "Enter an email address without spaces, < and >",
    r"^https?://[^\s@?#]+$": "Enter a URL that starts with https:// or http://, without a username, ? or #",
    r"^([^\s/]+/)?[a-z0-9_.-]+$": "Enter a tool name, such as web_search or PROVIDER/web_search",
    r"^[A-Za-z0-9-]+\[bot\]$": "Enter the name of a bot, such as dependabot[bot]",
    r"^[A-Za-z0-9][A-Za-z0-9._/:-]*$": "Use letters, digits and . _ / : -; start with a letter or digit",
    r"^[A-Za-z0-9._:-]+$": "Use letters, digits and . _ : -",
    r"^([0-9a-f]{40}|[0-9a-f]{64})$": "Enter a full commit id",
    r"^[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?$": "Use up to 63 letters, digits and . _ / -",
    r"^[A-Za-z0-9._-]{1,63}$": "Use up to 63 letters, digits and . _ -",
}
"""The rule of each request pattern, in words. tests/unit/platform/api/test_openapi.py checks that none is missing."""


def make_message(error: Mapping[str, Any]) -> str:
    """Return one of Pydantic's errors in plain words, without the full stop. A validator's own message is kept."""
    describe = _MESSAGES.get(error["type"])
    return describe(error.get("ctx", {})) if describe else str(error["msg"]).removeprefix("Value error, ")


def _format_number(value: Any) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _format_characters(limit: int) -> str:
    return "1 character" if limit == 1 else f"{limit} characters"


def _format_entries(limit: int) -> str:
    return "1 entry" if limit == 1 else f"{limit} entries"


def _describe_too_short(ctx: Mapping[str, Any]) -> str:
    limit = ctx["min_length"]
    if ctx.get("field_type", "Value") != "Value":
        return f"Add at least {_format_entries(limit)}"
    return "Must not be empty" if limit == 1 else f"Use at least {_format_characters(limit)}"


def _describe_too_long(ctx: Mapping[str, Any]) -> str:
    # "Value": a secret's text
    format_limit = _format_characters if ctx.get("field_type", "Value") == "Value" else _format_entries
    return f"Use at most {format_limit(ctx['max_length'])}"


def _make_constant(text: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda _: text


_WHOLE, _NUMBER, _OBJECT = (
    _make_constant("Must be a whole number"),
    _make_constant("Must be a number"),
    _make_constant("Must be an object"),
)
_TIME = _make_constant("Must be a time with time zone, such as 2026-01-31T10:00:00Z")
_MESSAGES: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "missing": _make_constant("This is required"),
    "extra_forbidden": _make_constant("Unknown field"),
    "string_too_short": _describe_too_short,
    "too_short": _describe_too_short,
    "string_too_long": _describe_too_long,
    "too_long": _describe_too_long,
    "string_pattern_mismatch": lambda ctx: PATTERNS.get(ctx["pattern"], "Invalid format"),
    "greater_than": lambda ctx: f"Must be more than {_format_number(ctx['gt'])}",
    "greater_than_equal": lambda ctx: f"Must be at least {_format_number(ctx['ge'])}",
    "less_than": lambda ctx: f"Must be less than {_format_number(ctx['lt'])}",
    "less_than_equal": lambda ctx: f"Must be at most {_format_number(ctx['le'])}",
    "literal_error": lambda ctx: f"Must be {ctx['expected']}",
    "enum": lambda ctx: f"Must be {ctx['expected']}",
    "string_type": _make_constant("Must be text"),
    "bool_type": _make_constant("Must be true or false"),
    "bool_parsing": _make_constant("Must be true or false"),
    "int_type": _WHOLE,
    "int_parsing": _WHOLE,
    "int_from_float": _WHOLE,
    "float_type": _NUMBER,
    "float_parsing": _NUMBER,
    "finite_number": _NUMBER,
    "list_type": _make_constant("Must be a list"),
    "dict_type": _OBJECT,
    "model_type": _OBJECT,
    "model_attributes_type": _OBJECT,
    "datetime_type": _TIME,
    "datetime_parsing": _TIME,
    "datetime_from_date_parsing": _TIME,
    "timezone_aware": _TIME,
}
