"""Who may reach a sandbox: access tokens on the agent, traffic tokens on previews."""

from __future__ import annotations

import httpx
import pytest
from e2b import AuthenticationException, Sandbox, SandboxNotRunningException

from .conftest import NewSandbox, Plane
from .engine import Engine


def with_token(sandbox: Sandbox, token: str | None) -> Sandbox:
    """The same sandbox through a handle that knows another token."""
    headers = {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": "49983"}
    if token is not None:
        headers["X-Access-Token"] = token
    config = type(sandbox.connection_config)(extra_sandbox_headers=headers)
    return Sandbox(
        sandbox_id=sandbox.sandbox_id,
        sandbox_domain=None,
        envd_version=sandbox._envd_version,
        envd_access_token=token,
        traffic_access_token=None,
        connection_config=config,
    )


@pytest.mark.parametrize("token", [None, "wrong", "ey" * 40])
def test_a_wrong_token_is_an_authentication_error(sandbox: Sandbox, token: str | None) -> None:
    stranger = with_token(sandbox, token)
    with pytest.raises(AuthenticationException):
        stranger.commands.run("true")
    with pytest.raises(AuthenticationException):
        stranger.commands.list()
    with pytest.raises(AuthenticationException):
        stranger.files.list("/")
    with pytest.raises(AuthenticationException):
        stranger.files.read("/etc/hostname")
    with pytest.raises(AuthenticationException):
        stranger.files.write("x", "x")
    assert stranger.is_running(), "health needs no token"
    assert not sandbox.files.exists("x")


def test_another_sandbox_s_token_does_not_fit(new_sandbox: NewSandbox) -> None:
    one, other = new_sandbox(), new_sandbox()
    assert one._envd_access_token != other._envd_access_token
    with pytest.raises(AuthenticationException):
        with_token(one, other._envd_access_token).commands.run("true")


def test_the_token_stays_the_same_over_pause(sandbox: Sandbox) -> None:
    token = sandbox._envd_access_token
    sandbox.pause()
    assert Sandbox.connect(sandbox.sandbox_id)._envd_access_token == token
    assert with_token(sandbox, token).commands.run("echo in").stdout == "in\n"


def test_the_agent_s_inner_routes_are_not_for_tenants(sandbox: Sandbox, plane: Plane) -> None:
    """What the engine itself asks of the agent is refused from outside, token or not."""
    for client in (plane(sandbox), plane(sandbox, token=None)):
        answer = client.post("/init", json={"envVars": {"INJECTED": "1"}, "accessToken": "mine"})
        assert answer.status_code in (401, 403, 404), answer.text
        assert client.get("/_sandyard/dial", params={"port": "22"}).status_code in (401, 403, 404)
    assert sandbox.commands.run("echo $INJECTED").stdout == "\n"


def test_environment_and_metrics_of_the_agent(sandbox: Sandbox, plane: Plane) -> None:
    assert isinstance(plane(sandbox).get("/envs").json(), dict)
    assert plane(sandbox).get("/metrics").status_code == 200
    assert plane(sandbox, token=None).get("/envs").status_code == 401
    assert plane(sandbox, token=None).get("/health").status_code == 204


def test_routing_by_host_name(sandbox: Sandbox, engine: Engine) -> None:
    host = {"Host": f"49983-{sandbox.sandbox_id}.sandyard.test"}
    assert httpx.get(f"{engine.url}/health", headers=host).status_code == 204
    sandbox.kill()
    assert httpx.get(f"{engine.url}/health", headers=host).status_code == 502


def test_a_sandbox_that_is_not_there(engine: Engine, sandbox: Sandbox) -> None:
    headers = {"E2b-Sandbox-Id": "ineverexisted00000", "E2b-Sandbox-Port": "49983"}
    answer = httpx.get(f"{engine.url}/health", headers=headers)
    assert answer.status_code == 502
    assert answer.headers["content-type"].startswith("application/json")
    assert answer.json()["sandboxId"] == "ineverexisted00000"
    assert answer.json()["message"] == "The sandbox was not found"
    sandbox.kill()
    with pytest.raises(SandboxNotRunningException):
        sandbox.files.read("/etc/hostname")


@pytest.mark.parametrize("port", ["0", "65536", "-1", "ssh", ""])
def test_bad_ports(sandbox: Sandbox, engine: Engine, port: str) -> None:
    headers = {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": port}
    assert httpx.get(f"{engine.url}/health", headers=headers).status_code in (400, 502)
