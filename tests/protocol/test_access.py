"""Test who may reach a sandbox: access tokens for the guest agent, traffic tokens for previews."""

from __future__ import annotations

import httpx
import pytest
from e2b import AuthenticationException, Sandbox, SandboxNotRunningException

from tests.harness.engine import Engine
from tests.harness.sdk import get_access_token, get_agent_version

from .conftest import DataPlane, NewSandbox


def with_token(sandbox: Sandbox, token: str | None) -> Sandbox:
    """Return a handle to the same sandbox with a different token."""
    headers = {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": "49983"}
    if token is not None:
        headers["X-Access-Token"] = token
    config = type(sandbox.connection_config)(extra_sandbox_headers=headers)
    return Sandbox(
        sandbox_id=sandbox.sandbox_id,
        sandbox_domain=None,
        envd_version=get_agent_version(sandbox),
        envd_access_token=token,
        traffic_access_token=None,
        connection_config=config,
    )


@pytest.mark.parametrize("token", [None, "wrong", "ey" * 40])
def test_a_wrong_token_raises_an_authentication_error(sandbox: Sandbox, token: str | None) -> None:
    unauthorized = with_token(sandbox, token)
    with pytest.raises(AuthenticationException):
        unauthorized.commands.run("true")
    with pytest.raises(AuthenticationException):
        unauthorized.commands.list()
    with pytest.raises(AuthenticationException):
        unauthorized.files.list("/")
    with pytest.raises(AuthenticationException):
        unauthorized.files.read("/etc/hostname")
    with pytest.raises(AuthenticationException):
        unauthorized.files.write("x", "x")
    assert unauthorized.is_running(), "the health check needs no token"
    assert not sandbox.files.exists("x")


def test_the_token_of_another_sandbox_is_refused(new_sandbox: NewSandbox) -> None:
    one, other = new_sandbox(), new_sandbox()
    assert get_access_token(one) != get_access_token(other)
    with pytest.raises(AuthenticationException):
        with_token(one, get_access_token(other)).commands.run("true")


def test_the_token_is_unchanged_after_a_pause(sandbox: Sandbox) -> None:
    token = get_access_token(sandbox)
    sandbox.pause()
    assert get_access_token(Sandbox.connect(sandbox.sandbox_id)) == token
    assert with_token(sandbox, token).commands.run("echo in").stdout == "in\n"


def test_internal_routes_of_the_guest_agent_are_refused(sandbox: Sandbox, data_plane: DataPlane) -> None:
    """Routes that only the engine may call are refused to clients, with or without a token."""
    for client in (data_plane(sandbox), data_plane(sandbox, token=None)):
        response = client.post("/init", json={"envVars": {"INJECTED": "1"}, "accessToken": "mine"})
        assert response.status_code in (401, 403, 404), response.text
        assert client.get("/_sandyard/dial", params={"port": "22"}).status_code in (401, 403, 404)
    assert sandbox.commands.run("echo $INJECTED").stdout == "\n"


def test_environment_needs_a_token_and_health_does_not(sandbox: Sandbox, data_plane: DataPlane) -> None:
    assert isinstance(data_plane(sandbox).get("/envs").json(), dict)
    assert data_plane(sandbox).get("/metrics").status_code == 200
    assert data_plane(sandbox, token=None).get("/envs").status_code == 401
    assert data_plane(sandbox, token=None).get("/health").status_code == 204


def test_requests_are_routed_by_host_name(sandbox: Sandbox, engine: Engine) -> None:
    host = {"Host": f"49983-{sandbox.sandbox_id}.sandyard.test"}
    assert httpx.get(f"{engine.url}/health", headers=host).status_code == 204
    sandbox.kill()
    assert httpx.get(f"{engine.url}/health", headers=host).status_code == 502


def test_an_unknown_sandbox_is_not_found(engine: Engine, sandbox: Sandbox) -> None:
    headers = {"E2b-Sandbox-Id": "ineverexisted00000", "E2b-Sandbox-Port": "49983"}
    response = httpx.get(f"{engine.url}/health", headers=headers)
    assert response.status_code == 502
    assert response.headers["content-type"].startswith("application/json")
    assert response.json()["sandboxId"] == "ineverexisted00000"
    assert response.json()["message"] == "The sandbox was not found"
    sandbox.kill()
    with pytest.raises(SandboxNotRunningException):
        sandbox.files.read("/etc/hostname")


@pytest.mark.parametrize("port", ["0", "65536", "-1", "ssh", ""])
def test_invalid_ports_are_refused(sandbox: Sandbox, engine: Engine, port: str) -> None:
    headers = {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": port}
    assert httpx.get(f"{engine.url}/health", headers=headers).status_code in (400, 502)
