"""The rate limit of a credential, read from the forge's headers, and when the next request may be sent."""

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
_DEFAULT_WAIT_S = 60.0  # the wait that GitHub documents for a limit without a duration
_MAX_WAIT_S = 24 * 3600.0  # a forge's headers may hold any number or date
_MARGIN_S = 1.0  # the reset time has a resolution of one second


class RateLimit:
    """The rate limit of one credential. Kept in memory: after a restart, the forge's first response reports it again."""

    def __init__(self, name: str, clock: Clock) -> None:
        self._name = name
        self._clock = clock
        self._budgets: dict[str, Budget] = {}
        self._hold_until = 0.0
        self._warned: datetime | None = None

    @property
    def budget(self) -> Budget | None:
        """The limit of plain requests. None if unknown or if its window is over."""
        known = self._budgets.get(CORE)
        return known if known is not None and known.resets_at.timestamp() > self._clock.now() else None

    def update(self, headers: Mapping[str, str]) -> None:
        """Record the headers of a response. Logs a warning once per window that runs low."""
        limit, remaining = _parse_number(headers, "x-ratelimit-limit"), _parse_number(headers, "x-ratelimit-remaining")
        reset = _parse_number(headers, "x-ratelimit-reset")
        if limit is None or remaining is None or reset is None:
            return
        resource = headers.get("x-ratelimit-resource", CORE)[:40]
        # the forge's clock and ours may differ: only the duration until then counts
        wait = _limit_wait(reset - self._get_sent_at(headers))
        resets_at = datetime.fromtimestamp(round(self._clock.now() + wait), UTC)
        known = self._budgets.get(resource)
        if known is not None and abs((known.resets_at - resets_at).total_seconds()) <= 5:
            # the same window: responses may arrive out of order
            remaining, resets_at = min(remaining, known.remaining), known.resets_at
        if len(self._budgets) < 20 or resource in self._budgets:
            self._budgets[resource] = now = Budget(limit, remaining, resets_at)
            if resource == CORE and now.low and self._warned != now.resets_at:
                self._warned = now.resets_at
                log.warning("forge_budget_low", forge=self._name, remaining=remaining, resets_at=str(resets_at))

    def is_limited(self, status: int, headers: Mapping[str, str], message: str, previous: int) -> bool:
        """Return whether this response is a rate limit. If so, `wait` waits as long as it says. `previous`: how often it happened before."""
        wait = parse_retry_after(headers, self._get_sent_at(headers))
        exhausted = _parse_number(headers, "x-ratelimit-remaining") == 0
        mentioned = "rate limit" in message.lower() or "abuse detection" in message.lower()
        if status not in (403, 429) or not (status == 429 or wait is not None or exhausted or mentioned):
            return False
        if wait is None and exhausted and self.budget is not None and self.budget.remaining == 0:
            return True  # the end of the window is recorded
        # at least a second: a forge may always respond "in 0 seconds"
        hold = max(_MARGIN_S, wait if wait is not None else _DEFAULT_WAIT_S * 2 ** min(previous, 5))
        self._hold_until = max(self._hold_until, self._clock.now() + hold)
        return True

    async def wait(self, resource: str, latest: float) -> None:
        """Wait until the forge accepts requests again. Raises ForgeRateLimitedError if that is later than `latest`, a time of the clock."""
        while (until := self._get_free_time(resource)) > self._clock.now():
            moment = datetime.fromtimestamp(until, UTC)
            if until > latest:
                raise ForgeRateLimitedError(
                    f"{self._name} is rate-limiting this credential until {moment:%Y-%m-%d %H:%M:%S} UTC. Try again then.",
                    until=moment,
                    retry_after=until - self._clock.now(),
                )
            log.info("forge_limit_awaited", forge=self._name, until=str(moment))
            await self._clock.sleep(until - self._clock.now())

    def _get_free_time(self, resource: str) -> float:
        known = self._budgets.get(resource)
        exhausted = known is not None and known.remaining == 0
        return max(self._hold_until, known.resets_at.timestamp() + _MARGIN_S if known and exhausted else 0.0)

    def _get_sent_at(self, headers: Mapping[str, str]) -> float:
        try:
            return parsedate_to_datetime(headers["date"]).timestamp()
        except (KeyError, ValueError, TypeError, OverflowError):
            return self._clock.now()


def parse_retry_after(headers: Mapping[str, str], sent_at: float) -> float | None:
    """Return the seconds to wait, at most a day. The header contains them, or a date."""
    value = headers.get("retry-after")
    if value is None:
        return None
    if value.strip().isdecimal():
        return _limit_wait(float(value))
    try:
        return _limit_wait(parsedate_to_datetime(value).timestamp() - sent_at)
    except (ValueError, TypeError, OverflowError):
        return None


def _limit_wait(seconds: float) -> float:
    return min(max(0.0, seconds), _MAX_WAIT_S)


def _parse_number(headers: Mapping[str, str], name: str) -> int | None:
    value = headers.get(name, "").strip()
    return int(value) if value.isdecimal() and len(value) <= 12 else None
