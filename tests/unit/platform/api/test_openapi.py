from __future__ import annotations

import json
import re
from typing import Any

import pytest
import pytest_asyncio

from sandyard.platform.api.openapi import TAGS
from sandyard.platform.api.validation_messages import PATTERNS
from sandyard.platform.app import ROUTERS
from tests.unit.platform.world import client, open_world

OPEN = {"service_health", "service_ready", "login_create", "webhook_github"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Build the document once: it takes a second."""
    async with open_world(tmp_path_factory.mktemp("world")) as world, client(world.app(*ROUTERS)) as web:
        answer = await web.get("/api/v1/openapi.json")
        assert answer.status_code == 200
        found: dict[str, Any] = answer.json()
        return found


def operations(document: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (path, method, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]


def test_every_route_documents_security_and_errors(document: dict[str, Any]) -> None:
    assert document["info"]["title"] == "Sandyard"
    assert set(document["components"]["securitySchemes"]) == {"token", "cookie", "ticket"}
    for path, method, operation in operations(document):
        where = f"{method} {path}"
        assert operation["tags"][0] in TAGS, where
        assert re.fullmatch(r"[a-z]+_[a-z_]+", operation["operationId"]), where
        assert bool(operation.get("security")) == (operation["operationId"] not in OPEN), where
        assert "422" not in operation["responses"], where
        for code in ("400", "500", "default", *(["401", "403"] if operation.get("security") else [])):
            content = operation["responses"][code]["content"]
            assert content["application/problem+json"]["schema"]["$ref"].endswith("/Problem"), where
        if "{" in path:
            assert "404" in operation["responses"], where
    ids = [operation["operationId"] for _, _, operation in operations(document)]
    assert len(ids) == len(set(ids))


def test_bodies_have_examples(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    assert "HTTPValidationError" not in schemas
    for path, method, operation in operations(document):
        body = operation.get("requestBody")
        if body is not None and "application/json" in body["content"] and operation["tags"] != ["webhooks"]:
            schema = schemas[body["content"]["application/json"]["schema"]["$ref"].rsplit("/", 1)[1]]
            assert schema["examples"], f"{method} {path}"


def test_patterns_of_components_are_explained(document: dict[str, Any]) -> None:
    """Errors explain a rule in words, never with a regular expression."""

    def patterns(part: Any) -> set[str]:
        if isinstance(part, list):
            return {pattern for inner in part for pattern in patterns(inner)}
        if not isinstance(part, dict):
            return set()
        own = {part["pattern"]} if isinstance(part.get("pattern"), str) else set()
        return own.union(part.get("patternProperties", ()), *(patterns(inner) for inner in part.values()))

    assert patterns(document["components"]["schemas"]) <= set(PATTERNS)


def test_references_exist(document: dict[str, Any]) -> None:
    for name in re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(document)):
        assert name in document["components"]["schemas"], name


def test_problem_documents_its_fields(document: dict[str, Any]) -> None:
    members = document["components"]["schemas"]["Problem"]["properties"]
    assert {"operationId", "files", "choices", "suggestion"} < set(members)
    assert all(members[name]["description"] for name in ("operationId", "files", "choices", "suggestion"))
