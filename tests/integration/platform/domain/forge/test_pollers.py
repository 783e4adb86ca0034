"""Open pull requests are looked at where no webhook tells of them; what fails is left in peace and stops nobody else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from sqlalchemy import event

from sandyard.kit.clock import get_time
from sandyard.platform.db.models import Delivery, Project, PullRequest
from sandyard.platform.domain.forge.errors import ForgeRateLimitedError, ForgeUnreachableError
from sandyard.platform.domain.forge.model import Budget, PullState
from sandyard.platform.domain.forge.pollers import HEARD_POLL_S, UNFINISHED, PullRequestPoller
from tests.unit.platform.domain.forge.desk import Desk

POLL = 60.0


@pytest.fixture
async def follower(desk: Desk) -> AsyncIterator[PullRequestPoller]:
    """Beside a pull request that was looked at just now."""
    desk.commit("feat: one")
    row, _ = await desk.open()
    await desk.pulls.refresh(row)
    desk.hub.asked = 0
    assert desk.world.settings.forge_poll_s == POLL
    made = PullRequestPoller(desk.world.database, desk.pulls, desk.doors, desk.world.settings, desk.world.clock)  # type: ignore[arg-type]
    yield made
    await made.close()


async def test_open_ones_are_looked_at_every_so_often(desk: Desk, follower: PullRequestPoller) -> None:
    await follower.round()
    assert desk.hub.asked == 0
    for looks in (1, 2):
        await desk.world.clock.advance(POLL)
        for _ in range(2):
            await follower.round()
        assert desk.hub.asked == looks
    assert desk.doors.waits[-1] == 0  # it has time: nobody waits with it for the forge's limits


async def test_what_was_said_is_read_only_of_what_is_due(desk: Desk, follower: PullRequestPoller) -> None:
    asked: list[str] = []
    reads = desk.world.database._reads
    assert reads is not None
    event.listen(reads.sync_engine, "before_cursor_execute", lambda *told: asked.append(told[2]))
    await follower.round()
    assert desk.hub.asked == 0 and any("pull_requests" in statement for statement in asked)
    assert not [statement for statement in asked if "detail" in statement or "told" in statement]
    await desk.world.clock.advance(POLL)
    await follower.round()
    assert desk.hub.asked == 1 and any("pull_requests.told" in statement for statement in asked)


async def test_it_runs_by_itself_and_survives_what_fails(
    desk: Desk, follower: PullRequestPoller, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = iter((RuntimeError("a fault of our own"), ForgeUnreachableError(), None, None))
    rounds = []

    async def counted() -> None:
        rounds.append(desk.world.clock.now())
        if (fault := next(faults)) is not None:
            raise fault

    monkeypatch.setattr(follower, "round", counted)
    began = desk.world.clock.now()
    follower.start()
    await desk.world.clock.advance(3 * POLL / 6)
    assert [at - began for at in rounds] == [0, 10, 20, 30]


async def test_one_that_is_opened_again(desk: Desk, follower: PullRequestPoller) -> None:
    desk.hub.say(1, state=PullState.CLOSED)
    await desk.world.clock.advance(POLL)
    await follower.round()
    desk.hub.say(1, state=PullState.OPEN)
    await desk.world.clock.advance(POLL)
    await follower.round()
    assert desk.hub.asked == 2 and (await desk.kinds())[-1] == "reopened"


async def test_long_closed_ones_are_not_looked_at_unless_marked(desk: Desk, follower: PullRequestPoller) -> None:
    desk.hub.say(1, state=PullState.CLOSED)
    await desk.world.clock.advance(POLL)
    await follower.round()
    await desk.world.clock.advance(UNFINISHED.total_seconds() + POLL)
    await follower.round()
    assert desk.hub.asked == 1
    await mark(desk)
    desk.hub.say(1, state=PullState.OPEN)
    await follower.round()
    assert desk.hub.asked == 2 and (await desk.kinds())[-1] == "reopened"


async def test_a_marked_one_is_looked_at_at_once(desk: Desk, follower: PullRequestPoller) -> None:
    await mark(desk)
    await follower.round()
    assert desk.hub.asked == 1


async def test_where_webhooks_come_in_it_looks_seldom(desk: Desk, follower: PullRequestPoller) -> None:
    async with desk.world.database.transaction() as tx:
        now = get_time(desk.world.clock)
        tx.add(Delivery(project_id=desk.project.id, delivery="d", event="ping", received_at=now))
    await desk.world.clock.advance(HEARD_POLL_S - 1)
    await follower.round()
    assert desk.hub.asked == 0
    await desk.world.clock.advance(1)
    await follower.round()
    assert desk.hub.asked == 1
    await desk.world.clock.advance(3600)  # nothing was heard for an hour
    await follower.round()
    await desk.world.clock.advance(POLL)
    await follower.round()
    assert desk.hub.asked == 3


async def test_a_failing_project_is_left_in_peace_and_stops_nobody(desk: Desk, follower: PullRequestPoller) -> None:
    other = await desk.world.projects.create(desk.owner, "other")
    await twin(desk, "pul_other", other.id, 1)
    refused: list[str] = []
    there = desk.doors.github

    async def github(project: Project, *, max_wait_s: float = 60) -> object:
        if project.id == desk.project.id:
            refused.append(project.id)
            raise ForgeUnreachableError
        return await there(project, max_wait_s=max_wait_s)

    desk.doors.github = github  # type: ignore[assignment]
    for _ in range(12):  # twelve minutes
        await desk.world.clock.advance(POLL)
        await follower.round()
    assert desk.hub.asked == 12
    assert len(refused) == 4  # after 1, 2, 4 and 8 minutes
    desk.doors.github = there  # type: ignore[method-assign]
    await desk.world.clock.advance(8 * POLL)
    await follower.round()
    await desk.world.clock.advance(POLL)
    await follower.round()
    assert desk.hub.asked == 16  # both are looked at again, each time


async def test_limits_are_waited_for(desk: Desk, follower: PullRequestPoller) -> None:
    reset = get_time(desk.world.clock) + timedelta(seconds=1800)
    desk.doors.refused = ForgeRateLimitedError(until=reset)
    await desk.world.clock.advance(POLL)
    await follower.round()
    desk.doors.refused = None
    await desk.world.clock.advance(1700)
    await follower.round()
    assert desk.hub.asked == 0
    await desk.world.clock.advance(100)
    await follower.round()
    assert desk.hub.asked == 1


async def test_the_last_requests_are_for_people(desk: Desk, follower: PullRequestPoller) -> None:
    reset = get_time(desk.world.clock) + timedelta(seconds=600)
    desk.hub.left = Budget(5000, 99, reset)
    await desk.world.clock.advance(POLL)
    await follower.round()
    await desk.world.clock.advance(400)
    await follower.round()
    assert desk.hub.asked == 0
    await desk.world.clock.advance(200)
    await follower.round()
    assert desk.hub.asked == 1


async def test_many_are_spread_over_the_time(desk: Desk, follower: PullRequestPoller) -> None:
    for number in range(2, 31):
        await twin(desk, f"pul_{number:02}", desk.project.id, number)
    await desk.world.clock.advance(POLL)
    looks = []
    for _ in range(6):
        before = desk.hub.asked
        await follower.round()
        looks.append(desk.hub.asked - before)
        await desk.world.clock.advance(POLL / 6)
    assert looks == [5] * 6
    assert len({row.looked_at for row in await desk.rows()}) == 6


async def test_one_that_always_fails_does_not_keep_the_others_waiting(desk: Desk, follower: PullRequestPoller) -> None:
    await twin(desk, "pul_00", desk.project.id, 2)
    del desk.hub.pulls[2]  # GitHub does not know it any more
    for _ in range(20):
        await desk.world.clock.advance(POLL)
        await follower.round()
    seen = {row.number: row.looked_at for row in await desk.rows()}
    assert seen[1] is not None and get_time(desk.world.clock) - seen[1] <= timedelta(seconds=4 * POLL)


async def test_what_was_merged_before_a_crash_loses_its_branch(desk: Desk, follower: PullRequestPoller) -> None:
    (row,) = await desk.rows()
    async with desk.world.database.transaction() as tx:
        known = await tx.session.get(PullRequest, row.id)
        assert known is not None
        known.state, known.merged_at = PullState.MERGED, get_time(desk.world.clock)
    await desk.world.clock.advance(POLL)
    await follower.round()
    assert "task-1" not in desk.branches() and (await desk.kinds())[-1] == "branch_deleted"
    assert desk.hub.asked == 0


async def test_archived_projects_are_not_followed(desk: Desk, follower: PullRequestPoller) -> None:
    await desk.world.projects.update(desk.owner, desk.project.id, archived=True)
    await desk.world.clock.advance(POLL)
    await follower.round()
    assert desk.hub.asked == 0


async def mark(desk: Desk) -> None:
    (row,) = await desk.rows()
    async with desk.world.database.transaction() as tx:
        known = await tx.session.get(PullRequest, row.id)
        assert known is not None
        known.looked_at = None


async def twin(desk: Desk, pull_id: str, project_id: str, number: int) -> None:
    """Another one like the first."""
    first = next(row for row in await desk.rows() if row.project_id == desk.project.id and row.number == 1)
    same = {column.key: getattr(first, column.key) for column in PullRequest.__table__.columns}
    async with desk.world.database.transaction() as tx:
        tx.add(PullRequest(**same | {"id": pull_id, "project_id": project_id, "number": number}))
    desk.hub.pulls.setdefault(number, desk.hub.pulls[1])
