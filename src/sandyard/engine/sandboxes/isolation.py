"""The isolation level of a new sandbox: chosen by its client or its template, and never below the operator's minimum.

A level that is not available is refused. Nothing is ever isolated less than somebody asked for.
"""

from __future__ import annotations

from collections.abc import Mapping

from sandyard.engine.contract import Capabilities, Isolation
from sandyard.engine.sandboxes.model import Template
from sandyard.kit.errors import InvalidInputError, UnsupportedError

METADATA_KEY = "sandyard.isolation"
"""Metadata of a create request: the level of this sandbox. Every E2B client can send metadata."""
TEMPLATE_VARIABLE = "SANDYARD_ISOLATION"
"""Environment variable of a template: the level of its sandboxes, unless their metadata names another one."""


def choose_isolation(
    metadata: Mapping[str, str], template: Template, minimum: Isolation, capabilities: Capabilities
) -> Isolation:
    """Return the level of a new sandbox. Raises InvalidInputError if a level does not exist or is below the minimum, and
    UnsupportedError, with the reason and the remedy, if this machine does not have it."""
    level = find_requested_level(metadata, template) or minimum
    check_minimum(level, minimum)
    if level not in capabilities.isolation:
        reason = capabilities.missing.get(level.value, "this engine does not have it")
        raise UnsupportedError(f"The isolation level {level.value} is not available: {reason}.")
    return level


def check_minimum(level: Isolation, minimum: Isolation) -> None:
    """Raise InvalidInputError if the level of a new sandbox is below the minimum."""
    if not level.is_at_least(minimum):
        raise InvalidInputError(
            f"The isolation level {level.value} is not allowed: the operator of this engine requires {minimum.value}."
        )


def find_requested_level(metadata: Mapping[str, str], template: Template) -> Isolation | None:
    """Return the level that the client or the template asks for, or None. Raises InvalidInputError if it does not exist."""
    if METADATA_KEY in metadata:
        return _parse(metadata[METADATA_KEY], f"The metadata {METADATA_KEY}")
    if template.isolation is not None:
        return template.isolation
    if TEMPLATE_VARIABLE in template.env:
        return _parse(template.env[TEMPLATE_VARIABLE], f"{TEMPLATE_VARIABLE} of the template {template.id}")
    return None


def _parse(value: str, source: str) -> Isolation:
    try:
        return Isolation(value)
    except ValueError:
        raise InvalidInputError(
            f"{source} is {value[:100]!r}, which is not an isolation level. Use {' or '.join(Isolation)}."
        ) from None
