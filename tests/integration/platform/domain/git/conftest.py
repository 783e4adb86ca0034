"""Checkouts in sandboxes of a real engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandyard.platform.domain.repositories.model import Bundle
from sandyard.platform.domain.sandboxes.e2b import SandboxEngine
from tests.integration.platform.domain.git.sandbox_checkout import ODD_NAMES, TEXT, SandboxCheckout
from tests.integration.platform.domain.repositories.plain import Repository
from tests.integration.platform.domain.sandboxes.e2b.conftest import (  # noqa: F401 - fixtures
    NewSandbox,
    config,
    engine,
    new_sandbox,
    sandbox,
)


@pytest.fixture
def upstream(tmp_path: Path) -> Repository:
    repository = Repository.new(tmp_path / "upstream")
    repository.write("run.sh", "echo hi\n", 0o755)
    (repository.path / "link").symlink_to("a.txt")
    repository.write(".gitignore", "ignored\n*.log\n")
    for name in ODD_NAMES:
        repository.write(b"odd/" + name, name)
    repository.commit("feat: begin", **{"a.txt": TEXT, "b.txt": TEXT, "c.txt": TEXT})
    return repository


@pytest.fixture
def bundle(upstream: Repository, tmp_path: Path) -> Bundle:
    return upstream.bundle(tmp_path / "bundle", "refs/heads/main")


@pytest.fixture
async def empty_guest(engine: SandboxEngine, new_sandbox: NewSandbox) -> SandboxCheckout:  # noqa: F811
    return SandboxCheckout(engine, (await new_sandbox()).id)
