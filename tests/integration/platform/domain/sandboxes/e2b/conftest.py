"""A client of the engine and a new sandbox for each test."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from tenacity import wait_none

from sandyard.kit.ids import make_random_id
from sandyard.kit.secret import Secret
from sandyard.platform.domain.sandboxes.e2b import CircuitBreaker, EngineConfig, EngineSandbox, SandboxEngine
from tests.harness.engine import Engine

NewSandbox = Callable[..., Awaitable[EngineSandbox]]


@pytest.fixture
def config(engine_process: Engine) -> EngineConfig:
    url = engine_process.url
    return EngineConfig(api_key=Secret(engine_process.key), api_url=url, sandbox_url=url, create_timeout_s=30.0)


@pytest.fixture
async def engine(config: EngineConfig) -> AsyncIterator[SandboxEngine]:
    engine = SandboxEngine(config, backoff=wait_none(), breaker=CircuitBreaker(cooldown_s=1))
    yield engine
    await engine.close()


@pytest.fixture
async def new_sandbox(engine: SandboxEngine) -> AsyncIterator[NewSandbox]:
    created: list[str] = []
    numbers = itertools.count()

    async def create(**given: object) -> EngineSandbox:
        options = {"template": "base", "timeout_s": 600, "metadata": {}, "envs": {}} | given
        key = options.pop("idempotency_key", None) or f"{make_random_id('key_')}_{next(numbers)}"
        sandbox = await engine.create(idempotency_key=key, **options)  # type: ignore[arg-type]
        created.append(sandbox.id)
        return sandbox

    yield create
    for sandbox_id in created:
        await engine.kill(sandbox_id)


@pytest.fixture
async def sandbox(new_sandbox: NewSandbox) -> EngineSandbox:
    return await new_sandbox()
