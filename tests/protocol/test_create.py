"""Test creating sandboxes: what is returned, what is stored, and what is refused."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import httpx
import pytest
from e2b import AuthenticationException, Sandbox, SandboxException, SandboxNotFoundException, SandboxState
from packaging.version import Version

from tests.harness.sdk import get_access_token, get_agent_version

from .conftest import NewSandbox
from .waiting import until


def test_quick_start() -> None:
    with Sandbox.create() as sandbox:
        assert sandbox.is_running()
        sandbox.files.write("/home/user/hello.py", "print('hello from', __file__)")
        result = sandbox.commands.run("python3 hello.py")
        assert (result.exit_code, result.stdout) == (0, "hello from /home/user/hello.py\n")
    assert not sandbox.is_running()


def test_create_returns_id_token_and_version(sandbox: Sandbox) -> None:
    assert sandbox.sandbox_id.isalnum(), "an id with a hyphen would break the host names of previews"
    assert get_access_token(sandbox)
    assert get_agent_version(sandbox) >= Version("0.6.4"), "the SDKs disable features for older agent versions"


def test_info_of_a_sandbox(new_sandbox: NewSandbox) -> None:
    sandbox = new_sandbox("base", timeout=120, metadata={"colour": "blue"}, allow_internet_access=False)
    info = sandbox.get_info()
    assert info.sandbox_id == sandbox.sandbox_id
    assert info.name == "base"
    assert info.state == SandboxState.RUNNING
    assert info.metadata == {"colour": "blue"}
    assert info.allow_internet_access is False
    assert info.cpu_count >= 1
    assert info.memory_mb >= 128
    assert abs(info.started_at - datetime.now(UTC)) < timedelta(seconds=30)
    assert info.end_at - info.started_at == pytest.approx(timedelta(seconds=120), abs=timedelta(seconds=2))
    assert info.lifecycle == {"on_timeout": "kill", "auto_resume": False}


def test_default_timeout_is_five_minutes(sandbox: Sandbox) -> None:
    info = sandbox.get_info()
    assert info.end_at - info.started_at == pytest.approx(timedelta(seconds=300), abs=timedelta(seconds=2))


def test_v1_default_timeout_is_fifteen_seconds(api: httpx.Client) -> None:
    created = api.post("/sandboxes", json={"templateID": "base"})
    assert created.status_code == 201, created.text
    info = api.get(f"/sandboxes/{created.json()['sandboxID']}").json()
    lifetime = datetime.fromisoformat(info["endAt"]) - datetime.fromisoformat(info["startedAt"])
    assert lifetime == pytest.approx(timedelta(seconds=15), abs=timedelta(seconds=2))
    assert api.delete(f"/sandboxes/{info['sandboxID']}").status_code == 204


def test_environment_variables_reach_every_command(new_sandbox: NewSandbox) -> None:
    sandbox = new_sandbox(envs={"GREETING": "hi there", "EMPTY": ""})
    assert sandbox.commands.run('echo "$GREETING"').stdout == "hi there\n"
    assert sandbox.commands.run("env | grep ^EMPTY=").stdout == "EMPTY=\n"
    assert sandbox.commands.run('echo "$GREETING"', envs={"GREETING": "own"}).stdout == "own\n"
    assert sandbox.commands.run('echo "$GREETING"', user="root").stdout == "hi there\n"


def test_a_sandbox_can_read_its_own_id(sandbox: Sandbox) -> None:
    variables = sandbox.commands.run('echo "$E2B_SANDBOX $E2B_SANDBOX_ID"').stdout.split()
    assert variables == ["true", sandbox.sandbox_id]
    files = sandbox.commands.run("cat /run/e2b/.E2B_SANDBOX; echo; cat /run/e2b/.E2B_SANDBOX_ID").stdout.split()
    assert files == ["true", sandbox.sandbox_id]


def test_an_idempotency_key_creates_one_sandbox(api: httpx.Client, unique: str) -> None:
    first = Sandbox.create(idempotency_key=unique, metadata={"attempt": "one"})
    repeated = Sandbox.create(idempotency_key=unique, metadata={"attempt": "one"})
    other = Sandbox.create(idempotency_key=f"{unique}-b")
    try:
        assert repeated.sandbox_id == first.sandbox_id
        assert get_access_token(repeated) == get_access_token(first)
        assert other.sandbox_id != first.sandbox_id
    finally:
        first.kill()
        other.kill()


def test_concurrent_creates_with_one_key_create_one_sandbox(unique: str) -> None:
    with ThreadPoolExecutor(8) as pool:
        created = list(pool.map(lambda _: Sandbox.create(idempotency_key=unique), range(8)))
    try:
        assert len({sandbox.sandbox_id for sandbox in created}) == 1
    finally:
        created[0].kill()


def test_concurrent_creates_return_different_sandboxes(new_sandbox: NewSandbox) -> None:
    with ThreadPoolExecutor(10) as pool:
        created = list(pool.map(lambda _: new_sandbox(), range(10)))
        outputs = list(pool.map(lambda s: s.commands.run("echo $E2B_SANDBOX_ID").stdout.strip(), created))
    assert outputs == [sandbox.sandbox_id for sandbox in created]
    assert len(set(outputs)) == 10


def test_an_unknown_template_is_not_found() -> None:
    with pytest.raises(SandboxException, match=r"404|not found") as caught:
        Sandbox.create("no-such-template-anywhere")
    assert caught.value.status_code == 404


def test_a_wrong_api_key_raises_an_authentication_error() -> None:
    with pytest.raises(AuthenticationException):
        Sandbox.create(api_key="e2b_" + "0" * 40)
    with pytest.raises(AuthenticationException):
        Sandbox.list(api_key="e2b_" + "0" * 40).next_items()


@pytest.mark.parametrize("headers", [{"X-API-KEY": ""}, {"X-API-KEY": "nonsense"}, {"X-API-KEY": "e2b_" + "f" * 40}])
def test_every_route_needs_a_valid_key(api: httpx.Client, headers: dict[str, str]) -> None:
    for method, path in [
        ("GET", "/v2/sandboxes"),
        ("POST", "/v2/sandboxes"),
        ("POST", "/sandboxes"),
        ("GET", "/sandboxes/abc"),
        ("DELETE", "/sandboxes/abc"),
        ("POST", "/sandboxes/abc/pause"),
        ("PUT", "/sandboxes/abc/network"),
        ("GET", "/snapshots"),
        ("DELETE", "/templates/abc"),
    ]:
        response = api.request(method, path, headers=headers, json={} if method in ("POST", "PUT") else None)
        assert response.status_code == 401, f"{method} {path}: {response.status_code}"
        assert response.json()["code"] == 401
        assert response.json()["message"]


INVALID_BODIES = [
    {},
    {"templateID": 7},
    {"templateID": ""},
    {"templateID": "base", "timeout": -1},
    {"templateID": "base", "timeout": "soon"},
    {"templateID": "base", "timeout": 10**12},
    {"templateID": "base", "metadata": {"k": 1}},
    {"templateID": "base", "metadata": "k=v"},
    {"templateID": "base", "envVars": {"A": 1}},
    {"templateID": "base", "envVars": {"A=B": "x"}},
    {"templateID": "base", "envVars": {"A": "x\0y"}},
    {"templateID": "base", "autoPause": "maybe"},
    {"templateID": "base", "network": {"denyOut": ["example.com"]}},
    {"templateID": "base", "network": {"allowOut": ["300.1.1.1/8"]}},
    {"templateID": "base", "network": {"allowOut": ["example.com"]}},
    {"templateID": "base", "autoPause": True, "autoPauseMemory": False, "autoResume": {"enabled": True}},
    [],
    "base",
]


@pytest.mark.parametrize("route", ["/v2/sandboxes", "/sandboxes"])
@pytest.mark.parametrize("body", INVALID_BODIES, ids=str)
def test_invalid_input_is_refused_and_creates_nothing(api: httpx.Client, route: str, body: object) -> None:
    before = int(api.get("/v2/sandboxes").headers["x-total-running"])
    response = api.post(route, json=body)
    assert response.status_code == 400, response.text
    assert response.json()["code"] == 400
    assert response.json()["message"]
    assert int(api.get("/v2/sandboxes").headers["x-total-running"]) == before


def test_a_body_that_is_not_json_is_refused(api: httpx.Client) -> None:
    response = api.post("/v2/sandboxes", content=b"{nope", headers={"Content-Type": "application/json"})
    assert response.status_code == 400
    assert response.json()["code"] == 400


def test_an_invalid_idempotency_key_is_refused(api: httpx.Client) -> None:
    for key in ("UPPER CASE", "x" * 256, "semi;colon"):
        response = api.post("/v2/sandboxes", json={"templateID": "base"}, headers={"Idempotency-Key": key})
        assert response.status_code == 400, f"{key}: {response.text}"


def test_killing_twice_returns_false_the_second_time(new_sandbox: NewSandbox) -> None:
    sandbox = new_sandbox()
    assert sandbox.kill() is True
    assert sandbox.kill() is False
    assert Sandbox.kill("nonexistingsandbox") is False
    assert not sandbox.is_running()
    with pytest.raises(SandboxNotFoundException):
        sandbox.get_info()
    with pytest.raises(SandboxNotFoundException):
        sandbox.set_timeout(10)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "", None),
        ("DELETE", "", None),
        ("POST", "/pause", {}),
        ("POST", "/resume", {}),
        ("POST", "/connect", {"timeout": 30}),
        ("POST", "/timeout", {"timeout": 30}),
        ("POST", "/refreshes", {"duration": 30}),
        ("POST", "/fork", {}),
        ("POST", "/snapshots", {}),
        ("PUT", "/network", {}),
        ("GET", "/metrics", None),
        ("GET", "/logs", None),
    ],
)
def test_every_verb_returns_404_for_an_unknown_sandbox(
    api: httpx.Client, method: str, path: str, body: dict[str, object] | None
) -> None:
    response = api.request(method, f"/sandboxes/ineverexisted00000{path}", json=body)
    assert response.status_code == 404, response.text
    assert response.json()["code"] == 404


def test_a_sandbox_id_with_a_client_id_suffix_is_accepted(sandbox: Sandbox, api: httpx.Client) -> None:
    response = api.get(f"/sandboxes/{sandbox.sandbox_id}-00000000")
    assert response.status_code == 200
    assert response.json()["sandboxID"] == sandbox.sandbox_id


def test_control_requests_with_routing_headers_are_accepted(sandbox: Sandbox, api: httpx.Client) -> None:
    headers = {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": "49983"}
    response = api.post(f"/sandboxes/{sandbox.sandbox_id}/connect", json={"timeout": 30}, headers=headers)
    assert response.status_code == 200, response.text
    assert response.json()["sandboxID"] == sandbox.sandbox_id
    response = api.post("/sandboxes/elsewhere/connect", json={}, headers={**headers, "E2b-Sandbox-Port": "8000"})
    assert (response.status_code, response.json()["port"]) == (502, 8000), (
        "requests to a port must reach the sandbox, not the control API"
    )


def test_unknown_routes_return_404_as_json(api: httpx.Client) -> None:
    response = api.get("/v2/no/such/route")
    assert response.status_code == 404
    assert response.json()["code"] == 404


def test_template_alias_lookup(api: httpx.Client) -> None:
    info = api.get("/templates/aliases/base")
    assert info.status_code == 200, info.text
    assert info.json()["templateID"]
    assert api.get("/templates/aliases/no-such-template").status_code == 404


def test_health_needs_no_key(api: httpx.Client) -> None:
    assert api.get("/health", headers={"X-API-KEY": ""}).status_code == 204


def test_a_sandbox_ends_at_its_timeout(new_sandbox: NewSandbox) -> None:
    sandbox = new_sandbox(timeout=5)
    assert sandbox.is_running()
    until(lambda: not sandbox.is_running())
    with pytest.raises(SandboxNotFoundException):
        sandbox.get_info()
