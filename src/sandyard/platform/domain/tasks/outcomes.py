"""Results of an attempt's steps, for display."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from sandyard.platform.db.models import Step
from sandyard.platform.domain.tasks.model import StepName


class Outcome(StrEnum):
    """The result of a step.

    FAILED: also a check that found problems. FIXED: it failed, and a later try in the same round succeeded. SKIPPED: the project has no
    check. NOT_APPLICABLE: the remote has no pull requests.
    """

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    FIXED = "fixed"
    SKIPPED = "skipped"
    NOT_APPLICABLE = "not_applicable"


def outcomes_of(steps: Sequence[Step]) -> list[Outcome]:
    """Return the outcomes of all steps of one attempt, in order."""
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
