"""Circuit breaker: after several engine failures in a row, calls fail at once until a probe succeeds."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import StrEnum

from sandyard.kit.clock import Clock, SystemClock
from sandyard.kit.logging import get_logger
from sandyard.platform.domain.sandboxes.e2b.errors import BreakerOpenError, EngineBusyError, EngineError

log = get_logger(__name__)


class BreakerState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Breaker:
    """Opens after `threshold` transient failures without a success in between.

    While it is open, every call fails at once with BreakerOpenError; after `cooldown_s` one call is let through as a
    probe. Any response of the engine, even an error, counts as a success, because the engine is reachable.
    """

    def __init__(self, clock: Clock | None = None, *, threshold: int = 5, cooldown_s: float = 10.0) -> None:
        self._clock = clock or SystemClock()
        self._threshold = threshold
        self._cooldown = cooldown_s
        self._failures = 0
        self._probing = False
        self.reason: str | None = None
        self.opened_at: float | None = None

    @property
    def state(self) -> BreakerState:
        """Return the state that a call would find now."""
        if self.opened_at is None:
            return BreakerState.CLOSED
        if self._probing or self._clock.now() - self.opened_at >= self._cooldown:
            return BreakerState.HALF_OPEN
        return BreakerState.OPEN

    @asynccontextmanager
    async def guard(self, *, counts: bool = True) -> AsyncIterator[None]:
        """Wrap one attempt. `counts` False: its outcome says nothing about the engine as a whole, so it cannot be a
        probe."""
        probe = self._admit(counts)
        try:
            yield
        except EngineError as error:
            if counts and (not error.transient or isinstance(error, EngineBusyError)):
                self._record_success()
            elif counts:
                self._record_failure(error)
            raise
        else:
            if counts:
                self._record_success()
        finally:
            if probe:
                self._probing = False

    def _admit(self, counts: bool) -> bool:
        state = self.state
        if state is BreakerState.CLOSED:
            return False
        if counts and state is BreakerState.HALF_OPEN and not self._probing:
            self._probing = True
            return True
        assert self.opened_at is not None
        left = max(1, round(self.opened_at + self._cooldown - self._clock.now()))
        raise BreakerOpenError(
            f"The engine failed {self._failures} times in a row and is retried in {left} s. Last error: {self.reason}",
            unsent=True,
        )

    def _record_success(self) -> None:
        if self.opened_at is not None:
            log.info("breaker_closed")
        self._failures = 0
        self.reason = self.opened_at = None

    def _record_failure(self, error: EngineError) -> None:
        self._failures += 1
        self.reason = error.message
        if self._failures >= self._threshold:
            if self.opened_at is None:
                log.warning("breaker_opened", failures=self._failures, reason=error.message)
            self.opened_at = self._clock.now()
