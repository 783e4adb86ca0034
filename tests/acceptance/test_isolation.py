"""Try every scenario of tests/acceptance/isolation at every isolation level; `make isolation` writes docs/isolation.md."""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from e2b import Sandbox, SandboxException

from sandyard.engine.drivers.gvisor.runsc import Runsc
from sandyard.kit.errors import UnsupportedError
from tests.acceptance.conftest import DOMAIN
from tests.acceptance.isolation import document
from tests.acceptance.isolation.attempts import Bench
from tests.acceptance.isolation.levels import LEVELS, MAKE_IMAGE, NAMESPACE, Level
from tests.acceptance.isolation.scenarios import SCENARIOS, Allowed, Scenario
from tests.harness.engine import Engine, started
from tests.protocol.fake_internet import FakeInternet

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="full isolation needs root"),
    pytest.mark.timeout(600),
]
TEMPLATE_SECONDS = 60


def make_cases() -> Iterator[Any]:
    """Yield a case for each level and scenario. Only `make test-all` runs those that need seconds."""
    for level in LEVELS:
        for scenario in SCENARIOS:
            slow = level is not NAMESPACE or scenario.needs_internet or scenario.takes_long
            marks = [pytest.mark.slow] if slow else []
            yield pytest.param(level, scenario, marks=marks, id=f"{level.name}: {scenario.name}")


class Benches:
    """One bench per level and engine, created when it is needed first."""

    def __init__(self, engine: Engine, canary: Path, domain: str, internet: FakeInternet | None = None) -> None:
        self._engine, self._canary, self._domain, self._internet = engine, canary, domain, internet
        self._api: dict[str, Any] = {"api_url": engine.url, "sandbox_url": engine.url, "api_key": engine.key}
        self._benches: dict[Level, Bench] = {}
        self._created: list[Sandbox] = []

    def get(self, level: Level) -> Bench:
        if level not in self._benches:
            self._benches[level] = self._create(level)
        return self._benches[level]

    def _create(self, level: Level) -> Bench:
        if level.isolation == "gvisor":
            try:
                Runsc.find()
            except UnsupportedError as error:
                pytest.skip(error.message)
        if level.template:
            settings = {f"SANDYARD_{name}": value for name, value in self._engine.settings.items()}
            command = [sys.executable, "-m", "sandyard.engine.templates", "build", level.template]
            subprocess.run(command, check=True, env={**os.environ, **settings})
        given = secrets.token_hex(16)
        attacker = self._create_sandbox(level, envs={"GIVEN": given})
        attacker.commands.run("sleep infinity", background=True)  # a process with the variable
        bench = Bench(
            level=level,
            engine=self._engine,
            new_sandbox=lambda **options: self._create_sandbox(level, **options),
            attacker=attacker,
            canary=self._canary,
            domain=self._domain,
            given=given,
            internet=self._internet,
        )
        if level.containers:
            attacker.commands.run(MAKE_IMAGE, user="root", timeout=120)
        return bench

    def _create_sandbox(self, level: Level, **options: Any) -> Sandbox:
        deadline = time.monotonic() + TEMPLATE_SECONDS
        while True:
            try:
                self._created.append(
                    Sandbox.create(level.template, timeout=1800, metadata=level.metadata, **self._api, **options)
                )
                return self._created[-1]
            except SandboxException as error:  # the engine finds a new template after a few seconds
                if "is being built" not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.5)

    def close(self) -> None:
        for sandbox in self._created:
            with contextlib.suppress(SandboxException):
                sandbox.kill()


@pytest.fixture(scope="module")
def canary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A world-readable file of the host that sandboxes must not see or change."""
    path = tmp_path_factory.mktemp("canary") / "canary"
    path.write_text(secrets.token_hex(16))
    for parent in (path.parent, *path.parent.parents[:2]):
        parent.chmod(0o755)
    return path


@pytest.fixture(scope="module")
def benches(engine: Engine, canary: Path) -> Iterator[Benches]:
    created = Benches(engine, canary, DOMAIN)
    yield created
    created.close()


@pytest.fixture(scope="module")
def connected_benches(canary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Benches]:
    """Benches of an engine with a fake internet."""
    internet = FakeInternet(tmp_path_factory.mktemp("internet"))
    try:
        with started(**internet.settings, POOL_SIZE="0", DEFAULT_MEMORY_MB="512", ALLOW_CONTAINERS="true") as engine:
            created = Benches(engine, canary, DOMAIN, internet)
            yield created
            created.close()
    finally:
        internet.close()


@pytest.mark.parametrize(("level", "scenario"), list(make_cases()))
def test_the_outcome_is_the_documented_one(level: Level, scenario: Scenario, request: pytest.FixtureRequest) -> None:
    fixture = "connected_benches" if scenario.needs_internet else "benches"
    get_bench: Callable[[Level], Bench] = request.getfixturevalue(fixture).get
    succeeded = scenario.run(get_bench(level))
    expected = scenario.outcomes[level]
    escaped = {name: result for name, result in succeeded.items() if name not in expected.attacks}
    assert not escaped, f"ESCAPED: {scenario.escaped}: {sorted(escaped)}"
    if isinstance(expected, Allowed):
        assert expected.attacks & succeeded.keys(), "the document says that this is possible"
    if folder := os.environ.get("SANDYARD_ISOLATION"):
        document.record(Path(folder), level, scenario)
