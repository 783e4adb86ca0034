"""Test the timeout of a sandbox: set, extended, refreshed, never shortened by connecting."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import httpx
import pytest
from e2b import Sandbox, SandboxNotFoundException

from tests.harness.sdk import get_access_token

from .conftest import NewSandbox
from .waiting import until


def get_time_left(sandbox: Sandbox) -> timedelta:
    return sandbox.get_info().end_at - datetime.now(UTC)


def test_set_timeout_counts_from_now(sandbox: Sandbox) -> None:
    sandbox.set_timeout(1000)
    assert get_time_left(sandbox) == pytest.approx(timedelta(seconds=1000), abs=timedelta(seconds=5))
    sandbox.set_timeout(50)
    assert get_time_left(sandbox) == pytest.approx(timedelta(seconds=50), abs=timedelta(seconds=5))


def test_set_timeout_to_zero_ends_the_sandbox(sandbox: Sandbox) -> None:
    sandbox.set_timeout(0)
    until(lambda: not sandbox.is_running())
    with pytest.raises(SandboxNotFoundException):
        sandbox.get_info()


def test_a_shortened_timeout_can_be_extended(sandbox: Sandbox) -> None:
    sandbox.set_timeout(4)
    sandbox.set_timeout(60)
    with pytest.raises(AssertionError):
        until(lambda: not sandbox.is_running(), 5)


def test_connect_never_shortens_the_timeout(new_sandbox: NewSandbox) -> None:
    sandbox = new_sandbox(timeout=300)
    before = sandbox.get_info().end_at
    Sandbox.connect(sandbox.sandbox_id, timeout=10)
    assert sandbox.get_info().end_at == before
    Sandbox.connect(sandbox.sandbox_id)
    assert sandbox.get_info().end_at >= before
    Sandbox.connect(sandbox.sandbox_id, timeout=600)
    assert sandbox.get_info().end_at > before + timedelta(seconds=200)


def test_connect_returns_a_working_handle(sandbox: Sandbox) -> None:
    sandbox.files.write("note.txt", "kept")
    connected = Sandbox.connect(sandbox.sandbox_id)
    assert connected.sandbox_id == sandbox.sandbox_id
    assert get_access_token(connected) == get_access_token(sandbox)
    assert connected.files.read("note.txt") == "kept"


def test_connect_to_an_unknown_sandbox_is_not_found() -> None:
    with pytest.raises(SandboxNotFoundException):
        Sandbox.connect("ineverexisted00000")


def test_connect_returns_200_for_a_running_sandbox(sandbox: Sandbox, api: httpx.Client) -> None:
    for route in ("/v2/sandboxes", "/sandboxes"):
        response = api.post(f"{route}/{sandbox.sandbox_id}/connect", json={"timeout": 30})
        assert response.status_code == 200, response.text
        assert response.json()["sandboxID"] == sandbox.sandbox_id


def test_refresh_extends_the_timeout(new_sandbox: NewSandbox, api: httpx.Client) -> None:
    sandbox = new_sandbox(timeout=20)
    before = sandbox.get_info().end_at
    response = api.post(f"/sandboxes/{sandbox.sandbox_id}/refreshes", json={"duration": 200})
    assert response.status_code == 204, response.text
    assert sandbox.get_info().end_at > before + timedelta(seconds=100)


@pytest.mark.parametrize("body", [{}, {"timeout": -1}, {"timeout": "x"}, {"timeout": None}, []], ids=str)
def test_invalid_timeouts_are_refused_and_change_nothing(sandbox: Sandbox, api: httpx.Client, body: object) -> None:
    before = sandbox.get_info().end_at
    response = api.post(f"/sandboxes/{sandbox.sandbox_id}/timeout", json=body)
    assert response.status_code == 400, response.text
    assert sandbox.get_info().end_at == before


@pytest.mark.parametrize("body", [{"duration": -5}, {"duration": "x"}, {"duration": 10**9}], ids=str)
def test_invalid_refreshes_are_refused_and_change_nothing(sandbox: Sandbox, api: httpx.Client, body: object) -> None:
    before = sandbox.get_info().end_at
    assert api.post(f"/sandboxes/{sandbox.sandbox_id}/refreshes", json=body).status_code == 400
    assert sandbox.get_info().end_at == before
