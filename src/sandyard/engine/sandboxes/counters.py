"""Counters and timings of the engine, for `/metrics` and `/status`."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram

from sandyard.kit.clock import Clock
from sandyard.kit.errors import NotFoundError, SandyardError

SLOW_OPERATION_S = 5.0
SLOW_OPERATIONS_KEPT = 20
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


@dataclass(frozen=True, slots=True)
class SlowOperation:
    """An operation that took at least SLOW_OPERATION_S."""

    operation: str
    sandbox: str
    seconds: float
    ended_at: float
    error: str | None


class Counters:
    """The counters of one engine. Each has its own registry, so that two engines in one process do not mix."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.registry = CollectorRegistry()
        self.slow_operations: deque[SlowOperation] = deque(maxlen=SLOW_OPERATIONS_KEPT)
        """The latest ones, oldest first."""
        self.creates = Counter(
            "sandyard_engine_creates",
            "Sandboxes created for clients, by where they came from: the pool, or new.",
            ("source",),
            registry=self.registry,
        )
        self.boots = Counter(
            "sandyard_engine_boots",
            "Sandboxes that were booted again because their processes had ended.",
            registry=self.registry,
        )
        self._seconds = Histogram(
            "sandyard_engine_operation_seconds",
            "Duration of operations of the driver and of the agents in sandboxes.",
            ("operation",),
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self._failures = Counter(
            "sandyard_engine_operation_failures",
            "Operations of the driver and of agents that failed, by the kind of error.",
            ("operation", "error"),
            registry=self.registry,
        )
        for source in ("pool", "new"):
            self.creates.labels(source)  # present from the beginning: a rate needs a first value

    @contextmanager
    def measure(self, operation: str, sandbox: str) -> Iterator[None]:
        """Measure the block as an operation on a sandbox. NotFoundError is not counted as a failure."""
        started, failure = time.perf_counter(), None
        try:
            yield
        except SandyardError as error:
            if not isinstance(error, NotFoundError):
                self._failures.labels(operation, type(error).__name__.removesuffix("Error")).inc()
            failure = error.message
            raise
        finally:
            seconds = time.perf_counter() - started
            self._seconds.labels(operation).observe(seconds)
            if seconds >= SLOW_OPERATION_S:
                self.slow_operations.append(SlowOperation(operation, sandbox, seconds, self._clock.now(), failure))
