from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.forge import GitHub, forge
from tests.forge.repositories import Repository
from tests.unit.platform.domain.forge.forge_harness import ForgeHarness, open_forge_harness
from tests.unit.platform.world import World

_numbers = itertools.count(1)


@pytest.fixture
async def harness(world: World, tmp_path: Path) -> AsyncIterator[ForgeHarness]:
    """On SQLite and on PostgreSQL."""
    async with open_forge_harness(world, tmp_path) as opened:
        yield opened


@pytest.fixture(scope="module")
def double() -> Iterator[GitHub]:
    """The forge of tests/forge, shared by all tests of a module because it takes a while to start."""
    with forge() as github:
        yield github


@pytest.fixture
def site(double: GitHub) -> Iterator[Repository]:
    """A new repository in the forge, with a branch `main` and a branch `task-1` one commit ahead of it."""
    created = double.repository(f"acme/site-{next(_numbers)}", files={"README.md": "hi\n"})
    created.commit({"a.txt": "a\n"}, "feat: add a", branch="task-1")
    yield created
    double.faults.clear()
