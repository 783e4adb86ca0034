"""Fixtures: one small engine for all acceptance tests of a worker, with little disk and memory per sandbox, so that they fill up quickly.
A file finds it empty, and may kill it if it starts it again. Files that need other settings start their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from e2b import Sandbox

from tests.harness.engine import Engine, pointed_at, started

DISK_MB = 256
MEMORY_MB = 256
PIDS = 200
DOMAIN = "sandyard.test"
"""Sandboxes reach the engine by names in this domain. Nothing else does, because no name server knows them."""
IO_MBPS = 4000  # more than any disk here reaches: tests check the setting, not its effect


@pytest.fixture(scope="package")
def shared_engine() -> Iterator[Engine]:
    limits = {
        "DEFAULT_DISK_MB": DISK_MB,
        "DEFAULT_MEMORY_MB": MEMORY_MB,
        "DEFAULT_PIDS": PIDS,
        "ALLOW_CONTAINERS": "true",
        "IO_WRITE_MBPS": IO_MBPS,
        "KERNEL_MEMORY_GROWTH_MB": 16,  # keep the memory that the tests take from the machine small
        "NETLINK_BUFFERS_MB": 16,
        "SOCKET_BUFFERS_MB": 16,
        "TCP_ORPHANS": 4000,
        "FILE_LOCKS": 20_000,
    }
    with started(POOL_SIZE="2", DOMAIN=DOMAIN, **{name: str(value) for name, value in limits.items()}) as engine:
        yield engine


@pytest.fixture(scope="module")
def engine(shared_engine: Engine) -> Iterator[Engine]:
    """The shared engine, without sandboxes of other test files."""
    with pointed_at(shared_engine):
        yield shared_engine
    shared_engine.clear()


@pytest.fixture
def new_sandbox(engine: Engine) -> Iterator[Callable[..., Sandbox]]:
    created: list[Sandbox] = []

    def create(**options: Any) -> Sandbox:
        created.append(Sandbox.create(**options))
        return created[-1]

    yield create
    for sandbox in created:
        sandbox.kill()


@pytest.fixture
def sandbox(new_sandbox: Callable[..., Sandbox]) -> Sandbox:
    return new_sandbox()
