"""Test the platform against its OpenAPI document: whatever a client sends, no response is an internal error, and every response matches
the document."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.harness.engine import Engine
from tests.harness.platform import Platform, ok, running
from tests.later import Later

if TYPE_CHECKING:
    import schemathesis
    from schemathesis import Case
    from schemathesis.specs.openapi import checks
else:
    schemathesis, checks = Later("schemathesis"), Later("schemathesis.specs.openapi.checks")

pytestmark = pytest.mark.timeout(900)
STREAMS = {("GET", "/api/v1/events"), ("GET", "/api/v1/commands/{command_id}/stream")}
"""Endless streams, which have their own tests."""
EXAMPLES = 12
"""Number of examples for each operation."""
ENGINE_ERRORS = {502, 503, 504, 507}
"""Failures of the engine, forwarded with their own code and sentence. A 500 would be an error of the platform."""


@pytest.fixture(scope="module")
def platform(engine: Engine) -> Iterator[Platform]:
    rate_limits = {"CREATES_PER_MINUTE": "100000", "EXECUTES_PER_MINUTE": "100000", "LOGINS_PER_MINUTE": "100000"}
    with running(engine, None, COMMAND_TIMEOUT_S="2", MAX_COMMAND_TIMEOUT_S="2", **rate_limits) as platform:
        yield platform


class ExampleObjects:
    """One object of each kind to read, change and delete. Missing objects are created again."""

    def __init__(self, platform: Platform) -> None:
        self._client = platform.client
        self._ids: dict[str, str] = {}

    def create_missing(self) -> None:
        client = self._client
        if "user_id" not in self._ids:
            self._create("user_id", "/users", name="victim", role="member")
        self._ensure("project_id", "/projects", name="project")
        self._ensure("session_id", "/sessions", title="session")
        if not self._exists("/sandboxes", "sandbox_id"):
            created = ok(client.post("/sandboxes", json={}), 201)
            self._ids["sandbox_id"] = created["id"]
            result = ok(client.post(f"/sandboxes/{created['id']}/execute", json={"command": "echo hi"}), 200)
            self._ids["command_id"] = result["commandId"]

    def _exists(self, path: str, name: str) -> bool:
        if name not in self._ids:
            return False
        response = self._client.get(f"{path}/{self._ids[name]}")
        return response.status_code == 200 and response.json().get("status") not in ("destroyed", "error")

    def _ensure(self, kind: str, path: str, **body: str) -> None:
        if not self._exists(path, kind):
            self._create(kind, path, **body)

    def _create(self, kind: str, path: str, **body: str) -> None:
        self._ids[kind] = ok(self._client.post(path, json=body), 201)["id"]

    def use_in(self, case: Case) -> None:
        """Use ids of existing objects in about half of the cases."""
        for name in case.path_parameters or {}:
            if name in self._ids and zlib.crc32(str(case.path_parameters[name]).encode()) % 2:
                case.path_parameters[name] = self._ids[name]


def operations(platform: Platform) -> Iterator[Any]:
    schema = schemathesis.openapi.from_url(f"{platform.url}/api/v1/openapi.json", timeout=60)
    for operation in schema.get_all_operations():
        yield operation.ok()


@pytest.mark.slow
def test_no_response_is_an_internal_error_and_all_match_the_document(platform: Platform) -> None:
    objects = ExampleObjects(platform)
    headers = {"Authorization": f"Bearer {platform.token}"}
    count, statuses = 0, set[int]()
    for operation in operations(platform):
        if (operation.method.upper(), operation.path) in STREAMS:
            continue
        count += 1
        objects.create_missing()
        statuses |= _run_examples(operation, objects, headers)
    assert count > 40, "the document must contain all operations"
    assert {200, 201, 204, 400, 404} <= statuses, "valid and invalid input must both have been tested"


def _run_examples(operation: Any, objects: ExampleObjects, headers: dict[str, str]) -> set[int]:
    """Run the examples of an operation and return the statuses of the responses."""
    statuses: set[int] = set()

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy())
    def check_case(case: Case) -> None:
        objects.use_in(case)
        response = case.call(headers=headers, timeout=60)
        statuses.add(response.status_code)
        where = f"{operation.method.upper()} {operation.path} → {response.status_code}"
        assert response.status_code < 500 or response.status_code in ENGINE_ERRORS, f"{where}\n{response.text[:500]}"
        if response.status_code >= 400:
            assert response.headers["content-type"][0].startswith("application/problem+json"), where
            problem = response.json()
            assert problem["detail"], where
            assert problem["code"], where
        case.validate_response(response, checks=[checks.content_type_conformance, checks.response_schema_conformance])

    check_case()
    return statuses
