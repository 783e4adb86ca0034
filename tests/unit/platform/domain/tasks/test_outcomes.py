"""Outcomes of the steps of an attempt, from their stored rows."""

from __future__ import annotations

from typing import Any

import pytest

from sandyard.platform.db.models import Step
from sandyard.platform.domain.tasks.model import list_outcomes


def step(name: str, status: str = "completed", round_: int = 1, **detail: Any) -> Step:
    return Step(attempt_id="att_1", round=round_, number=1, name=name, status=status, tries=1, detail=detail)


@pytest.mark.parametrize(
    ("one", "outcome"),
    [
        (step("agent", turnId="trn_1"), "succeeded"),
        (step("agent", "running"), "running"),
        (step("agent", "failed"), "failed"),
        (step("verify"), "skipped"),
        (step("verify", ok=True, commandId="cmd_1"), "succeeded"),
        (step("verify", ok=False, exitCode=1), "failed"),
        (step("pull_request", number=7), "succeeded"),
        (step("pull_request", number=None), "not_applicable"),
        (step("pull_request", "failed"), "failed"),
    ],
)
def test_outcome_of_one_step(one: Step, outcome: str) -> None:
    assert list_outcomes([one]) == [outcome]


def test_step_fixed_by_later_attempt_in_same_round() -> None:
    first = [step("verify", ok=False), step("agent"), step("verify", ok=False), step("verify", ok=True)]
    second = [step("verify", ok=False, round_=2), step("verify", "failed", round_=2), step("push", round_=2, ok=False)]
    assert list_outcomes(first + second) == [
        *("fixed", "succeeded", "fixed", "succeeded"),
        *("failed", "failed", "failed"),
    ]
