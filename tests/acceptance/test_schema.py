"""The OpenAPI document against the platform it describes: whatever a client sends, no answer is a failure of ours, and every
answer has the form the document promises."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.acceptance.platform import Platform, ok, running
from tests.later import Later
from tests.protocol.engine import Engine

if TYPE_CHECKING:
    import schemathesis
    from schemathesis import Case
    from schemathesis.specs.openapi import checks
else:
    schemathesis, checks = Later("schemathesis"), Later("schemathesis.specs.openapi.checks")

pytestmark = pytest.mark.timeout(900)
STREAMS = {("GET", "/api/v1/events"), ("GET", "/api/v1/commands/{command_id}/stream")}
"""They do not end; tests of their own read them."""
EXAMPLES = 12
"""Of each operation."""
ENGINE_SAYS_NO = {502, 503, 504, 507}
"""The engine's failures, passed on with their own code and sentence. A 500 would be ours."""


@pytest.fixture(scope="module")
def platform(engine: Engine) -> Iterator[Platform]:
    generous = {"CREATES_PER_MINUTE": "100000", "EXECUTES_PER_MINUTE": "100000", "LOGINS_PER_MINUTE": "100000"}
    with running(engine, None, COMMAND_TIMEOUT_S="2", MAX_COMMAND_TIMEOUT_S="2", **generous) as platform:
        yield platform


class Things:
    """One of each, to be asked for, changed and deleted. What is gone is made anew."""

    def __init__(self, platform: Platform) -> None:
        self._client = platform.client
        self._ids: dict[str, str] = {}

    def fill(self) -> None:
        client = self._client
        if "user_id" not in self._ids:
            self._make("user_id", "/users", name="victim", role="member")
        self._live("project_id", "/projects", name="project")
        self._live("session_id", "/sessions", title="session")
        if not self._alive("/sandboxes", "sandbox_id"):
            made = ok(client.post("/sandboxes", json={}), 201)
            self._ids["sandbox_id"] = made["id"]
            said = ok(client.post(f"/sandboxes/{made['id']}/execute", json={"command": "echo hi"}), 200)
            self._ids["command_id"] = said["commandId"]

    def _alive(self, path: str, name: str) -> bool:
        if name not in self._ids:
            return False
        seen = self._client.get(f"{path}/{self._ids[name]}")
        return seen.status_code == 200 and seen.json().get("status") not in ("destroyed", "error")

    def _live(self, kind: str, path: str, **body: str) -> None:
        if not self._alive(path, kind):
            self._make(kind, path, **body)

    def _make(self, kind: str, path: str, **body: str) -> None:
        self._ids[kind] = ok(self._client.post(path, json=body), 201)["id"]

    def put_into(self, case: Case) -> None:
        """Every second case is about something that exists."""
        for name in case.path_parameters or {}:
            if name in self._ids and zlib.crc32(str(case.path_parameters[name]).encode()) % 2:
                case.path_parameters[name] = self._ids[name]


def operations(platform: Platform) -> Iterator[Any]:
    schema = schemathesis.openapi.from_url(f"{platform.url}/api/v1/openapi.json", timeout=60)
    for operation in schema.get_all_operations():
        yield operation.ok()


@pytest.mark.slow
def test_no_answer_is_a_failure_of_ours(platform: Platform) -> None:
    things = Things(platform)
    headers = {"Authorization": f"Bearer {platform.token}"}
    count, seen = 0, set[int]()
    for operation in operations(platform):
        if (operation.method.upper(), operation.path) in STREAMS:
            continue
        count += 1
        things.fill()
        seen |= _try(operation, things, headers)
    assert count > 40, "the document has lost its operations"
    assert {200, 201, 204, 400, 404} <= seen, "good input and bad input were both tried"


def _try(operation: Any, things: Things, headers: dict[str, str]) -> set[int]:
    """The statuses that were answered."""
    seen: set[int] = set()

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy())
    def each(case: Case) -> None:
        things.put_into(case)
        response = case.call(headers=headers, timeout=60)
        seen.add(response.status_code)
        where = f"{operation.method.upper()} {operation.path} → {response.status_code}"
        assert response.status_code < 500 or response.status_code in ENGINE_SAYS_NO, f"{where}\n{response.text[:500]}"
        if response.status_code >= 400:
            assert response.headers["content-type"][0].startswith("application/problem+json"), where
            problem = response.json()
            assert problem["detail"], where
            assert problem["code"], where
        case.validate_response(response, checks=[checks.content_type_conformance, checks.response_schema_conformance])

    each()
    return seen
