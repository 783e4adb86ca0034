"""A forge that never finishes its responses delays no project of another owner, neither its issues nor its pull requests."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import pytest

from sandyard.kit.clock import get_time
from sandyard.kit.ids import make_ordered_id
from sandyard.platform.db.models import Project, PullRequest
from sandyard.platform.domain.forge import pollers
from sandyard.platform.domain.forge.model import ForgeKind, PullState
from sandyard.platform.domain.forge.pollers import IssuePoller, PullRequestPoller
from sandyard.platform.domain.projects.model import ProjectSettings
from tests.unit.platform.world import Person, World

POLL = 60.0


class Forge:
    """The forge of all projects: records which project was polled, and keeps those in `slow` waiting."""

    def __init__(self) -> None:
        self.polled: Counter[str] = Counter()
        self.slow: set[str] = set()
        self.waiting: set[str] = set()

    def get_forge(self, project: Project) -> ForgeKind:
        return ForgeKind.GITHUB

    async def get_budget(self, project: Project) -> None: ...

    async def get_github_repository(self, project: Project, **_: Any) -> Any:
        await self._respond(project.id)
        return self

    async def list_issues(self, label: str) -> list[Any]:
        return []

    async def refresh(self, row: PullRequest, **_: Any) -> None:
        await self._respond(row.project_id)

    async def _respond(self, project_id: str) -> None:
        self.polled[project_id] += 1
        if project_id in self.slow:
            self.waiting.add(project_id)
            try:
                await asyncio.Event().wait()
            finally:
                self.waiting.remove(project_id)


class PollerHarness:
    def __init__(self, world: World, poller: IssuePoller | PullRequestPoller, forge: Forge) -> None:
        self.world, self.poller, self.forge = world, poller, forge

    async def add_project(self, owner: Person, *, slow: bool = False) -> str:
        project = await self.world.projects.create(
            owner.principal,
            make_ordered_id("p-"),
            repository="https://github.com/acme/site.git",
            settings=ProjectSettings.model_validate({"tasks": {"issueLabel": "sandyard"}}),
        )
        if slow:
            self.forge.slow.add(project.id)
        now = get_time(self.world.clock)
        async with self.world.database.transaction() as tx:
            tx.add(
                PullRequest(
                    id=make_ordered_id("pul_"), project_id=project.id, forge=ForgeKind.GITHUB, number=1, url="", title="",
                    state=PullState.OPEN, draft=False, head_branch="a", base_branch="b", review="none", checks="none",
                    created_at=now, updated_at=now, looked_at=now,
                )
            )  # fmt: skip
        return project.id

    async def poll_until(self, condition: Callable[[], bool]) -> None:
        """Run rounds a polling interval later, until the condition is met."""
        await self.world.clock.advance(POLL)
        async with asyncio.timeout(30):
            await self.poller.poll()
            while not condition():
                await asyncio.sleep(0.001)
                await self.poller.poll()


@pytest.fixture(params=["issues", "pull requests"])
async def harness(world: World, request: pytest.FixtureRequest) -> AsyncIterator[PollerHarness]:
    forge = Forge()
    access: Any = cast(Any, forge)
    poller: IssuePoller | PullRequestPoller
    if request.param == "issues":
        poller = IssuePoller(world.database, access, world.settings, world.clock, on_issue=cast(Any, None))
    else:
        poller = PullRequestPoller(world.database, access, access, world.settings, world.clock)
    assert world.settings.forge_poll_s == POLL
    yield PollerHarness(world, poller, forge)
    await poller.close()
    assert forge.waiting == set(), "nothing is left after closing"


async def test_slow_projects_of_one_owner_do_not_delay_others(harness: PollerHarness) -> None:
    ann, mallory = await harness.world.create_person("ann"), await harness.world.create_person("mallory")
    slow = [await harness.add_project(mallory, slow=True) for _ in range(6)]
    good = await harness.add_project(ann)
    await harness.poll_until(lambda: len(harness.forge.waiting) == pollers.MAX_CONCURRENT_PROJECTS_PER_OWNER)
    for rounds in (2, 3):
        await harness.poll_until(lambda expected=rounds: harness.forge.polled[good] == expected)  # type: ignore[misc]
    assert [harness.forge.polled[name] for name in slow].count(1) == pollers.MAX_CONCURRENT_PROJECTS_PER_OWNER
    assert harness.forge.polled.total() == 3 + pollers.MAX_CONCURRENT_PROJECTS_PER_OWNER, "none is polled twice at once"


async def test_project_that_takes_too_long_is_backed_off(
    harness: PollerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pollers, "PROJECT_SECONDS", 0.01)
    slow = await harness.add_project(await harness.world.create_person("mallory"), slow=True)
    polled_in = []
    for minute in range(1, 9):
        before = harness.forge.polled[slow]
        await harness.poll_until(lambda: True)
        await asyncio.wait_for(harness.poller.wait(), 30)
        if harness.forge.polled[slow] > before:
            polled_in.append(minute)
    assert polled_in == [1, 2, 4, 8]


async def test_polling_ends_when_project_is_deleted(harness: PollerHarness) -> None:
    mallory = await harness.world.create_person("mallory")
    slow = await harness.add_project(mallory, slow=True)
    await harness.poll_until(lambda: slow in harness.forge.waiting)
    await harness.world.projects.delete(mallory.principal, slow)
    await harness.poll_until(lambda: not harness.forge.waiting)
