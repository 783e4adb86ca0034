"""Choosing branch names, with a mirror and a checkout for tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from sandyard.kit.errors import ConflictError
from sandyard.platform.db.database import Database
from sandyard.platform.domain.git.operations.checkout_handlers import CheckoutHandlers

DEADLINE = 10


class Mirror:
    def __init__(self) -> None:
        self.listing, self.proceed = asyncio.Event(), asyncio.Event()
        self.lists = 0

    async def list_branches(self) -> dict[str, str]:
        self.lists += 1
        self.listing.set()
        await self.proceed.wait()
        return {}


class Harness:
    def __init__(self, database: Database) -> None:
        self.database = database
        self.mirrors: dict[str, Mirror] = {"prj_1": Mirror(), "prj_2": Mirror()}
        self.handlers = CheckoutHandlers(self, None)  # type: ignore[arg-type]

    async def get_checkout(self, sandbox_id: str) -> SimpleNamespace:
        return SimpleNamespace(sandbox_id=sandbox_id, project_id=sandbox_id.partition("-")[0], folder="/")

    @asynccontextmanager
    async def open_git(self, *_: object) -> AsyncIterator[None]:
        raise ConflictError("The sandbox is not for this test.")
        yield

    async def choose(self, sandbox_id: str) -> str:
        """Return the name that the operation stores before it uses the sandbox."""
        arguments: dict[str, Any] = {"copyOf": "sbx_1"}

        async def store(**chosen: Any) -> None:
            arguments.update(chosen)

        operation = SimpleNamespace(id=f"gop_{sandbox_id}", project_id=sandbox_id.partition("-")[0])
        sandbox = SimpleNamespace(id=sandbox_id, task_id=None, session_id=None)
        job = SimpleNamespace(arguments=arguments, sandbox=sandbox, operation=operation, store=store)
        with pytest.raises(ConflictError, match="not for this test"):
            await self.handlers.create_branch(job)  # type: ignore[arg-type]
        return str(arguments["chosen"])


@pytest.fixture
def harness(database: Database) -> Harness:
    return Harness(database)


async def test_a_project_whose_branches_cannot_be_listed_does_not_block_others(harness: Harness) -> None:
    blocked, other = harness.mirrors.values()
    other.proceed.set()
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(harness.choose("prj_1-a"))
        await blocked.listing.wait()
        async with asyncio.timeout(DEADLINE):
            assert await harness.choose("prj_2-a")
        assert not waiting.done()
        blocked.proceed.set()


async def test_operations_of_one_project_choose_names_one_after_the_other(harness: Harness) -> None:
    mirror = harness.mirrors["prj_1"]
    async with asyncio.timeout(DEADLINE), asyncio.TaskGroup() as group:
        for name in ("a", "b"):
            group.create_task(harness.choose(f"prj_1-{name}"))
        await mirror.listing.wait()
        for _ in range(20):
            await asyncio.sleep(0)
        assert mirror.lists == 1
        mirror.proceed.set()
