"""How many requests a credential has left, as the forge's headers say, and when the next may go."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from sandyard.kit.clock import Clock
from sandyard.kit.logging import get_logger
from sandyard.platform.domain.forge.errors import ForgeRateLimitedError
from sandyard.platform.domain.forge.model import Budget

log = get_logger(__name__)

CORE = "core"
_UNSAID_S = 60.0  # what GitHub asks for when it limits without saying how long
_SLACK_S = 1.0  # the reset is told in whole seconds


class Pace:
    """Of one credential. Lives in memory: after a restart the forge's first answer says it again."""

    def __init__(self, name: str, clock: Clock) -> None:
        self._name = name
        self._clock = clock
        self._budgets: dict[str, Budget] = {}
        self._hold_until = 0.0
        self._warned: datetime | None = None

    @property
    def budget(self) -> Budget | None:
        """Of plain requests. None: the forge has not said, or the window it spoke of is over."""
        known = self._budgets.get(CORE)
        return known if known is not None and known.resets_at.timestamp() > self._clock.now() else None

    def note(self, headers: Mapping[str, str]) -> None:
        """Remember what the headers of an answer say. Warns in the log once in each window that runs low."""
        limit, remaining = _number(headers, "x-ratelimit-limit"), _number(headers, "x-ratelimit-remaining")
        reset = _number(headers, "x-ratelimit-reset")
        if limit is None or remaining is None or reset is None:
            return
        resource = headers.get("x-ratelimit-resource", CORE)[:40]
        # the forge's clock and ours may differ: what counts is how long it is until then
        resets_at = datetime.fromtimestamp(round(self._clock.now() + reset - self._said_at(headers)), UTC)
        known = self._budgets.get(resource)
        if known is not None and abs((known.resets_at - resets_at).total_seconds()) <= 5:
            # the same window: answers may arrive in another order than they were made in
            remaining, resets_at = min(remaining, known.remaining), known.resets_at
        if len(self._budgets) < 20 or resource in self._budgets:
            self._budgets[resource] = now = Budget(limit, remaining, resets_at)
            if resource == CORE and now.low and self._warned != now.resets_at:
                self._warned = now.resets_at
                log.warning("forge_budget_low", forge=self._name, remaining=remaining, resets_at=str(resets_at))

    def limited(self, status: int, headers: Mapping[str, str], words: str, rounds: int) -> bool:
        """Whether this answer says "not now". Then `turn` waits as long as it asks for; `rounds`: how often it said so already."""
        wait = retry_after(headers, self._said_at(headers))
        exhausted = _number(headers, "x-ratelimit-remaining") == 0
        named = "rate limit" in words.lower() or "abuse detection" in words.lower()
        if status not in (403, 429) or not (status == 429 or wait is not None or exhausted or named):
            return False
        if wait is None and exhausted and self.budget is not None and self.budget.remaining == 0:
            return True  # the window's end is remembered
        # at least a second, so that a forge that says "in 0 seconds" forever is not asked without end
        hold = max(_SLACK_S, wait if wait is not None else _UNSAID_S * 2 ** min(rounds, 5))
        self._hold_until = max(self._hold_until, self._clock.now() + hold)
        return True

    async def turn(self, resource: str, patience: float) -> None:
        """Wait until the forge takes requests again. ForgeRateLimitedError when that is later than `patience` (an instant)."""
        while (until := self._free_at(resource)) > self._clock.now():
            moment = datetime.fromtimestamp(until, UTC)
            if until > patience:
                raise ForgeRateLimitedError(
                    f"{self._name} takes no more requests with this credential until {moment:%Y-%m-%d %H:%M:%S} UTC. "
                    "Try again then.",
                    until=moment,
                    retry_after=until - self._clock.now(),
                )
            log.info("forge_limit_awaited", forge=self._name, until=str(moment))
            await self._clock.sleep(until - self._clock.now())

    def _free_at(self, resource: str) -> float:
        known = self._budgets.get(resource)
        exhausted = known is not None and known.remaining == 0
        return max(self._hold_until, known.resets_at.timestamp() + _SLACK_S if known and exhausted else 0.0)

    def _said_at(self, headers: Mapping[str, str]) -> float:
        try:
            return parsedate_to_datetime(headers["date"]).timestamp()
        except (KeyError, ValueError, TypeError):
            return self._clock.now()


def retry_after(headers: Mapping[str, str], said_at: float) -> float | None:
    """Seconds to wait; the header holds them, or a date."""
    value = headers.get("retry-after")
    if value is None:
        return None
    if value.strip().isdecimal():
        return min(float(value), 24 * 3600.0)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - said_at)
    except (ValueError, TypeError):
        return None


def _number(headers: Mapping[str, str], name: str) -> int | None:
    value = headers.get(name, "").strip()
    return int(value) if value.isdecimal() and len(value) <= 12 else None
