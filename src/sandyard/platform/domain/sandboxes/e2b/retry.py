"""Retry transient errors only: three attempts with growing, randomized delays."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import tenacity
from tenacity.wait import wait_base

from sandyard.kit.clock import Clock
from sandyard.kit.logging import get_logger
from sandyard.platform.domain.sandboxes.e2b.errors import BreakerOpenError, EngineError

log = get_logger(__name__)

ATTEMPTS = 3
BACKOFF = tenacity.wait_exponential(multiplier=1, min=1, max=9) + tenacity.wait_random(0, 1)
"""Delays of 1 to 10 s."""

T = TypeVar("T")


async def retrying(
    verb: str,
    attempt: Callable[[], Awaitable[T]],
    *,
    clock: Clock,
    idempotent: bool,
    wait: wait_base = BACKOFF,
    attempts: int = ATTEMPTS,
) -> T:
    """Return the result of `attempt`, or raise its last error.

    A call that is not `idempotent` is repeated only after failures that cannot have had an effect.
    """

    def is_retryable(error: BaseException) -> bool:
        if not isinstance(error, EngineError) or isinstance(error, BreakerOpenError):
            return False
        return error.transient and (idempotent or error.unsent)

    def log_retry(state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        pause = state.next_action.sleep if state.next_action else 0.0
        log.warning("engine_retry", verb=verb, attempt=state.attempt_number, pause_s=pause, reason=str(error))

    retryer = tenacity.AsyncRetrying(
        stop=tenacity.stop_after_attempt(attempts),
        wait=wait,
        retry=tenacity.retry_if_exception(is_retryable),
        sleep=clock.sleep,
        before_sleep=log_retry,
        reraise=True,
    )
    return await retryer(attempt)
