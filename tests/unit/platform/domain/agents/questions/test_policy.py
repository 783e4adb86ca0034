"""The policy for what agents may do without asking a person."""

from __future__ import annotations

from typing import Any

import pytest

from sandyard.platform.domain.agents.questions.policy import (
    SEARCHED_CHARACTERS,
    UndecidedError,
    Verdicts,
    decide,
    find_option,
)
from sandyard.platform.domain.projects.model import PermissionSettings
from tests.unit.platform.domain.projects.pattern_examples import COMPLEX

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
        ("allow_all", ["x"], {"title": "y" * (SEARCHED_CHARACTERS + 1)}, None),
        ("allow_all", ["x"], {"title": "x" + "y" * SEARCHED_CHARACTERS}, "reject"),
        ("allow_all", [COMPLEX], {"title": "ls"}, None),
        ("allow_all", [COMPLEX, "ls"], {"title": "ls"}, "reject"),
        ("allow_all", ["[ab]{500}c"], {"title": "ls", "rawInput": {"text": "ab" * 9000}}, None),
    ],
)
def test_decisions(mode: Any, deny: list[str], call: dict[str, Any], decision: str | None) -> None:
    assert decide(PermissionSettings(mode=mode, deny=deny), call).decision == decision


@pytest.mark.parametrize(("mode", "what"), [("ask", "everything."), ("allow_reads", "everything but reading.")])
def test_reason_to_ask_person(mode: Any, what: str) -> None:
    reason = decide(PermissionSettings(mode=mode), {"kind": "execute"}).reason
    assert reason == f"This project asks before {what}"


def test_reason_names_unchecked_pattern() -> None:
    reason = decide(PermissionSettings(deny=[COMPLEX]), {"title": "ls"}).reason
    assert repr(COMPLEX[:60]) in reason and "Simplify it" in reason


async def test_matches_patterns_outside_of_transaction() -> None:
    verdicts, settings, call = Verdicts(), PermissionSettings(deny=["ls"]), {"title": "ls"}
    assert verdicts.get(PermissionSettings(), call).decision == "allow"
    with pytest.raises(UndecidedError) as wanted:
        verdicts.get(settings, call)
    await verdicts.decide(wanted.value)
    assert verdicts.get(settings, call).decision == "reject"
    for other in ((settings, {"title": "id"}), (PermissionSettings(deny=["id"]), call)):
        with pytest.raises(UndecidedError):
            verdicts.get(*other)


def test_chooses_option_by_kind() -> None:
    assert find_option(OPTIONS, "allow") == OPTIONS[2]
    assert find_option(OPTIONS, "allow_always") == OPTIONS[1]
    assert find_option(OPTIONS, "reject_always") == OPTIONS[0]
    assert find_option(OPTIONS[1:], "reject") is None
