"""An engine that cannot be reached."""

from __future__ import annotations

import time

import pytest
from tenacity import wait_none

from sandyard.kit.clock import ManualClock
from sandyard.kit.listen import free_port
from sandyard.kit.secret import Secret
from sandyard.platform.domain.sandboxes.e2b import (
    CircuitOpenError,
    CircuitState,
    EngineConfig,
    EngineError,
    EngineUnreachableError,
    SandboxEngine,
)
from tests.unit.platform.domain.sandboxes.e2b.command_reader import run


def nowhere(**options: float) -> EngineConfig:
    url = f"http://127.0.0.1:{free_port()}"
    return EngineConfig(api_key=Secret("e2b_" + "a" * 40), api_url=url, sandbox_url=url, **options)


async def test_closed_port_opens_breaker() -> None:
    clock = ManualClock()
    engine = SandboxEngine(nowhere(), clock, backoff=wait_none())
    for _ in range(2):
        with pytest.raises(EngineUnreachableError, match="E2B_API_URL"):
            await engine.list()
    assert engine.breaker.state is CircuitState.OPEN
    assert engine.breaker.opened_at == clock.now()
    before = time.monotonic()
    for attempt in (
        engine.list(),
        engine.get_info("i1"),
        engine.kill("i1"),
        engine.files.stat("i1", "/"),
        engine.fork("i1", 9),
    ):
        with pytest.raises(CircuitOpenError):
            await attempt
    assert time.monotonic() - before < 1
    await clock.advance(10)
    assert engine.breaker.state is CircuitState.HALF_OPEN
    with pytest.raises(EngineUnreachableError):
        await engine.list()
    assert engine.breaker.state is CircuitState.OPEN


async def test_create_times_out_with_reason() -> None:
    engine = SandboxEngine(nowhere(create_timeout_s=0.5))
    before = time.monotonic()
    with pytest.raises(EngineUnreachableError, match="could not be reached"):
        await engine.create(template="base", timeout_s=60, metadata={}, envs={}, idempotency_key="k")
    assert time.monotonic() - before < 3


async def test_command_start_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandyard.platform.domain.sandboxes.e2b.commands.START_PATIENCE_S", 0.1)
    engine = SandboxEngine(nowhere(), backoff=wait_none())
    with pytest.raises(EngineError):
        await run(engine, "i1", "true")
