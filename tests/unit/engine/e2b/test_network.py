from __future__ import annotations

import pytest

from sandyard.engine.contract import NetworkPolicy
from sandyard.engine.e2b.control.network import make_network, update_network
from sandyard.engine.e2b.control.wire import NetworkConfig, NetworkUpdate
from sandyard.engine.sandboxes.model import Network
from sandyard.kit.errors import InvalidInputError

ALL = "0.0.0.0/0"


@pytest.mark.parametrize(
    ("config", "allow_internet_access", "policy"),
    [
        (None, None, NetworkPolicy()),
        (None, True, NetworkPolicy()),
        (None, False, NetworkPolicy(allow_internet=False)),
        ({}, None, NetworkPolicy()),
        ({"allowOut": ["1.1.1.1", "10.0.0.1/8"]}, None, NetworkPolicy(True, ("1.1.1.1", "10.0.0.1/8"))),
        (
            {"allowOut": ["*.a-b.test"], "denyOut": [ALL]},
            None,
            NetworkPolicy(True, ("*.a-b.test",), (ALL,)),
        ),
        ({"denyOut": ["2001:db8::/32"]}, None, NetworkPolicy(True, (), ("2001:db8::/32",))),
        ({"denyOut": ["1.1.1.1"]}, False, NetworkPolicy(False, (), ("1.1.1.1",))),
        ({"allowOut": ["1.1.1.1"]}, False, NetworkPolicy(True, ("1.1.1.1",), (ALL, "::/0"))),
    ],
)
def test_network_settings_become_a_policy(
    config: dict[str, list[str]] | None, allow_internet_access: bool | None, policy: NetworkPolicy
) -> None:
    network = make_network(None if config is None else NetworkConfig(**config), allow_internet_access)  # type: ignore[arg-type]
    assert network.policy == policy
    assert network.allow_internet is allow_internet_access
    assert network.config == config


@pytest.mark.parametrize(
    "config",
    [
        {"denyOut": ["example.com"]},
        {"denyOut": ["300.1.1.1"]},
        {"denyOut": [""]},
        {"denyOut": ["0.0.0.0"]},
        {"denyOut": ["1.1.1.1:80"]},
        {"allowOut": ["300.1.1.1"], "denyOut": [ALL]},
        {"allowOut": ["1.1.1.1/33"], "denyOut": [ALL]},
        {"allowOut": ["a..b"], "denyOut": [ALL]},
        {"allowOut": ["*"], "denyOut": [ALL]},
        {"allowOut": ["-a.com"], "denyOut": [ALL]},
        {"allowOut": ["a.*.com"], "denyOut": [ALL]},
        {"allowOut": ["example.com:443"], "denyOut": [ALL]},
        {"allowOut": ["ex ample.com"], "denyOut": [ALL]},
        {"allowOut": ["a" * 64 + ".com"], "denyOut": [ALL]},
        {"allowOut": ["example.com"]},
        {"allowOut": ["example.com"], "denyOut": ["10.0.0.0/8"]},
    ],
    ids=str,
)
def test_invalid_network_settings_are_rejected(config: dict[str, list[str]]) -> None:
    with pytest.raises(InvalidInputError):
        make_network(NetworkConfig(**config), None)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError):
        update_network(NetworkUpdate(**config), Network())  # type: ignore[arg-type]


def test_an_empty_update_clears_everything() -> None:
    before = make_network(NetworkConfig(denyOut=[ALL]), False)
    after = update_network(NetworkUpdate(), before)
    assert after == Network(NetworkPolicy(), None, None)
