"""Validate the labels of hosts, which administrators, hosts and clients send."""

from __future__ import annotations

import re
from collections.abc import Mapping

from sandyard.kit.errors import InvalidInputError

MAX_LABELS = 32
_LABEL_KEY = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?")
_LABEL_VALUE = re.compile(r"[A-Za-z0-9._-]{1,63}")


def validate_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels of a host. Raises InvalidInputError."""
    if len(labels) > MAX_LABELS:
        raise InvalidInputError(f"A host can have {MAX_LABELS} labels at most.")
    for key, value in labels.items():
        if not _LABEL_KEY.fullmatch(key) or not _LABEL_VALUE.fullmatch(value):
            raise InvalidInputError(
                f"{key[:70]}={value[:70]} is not a valid label: keys and values have up to 63 letters, digits, '.', '_' and '-'; "
                "keys also '/'."
            )
    return dict(labels)
