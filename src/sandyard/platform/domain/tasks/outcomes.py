"""What came of the steps of an attempt, for people."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from sandyard.platform.db.models import Step
from sandyard.platform.domain.tasks.model import StepName


class Outcome(StrEnum):
    """FAILED: also a check that ran and found something. FIXED: it failed, and a later try in the same round succeeded. SKIPPED: the
    project has no check. NOT_APPLICABLE: the remote has no pull requests."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    FIXED = "fixed"
    SKIPPED = "skipped"
    NOT_APPLICABLE = "not_applicable"


def outcomes_of(steps: Sequence[Step]) -> list[Outcome]:
    """Of all steps of one attempt, in their order."""
    found: list[Outcome] = []
    succeeded: set[tuple[int, str]] = set()
    for step in reversed(steps):
        outcome = _outcome_of(step)
        if outcome is Outcome.SUCCEEDED:
            succeeded.add((step.round, step.name))
        if outcome is Outcome.FAILED and step.status == "completed" and (step.round, step.name) in succeeded:
            outcome = Outcome.FIXED
        found.append(outcome)
    return found[::-1]


def _outcome_of(step: Step) -> Outcome:
    detail = step.detail or {}
    if step.status != "completed":
        return Outcome.RUNNING if step.status == "running" else Outcome.FAILED
    if detail.get("ok") is False:
        return Outcome.FAILED
    if step.name == StepName.VERIFY and "ok" not in detail:
        return Outcome.SKIPPED
    if step.name == StepName.PULL_REQUEST and detail.get("number") is None:
        return Outcome.NOT_APPLICABLE
    return Outcome.SUCCEEDED
