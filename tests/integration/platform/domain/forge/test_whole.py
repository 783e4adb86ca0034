"""The life of a pull request on the forge of tests/forge: opened, discussed, updated, merged, its branch deleted."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from sandyard.kit.clock import SystemClock
from sandyard.kit.errors import ConflictError
from sandyard.kit.secret import Secret
from sandyard.platform.db.models import Checkout, GitOperation, PullRequest
from sandyard.platform.domain.forge import description
from sandyard.platform.domain.forge.access import ForgeAccess
from sandyard.platform.domain.forge.errors import ForgeRefusedError
from sandyard.platform.domain.forge.model import MergeMethod
from sandyard.platform.domain.forge.service import PullRequests
from sandyard.platform.domain.projects.model import ProjectSettings
from sandyard.platform.domain.repositories.remote import parse_remote
from sandyard.platform.domain.users.model import Principal
from tests.forge import GitHub
from tests.forge.repositories import Repository
from tests.unit.platform.domain.forge.forge_harness import ForgeHarness


class FinishedPush:
    """A push that has already happened: only the mirror is refreshed."""

    def __init__(self, harness: ForgeHarness, site: Repository, access: ForgeAccess) -> None:
        self._desk, self._site, self._access = harness, site, access
        self.operations = self

    async def get_checkout(self, caller: Principal, sandbox_id: str) -> Checkout:
        return await self._desk.git.get_checkout(caller, sandbox_id)

    async def push(self, caller: Principal, sandbox_id: str) -> GitOperation:
        credential = await self._access.get_credential(self._desk.project)
        await self._desk.mirrors.get(self._desk.project.id).refresh(parse_remote(self._site.url), credential)
        async with self._desk.world.database.transaction() as tx:
            row = await tx.session.get(Checkout, sandbox_id)
            head = self._site.head("task-1")
            assert row is not None and head is not None
            row.head = row.pushed = head
        return GitOperation(id="op", kind="push", status="completed")

    async def wait(self, operation_id: str, timeout_s: float | None = None) -> GitOperation:
        return GitOperation(id=operation_id, kind="push", status="completed")

    def raise_failure(self, operation: GitOperation) -> None:
        """Do nothing: these operations never fail."""


@pytest.fixture
async def pulls(harness: ForgeHarness, double: GitHub, site: Repository) -> AsyncIterator[PullRequests]:
    world = harness.world
    forge = {"kind": "github", "apiUrl": double.api_url, "labels": ["agent"], "reviewers": ["grace"]}
    harness.project = await world.projects.update(
        harness.owner,
        harness.project.id,
        repository=site.url,
        settings=ProjectSettings.model_validate({"forge": forge}),
    )
    token = double.tokens.make("sandyard-bot")
    await world.credentials.put(harness.owner, harness.project.id, token=Secret(token.text))
    access = ForgeAccess(world.credentials, world.projects, harness.mirrors, SystemClock())
    push = FinishedPush(harness, site, access)
    yield PullRequests(
        world.database,
        push,  # type: ignore[arg-type]
        access,
        harness.mirrors,
        world.projects,
        world.settings,
        world.clock,
    )
    await access.close()


async def test_from_a_branch_to_a_merge(
    harness: ForgeHarness, pulls: PullRequests, double: GitHub, site: Repository
) -> None:
    grace = double.colleague("grace")
    row, created = await pulls.open(harness.worker, harness.sandbox_id)
    assert created and row.number is not None
    stored = grace.pull(site.slug, row.number)
    assert (stored["title"], stored["head"]["ref"], stored["base"]["ref"]) == ("feat: add a", "task-1", "main")
    assert stored["body"].startswith(description.BEGIN) and "`a.txt` (new, +1 -0)" in stored["body"]
    assert [label["name"] for label in stored["labels"]] == ["agent"]

    grace.request_changes(site.slug, row.number, "Not yet, please.")
    grace.remark(site.slug, row.number, "a.txt", "Why an a?")
    grace.comment(site.slug, row.number, "And tests?")
    grace.check(site.slug, stored["head"]["sha"], "failure", name="unit", summary="3 failed")
    for _ in range(2):
        row = await pulls.refresh(row)
    assert (row.review, row.checks) == ("changes_requested", "failing")
    assert sorted((await harness.list_event_kinds())[1:]) == ["checks_failed", "commented", "commented", "reviewed"]
    (message,) = await harness.list_messages()
    remarks = {part["kind"]: (part["author"], part["text"]) for part in message.parts}
    assert {part.get("mayWrite") for part in message.parts} == {True, None}
    assert remarks["review"] == ("grace", "Not yet, please.") and remarks["comment"] == ("grace", "And tests?")
    assert remarks["line_comment"] == ("grace", "Why an a?") and "3 failed" in remarks["check"][1]

    grace.call("PATCH", f"/repos/{site.slug}/pulls/{row.number}", {"body": f"Read me first.\n\n{stored['body']}"})
    head = site.commit({"test_a.txt": "t\n"}, "test: check a", branch="task-1")
    again, created = await pulls.open(harness.worker, harness.sandbox_id)
    assert (again.id, created, again.head_commit) == (row.id, False, head) and len(grace.pulls(site.slug)) == 1
    body = grace.pull(site.slug, row.number)["body"]
    assert body.startswith("Read me first.\n\n") and "- test: check a" in body and body.count(description.BEGIN) == 1

    grace.approve(site.slug, row.number)
    grace.check(site.slug, head, "success", name="unit")
    row = await pulls.refresh(row)
    assert (row.review, row.checks) == ("approved", "passing")
    row = await pulls.merge(harness.worker, row.id)
    assert row.state == "merged" and row.branch_deleted_at is not None and set(site.branches()) == {"main"}
    assert (await harness.list_event_kinds())[-4:] == ["reviewed", "checks_passed", "merged", "branch_deleted"]
    assert site.messages("main")[0].startswith(f"feat: add a (#{row.number})\n\n* feat: add a\n* test: check a")
    event_count = len(await harness.list_events())
    assert (await pulls.refresh(row)).state == "merged" and len(await harness.list_events()) == event_count


async def test_a_merge_on_github_is_followed_and_the_branch_deleted(
    harness: ForgeHarness, pulls: PullRequests, double: GitHub, site: Repository
) -> None:
    row, _ = await pulls.open(harness.worker, harness.sandbox_id)
    assert row.number is not None
    double.colleague("grace").merge(site.slug, row.number)
    row = await pulls.refresh(row)
    assert row.state == "merged" and "task-1" not in site.branches()
    assert (await harness.list_event_kinds())[1:] == ["merged", "branch_deleted"]


async def test_drafts_and_branches_that_moved_are_not_merged(
    harness: ForgeHarness, pulls: PullRequests, double: GitHub, site: Repository
) -> None:
    row, _ = await pulls.open(harness.worker, harness.sandbox_id, draft=True)
    with pytest.raises(ConflictError, match="draft"):
        await pulls.merge(harness.worker, row.id)
    row = await pulls.mark_ready(harness.worker, row.id)
    assert row.draft is False
    site.commit({"b.txt": "b\n"}, "feat: unseen", branch="task-1")
    with pytest.raises(ForgeRefusedError):
        await pulls.merge(harness.worker, row.id, MergeMethod.MERGE)
    assert "b.txt" not in site.git("ls-tree", "--name-only", "main")
    row = await pulls.close(harness.worker, (await pulls.refresh(row)).id)
    assert row.state == "closed"


async def test_a_crash_before_the_row_is_stored_creates_no_second_pull_request(
    harness: ForgeHarness, pulls: PullRequests, double: GitHub, site: Repository
) -> None:
    row, _ = await pulls.open(harness.worker, harness.sandbox_id)
    async with harness.world.database.transaction() as tx:  # as if the platform had died before it was stored
        await tx.session.delete(await tx.session.get(PullRequest, row.id))
    again, created = await pulls.open(harness.worker, harness.sandbox_id)
    assert (again.number, created) == (row.number, False) and len(double.colleague("grace").pulls(site.slug)) == 1
