"""Creating sandboxes: what comes back, what is remembered of it, and what is refused."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import httpx
import pytest
from e2b import AuthenticationException, Sandbox, SandboxException, SandboxNotFoundException, SandboxState
from packaging.version import Version

from .conftest import NewSandbox
from .waiting import until


def test_a_new_user_s_ten_lines() -> None:
    with Sandbox.create() as sandbox:
        assert sandbox.is_running()
        sandbox.files.write("/home/user/hello.py", "print('hello from', __file__)")
        result = sandbox.commands.run("python3 hello.py")
        assert (result.exit_code, result.stdout) == (0, "hello from /home/user/hello.py\n")
    assert not sandbox.is_running()


def test_what_create_says(sandbox: Sandbox) -> None:
    assert sandbox.sandbox_id.isalnum(), "an id with a hyphen would not survive in a preview's host name"
    assert sandbox._envd_access_token
    assert sandbox._envd_version >= Version("0.6.4"), "older agents lack features the SDKs ask the version for"


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
    made = api.post("/sandboxes", json={"templateID": "base"})
    assert made.status_code == 201, made.text
    found = api.get(f"/sandboxes/{made.json()['sandboxID']}").json()
    lasts = datetime.fromisoformat(found["endAt"]) - datetime.fromisoformat(found["startedAt"])
    assert lasts == pytest.approx(timedelta(seconds=15), abs=timedelta(seconds=2))
    assert api.delete(f"/sandboxes/{found['sandboxID']}").status_code == 204


def test_environment_variables_reach_every_command(new_sandbox: NewSandbox) -> None:
    sandbox = new_sandbox(envs={"GREETING": "hi there", "EMPTY": ""})
    assert sandbox.commands.run('echo "$GREETING"').stdout == "hi there\n"
    assert sandbox.commands.run("env | grep ^EMPTY=").stdout == "EMPTY=\n"
    assert sandbox.commands.run('echo "$GREETING"', envs={"GREETING": "own"}).stdout == "own\n"
    assert sandbox.commands.run('echo "$GREETING"', user="root").stdout == "hi there\n"


def test_a_sandbox_knows_what_it_is(sandbox: Sandbox) -> None:
    told = sandbox.commands.run('echo "$E2B_SANDBOX $E2B_SANDBOX_ID"').stdout.split()
    assert told == ["true", sandbox.sandbox_id]
    files = sandbox.commands.run("cat /run/e2b/.E2B_SANDBOX; echo; cat /run/e2b/.E2B_SANDBOX_ID").stdout.split()
    assert files == ["true", sandbox.sandbox_id]


def test_idempotency_key_makes_one_sandbox(api: httpx.Client, unique: str) -> None:
    first = Sandbox.create(idempotency_key=unique, metadata={"attempt": "one"})
    again = Sandbox.create(idempotency_key=unique, metadata={"attempt": "one"})
    other = Sandbox.create(idempotency_key=f"{unique}-b")
    try:
        assert again.sandbox_id == first.sandbox_id
        assert again._envd_access_token == first._envd_access_token
        assert other.sandbox_id != first.sandbox_id
    finally:
        first.kill()
        other.kill()


def test_concurrent_creates_with_one_key_make_one_sandbox(unique: str) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: Sandbox.create(idempotency_key=unique), range(8)))
    try:
        assert len({sandbox.sandbox_id for sandbox in made}) == 1
    finally:
        made[0].kill()


def test_many_at_once_are_all_different(new_sandbox: NewSandbox) -> None:
    with ThreadPoolExecutor(10) as pool:
        made = list(pool.map(lambda _: new_sandbox(), range(10)))
        answers = list(pool.map(lambda s: s.commands.run("echo $E2B_SANDBOX_ID").stdout.strip(), made))
    assert answers == [sandbox.sandbox_id for sandbox in made]
    assert len(set(answers)) == 10


def test_unknown_template() -> None:
    with pytest.raises(SandboxException, match=r"404|not found") as caught:
        Sandbox.create("no-such-template-anywhere")
    assert caught.value.status_code == 404


def test_wrong_api_key_is_an_authentication_error() -> None:
    with pytest.raises(AuthenticationException):
        Sandbox.create(api_key="e2b_" + "0" * 40)
    with pytest.raises(AuthenticationException):
        Sandbox.list(api_key="e2b_" + "0" * 40).next_items()


@pytest.mark.parametrize("headers", [{"X-API-KEY": ""}, {"X-API-KEY": "nonsense"}, {"X-API-KEY": "e2b_" + "f" * 40}])
def test_no_route_answers_without_a_key(api: httpx.Client, headers: dict[str, str]) -> None:
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
        answer = api.request(method, path, headers=headers, json={} if method in ("POST", "PUT") else None)
        assert answer.status_code == 401, f"{method} {path}: {answer.status_code}"
        assert answer.json()["code"] == 401
        assert answer.json()["message"]


BAD_BODIES = [
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
@pytest.mark.parametrize("body", BAD_BODIES, ids=str)
def test_bad_input_is_refused_and_makes_nothing(api: httpx.Client, route: str, body: object) -> None:
    before = int(api.get("/v2/sandboxes").headers["x-total-running"])
    answer = api.post(route, json=body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["code"] == 400
    assert answer.json()["message"]
    assert int(api.get("/v2/sandboxes").headers["x-total-running"]) == before


def test_a_body_that_is_no_json(api: httpx.Client) -> None:
    answer = api.post("/v2/sandboxes", content=b"{nope", headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["code"] == 400


def test_bad_idempotency_key(api: httpx.Client) -> None:
    for key in ("UPPER CASE", "x" * 256, "semi;colon"):
        answer = api.post("/v2/sandboxes", json={"templateID": "base"}, headers={"Idempotency-Key": key})
        assert answer.status_code == 400, f"{key}: {answer.text}"


def test_kill_and_kill_again(new_sandbox: NewSandbox) -> None:
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
def test_every_verb_says_404_for_a_sandbox_that_never_was(
    api: httpx.Client, method: str, path: str, body: dict[str, object] | None
) -> None:
    answer = api.request(method, f"/sandboxes/ineverexisted00000{path}", json=body)
    assert answer.status_code == 404, answer.text
    assert answer.json()["code"] == 404


def test_the_client_id_may_follow_the_sandbox_id(sandbox: Sandbox, api: httpx.Client) -> None:
    answer = api.get(f"/sandboxes/{sandbox.sandbox_id}-00000000")
    assert answer.status_code == 200
    assert answer.json()["sandboxID"] == sandbox.sandbox_id


def test_a_control_call_may_carry_the_routing_headers(sandbox: Sandbox, api: httpx.Client) -> None:
    headers = {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": "49983"}
    answer = api.post(f"/sandboxes/{sandbox.sandbox_id}/connect", json={"timeout": 30}, headers=headers)
    assert answer.status_code == 200, answer.text
    assert answer.json()["sandboxID"] == sandbox.sandbox_id
    answer = api.post("/sandboxes/elsewhere/connect", json={}, headers={**headers, "E2b-Sandbox-Port": "8000"})
    assert (answer.status_code, answer.json()["port"]) == (502, 8000), (
        "what a server in a sandbox serves is its own affair"
    )


def test_unknown_routes_are_404_in_json(api: httpx.Client) -> None:
    answer = api.get("/v2/no/such/route")
    assert answer.status_code == 404
    assert answer.json()["code"] == 404


def test_template_alias_lookup(api: httpx.Client) -> None:
    found = api.get("/templates/aliases/base")
    assert found.status_code == 200, found.text
    assert found.json()["templateID"]
    assert api.get("/templates/aliases/no-such-template").status_code == 404


def test_health_needs_no_key(api: httpx.Client) -> None:
    assert api.get("/health", headers={"X-API-KEY": ""}).status_code == 204


def test_timeout_ends_a_sandbox(new_sandbox: NewSandbox) -> None:
    sandbox = new_sandbox(timeout=5)
    assert sandbox.is_running()
    until(lambda: not sandbox.is_running())
    with pytest.raises(SandboxNotFoundException):
        sandbox.get_info()
