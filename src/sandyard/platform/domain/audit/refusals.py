"""Count the refused requests of each user, so that they cannot fill the audit log, which is never shortened."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from sandyard.kit.times import rfc3339
from sandyard.platform.domain.users.model import Principal

PERIOD_S = 60.0
RECORDED_PER_PERIOD = 60
"""Refused requests of a user that get an entry of their own in each period."""
MAX_NAMES = 30
"""Maximum number of different actions, outcomes and addresses named in an entry. Further ones are counted together."""
OTHERS = "others"


@dataclass(slots=True, eq=False)
class FurtherRefusals:
    """Refused requests of a user in one period that have no entry of their own."""

    principal: Principal
    until: float
    """When the period ends."""
    number: int = 0
    first_at: float = 0.0
    last_at: float = 0.0
    actions: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    addresses: Counter[str] = field(default_factory=Counter)

    def add(self, action: str, outcome: str, address: str | None, now: float) -> None:
        self.number += 1
        self.first_at, self.last_at = self.first_at or now, now
        for counter, name in ((self.actions, action), (self.outcomes, outcome), (self.addresses, address or "")):
            counter[name if name in counter or len(counter) < MAX_NAMES else OTHERS] += 1

    def to_detail(self) -> dict[str, Any]:
        """Return the details of the entry that stands for these requests."""
        return {
            "requests": self.number,
            "first": rfc3339(_to_time(self.first_at)),
            "last": rfc3339(_to_time(self.last_at)),
            "actions": dict(self.actions),
            "outcomes": dict(self.outcomes),
            "addresses": dict(self.addresses),
        }


@dataclass(slots=True)
class _Period:
    recorded: int
    further: FurtherRefusals


def _to_time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


class Refusals:
    """The refused requests of all users in their current periods, which start with the first such request."""

    def __init__(self) -> None:
        self._periods: dict[str, _Period] = {}

    def count(self, principal: Principal, now: float) -> FurtherRefusals | None:
        """Count a refused request. Return where to add it if it gets no entry of its own."""
        period = self._periods.get(principal.user_id)
        if period is None or not period.further.until - PERIOD_S <= now < period.further.until:
            period = self._periods[principal.user_id] = _Period(0, FurtherRefusals(principal, now + PERIOD_S))
        if period.recorded < RECORDED_PER_PERIOD:
            period.recorded += 1
            return None
        return period.further
