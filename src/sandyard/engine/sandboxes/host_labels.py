"""The labels that a new sandbox requires of its host: those of its template, and those that its client asks for.

Administrators give hosts their labels (`sandyard host label`). A sandbox is never placed on a host that lacks one of them.
"""

from __future__ import annotations

from collections.abc import Mapping

from sandyard.engine.drivers.cluster.labels import validate_labels
from sandyard.engine.drivers.cluster.model import format_labels
from sandyard.engine.sandboxes.model import Template
from sandyard.kit.errors import InvalidInputError

METADATA_KEY = "sandyard.labels"
"""Metadata of a create request, such as `gpu=yes,zone=a`. Every E2B client can send metadata."""
TEMPLATE_VARIABLE = "SANDYARD_LABELS"
"""Environment variable of a template: labels for its sandboxes. Metadata adds to them, and replaces those of the same name."""
NO_LABELS: Mapping[str, str] = {}


def choose_host_labels(metadata: Mapping[str, str], template: Template, *, has_hosts: bool) -> Mapping[str, str]:
    """Return the labels that the host of a new sandbox must have. `has_hosts`: whether there are hosts besides the engine's
    own machine, which has no labels. Raises InvalidInputError if labels are not valid, or are required and there are no hosts."""
    template_text, client_text = template.env.get(TEMPLATE_VARIABLE), metadata.get(METADATA_KEY)
    if not template_text and not client_text:
        return NO_LABELS
    labels = _parse_labels(template_text or "", f"{TEMPLATE_VARIABLE} of the template {template.id}")
    labels |= _parse_labels(client_text or "", f"The metadata {METADATA_KEY}")
    if labels and not has_hosts:
        raise InvalidInputError(
            f"No host can take the sandbox: it requires a host with {format_labels(labels)}, and this engine has no hosts "
            "besides its own machine, which has no labels. Add a host and label it (`sandyard host token`, `sandyard host label`), "
            "or create the sandbox without labels."
        )
    return labels


def _parse_labels(text: str, source: str) -> dict[str, str]:
    """Return the labels in a text such as `gpu=yes,zone=a`. `source` begins the message of the InvalidInputError that it may raise."""
    labels = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, separator, value = part.partition("=")
        if not separator:
            raise InvalidInputError(
                f"{source} is {text[:100]!r}, which is not a list of labels such as gpu=yes,zone=a."
            )
        labels[name.strip()] = value.strip()
    try:
        return validate_labels(labels)
    except InvalidInputError as error:
        raise InvalidInputError(f"{source}: {error.message}") from None
