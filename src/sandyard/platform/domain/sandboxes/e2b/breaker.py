"""A circuit breaker: when the engine has failed several times in a row, nobody waits for it until a probe succeeds."""

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
    """Opens after `threshold` transient failures without a success between them. While it is open every call is
    answered with BreakerOpenError at once; after `cooldown_s` one call is let through as a probe. An answer of
    the engine, be it a refusal, is a success: it is there."""

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
        """As a call now would find it."""
        if self.opened_at is None:
            return BreakerState.CLOSED
        if self._probing or self._clock.now() - self.opened_at >= self._cooldown:
            return BreakerState.HALF_OPEN
        return BreakerState.OPEN

    @asynccontextmanager
    async def guard(self, *, counts: bool = True) -> AsyncIterator[None]:
        """Around one attempt. `counts` False: how it ends says nothing about the engine as a whole, so it is no probe either."""
        probe = self._admit(counts)
        try:
            yield
        except EngineError as error:
            if counts and (not error.transient or isinstance(error, EngineBusyError)):
                self._succeeded()
            elif counts:
                self._failed(error)
            raise
        else:
            if counts:
                self._succeeded()
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

    def _succeeded(self) -> None:
        if self.opened_at is not None:
            log.info("breaker_closed")
        self._failures = 0
        self.reason = self.opened_at = None

    def _failed(self, error: EngineError) -> None:
        self._failures += 1
        self.reason = error.message
        if self._failures >= self._threshold:
            if self.opened_at is None:
                log.warning("breaker_opened", failures=self._failures, reason=error.message)
            self.opened_at = self._clock.now()
