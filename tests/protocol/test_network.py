"""Test egress rules in the API. That they are enforced is tested with the driver, where packets can be counted."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from e2b import ALL_TRAFFIC, CommandExitException, Sandbox, SandboxNotFoundException

from .conftest import NewSandbox

EVERYTHING = "0.0.0.0/0"

VALID_RULES: list[dict[str, Any]] = [
    {},
    {"allowOut": ["8.8.8.8"]},
    {"allowOut": ["8.8.8.8"], "denyOut": ["10.0.0.0/8"]},
    {"allowOut": ["8.8.0.0/16"]},
    {"denyOut": [EVERYTHING]},
    {"allowOut": ["8.8.8.8"], "denyOut": [EVERYTHING]},
    {"allowOut": ["example.com"], "denyOut": [EVERYTHING]},
    {"allowOut": ["*.example.com"], "denyOut": [EVERYTHING]},
    {"allowOut": ["example.com", "8.8.8.8"], "denyOut": [EVERYTHING]},
    {"denyOut": ["10.0.0.0/8", "192.168.0.0/16"]},
]

INVALID_RULES: list[Any] = [
    {"denyOut": ["example.com"]},
    {"denyOut": ["not-a-cidr"]},
    {"denyOut": [EVERYTHING, "example.com"]},
    {"allowOut": ["example.com"]},
    {"allowOut": ["example.com"], "denyOut": ["10.0.0.0/8"]},
    {"allowOut": ["*.example.com"]},
    {"allowOut": ["*.example.com"], "denyOut": ["10.0.0.0/8"]},
    {"allowOut": ["example.com", "8.8.8.8"], "denyOut": ["10.0.0.0/8"]},
    {"allowOut": ["1.2.3.4/33"]},
    {"allowOut": ["1.2.3.4/x"]},
    {"allowOut": ["a..b"], "denyOut": [EVERYTHING]},
    {"allowOut": [""]},
    {"allowOut": "8.8.8.8"},
    {"allowOut": [7]},
    [],
]


@pytest.mark.parametrize("rules", VALID_RULES, ids=str)
def test_valid_rules_are_stored(sandbox: Sandbox, api: httpx.Client, rules: dict[str, Any]) -> None:
    response = api.put(f"/sandboxes/{sandbox.sandbox_id}/network", json=rules)
    assert response.status_code == 204, response.text
    network = api.get(f"/sandboxes/{sandbox.sandbox_id}").json().get("network") or {}
    assert (network.get("allowOut") or []) == rules.get("allowOut", [])
    assert (network.get("denyOut") or []) == rules.get("denyOut", [])


@pytest.mark.parametrize("rules", INVALID_RULES, ids=str)
def test_invalid_rules_are_refused_and_change_nothing(sandbox: Sandbox, api: httpx.Client, rules: object) -> None:
    route = f"/sandboxes/{sandbox.sandbox_id}"
    api.put(f"{route}/network", json={"denyOut": ["192.0.2.0/24"]}).raise_for_status()
    response = api.put(f"{route}/network", json=rules)
    assert response.status_code == 400, response.text
    assert response.json()["message"]
    assert api.get(route).json()["network"]["denyOut"] == ["192.0.2.0/24"]


@pytest.mark.parametrize("rules", [rules for rules in VALID_RULES if rules], ids=str)
def test_create_accepts_the_same_rules(api: httpx.Client, rules: dict[str, Any]) -> None:
    created = api.post("/v2/sandboxes", json={"templateID": "base", "network": rules})
    assert created.status_code == 201, created.text
    assert api.delete(f"/sandboxes/{created.json()['sandboxID']}").status_code == 204


def test_rules_through_the_sdk(new_sandbox: NewSandbox) -> None:
    sandbox = new_sandbox(network={"deny_out": lambda ctx: [ctx.all_traffic], "allow_out": ["192.0.2.7"]})
    network = sandbox.get_info().network
    assert network is not None
    assert (network["allow_out"], network["deny_out"]) == (["192.0.2.7"], [ALL_TRAFFIC])
    sandbox.update_network({"deny_out": ["198.51.100.0/24"]})
    network = sandbox.get_info().network or {}
    assert (network.get("allow_out") or [], network["deny_out"]) == ([], ["198.51.100.0/24"])
    sandbox.update_network({"allow_internet_access": False})
    sandbox.pause()
    sandbox.connect()
    assert sandbox.get_info().allow_internet_access is False, "rules must survive a pause"
    sandbox.kill()
    with pytest.raises(SandboxNotFoundException):
        sandbox.update_network({})


def test_loopback_works_without_internet_access(new_sandbox: NewSandbox) -> None:
    sandbox = new_sandbox(allow_internet_access=False)
    sandbox.commands.run("python3 -m http.server 8000", background=True, timeout=0)
    curl = (
        "curl -s --retry 20 --retry-connrefused --retry-delay 1 -o /dev/null -w '%{http_code}' http://127.0.0.1:8000/"
    )
    assert sandbox.commands.run(curl).stdout == "200"


@pytest.mark.parametrize("rules", [{"allow_internet_access": False}, {"network": {"deny_out": [EVERYTHING]}}], ids=str)
def test_denied_addresses_are_unreachable(new_sandbox: NewSandbox, rules: dict[str, Any]) -> None:
    sandbox = new_sandbox(**rules)
    with pytest.raises(CommandExitException):
        sandbox.commands.run("curl --connect-timeout 2 --max-time 3 -Is http://192.0.2.1")
