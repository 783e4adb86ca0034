"""Allowed hosts and addresses from the settings of a project or the operator."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from sandyard.kit.destinations import Destinations
from sandyard.platform.db.models import Project
from sandyard.platform.domain.projects.egress import GITHUB_HOSTS, PRESETS, get_allowed, parse_operator_default
from sandyard.platform.domain.projects.model import NetworkSettings, check_host


def project(network: dict[str, Any], repository: str | None = None, **settings: Any) -> Project:
    return Project(repository=repository, template=None, settings={"network": network, **settings})


def test_modes() -> None:
    assert get_allowed(project({"mode": "all"}), []) is None
    assert get_allowed(project({"mode": "none", "allow": ["a.test"], "presets": ["npm"]}), None) == []
    assert get_allowed(project({}), ["operator.test"]) == ["operator.test"]
    listed = {"mode": "listed", "presets": ["npm", "pypi"], "allow": ["a.test", "pypi.org"]}
    assert get_allowed(project(listed), None) == [*PRESETS["npm"], *PRESETS["pypi"], "a.test"]


def test_private_networks_require_administrator() -> None:
    listed = project({"mode": "listed", "allow": ["a.test", "10.0.0.0/8", "10.1.2.0/24", "8.8.8.8"]})
    assert get_allowed(listed, None, Destinations(["10.1.0.0/16"])) == ["a.test", "10.1.2.0/24", "8.8.8.8"]
    assert get_allowed(project({"mode": "all"}), [], Destinations()) is None


@pytest.mark.parametrize(
    ("repository", "hosts"),
    [
        ("https://github.com/a/b.git", [*GITHUB_HOSTS]),
        ("git@github.com:a/b.git", [*GITHUB_HOSTS]),
        ("https://git.example.org:8443/b.git", ["git.example.org"]),
        ("/srv/b.git", []),
        (None, []),
    ],
)
def test_forge_of_project(repository: str | None, hosts: list[str]) -> None:
    assert get_allowed(project({"mode": "listed", "presets": ["forge"]}, repository), None) == hosts


def test_operator_default() -> None:
    assert parse_operator_default("all", [""]) is None
    assert parse_operator_default("none", [""]) == []
    assert parse_operator_default("listed", "crates, a.test".split(",")) == [*PRESETS["crates"], "a.test"]
    with pytest.raises(ValidationError):
        parse_operator_default("listed", ["not a host"])


def test_presets_are_valid_hosts() -> None:
    for hosts in (*PRESETS.values(), GITHUB_HOSTS):
        assert [check_host(host) for host in hosts] == [*hosts]


@pytest.mark.parametrize("entry", ["0.0.0.0/0", "::/0", "http://a.test", "a..b", "1.2.3", "*", "a b", "*.*.a.test"])
def test_rejects_invalid_hosts(entry: str) -> None:
    with pytest.raises(ValidationError):
        NetworkSettings(mode="listed", allow=[entry])
