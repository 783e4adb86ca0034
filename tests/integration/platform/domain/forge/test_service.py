"""Pull requests: opened once, updated, followed and merged; and permissions."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text

from sandyard.kit.errors import ConflictError, ForbiddenError, InvalidInputError, NotFoundError
from sandyard.platform.db.models import Delivery, PullRequest, Session
from sandyard.platform.domain.forge import description, pushed_branch
from sandyard.platform.domain.forge.errors import (
    ForgeForbiddenError,
    ForgeRefusedError,
    ForgeUnreachableError,
    ForgeUnsupportedError,
)
from sandyard.platform.domain.forge.model import Checks, ForgeKind, MergeMethod, PullState, Remark, Review
from sandyard.platform.domain.forge.records import Provenance, PullRequestRecorder
from sandyard.platform.domain.paging import PageRequest
from sandyard.platform.domain.repositories.errors import (
    BranchCheckedOutError,
    BranchMovedError,
    ConflictsError,
)
from sandyard.platform.domain.sandboxes.model import utc_now
from tests.unit.platform.domain.forge.forge_harness import START, ForgeHarness, git


class CrashError(BaseException):
    """The platform dies here."""


def remark(kind: str, number: int, text: str, **more: Any) -> Remark:
    return Remark(kind, str(number), "grace", text, START + timedelta(seconds=number), **more)


# opening ---------------------------------------------------------------------------------------------------------------


async def test_a_branch_is_pushed_and_its_pull_request_opened(harness: ForgeHarness) -> None:
    await harness.configure(labels=["bot"], reviewers=["grace"], draft=True)
    head = harness.commit("feat: log in again\n\nThe cookie was read too late.")
    row, created = await harness.open(labels=["login", "bot"])
    assert created and harness.git.pushed == 1 and "task-1" in harness.list_branches()
    assert (row.number, row.state, row.head_branch, row.base_branch) == (1, "open", "task-1", "main")
    assert (row.head_commit, row.title, row.draft, row.forge) == (head, "feat: log in again", True, "github")
    assert (row.session_id, row.task_id, row.sandbox_id) == (harness.session_id, harness.task_id, harness.sandbox_id)
    draft = harness.github.drafts[0]
    assert (draft.labels, draft.reviewers, draft.draft) == (("bot", "login"), ("grace",), True)
    assert draft.body is not None and "The cookie was read too late." in draft.body and "`file.txt`" in draft.body
    (event,) = await harness.list_events()
    assert (event.kind, event.owner_id, event.session_id) == (
        "pull_request.opened",
        harness.worker.user_id,
        harness.session_id,
    )
    assert (event.data["number"], event.data["pullRequestId"], event.data["url"]) == (1, row.id, row.url)


async def test_a_read_only_credential_pushes_no_branch(harness: ForgeHarness) -> None:
    harness.commit("feat: one")
    harness.github.writable = False
    with pytest.raises(ForgeForbiddenError):
        await harness.open()
    assert harness.git.pushed == 0 and harness.list_branches() == {"main"} and await harness.list_rows() == []


async def test_the_head_branch_is_never_taken_from_the_forge(harness: ForgeHarness) -> None:
    commit = harness.commit("feat: one")
    row, _ = await harness.open()
    for name in ("x" * 400, "main"):
        harness.github.add_activity(1, head=name)
        row = await harness.pulls.refresh(row)
        assert row.head_branch == "task-1"
    harness.github.add_activity(1, state=PullState.MERGED, merged_at=harness.github.now(), head_commit=commit)
    await harness.pulls.refresh(row)
    assert harness.list_branches() == {"main"}  # its own branch is deleted, not the one that the forge named


async def test_opening_again_changes_the_same_pull_request_only_where_given(harness: ForgeHarness) -> None:
    await harness.configure(labels=["bot"])
    harness.commit("feat: one")
    first, _ = await harness.open()
    harness.github.add_activity(1, title="A better title", draft=True)
    head = harness.commit("fix: two", **{"other.txt": "x"})
    again, created = await harness.open(labels=["urgent"])
    assert (
        not created and again.id == first.id and len(harness.github.pulls) == 1 and len(await harness.list_rows()) == 1
    )
    assert (again.title, again.draft, again.head_commit) == ("A better title", True, head)
    draft = harness.github.drafts[-1]
    assert (draft.title, draft.draft, draft.labels) == (None, None, ["urgent"])
    assert draft.body is not None and "- fix: two" in draft.body and draft.body.count(description.BEGIN) == 1
    assert set((await harness.list_event_kinds())[1:]) == {"updated"}
    third, created = await harness.open(title="Given", draft=False)
    assert (third.title, third.draft, created) == ("Given", False, False)
    assert harness.github.drafts[-1].body is None  # the body is up to date already


async def test_text_that_people_added_to_the_body_is_kept(harness: ForgeHarness) -> None:
    harness.commit("feat: one")
    await harness.open()
    block = harness.github.pulls[1].body
    assert block is not None
    harness.github.add_activity(1, body=f"Please look at the tests first.\r\n\r\n{block}\r\n\r\nThanks!")
    harness.commit("fix: two", **{"other.txt": "x"})
    await harness.open()
    body = harness.github.pulls[1].body
    assert body is not None and body.startswith("Please look") and body.endswith("Thanks!") and "fix: two" in body
    for edited in (body.replace("fix: two", "fix: two, and more"), "All mine now."):
        harness.github.add_activity(1, body=edited)
        harness.commit("docs: three", **{"third.txt": edited})
        await harness.open()
        assert harness.github.pulls[1].body == edited


async def test_a_given_body_is_kept_until_another_is_given(harness: ForgeHarness) -> None:
    harness.commit("feat: one")
    await harness.open(body="In my own words.")
    harness.commit("fix: two", **{"other.txt": "x"})
    await harness.open()
    body = harness.github.pulls[1].body
    assert body is not None and body.count("In my own words.") == 1 and "`other.txt`" in body
    await harness.open(body="In other words.")
    body = harness.github.pulls[1].body
    assert body is not None and "In my own words." not in body and "In other words." in body


async def test_a_crash_before_the_row_is_stored_creates_no_second_pull_request(harness: ForgeHarness) -> None:
    await harness.configure(labels=["bot"])
    harness.commit("feat: one")

    def crash(verb: str) -> None:
        if verb == "opened":
            raise CrashError

    harness.github.fault = crash
    with pytest.raises(CrashError):
        await harness.open()
    harness.github.fault = lambda verb: None
    assert await harness.list_rows() == [] and len(harness.github.pulls) == 1
    row, created = await harness.open()
    assert (row.number, created, len(harness.github.pulls)) == (1, False, 1)
    assert harness.github.drafts[-1].labels == ("bot",)  # the crash may have been before they were set
    assert (await harness.list_event_kinds())[0] == "updated"


async def test_concurrent_calls_open_one_pull_request(harness: ForgeHarness) -> None:
    harness.commit("feat: one")
    opened = await asyncio.gather(*(harness.open() for _ in range(5)))
    assert [created for _, created in opened].count(True) == 1 and len({row.id for row, _ in opened}) == 1
    assert len(harness.github.pulls) == 1 and len(await harness.list_rows()) == 1


async def test_a_branch_named_like_its_pull_request_works(harness: ForgeHarness) -> None:
    sandbox_id = await harness.create_sandbox("#1")
    harness.commit("feat: one")
    first, _ = await harness.pulls.open(harness.worker, sandbox_id)
    async with asyncio.timeout(60):
        again, created = await harness.pulls.open(harness.worker, sandbox_id)
    assert (again.id, again.number, again.head_branch, created) == (first.id, 1, "#1", False)


async def test_recording_does_not_deadlock_with_a_holder_of_the_session_row(harness: ForgeHarness) -> None:
    """For example a caller that provisions the session again."""
    database = harness.world.database
    if database.is_sqlite:
        pytest.skip("SQLite serializes writers")
    origin = Provenance(
        harness.project.id, ForgeKind.PLAIN, "task-1", harness.sandbox_id, harness.session_id, harness.task_id
    )
    commit = harness.commit("feat: one")
    pull = pushed_branch.make_pushed_pull(
        harness.world.settings, harness.project.id, title="x", base="main", head="task-1", head_commit=commit
    )
    async with asyncio.timeout(60):
        async with database.transaction() as tx:
            await tx.session.get(Session, harness.session_id, with_for_update=True)
            recording = asyncio.create_task(
                PullRequestRecorder(database, harness.world.clock).record(origin, pull, created=True)
            )
            async with database.reading() as session:
                while not await session.scalar(text("SELECT count(*) FROM pg_locks WHERE NOT granted")):
                    await asyncio.sleep(0.02)
            tx.add(Delivery(project_id=harness.project.id, delivery="x", event="x", received_at=utc_now()))
            await tx.session.flush()
        assert (await recording).session_id == harness.session_id


async def test_a_pull_request_opened_by_hand_is_adopted(harness: ForgeHarness) -> None:
    harness.commit("feat: one")
    await harness.open()
    harness.github.add_activity(1, body="By hand.", title="By hand", remarks=(remark("comment", 5, "Why?"),))
    async with harness.world.database.transaction() as tx:
        await tx.session.delete(await tx.session.get(PullRequest, (await harness.list_rows())[0].id))
    row, created = await harness.open()
    assert not created and row.title == "By hand"
    body = harness.github.pulls[1].body
    assert body is not None and body.startswith("By hand.\n\n" + description.BEGIN)
    assert [message.parts[0]["text"] for message in await harness.list_messages()] == ["Why?"]


async def test_a_pull_request_without_commits_or_with_an_invalid_base_is_rejected(harness: ForgeHarness) -> None:
    with pytest.raises(ConflictError, match="task-1 has no commits that are not in main"):
        await harness.open()
    harness.commit("feat: one")
    with pytest.raises(InvalidInputError, match="no branch 'nowhere'"):
        await harness.open(base="nowhere")
    with pytest.raises(InvalidInputError, match="into itself"):
        await harness.open(base="task-1")
    assert harness.github.pulls == {} and await harness.list_events() == []


async def test_a_failed_push_opens_no_pull_request(harness: ForgeHarness) -> None:
    harness.commit("feat: one")
    harness.git.failure = BranchMovedError()
    with pytest.raises(BranchMovedError):
        await harness.open()
    assert harness.github.drafts == []


async def test_a_merged_branch_is_opened_again_only_with_new_commits(harness: ForgeHarness) -> None:
    await harness.configure(deleteBranch=False)
    harness.commit("feat: one")
    row, _ = await harness.open()
    await harness.pulls.merge(harness.worker, row.id)
    with pytest.raises(ConflictError, match="has already merged this branch"):
        await harness.open()
    harness.commit("fix: two")
    second, created = await harness.open()
    assert created and second.number == 2


async def test_a_branch_deleted_after_its_merge_stays_deleted(harness: ForgeHarness) -> None:
    harness.commit("feat: one")
    row, _ = await harness.open()
    await harness.pulls.merge(harness.worker, row.id)
    with pytest.raises(ConflictError, match="has already merged this branch"):
        await harness.open()
    assert harness.git.pushed == 2 and "task-1" not in harness.list_branches()


async def test_on_a_plain_remote_only_the_branch_is_pushed(harness: ForgeHarness) -> None:
    harness.access.kind = ForgeKind.PLAIN
    head = harness.commit("feat: one")
    row, created = await harness.open(title="Compare me")
    assert created and (row.number, row.state, row.forge, row.title) == (None, "pushed", "plain", "Compare me")
    assert row.url == f"http://127.0.0.1:8700/api/v1/projects/{harness.project.id}/compare?base=main&head=task-1"
    assert row.head_commit == head and (await harness.pulls.refresh(row)).state == "pushed"
    head = harness.commit("fix: two")
    again, created = await harness.open()
    assert (again.id, again.head_commit, created) == (row.id, head, False) and len(await harness.list_rows()) == 1
    for verb in (harness.pulls.close, harness.pulls.mark_ready):
        with pytest.raises(ForgeUnsupportedError, match="no pull requests"):
            await verb(harness.worker, row.id)
    assert await harness.list_event_kinds() == ["opened", "updated"] and harness.github.request_count == 0


@pytest.mark.parametrize("method", ["squash", "merge", "rebase"])
async def test_a_branch_of_a_plain_remote_is_merged_by_the_platform(harness: ForgeHarness, method: str) -> None:
    harness.access.kind = ForgeKind.PLAIN
    await harness.configure(mergeMethod=method, deleteBranch=method != "merge")
    harness.commit("feat: one")
    head = harness.commit("fix: two", other="2\n")
    row, _ = await harness.open(title="feat: one and two")
    if method != "rebase":
        commit_as_colleague(harness, "new.txt", "meanwhile\n")
    merged = await harness.pulls.merge(harness.worker, row.id)
    assert (merged.state, merged.merged_at is not None, merged.head_commit) == ("merged", True, head)
    assert git(harness.bare, "show", "main:other") == "2"
    log = git(harness.bare, "log", "-1", "--format=%B%n%P", "main")
    if method == "squash":
        assert (
            log.startswith("feat: one and two\n\n* feat: one\n* fix: two\n") and len(log.splitlines()[-1].split()) == 1
        )
    elif method == "merge":
        assert log.startswith("feat: one and two\n\nMerge branch task-1 into main.") and log.endswith(head)
    else:
        assert git(harness.bare, "rev-parse", "main") == head
    assert ("task-1" in harness.list_branches()) == (method == "merge")
    kinds = await harness.list_event_kinds()
    assert "merged" in kinds and ("branch_deleted" in kinds) == (method != "merge")
    again = await harness.pulls.merge(harness.worker, row.id)
    assert (again.id, len(await harness.list_rows())) == (row.id, 1)
    if method == "merge":
        with pytest.raises(ConflictError, match="no commits that are not in main"):
            await harness.open()
        harness.commit("fix: three", third="3\n")
        second, created = await harness.open()
        assert created and second.id != row.id and second.state == "pushed"


async def test_an_unmergeable_branch_of_a_plain_remote_is_reported(harness: ForgeHarness) -> None:
    harness.access.kind = ForgeKind.PLAIN
    await harness.configure(deleteBranch=False)
    head = harness.commit("feat: one", clash="ours\n")
    row, _ = await harness.open()
    before = git(harness.bare, "rev-parse", "main")
    for other in (before, "0" * 40):  # a commit that is already in main is not the head of this branch
        with pytest.raises(BranchMovedError, match="has changed since it was shown here"):
            await harness.pulls.merge(harness.worker, row.id, head_commit=other)
    clash = commit_as_colleague(harness, "clash", "theirs\n")
    with pytest.raises(ConflictsError, match="clash"):
        await harness.pulls.merge(harness.worker, row.id)
    with pytest.raises(ConflictError, match="Choose another merge method"):
        await harness.pulls.merge(harness.worker, row.id, MergeMethod.REBASE)
    assert git(harness.bare, "rev-parse", "main") == clash
    git(harness.bare, "update-ref", "refs/heads/main", before)
    git(harness.bare, "config", "core.bare", "false")  # a user's folder in which main is checked out
    git(harness.bare, "config", "core.worktree", str(harness.work))
    with pytest.raises(
        BranchCheckedOutError, match=r"main is checked out in .* git -C .*website.git merge task-1"
    ) as error:
        await harness.pulls.merge(harness.worker, row.id)
    assert error.value.extra == {"command": f"git -C {harness.bare} merge task-1"}
    assert (await harness.pulls.refresh(row)).state == "pushed"
    git(harness.bare, "update-ref", "refs/heads/main", head)  # the user merges it there
    assert (await harness.pulls.refresh(row)).state == "merged"


def commit_as_colleague(harness: ForgeHarness, name: str, text: str) -> str:
    """Commit to main as somebody else."""
    clone = harness.work.with_name("colleague")
    git(harness.work, "clone", "-q", "-b", "main", str(harness.bare), str(clone))
    (clone / name).write_text(text)
    git(clone, "add", "-A")
    git(clone, "-c", "user.name=Otto", "-c", "user.email=otto@example.org", "commit", "-q", "-m", "feat: meanwhile")
    git(clone, "push", "-q", "origin", "main")
    return git(clone, "rev-parse", "HEAD")


# following -------------------------------------------------------------------------------------------------------------


async def test_remarks_become_events_and_one_message(harness: ForgeHarness) -> None:
    harness.commit("feat: one")
    row, _ = await harness.open()
    harness.github.add_activity(
        1, remark("review", 1, "Not yet.", state="changes_requested"), review=Review.CHANGES_REQUESTED
    )
    harness.github.add_activity(1, remark("line_comment", 2, "A name?", path="file.txt", line=3))
    harness.github.add_activity(1, remark("comment", 3, "NUL \x00 and half \ud83d"))
    for _ in range(3):
        row = await harness.pulls.refresh(row)
    assert (await harness.list_event_kinds())[1:] == ["reviewed", "commented", "commented"]
    (message,) = await harness.list_messages()
    assert (message.session_id, message.role, message.author_id) == (harness.session_id, "system", None)
    assert [(part["type"], part["source"], part["kind"], part["author"]) for part in message.parts] == [
        ("feedback", "github", "review", "grace"),
        ("feedback", "github", "line_comment", "grace"),
        ("feedback", "github", "comment", "grace"),
    ]
    assert (message.parts[1]["path"], message.parts[1]["line"], message.parts[1]["number"]) == ("file.txt", 3, 1)
    message_events = [event for event in await harness.world.list_events() if event.kind == "message.created"]
    assert [(event.session_id, event.data["messageId"]) for event in message_events] == [
        (harness.session_id, message.id)
    ]
    assert row.review == "changes_requested" and row.detail["remarks"][0]["text"] == "Not yet."
    reviewed = (await harness.list_events())[1]
    assert (reviewed.data["remark"], reviewed.data["verdict"], reviewed.data["state"]) == (
        "review",
        "changes_requested",
        "open",
    )


async def test_failing_and_passing_checks_are_reported(harness: ForgeHarness) -> None:
    harness.commit("feat: one")
    row, _ = await harness.open()
    harness.github.add_activity(1, checks=Checks.PENDING)
    row = await harness.pulls.refresh(row)
    harness.github.add_activity(
        1, remark("check", 1, "unit: failure\n\n3 failed", state="failure"), checks=Checks.FAILING
    )
    harness.github.add_activity(1, remark("check", 2, "lint: failure", state="failure"))
    for _ in range(2):
        row = await harness.pulls.refresh(row)
    assert row.checks == "failing" and (await harness.list_event_kinds())[1:] == ["updated", "checks_failed"]
    (message,) = await harness.list_messages()
    assert [part["text"] for part in message.parts] == ["unit: failure\n\n3 failed", "lint: failure"]
    assert message.parts[0]["commit"] == row.head_commit
    harness.github.add_activity(1, checks=Checks.PASSING)
    for _ in range(2):
        row = await harness.pulls.refresh(row)
    assert (await harness.list_event_kinds())[3:] == ["checks_passed"] and len(await harness.list_messages()) == 1


async def test_an_approval_without_text_is_reported_once(harness: ForgeHarness) -> None:
    harness.commit("feat: one")
    row, _ = await harness.open()
    harness.github.add_activity(1, review=Review.APPROVED)
    for _ in range(2):
        row = await harness.pulls.refresh(row)
    assert (await harness.list_event_kinds())[1:] == ["reviewed"] and row.review == "approved"


async def test_a_crash_before_the_message_is_stored_loses_and_repeats_nothing(
    harness: ForgeHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.commit("feat: one")
    row, _ = await harness.open()
    harness.github.add_activity(1, remark("comment", 1, "Hello."))

    def crash(*_: object, **__: object) -> None:
        raise CrashError

    with monkeypatch.context() as patch, pytest.raises(CrashError):
        patch.setattr("sandyard.platform.domain.forge.records.add_message", crash)
        await harness.pulls.refresh(row)
    assert (await harness.list_event_kinds())[1:] == [] and await harness.list_messages() == []
    await asyncio.gather(*(harness.pulls.refresh(row) for _ in range(4)))
    assert (await harness.list_event_kinds())[1:] == ["commented"] and len(await harness.list_messages()) == 1


async def test_closing_and_reopening_on_the_forge_is_followed(harness: ForgeHarness) -> None:
    harness.commit("feat: one")
    row, _ = await harness.open()
    harness.github.add_activity(1, state=PullState.CLOSED)
    row = await harness.pulls.refresh(row)
    assert row.state == "closed" and row.closed_at is not None
    with pytest.raises(ConflictError, match="is closed"):
        await harness.pulls.merge(harness.worker, row.id)
    harness.github.add_activity(1, state=PullState.OPEN)
    row = await harness.pulls.refresh(row)
    assert (row.state, row.closed_at) == ("open", None) and "task-1" in harness.list_branches()
    assert (await harness.list_event_kinds())[1:] == ["closed", "reopened"]


async def test_an_outdated_response_changes_nothing(harness: ForgeHarness) -> None:
    harness.commit("feat: one")
    row, _ = await harness.open()
    await harness.pulls.refresh(row)
    old = harness.github.pulls[1]
    harness.github.add_activity(1, state=PullState.CLOSED)
    row = await harness.pulls.refresh(row)
    harness.github.pulls[1] = old
    assert (await harness.pulls.refresh(row)).state == "closed"
    assert (await harness.list_event_kinds())[1:] == ["closed"]


async def test_feedback_without_a_session_is_an_event_of_the_project(harness: ForgeHarness) -> None:
    harness.commit("feat: one")
    row, _ = await harness.open()
    async with harness.world.database.transaction() as tx:
        stored = await tx.session.get(PullRequest, row.id)
        assert stored is not None
        stored.session_id = None
    harness.github.add_activity(1, remark("comment", 1, "Hello."))
    await harness.pulls.refresh(row)
    assert (await harness.list_events())[-1].owner_id == harness.owner.user_id and await harness.list_messages() == []


async def test_an_owner_who_has_left_the_project_gets_no_new_feedback(harness: ForgeHarness) -> None:
    harness.commit("feat: one")
    row, _ = await harness.open()
    await harness.world.projects.remove_member(harness.owner, harness.project.id, harness.worker.user_id)
    harness.github.add_activity(1, remark("comment", 1, "Secret."))
    await harness.pulls.refresh(row)
    assert await harness.list_messages() == []
    event = (await harness.list_events())[-1]
    assert (event.kind, event.owner_id) == ("pull_request.commented", harness.owner.user_id)
    await harness.world.projects.add_member(harness.owner, harness.project.id, harness.worker.user_id)
    harness.github.add_activity(1, remark("comment", 2, "Welcome back."))
    await harness.pulls.refresh(row)
    assert [part["text"] for message in await harness.list_messages() for part in message.parts] == ["Welcome back."]


async def test_much_feedback_is_split_into_several_messages(harness: ForgeHarness) -> None:
    harness.commit("feat: one")
    row, _ = await harness.open()
    for number in range(120):
        harness.github.add_activity(1, remark("comment", number, "x" * 30_000))
    await harness.pulls.refresh(row)
    messages = await harness.list_messages()
    assert [len(message.parts) for message in messages] == [50, 50, 20]
    assert {len(part["text"]) for message in messages for part in message.parts} == {20_000}
    assert {len(event.data["text"]) for event in (await harness.list_events())[1:]} == {1000}


# ending ----------------------------------------------------------------------------------------------------------------


async def test_merging_deletes_the_branch(harness: ForgeHarness) -> None:
    harness.commit("feat: one\n\nCo-authored-by: Ada <ada@example.org>")
    harness.commit("fix: two, closes #3")
    row, _ = await harness.open()
    row = await harness.pulls.merge(harness.worker, row.id)
    assert row.state == "merged" and row.merged_at and row.branch_deleted_at and "task-1" not in harness.list_branches()
    assert (await harness.list_event_kinds())[1:] == ["merged", "branch_deleted"]
    (merge,) = harness.github.merges
    assert merge["method"] == MergeMethod.SQUASH and merge["title"] == "feat: make the login work (#1)"
    assert merge["message"].startswith("* feat: one\n* fix: two, closes #\u200b3\n\n")
    assert merge["message"].endswith("Co-authored-by: Ada <ada@example.org>")
    again = await harness.pulls.merge(harness.worker, row.id)
    assert again.state == "merged" and len(harness.github.merges) == 1 and len(await harness.list_event_kinds()) == 3


@pytest.mark.parametrize("method", [MergeMethod.MERGE, MergeMethod.REBASE])
async def test_other_merge_methods_leave_the_message_to_the_forge(harness: ForgeHarness, method: MergeMethod) -> None:
    harness.commit("feat: one")
    row, _ = await harness.open()
    await harness.pulls.merge(harness.owner, row.id, method)
    assert harness.github.merges == [{"method": method, "title": None, "message": None}]


async def test_only_the_commit_that_was_seen_is_merged(harness: ForgeHarness) -> None:
    seen = harness.commit("feat: one")
    row, _ = await harness.open()
    harness.commit("fix: unseen")
    git(harness.work, "push", "-q", "origin", "HEAD:task-1")
    with pytest.raises(ForgeRefusedError, match="moved"):
        await harness.pulls.merge(harness.worker, row.id)
    row = await harness.pulls.refresh(row)
    with pytest.raises(ForgeRefusedError, match="moved"):
        await harness.pulls.merge(harness.worker, row.id, head_commit=seen)
    assert (await harness.pulls.merge(harness.worker, row.id)).state == "merged"


async def test_a_draft_must_be_marked_ready_before_the_merge(harness: ForgeHarness) -> None:
    harness.commit("feat: one")
    row, _ = await harness.open(draft=True)
    with pytest.raises(ConflictError, match="draft"):
        await harness.pulls.merge(harness.worker, row.id)
    assert (await harness.pulls.mark_ready(harness.worker, row.id)).draft is False
    assert (await harness.pulls.merge(harness.worker, row.id)).state == "merged"


async def test_stale_reads_do_not_undo_a_merge(harness: ForgeHarness) -> None:
    harness.commit("feat: one")
    row, _ = await harness.open()
    before = harness.github.pulls[1]

    def lag(verb: str) -> None:
        if verb == "pull":
            harness.github.pulls[1] = before

    harness.github.fault = lag
    row = await harness.pulls.merge(harness.worker, row.id)
    assert row.state == "merged" and (await harness.pulls.refresh(row)).state == "merged"
    assert (await harness.list_event_kinds())[1:] == ["merged", "branch_deleted"]


async def test_a_crash_after_the_merge_is_repaired_by_the_next_refresh(harness: ForgeHarness) -> None:
    harness.commit("feat: one")
    row, _ = await harness.open()

    def crash(verb: str) -> None:
        if verb == "merged":
            raise CrashError

    harness.github.fault = crash
    with pytest.raises(CrashError):
        await harness.pulls.merge(harness.worker, row.id)
    harness.github.fault = lambda verb: None
    row = await harness.pulls.refresh(row)
    assert row.state == "merged" and row.branch_deleted_at is not None


async def test_a_branch_with_commits_after_the_merge_is_kept(harness: ForgeHarness) -> None:
    harness.commit("feat: one")
    row, _ = await harness.open()
    await harness.pulls.refresh(row)
    harness.github.add_activity(1, state=PullState.MERGED)
    harness.commit("fix: after the merge")
    git(harness.work, "push", "-q", "origin", "HEAD:task-1")
    row = await harness.pulls.refresh(row)
    assert row.state == "merged" and row.branch_deleted_at is None and "task-1" in harness.list_branches()
    assert (await harness.list_event_kinds())[1:] == ["merged"]


async def test_a_branch_deleted_by_the_forge_is_recorded(harness: ForgeHarness) -> None:
    harness.commit("feat: one")
    row, _ = await harness.open()
    harness.github.add_activity(1, state=PullState.MERGED)
    git(harness.bare, "update-ref", "-d", "refs/heads/task-1")
    row = await harness.pulls.refresh(row)
    assert row.branch_deleted_at is not None and (await harness.list_event_kinds())[1:] == ["merged", "branch_deleted"]


async def test_a_branch_is_kept_while_another_pull_request_targets_it(harness: ForgeHarness) -> None:
    harness.commit("feat: one")
    row, _ = await harness.open()
    second = await harness.create_sandbox("task-2")
    harness.commit("feat: on top")
    await harness.pulls.open(harness.worker, second, base="task-1")
    row = await harness.pulls.merge(harness.worker, row.id)
    assert row.branch_deleted_at is None and "task-1" in harness.list_branches()


async def test_the_base_branch_of_the_project_is_never_deleted(harness: ForgeHarness) -> None:
    await harness.world.projects.update(harness.owner, harness.project.id, base_branch="task-1")
    harness.commit("feat: one")
    row, _ = await harness.open()
    row = await harness.pulls.merge(harness.worker, row.id)
    assert row.branch_deleted_at is None and "task-1" in harness.list_branches()


async def test_branches_are_kept_if_the_project_is_configured_so(harness: ForgeHarness) -> None:
    await harness.configure(deleteBranch=False, mergeMethod="rebase")
    harness.commit("feat: one")
    row, _ = await harness.open()
    row = await harness.pulls.merge(harness.worker, row.id)
    assert row.branch_deleted_at is None and "task-1" in harness.list_branches()
    assert harness.github.merges[0]["method"] == MergeMethod.REBASE


async def test_closing_is_idempotent_and_keeps_the_branch(harness: ForgeHarness) -> None:
    harness.commit("feat: one")
    row, _ = await harness.open()
    for _ in range(2):
        row = await harness.pulls.close(harness.worker, row.id)
    assert (
        row.state == "closed"
        and (await harness.list_event_kinds())[1:] == ["closed"]
        and "task-1" in harness.list_branches()
    )


# permissions -----------------------------------------------------------------------------------------------------------


async def test_only_permitted_users_can_see_and_change_a_pull_request(harness: ForgeHarness) -> None:
    member, eve = [(await harness.world.create_person(name)).principal for name in ("maja", "eve")]
    await harness.world.projects.add_member(harness.owner, harness.project.id, member.user_id)
    harness.commit("feat: one")
    with pytest.raises(NotFoundError):
        await harness.open(eve)
    row, _ = await harness.open(member)
    for verb in (harness.pulls.merge, harness.pulls.close, harness.pulls.mark_ready):
        with pytest.raises(ForbiddenError):
            await verb(member, row.id)
        with pytest.raises(NotFoundError):
            await verb(eve, row.id)
    for lookup in (
        harness.pulls.get(eve, None, 1),
        harness.pulls.get(eve, harness.project.id, 1),
        harness.pulls.get_for_task(eve, harness.task_id),
        harness.pulls.get_for_session(eve, harness.session_id),
    ):
        with pytest.raises(NotFoundError):
            await lookup
    assert (await harness.pulls.list(eve, PageRequest())).items == []
    assert [found.id for found in (await harness.pulls.list(member, PageRequest())).items] == [row.id]
    await harness.world.projects.remove_member(harness.owner, harness.project.id, harness.worker.user_id)
    for lookup in (
        harness.pulls.get(harness.worker, None, 1, refresh=True),
        harness.pulls.get_by_id(harness.worker, row.id),
        harness.pulls.get_for_task(harness.worker, harness.task_id),
        harness.pulls.get_for_session(
            harness.worker, harness.session_id
        ),  # it is their own session, but belongs to the project
        harness.pulls.merge(harness.worker, row.id),
    ):
        with pytest.raises(NotFoundError):
            await lookup
    assert (await harness.pulls.list(harness.worker, PageRequest())).items == []
    await harness.world.projects.add_member(harness.owner, harness.project.id, harness.worker.user_id)
    assert (await harness.pulls.merge(harness.worker, row.id)).state == "merged"


async def test_pull_requests_are_found_and_refreshed_on_demand(harness: ForgeHarness) -> None:
    harness.commit("feat: one")
    row, _ = await harness.open()
    for found in (
        await harness.pulls.get(harness.owner, None, 1),
        await harness.pulls.get(harness.owner, harness.project.id, 1),
        await harness.pulls.get_for_task(harness.owner, harness.task_id),
        await harness.pulls.get_for_session(harness.worker, harness.session_id),
    ):
        assert found.id == row.id
    listed = [
        len((await harness.pulls.list(harness.owner, PageRequest(), project_id=project, state=state)).items)
        for project, state in (
            (None, None),
            (harness.project.id, PullState.OPEN),
            (None, PullState.MERGED),
            ("prj_x", None),
        )
    ]
    assert listed == [1, 1, 0, 0]
    harness.github.add_activity(1, title="Renamed")
    assert (await harness.pulls.get(harness.owner, None, 1)).title == "feat: one"
    assert (await harness.pulls.get(harness.owner, None, 1, refresh=True)).title == "Renamed"
    with pytest.raises(NotFoundError, match="no pull request 2"):
        await harness.pulls.get(harness.owner, None, 2)


async def test_a_number_used_by_two_projects_needs_a_project_id(harness: ForgeHarness) -> None:
    harness.commit("feat: one")
    row, _ = await harness.open()
    other = await harness.world.projects.create(harness.owner, "other")
    columns = {column.key: getattr(row, column.key) for column in PullRequest.__table__.columns}
    async with harness.world.database.transaction() as tx:
        tx.add(PullRequest(**columns | {"id": "pul_twin", "project_id": other.id, "session_id": None}))
    with pytest.raises(ConflictError, match="projectId"):
        await harness.pulls.get(harness.owner, None, 1)
    assert (await harness.pulls.get(harness.owner, other.id, 1)).id == "pul_twin"
    assert (await harness.pulls.get(harness.worker, None, 1)).id == row.id  # this user sees only one of them


async def test_an_unreachable_forge_changes_nothing(harness: ForgeHarness) -> None:
    harness.commit("feat: one")
    row, _ = await harness.open()
    harness.access.refused = ForgeUnreachableError()
    with pytest.raises(ForgeUnreachableError):
        await harness.pulls.refresh(row)
    harness.access.refused = None
    (stored,) = await harness.list_rows()
    assert (stored.state, stored.looked_at) == ("open", row.looked_at) and replace(harness.github.pulls[1]).number == 1
