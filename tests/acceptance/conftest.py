"""One small engine for the acceptance tests: little disk and memory per sandbox, so that filling them is quick."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from e2b import Sandbox

from tests.protocol.engine import Engine

DISK_MB = 256
MEMORY_MB = 256
PIDS = 200
IO_MBPS = 4000  # more than any disk here does: it is looked for, not felt


@contextlib.contextmanager
def serving(**settings: str) -> Iterator[Engine]:
    """An engine that the SDKs find through the environment. It must leave nothing behind."""
    engine = Engine(settings)
    engine.start()
    before = {name: os.environ.get(name) for name in engine.environment}
    os.environ.update(engine.environment)
    yield engine
    for name, value in before.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    left = engine.stop()
    assert not left, f"the engine left behind: {left}"


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    limits = {
        "DEFAULT_DISK_MB": DISK_MB,
        "DEFAULT_MEMORY_MB": MEMORY_MB,
        "DEFAULT_PIDS": PIDS,
        "IO_WRITE_MBPS": IO_MBPS,
    }
    with serving(**{name: str(value) for name, value in limits.items()}) as engine:
        yield engine


@pytest.fixture
def new_sandbox(engine: Engine) -> Iterator[Callable[..., Sandbox]]:
    made: list[Sandbox] = []

    def create(**options: Any) -> Sandbox:
        made.append(Sandbox.create(**options))
        return made[-1]

    yield create
    for sandbox in made:
        sandbox.kill()


@pytest.fixture
def sandbox(new_sandbox: Callable[..., Sandbox]) -> Sandbox:
    return new_sandbox()
