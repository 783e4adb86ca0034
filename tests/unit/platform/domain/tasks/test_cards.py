"""The working time of an attempt, which is the same wherever it is shown."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sandyard.platform.db.models import Attempt
from sandyard.platform.domain.tasks.cards import Round, compute_working_time
from sandyard.platform.domain.tasks.model import AttemptStatus

START = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def test_working_time() -> None:
    row = Attempt(status=AttemptStatus.RUNNING, round=2, started_at=START)
    rounds: list[Round] = [(1, at(0), at(50), False), (2, at(5000), None, True)]
    assert compute_working_time(row, rounds, at(5010)) == (60.0, at(4950)), "a clock started there shows the same"
    row.status = AttemptStatus.IN_REVIEW
    rounds[1] = (2, at(5000), at(5040), False)
    assert compute_working_time(row, rounds, at(99999)) == (90.0, None)
    assert compute_working_time(Attempt(status=AttemptStatus.QUEUED, round=1), [], at(5)) == (None, None)


def test_working_time_does_not_decrease_when_an_attempt_is_cancelled_during_a_step() -> None:
    row = Attempt(status=AttemptStatus.RUNNING, round=2, started_at=START)
    rounds: list[Round] = [(1, at(0), at(36), False), (2, at(5000), at(5002), True)]
    assert compute_working_time(row, rounds, at(5082))[0] == 118.0
    row.status = AttemptStatus.FAILED
    assert compute_working_time(row, rounds, at(5083)) == (119.0, None)
    row.finished_at = at(5084)
    assert compute_working_time(row, rounds, at(9999)) == (120.0, None)
    rounds[1] = (2, at(5000), at(5085), False)
    assert compute_working_time(row, rounds, at(9999)) == (121.0, None)
