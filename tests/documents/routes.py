"""The reference of the API: every route of the platform, from its OpenAPI document."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from types import SimpleNamespace
from typing import Any

from sandyard.platform.api.app import build
from sandyard.platform.app import ROUTERS
from sandyard.platform.settings import PlatformSettings
from tests.documents.tables import make_table

INTRODUCTION = """# The HTTP API

The platform serves the full description, with every field and error, at `GET /api/v1/openapi.json`: it is an OpenAPI document, from which
clients can be generated. This page lists its routes. [The API and MCP](../api.md) shows how to use them.

Requests need `Authorization: Bearer TOKEN`, with a token of `sandyard api-key create`. Errors are `application/problem+json` with a `code`.
Lists have `limit` and `cursor`; a response has `nextCursor` if there are more.
"""


@cache
def build_document() -> dict[str, Any]:
    """Return the OpenAPI document, as the platform serves it."""
    services = SimpleNamespace(settings=PlatformSettings.load({}), clock=None)
    return build(services, ROUTERS).openapi()  # type: ignore[arg-type]


def _describe(operation: Mapping[str, Any]) -> str:
    """Return the first paragraph of the description, or the summary."""
    paragraph = str(operation.get("description") or "").split("\n\n")[0].strip()
    return paragraph or f"{operation['summary']}."


def render() -> str:
    """Return docs/reference/api.md."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for path, operations in build_document()["paths"].items():
        for method, operation in operations.items():
            rows = groups.setdefault(operation["tags"][0], [])
            rows.append((f"`{method.upper()} {re.sub(r'/api/v1', '', path)}`", _describe(operation)))
    text = INTRODUCTION + "\nPaths are below `/api/v1`, except `/health`, `/ready` and `/metrics`.\n"
    for tag in sorted(groups):
        text += f"\n## {tag[0].upper()}{tag[1:]}\n" + make_table(("Route", "Description"), groups[tag])
    return text
