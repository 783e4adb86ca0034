"""Open pull requests are polled where no webhook reports them; a failing project is backed off and delays no other."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from sqlalchemy import event

from sandyard.kit.clock import get_time
from sandyard.platform.db.models import Delivery, Project, PullRequest
from sandyard.platform.domain.forge.errors import ForgeRateLimitedError, ForgeUnreachableError
from sandyard.platform.domain.forge.model import Budget, PullState
from sandyard.platform.domain.forge.pollers import RECENT, WEBHOOK_POLL_S, PullRequestPoller
from tests.unit.platform.domain.forge.forge_harness import ForgeHarness

POLL = 60.0


@pytest.fixture
async def poller(harness: ForgeHarness) -> AsyncIterator[PullRequestPoller]:
    """A poller, with a pull request that was polled just now."""
    harness.commit("feat: one")
    row, _ = await harness.open()
    await harness.pulls.refresh(row)
    harness.github.request_count = 0
    assert harness.world.settings.forge_poll_s == POLL
    created = PullRequestPoller(
        harness.world.database, harness.pulls, harness.access, harness.world.settings, harness.world.clock
    )  # type: ignore[arg-type]
    yield created
    await created.close()


async def test_open_pull_requests_are_polled_at_intervals(harness: ForgeHarness, poller: PullRequestPoller) -> None:
    await poll(poller)
    assert harness.github.request_count == 0
    for polls in (1, 2):
        await harness.world.clock.advance(POLL)
        for _ in range(2):
            await poll(poller)
        assert harness.github.request_count == polls
    assert harness.access.waits[-1] == 0  # polling never waits for the forge's rate limits


async def test_remarks_are_loaded_only_for_due_pull_requests(harness: ForgeHarness, poller: PullRequestPoller) -> None:
    statements: list[str] = []
    reads = harness.world.database.read_engine
    assert reads is not None
    event.listen(reads.sync_engine, "before_cursor_execute", lambda *arguments: statements.append(arguments[2]))
    await poll(poller)
    assert harness.github.request_count == 0 and any("pull_requests" in statement for statement in statements)
    assert not [statement for statement in statements if "detail" in statement or "told" in statement]
    await harness.world.clock.advance(POLL)
    await poll(poller)
    assert harness.github.request_count == 1 and any("pull_requests.told" in statement for statement in statements)


async def test_the_poller_runs_in_the_background_and_survives_errors(
    harness: ForgeHarness, poller: PullRequestPoller, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = iter((RuntimeError("an internal error"), ForgeUnreachableError(), None, None))
    rounds = []

    async def fail_or_return() -> None:
        rounds.append(harness.world.clock.now())
        if (fault := next(faults)) is not None:
            raise fault

    monkeypatch.setattr(poller, "poll", fail_or_return)
    started = harness.world.clock.now()
    poller.start()
    await harness.world.clock.advance(3 * POLL / 6)
    assert [at - started for at in rounds] == [0, 10, 20, 30]


async def test_a_reopened_pull_request_is_noticed(harness: ForgeHarness, poller: PullRequestPoller) -> None:
    harness.github.add_activity(1, state=PullState.CLOSED)
    await harness.world.clock.advance(POLL)
    await poll(poller)
    harness.github.add_activity(1, state=PullState.OPEN)
    await harness.world.clock.advance(POLL)
    await poll(poller)
    assert harness.github.request_count == 2 and (await harness.list_event_kinds())[-1] == "reopened"


async def test_long_closed_pull_requests_are_polled_only_if_marked(
    harness: ForgeHarness, poller: PullRequestPoller
) -> None:
    harness.github.add_activity(1, state=PullState.CLOSED)
    await harness.world.clock.advance(POLL)
    await poll(poller)
    await harness.world.clock.advance(RECENT.total_seconds() + POLL)
    await poll(poller)
    assert harness.github.request_count == 1
    await mark_due(harness)
    harness.github.add_activity(1, state=PullState.OPEN)
    await poll(poller)
    assert harness.github.request_count == 2 and (await harness.list_event_kinds())[-1] == "reopened"


async def test_a_marked_pull_request_is_polled_immediately(harness: ForgeHarness, poller: PullRequestPoller) -> None:
    await mark_due(harness)
    await poll(poller)
    assert harness.github.request_count == 1


async def test_projects_with_webhooks_are_polled_rarely(harness: ForgeHarness, poller: PullRequestPoller) -> None:
    async with harness.world.database.transaction() as tx:
        now = get_time(harness.world.clock)
        tx.add(Delivery(project_id=harness.project.id, delivery="d", event="ping", received_at=now))
    await harness.world.clock.advance(WEBHOOK_POLL_S - 1)
    await poll(poller)
    assert harness.github.request_count == 0
    await harness.world.clock.advance(1)
    await poll(poller)
    assert harness.github.request_count == 1
    await harness.world.clock.advance(3600)  # no delivery for an hour
    await poll(poller)
    await harness.world.clock.advance(POLL)
    await poll(poller)
    assert harness.github.request_count == 3


async def test_a_failing_project_is_backed_off_and_delays_no_other(
    harness: ForgeHarness, poller: PullRequestPoller
) -> None:
    other = await harness.world.projects.create(harness.owner, "other")
    await add_copy(harness, "pul_other", other.id, 1)
    refused: list[str] = []
    original = harness.access.get_github_repository

    async def get_github_repository(project: Project, *, max_wait_s: float = 60) -> object:
        if project.id == harness.project.id:
            refused.append(project.id)
            raise ForgeUnreachableError
        return await original(project, max_wait_s=max_wait_s)

    harness.access.get_github_repository = get_github_repository  # type: ignore[assignment]
    for _ in range(12):  # twelve minutes
        await harness.world.clock.advance(POLL)
        await poll(poller)
    assert harness.github.request_count == 12
    assert len(refused) == 4  # after 1, 2, 4 and 8 minutes
    harness.access.get_github_repository = original  # type: ignore[method-assign]
    await harness.world.clock.advance(8 * POLL)
    await poll(poller)
    await harness.world.clock.advance(POLL)
    await poll(poller)
    assert harness.github.request_count == 16  # both are polled again each time


async def test_polling_waits_for_the_rate_limit_to_reset(harness: ForgeHarness, poller: PullRequestPoller) -> None:
    reset = get_time(harness.world.clock) + timedelta(seconds=1800)
    harness.access.refused = ForgeRateLimitedError(until=reset)
    await harness.world.clock.advance(POLL)
    await poll(poller)
    harness.access.refused = None
    await harness.world.clock.advance(1700)
    await poll(poller)
    assert harness.github.request_count == 0
    await harness.world.clock.advance(100)
    await poll(poller)
    assert harness.github.request_count == 1


async def test_the_last_requests_of_the_budget_are_left_to_people(
    harness: ForgeHarness, poller: PullRequestPoller
) -> None:
    reset = get_time(harness.world.clock) + timedelta(seconds=600)
    harness.github.left = Budget(5000, 99, reset)
    await harness.world.clock.advance(POLL)
    await poll(poller)
    await harness.world.clock.advance(400)
    await poll(poller)
    assert harness.github.request_count == 0
    await harness.world.clock.advance(200)
    await poll(poller)
    assert harness.github.request_count == 1


async def test_many_pull_requests_are_spread_over_the_interval(
    harness: ForgeHarness, poller: PullRequestPoller
) -> None:
    for number in range(2, 31):
        await add_copy(harness, f"pul_{number:02}", harness.project.id, number)
    await harness.world.clock.advance(POLL)
    polls = []
    for _ in range(6):
        before = harness.github.request_count
        await poll(poller)
        polls.append(harness.github.request_count - before)
        await harness.world.clock.advance(POLL / 6)
    assert polls == [5] * 6
    assert len({row.looked_at for row in await harness.list_rows()}) == 6


async def test_a_pull_request_that_always_fails_does_not_delay_the_others(
    harness: ForgeHarness, poller: PullRequestPoller
) -> None:
    await add_copy(harness, "pul_00", harness.project.id, 2)
    del harness.github.pulls[2]  # GitHub no longer has it
    for _ in range(20):
        await harness.world.clock.advance(POLL)
        await poll(poller)
    seen = {row.number: row.looked_at for row in await harness.list_rows()}
    assert seen[1] is not None and get_time(harness.world.clock) - seen[1] <= timedelta(seconds=4 * POLL)


async def test_the_branch_of_a_merge_before_a_crash_is_deleted(
    harness: ForgeHarness, poller: PullRequestPoller
) -> None:
    (row,) = await harness.list_rows()
    async with harness.world.database.transaction() as tx:
        stored = await tx.session.get(PullRequest, row.id)
        assert stored is not None
        stored.state, stored.merged_at = PullState.MERGED, get_time(harness.world.clock)
    await harness.world.clock.advance(POLL)
    await poll(poller)
    assert "task-1" not in harness.list_branches() and (await harness.list_event_kinds())[-1] == "branch_deleted"
    assert harness.github.request_count == 0


async def test_archived_projects_are_not_polled(harness: ForgeHarness, poller: PullRequestPoller) -> None:
    await harness.world.projects.update(harness.owner, harness.project.id, archived=True)
    await harness.world.clock.advance(POLL)
    await poll(poller)
    assert harness.github.request_count == 0


async def poll(poller: PullRequestPoller) -> None:
    """Poll what is due now, to the end."""
    await poller.poll()
    await poller.wait()


async def mark_due(harness: ForgeHarness) -> None:
    (row,) = await harness.list_rows()
    async with harness.world.database.transaction() as tx:
        stored = await tx.session.get(PullRequest, row.id)
        assert stored is not None
        stored.looked_at = None


async def add_copy(harness: ForgeHarness, pull_id: str, project_id: str, number: int) -> None:
    """Add a copy of the first pull request."""
    first = next(row for row in await harness.list_rows() if row.project_id == harness.project.id and row.number == 1)
    columns = {column.key: getattr(first, column.key) for column in PullRequest.__table__.columns}
    async with harness.world.database.transaction() as tx:
        tx.add(PullRequest(**columns | {"id": pull_id, "project_id": project_id, "number": number}))
    harness.github.pulls.setdefault(number, harness.github.pulls[1])
