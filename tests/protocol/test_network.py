"""Egress rules as the API takes them. That they hold is tested where packets can be counted: with the driver."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from e2b import ALL_TRAFFIC, CommandExitException, Sandbox, SandboxNotFoundException

from .conftest import NewSandbox

EVERYTHING = "0.0.0.0/0"

ACCEPTED: list[dict[str, Any]] = [
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

REFUSED: list[Any] = [
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


@pytest.mark.parametrize("rules", ACCEPTED, ids=str)
def test_rules_that_are_taken(sandbox: Sandbox, api: httpx.Client, rules: dict[str, Any]) -> None:
    answer = api.put(f"/sandboxes/{sandbox.sandbox_id}/network", json=rules)
    assert answer.status_code == 204, answer.text
    network = api.get(f"/sandboxes/{sandbox.sandbox_id}").json().get("network") or {}
    assert (network.get("allowOut") or []) == rules.get("allowOut", [])
    assert (network.get("denyOut") or []) == rules.get("denyOut", [])


@pytest.mark.parametrize("rules", REFUSED, ids=str)
def test_rules_that_are_refused_change_nothing(sandbox: Sandbox, api: httpx.Client, rules: object) -> None:
    route = f"/sandboxes/{sandbox.sandbox_id}"
    api.put(f"{route}/network", json={"denyOut": ["192.0.2.0/24"]}).raise_for_status()
    answer = api.put(f"{route}/network", json=rules)
    assert answer.status_code == 400, answer.text
    assert answer.json()["message"]
    assert api.get(route).json()["network"]["denyOut"] == ["192.0.2.0/24"]


@pytest.mark.parametrize("rules", [rules for rules in ACCEPTED if rules], ids=str)
def test_create_takes_the_same_rules(api: httpx.Client, rules: dict[str, Any]) -> None:
    made = api.post("/v2/sandboxes", json={"templateID": "base", "network": rules})
    assert made.status_code == 201, made.text
    assert api.delete(f"/sandboxes/{made.json()['sandboxID']}").status_code == 204


def test_through_the_sdk(new_sandbox: NewSandbox) -> None:
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
    assert sandbox.get_info().allow_internet_access is False, "rules survive a pause"
    sandbox.kill()
    with pytest.raises(SandboxNotFoundException):
        sandbox.update_network({})


def test_without_internet_there_is_still_a_loopback(new_sandbox: NewSandbox) -> None:
    sandbox = new_sandbox(allow_internet_access=False)
    sandbox.commands.run("python3 -m http.server 8000", background=True, timeout=0)
    ask = "curl -s --retry 20 --retry-connrefused --retry-delay 1 -o /dev/null -w '%{http_code}' http://127.0.0.1:8000/"
    assert sandbox.commands.run(ask).stdout == "200"


@pytest.mark.parametrize("rules", [{"allow_internet_access": False}, {"network": {"deny_out": [EVERYTHING]}}], ids=str)
def test_denied_addresses_are_out_of_reach(new_sandbox: NewSandbox, rules: dict[str, Any]) -> None:
    sandbox = new_sandbox(**rules)
    with pytest.raises(CommandExitException):
        sandbox.commands.run("curl --connect-timeout 2 --max-time 3 -Is http://192.0.2.1")
