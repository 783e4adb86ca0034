"""What agents may do without asking."""

from __future__ import annotations

from typing import Any

import pytest

from sandyard.platform.domain.agents.policy import SEARCHED, choose, decide
from sandyard.platform.domain.projects.model import PermissionSettings

OPTIONS = [
    {"optionId": "a", "kind": "reject_once"},
    {"optionId": "b", "kind": "allow_always"},
    {"optionId": "c", "kind": "allow_once"},
]


@pytest.mark.parametrize(
    ("mode", "deny", "call", "decision"),
    [
        ("ask", [], {"kind": "read"}, None),
        ("allow_reads", [], {"kind": "search"}, "allow"),
        ("allow_reads", [], {"kind": "execute"}, None),
        ("allow_reads", [], {}, None),
        ("allow_reads", ["x"], {"kind": ["read"], "locations": 5, "content": {"a": 1}, "title": []}, None),
        ("allow_all", [], {"kind": "execute"}, "allow"),
        ("allow_all", ["rm -rf"], {"title": "rm -rf /"}, "reject"),
        ("allow_all", ["rm -rf"], {"title": "Run", "rawInput": {"command": ["rm", "-rf", "/"]}}, "reject"),
        ("allow_all", ["^/etc"], {"title": "Edit", "locations": [{"path": "/etc/passwd"}]}, "reject"),
        ("allow_reads", ["secret"], {"kind": "read", "rawInput": {"deep": [{"path": "a/secret"}]}}, "reject"),
        ("allow_all", ["x"], {"title": "y" * (SEARCHED + 1)}, None),
    ],
)
def test_decisions(mode: Any, deny: list[str], call: dict[str, Any], decision: str | None) -> None:
    assert decide(PermissionSettings(mode=mode, deny=deny), call).decision == decision


@pytest.mark.parametrize(("mode", "what"), [("ask", "everything."), ("allow_reads", "everything but reading.")])
def test_why_a_person_is_asked(mode: Any, what: str) -> None:
    reason = decide(PermissionSettings(mode=mode), {"kind": "execute"}).reason
    assert reason == f"This project asks before {what}"


def test_an_option_is_chosen_by_its_kind() -> None:
    assert choose(OPTIONS, "allow") == OPTIONS[2]
    assert choose(OPTIONS, "allow_always") == OPTIONS[1]
    assert choose(OPTIONS, "reject_always") == OPTIONS[0]
    assert choose(OPTIONS[1:], "reject") is None
