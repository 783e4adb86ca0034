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
from tests.unit.platform.domain.forge.desk import START, Desk, git


class CrashError(BaseException):
    """The platform dies here."""


def remark(kind: str, number: int, text: str, **more: Any) -> Remark:
    return Remark(kind, str(number), "grace", text, START + timedelta(seconds=number), **more)


# opening ---------------------------------------------------------------------------------------------------------------


async def test_a_branch_is_pushed_and_its_pull_request_opened(desk: Desk) -> None:
    await desk.settings(labels=["bot"], reviewers=["grace"], draft=True)
    head = desk.commit("feat: log in again\n\nThe cookie was read too late.")
    row, created = await desk.open(labels=["login", "bot"])
    assert created and desk.git.pushed == 1 and "task-1" in desk.branches()
    assert (row.number, row.state, row.head_branch, row.base_branch) == (1, "open", "task-1", "main")
    assert (row.head_commit, row.title, row.draft, row.forge) == (head, "feat: log in again", True, "github")
    assert (row.session_id, row.task_id, row.sandbox_id) == (desk.session_id, desk.task_id, desk.sandbox_id)
    draft = desk.hub.drafts[0]
    assert (draft.labels, draft.reviewers, draft.draft) == (("bot", "login"), ("grace",), True)
    assert draft.body is not None and "The cookie was read too late." in draft.body and "`file.txt`" in draft.body
    (event,) = await desk.told()
    assert (event.kind, event.owner_id, event.session_id) == (
        "pull_request.opened",
        desk.worker.user_id,
        desk.session_id,
    )
    assert (event.data["number"], event.data["pullRequestId"], event.data["url"]) == (1, row.id, row.url)


async def test_a_read_only_credential_pushes_no_branch(desk: Desk) -> None:
    desk.commit("feat: one")
    desk.hub.writable = False
    with pytest.raises(ForgeForbiddenError):
        await desk.open()
    assert desk.git.pushed == 0 and desk.branches() == {"main"} and await desk.rows() == []


async def test_the_head_branch_is_never_taken_from_the_forge(desk: Desk) -> None:
    commit = desk.commit("feat: one")
    row, _ = await desk.open()
    for name in ("x" * 400, "main"):
        desk.hub.say(1, head=name)
        row = await desk.pulls.refresh(row)
        assert row.head_branch == "task-1"
    desk.hub.say(1, state=PullState.MERGED, merged_at=desk.hub.now(), head_commit=commit)
    await desk.pulls.refresh(row)
    assert desk.branches() == {"main"}  # its own branch is deleted, not the one that the forge named


async def test_opening_again_changes_the_same_pull_request_only_where_given(desk: Desk) -> None:
    await desk.settings(labels=["bot"])
    desk.commit("feat: one")
    first, _ = await desk.open()
    desk.hub.say(1, title="A better title", draft=True)
    head = desk.commit("fix: two", **{"other.txt": "x"})
    again, created = await desk.open(labels=["urgent"])
    assert not created and again.id == first.id and len(desk.hub.pulls) == 1 and len(await desk.rows()) == 1
    assert (again.title, again.draft, again.head_commit) == ("A better title", True, head)
    draft = desk.hub.drafts[-1]
    assert (draft.title, draft.draft, draft.labels) == (None, None, ["urgent"])
    assert draft.body is not None and "- fix: two" in draft.body and draft.body.count(description.BEGIN) == 1
    assert set((await desk.kinds())[1:]) == {"updated"}
    third, created = await desk.open(title="Given", draft=False)
    assert (third.title, third.draft, created) == ("Given", False, False)
    assert desk.hub.drafts[-1].body is None  # the body is up to date already


async def test_text_that_people_added_to_the_body_is_kept(desk: Desk) -> None:
    desk.commit("feat: one")
    await desk.open()
    block = desk.hub.pulls[1].body
    assert block is not None
    desk.hub.say(1, body=f"Please look at the tests first.\r\n\r\n{block}\r\n\r\nThanks!")
    desk.commit("fix: two", **{"other.txt": "x"})
    await desk.open()
    body = desk.hub.pulls[1].body
    assert body is not None and body.startswith("Please look") and body.endswith("Thanks!") and "fix: two" in body
    for edited in (body.replace("fix: two", "fix: two, and more"), "All mine now."):
        desk.hub.say(1, body=edited)
        desk.commit("docs: three", **{"third.txt": edited})
        await desk.open()
        assert desk.hub.pulls[1].body == edited


async def test_a_given_body_is_kept_until_another_is_given(desk: Desk) -> None:
    desk.commit("feat: one")
    await desk.open(body="In my own words.")
    desk.commit("fix: two", **{"other.txt": "x"})
    await desk.open()
    body = desk.hub.pulls[1].body
    assert body is not None and body.count("In my own words.") == 1 and "`other.txt`" in body
    await desk.open(body="In other words.")
    body = desk.hub.pulls[1].body
    assert body is not None and "In my own words." not in body and "In other words." in body


async def test_a_crash_before_the_row_is_stored_creates_no_second_pull_request(desk: Desk) -> None:
    await desk.settings(labels=["bot"])
    desk.commit("feat: one")

    def crash(verb: str) -> None:
        if verb == "opened":
            raise CrashError

    desk.hub.fault = crash
    with pytest.raises(CrashError):
        await desk.open()
    desk.hub.fault = lambda verb: None
    assert await desk.rows() == [] and len(desk.hub.pulls) == 1
    row, created = await desk.open()
    assert (row.number, created, len(desk.hub.pulls)) == (1, False, 1)
    assert desk.hub.drafts[-1].labels == ("bot",)  # the crash may have been before they were set
    assert (await desk.kinds())[0] == "updated"


async def test_concurrent_calls_open_one_pull_request(desk: Desk) -> None:
    desk.commit("feat: one")
    opened = await asyncio.gather(*(desk.open() for _ in range(5)))
    assert [created for _, created in opened].count(True) == 1 and len({row.id for row, _ in opened}) == 1
    assert len(desk.hub.pulls) == 1 and len(await desk.rows()) == 1


async def test_a_branch_named_like_its_pull_request_works(desk: Desk) -> None:
    sandbox_id = await desk.another("#1")
    desk.commit("feat: one")
    first, _ = await desk.pulls.open(desk.worker, sandbox_id)
    async with asyncio.timeout(60):
        again, created = await desk.pulls.open(desk.worker, sandbox_id)
    assert (again.id, again.number, again.head_branch, created) == (first.id, 1, "#1", False)


async def test_recording_does_not_deadlock_with_a_holder_of_the_session_row(desk: Desk) -> None:
    """For example a caller that provisions the session again."""
    database = desk.world.database
    if database.is_sqlite:
        pytest.skip("SQLite serializes writers")
    origin = Provenance(desk.project.id, ForgeKind.PLAIN, "task-1", desk.sandbox_id, desk.session_id, desk.task_id)
    commit = desk.commit("feat: one")
    pull = pushed_branch.make_pushed_pull(
        desk.world.settings, desk.project.id, title="x", base="main", head="task-1", head_commit=commit
    )
    async with asyncio.timeout(60):
        async with database.transaction() as tx:
            await tx.session.get(Session, desk.session_id, with_for_update=True)
            recording = asyncio.create_task(
                PullRequestRecorder(database, desk.world.clock).record(origin, pull, created=True)
            )
            async with database.reading() as session:
                while not await session.scalar(text("SELECT count(*) FROM pg_locks WHERE NOT granted")):
                    await asyncio.sleep(0.02)
            tx.add(Delivery(project_id=desk.project.id, delivery="x", event="x", received_at=utc_now()))
            await tx.session.flush()
        assert (await recording).session_id == desk.session_id


async def test_a_pull_request_opened_by_hand_is_adopted(desk: Desk) -> None:
    desk.commit("feat: one")
    await desk.open()
    desk.hub.say(1, body="By hand.", title="By hand", remarks=(remark("comment", 5, "Why?"),))
    async with desk.world.database.transaction() as tx:
        await tx.session.delete(await tx.session.get(PullRequest, (await desk.rows())[0].id))
    row, created = await desk.open()
    assert not created and row.title == "By hand"
    body = desk.hub.pulls[1].body
    assert body is not None and body.startswith("By hand.\n\n" + description.BEGIN)
    assert [message.parts[0]["text"] for message in await desk.messages()] == ["Why?"]


async def test_a_pull_request_without_commits_or_with_an_invalid_base_is_rejected(desk: Desk) -> None:
    with pytest.raises(ConflictError, match="task-1 has no commits that are not in main"):
        await desk.open()
    desk.commit("feat: one")
    with pytest.raises(InvalidInputError, match="no branch 'nowhere'"):
        await desk.open(base="nowhere")
    with pytest.raises(InvalidInputError, match="into itself"):
        await desk.open(base="task-1")
    assert desk.hub.pulls == {} and await desk.told() == []


async def test_a_failed_push_opens_no_pull_request(desk: Desk) -> None:
    desk.commit("feat: one")
    desk.git.failure = BranchMovedError()
    with pytest.raises(BranchMovedError):
        await desk.open()
    assert desk.hub.drafts == []


async def test_a_merged_branch_is_opened_again_only_with_new_commits(desk: Desk) -> None:
    await desk.settings(deleteBranch=False)
    desk.commit("feat: one")
    row, _ = await desk.open()
    await desk.pulls.merge(desk.worker, row.id)
    with pytest.raises(ConflictError, match="has already merged this branch"):
        await desk.open()
    desk.commit("fix: two")
    second, created = await desk.open()
    assert created and second.number == 2


async def test_a_branch_deleted_after_its_merge_stays_deleted(desk: Desk) -> None:
    desk.commit("feat: one")
    row, _ = await desk.open()
    await desk.pulls.merge(desk.worker, row.id)
    with pytest.raises(ConflictError, match="has already merged this branch"):
        await desk.open()
    assert desk.git.pushed == 2 and "task-1" not in desk.branches()


async def test_on_a_plain_remote_only_the_branch_is_pushed(desk: Desk) -> None:
    desk.doors.kind = ForgeKind.PLAIN
    head = desk.commit("feat: one")
    row, created = await desk.open(title="Compare me")
    assert created and (row.number, row.state, row.forge, row.title) == (None, "pushed", "plain", "Compare me")
    assert row.url == f"http://127.0.0.1:8700/api/v1/projects/{desk.project.id}/compare?base=main&head=task-1"
    assert row.head_commit == head and (await desk.pulls.refresh(row)).state == "pushed"
    head = desk.commit("fix: two")
    again, created = await desk.open()
    assert (again.id, again.head_commit, created) == (row.id, head, False) and len(await desk.rows()) == 1
    for verb in (desk.pulls.close, desk.pulls.mark_ready):
        with pytest.raises(ForgeUnsupportedError, match="no pull requests"):
            await verb(desk.worker, row.id)
    assert await desk.kinds() == ["opened", "updated"] and desk.hub.asked == 0


@pytest.mark.parametrize("method", ["squash", "merge", "rebase"])
async def test_a_branch_of_a_plain_remote_is_merged_by_the_platform(desk: Desk, method: str) -> None:
    desk.doors.kind = ForgeKind.PLAIN
    await desk.settings(mergeMethod=method, deleteBranch=method != "merge")
    desk.commit("feat: one")
    head = desk.commit("fix: two", other="2\n")
    row, _ = await desk.open(title="feat: one and two")
    if method != "rebase":
        commit_as_colleague(desk, "new.txt", "meanwhile\n")
    merged = await desk.pulls.merge(desk.worker, row.id)
    assert (merged.state, merged.merged_at is not None, merged.head_commit) == ("merged", True, head)
    assert git(desk.bare, "show", "main:other") == "2"
    log = git(desk.bare, "log", "-1", "--format=%B%n%P", "main")
    if method == "squash":
        assert (
            log.startswith("feat: one and two\n\n* feat: one\n* fix: two\n") and len(log.splitlines()[-1].split()) == 1
        )
    elif method == "merge":
        assert log.startswith("feat: one and two\n\nMerge branch task-1 into main.") and log.endswith(head)
    else:
        assert git(desk.bare, "rev-parse", "main") == head
    assert ("task-1" in desk.branches()) == (method == "merge")
    kinds = await desk.kinds()
    assert "merged" in kinds and ("branch_deleted" in kinds) == (method != "merge")
    again = await desk.pulls.merge(desk.worker, row.id)
    assert (again.id, len(await desk.rows())) == (row.id, 1)
    if method == "merge":
        with pytest.raises(ConflictError, match="no commits that are not in main"):
            await desk.open()
        desk.commit("fix: three", third="3\n")
        second, created = await desk.open()
        assert created and second.id != row.id and second.state == "pushed"


async def test_an_unmergeable_branch_of_a_plain_remote_is_reported(desk: Desk) -> None:
    desk.doors.kind = ForgeKind.PLAIN
    await desk.settings(deleteBranch=False)
    head = desk.commit("feat: one", clash="ours\n")
    row, _ = await desk.open()
    before = git(desk.bare, "rev-parse", "main")
    for other in (before, "0" * 40):  # a commit that is already in main is not the head of this branch
        with pytest.raises(BranchMovedError, match="not what was shown here"):
            await desk.pulls.merge(desk.worker, row.id, head_commit=other)
    clash = commit_as_colleague(desk, "clash", "theirs\n")
    with pytest.raises(ConflictsError, match="clash"):
        await desk.pulls.merge(desk.worker, row.id)
    with pytest.raises(ConflictError, match="Choose another merge method"):
        await desk.pulls.merge(desk.worker, row.id, MergeMethod.REBASE)
    assert git(desk.bare, "rev-parse", "main") == clash
    git(desk.bare, "update-ref", "refs/heads/main", before)
    git(desk.bare, "config", "core.bare", "false")  # a user's folder in which main is checked out
    git(desk.bare, "config", "core.worktree", str(desk.work))
    with pytest.raises(BranchCheckedOutError, match=r"main is checked out in .* git -C .*website.git merge task-1"):
        await desk.pulls.merge(desk.worker, row.id)
    assert (await desk.pulls.refresh(row)).state == "pushed"
    git(desk.bare, "update-ref", "refs/heads/main", head)  # the user merges it there
    assert (await desk.pulls.refresh(row)).state == "merged"


def commit_as_colleague(desk: Desk, name: str, text: str) -> str:
    """Commit to main as somebody else."""
    clone = desk.work.with_name("colleague")
    git(desk.work, "clone", "-q", "-b", "main", str(desk.bare), str(clone))
    (clone / name).write_text(text)
    git(clone, "add", "-A")
    git(clone, "-c", "user.name=Otto", "-c", "user.email=otto@example.org", "commit", "-q", "-m", "feat: meanwhile")
    git(clone, "push", "-q", "origin", "main")
    return git(clone, "rev-parse", "HEAD")


# following -------------------------------------------------------------------------------------------------------------


async def test_remarks_become_events_and_one_message(desk: Desk) -> None:
    desk.commit("feat: one")
    row, _ = await desk.open()
    desk.hub.say(1, remark("review", 1, "Not yet.", state="changes_requested"), review=Review.CHANGES_REQUESTED)
    desk.hub.say(1, remark("line_comment", 2, "A name?", path="file.txt", line=3))
    desk.hub.say(1, remark("comment", 3, "NUL \x00 and half \ud83d"))
    for _ in range(3):
        row = await desk.pulls.refresh(row)
    assert (await desk.kinds())[1:] == ["reviewed", "commented", "commented"]
    (message,) = await desk.messages()
    assert (message.session_id, message.role, message.author_id) == (desk.session_id, "system", None)
    assert [(part["type"], part["source"], part["kind"], part["author"]) for part in message.parts] == [
        ("feedback", "github", "review", "grace"),
        ("feedback", "github", "line_comment", "grace"),
        ("feedback", "github", "comment", "grace"),
    ]
    assert (message.parts[1]["path"], message.parts[1]["line"], message.parts[1]["number"]) == ("file.txt", 3, 1)
    message_events = [event for event in await desk.world.emitted() if event.kind == "message.created"]
    assert [(event.session_id, event.data["messageId"]) for event in message_events] == [(desk.session_id, message.id)]
    assert row.review == "changes_requested" and row.detail["remarks"][0]["text"] == "Not yet."
    reviewed = (await desk.told())[1]
    assert (reviewed.data["remark"], reviewed.data["verdict"], reviewed.data["state"]) == (
        "review",
        "changes_requested",
        "open",
    )


async def test_failing_and_passing_checks_are_reported(desk: Desk) -> None:
    desk.commit("feat: one")
    row, _ = await desk.open()
    desk.hub.say(1, checks=Checks.PENDING)
    row = await desk.pulls.refresh(row)
    desk.hub.say(1, remark("check", 1, "unit: failure\n\n3 failed", state="failure"), checks=Checks.FAILING)
    desk.hub.say(1, remark("check", 2, "lint: failure", state="failure"))
    for _ in range(2):
        row = await desk.pulls.refresh(row)
    assert row.checks == "failing" and (await desk.kinds())[1:] == ["updated", "checks_failed"]
    (message,) = await desk.messages()
    assert [part["text"] for part in message.parts] == ["unit: failure\n\n3 failed", "lint: failure"]
    assert message.parts[0]["commit"] == row.head_commit
    desk.hub.say(1, checks=Checks.PASSING)
    for _ in range(2):
        row = await desk.pulls.refresh(row)
    assert (await desk.kinds())[3:] == ["checks_passed"] and len(await desk.messages()) == 1


async def test_an_approval_without_text_is_reported_once(desk: Desk) -> None:
    desk.commit("feat: one")
    row, _ = await desk.open()
    desk.hub.say(1, review=Review.APPROVED)
    for _ in range(2):
        row = await desk.pulls.refresh(row)
    assert (await desk.kinds())[1:] == ["reviewed"] and row.review == "approved"


async def test_a_crash_before_the_message_is_stored_loses_and_repeats_nothing(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.commit("feat: one")
    row, _ = await desk.open()
    desk.hub.say(1, remark("comment", 1, "Hello."))

    def crash(*_: object, **__: object) -> None:
        raise CrashError

    with monkeypatch.context() as patch, pytest.raises(CrashError):
        patch.setattr("sandyard.platform.domain.forge.records.add_message", crash)
        await desk.pulls.refresh(row)
    assert (await desk.kinds())[1:] == [] and await desk.messages() == []
    await asyncio.gather(*(desk.pulls.refresh(row) for _ in range(4)))
    assert (await desk.kinds())[1:] == ["commented"] and len(await desk.messages()) == 1


async def test_closing_and_reopening_on_the_forge_is_followed(desk: Desk) -> None:
    desk.commit("feat: one")
    row, _ = await desk.open()
    desk.hub.say(1, state=PullState.CLOSED)
    row = await desk.pulls.refresh(row)
    assert row.state == "closed" and row.closed_at is not None
    with pytest.raises(ConflictError, match="is closed"):
        await desk.pulls.merge(desk.worker, row.id)
    desk.hub.say(1, state=PullState.OPEN)
    row = await desk.pulls.refresh(row)
    assert (row.state, row.closed_at) == ("open", None) and "task-1" in desk.branches()
    assert (await desk.kinds())[1:] == ["closed", "reopened"]


async def test_an_outdated_response_changes_nothing(desk: Desk) -> None:
    desk.commit("feat: one")
    row, _ = await desk.open()
    await desk.pulls.refresh(row)
    old = desk.hub.pulls[1]
    desk.hub.say(1, state=PullState.CLOSED)
    row = await desk.pulls.refresh(row)
    desk.hub.pulls[1] = old
    assert (await desk.pulls.refresh(row)).state == "closed"
    assert (await desk.kinds())[1:] == ["closed"]


async def test_feedback_without_a_session_is_an_event_of_the_project(desk: Desk) -> None:
    desk.commit("feat: one")
    row, _ = await desk.open()
    async with desk.world.database.transaction() as tx:
        stored = await tx.session.get(PullRequest, row.id)
        assert stored is not None
        stored.session_id = None
    desk.hub.say(1, remark("comment", 1, "Hello."))
    await desk.pulls.refresh(row)
    assert (await desk.told())[-1].owner_id == desk.owner.user_id and await desk.messages() == []


async def test_an_owner_who_has_left_the_project_gets_no_new_feedback(desk: Desk) -> None:
    desk.commit("feat: one")
    row, _ = await desk.open()
    await desk.world.projects.remove_member(desk.owner, desk.project.id, desk.worker.user_id)
    desk.hub.say(1, remark("comment", 1, "Secret."))
    await desk.pulls.refresh(row)
    assert await desk.messages() == []
    told = (await desk.told())[-1]
    assert (told.kind, told.owner_id) == ("pull_request.commented", desk.owner.user_id)
    await desk.world.projects.add_member(desk.owner, desk.project.id, desk.worker.user_id)
    desk.hub.say(1, remark("comment", 2, "Welcome back."))
    await desk.pulls.refresh(row)
    assert [part["text"] for message in await desk.messages() for part in message.parts] == ["Welcome back."]


async def test_much_feedback_is_split_into_several_messages(desk: Desk) -> None:
    desk.commit("feat: one")
    row, _ = await desk.open()
    for number in range(120):
        desk.hub.say(1, remark("comment", number, "x" * 30_000))
    await desk.pulls.refresh(row)
    messages = await desk.messages()
    assert [len(message.parts) for message in messages] == [50, 50, 20]
    assert {len(part["text"]) for message in messages for part in message.parts} == {20_000}
    assert {len(event.data["text"]) for event in (await desk.told())[1:]} == {1000}


# ending ----------------------------------------------------------------------------------------------------------------


async def test_merging_deletes_the_branch(desk: Desk) -> None:
    desk.commit("feat: one\n\nCo-authored-by: Ada <ada@example.org>")
    desk.commit("fix: two, closes #3")
    row, _ = await desk.open()
    row = await desk.pulls.merge(desk.worker, row.id)
    assert row.state == "merged" and row.merged_at and row.branch_deleted_at and "task-1" not in desk.branches()
    assert (await desk.kinds())[1:] == ["merged", "branch_deleted"]
    (merge,) = desk.hub.merges
    assert merge["method"] == MergeMethod.SQUASH and merge["title"] == "feat: make the login work (#1)"
    assert merge["message"].startswith("* feat: one\n* fix: two, closes #\u200b3\n\n")
    assert merge["message"].endswith("Co-authored-by: Ada <ada@example.org>")
    again = await desk.pulls.merge(desk.worker, row.id)
    assert again.state == "merged" and len(desk.hub.merges) == 1 and len(await desk.kinds()) == 3


@pytest.mark.parametrize("method", [MergeMethod.MERGE, MergeMethod.REBASE])
async def test_other_merge_methods_leave_the_message_to_the_forge(desk: Desk, method: MergeMethod) -> None:
    desk.commit("feat: one")
    row, _ = await desk.open()
    await desk.pulls.merge(desk.owner, row.id, method)
    assert desk.hub.merges == [{"method": method, "title": None, "message": None}]


async def test_only_the_commit_that_was_seen_is_merged(desk: Desk) -> None:
    seen = desk.commit("feat: one")
    row, _ = await desk.open()
    desk.commit("fix: unseen")
    git(desk.work, "push", "-q", "origin", "HEAD:task-1")
    with pytest.raises(ForgeRefusedError, match="moved"):
        await desk.pulls.merge(desk.worker, row.id)
    row = await desk.pulls.refresh(row)
    with pytest.raises(ForgeRefusedError, match="moved"):
        await desk.pulls.merge(desk.worker, row.id, head_commit=seen)
    assert (await desk.pulls.merge(desk.worker, row.id)).state == "merged"


async def test_a_draft_must_be_marked_ready_before_the_merge(desk: Desk) -> None:
    desk.commit("feat: one")
    row, _ = await desk.open(draft=True)
    with pytest.raises(ConflictError, match="draft"):
        await desk.pulls.merge(desk.worker, row.id)
    assert (await desk.pulls.mark_ready(desk.worker, row.id)).draft is False
    assert (await desk.pulls.merge(desk.worker, row.id)).state == "merged"


async def test_stale_reads_do_not_undo_a_merge(desk: Desk) -> None:
    desk.commit("feat: one")
    row, _ = await desk.open()
    before = desk.hub.pulls[1]

    def lag(verb: str) -> None:
        if verb == "pull":
            desk.hub.pulls[1] = before

    desk.hub.fault = lag
    row = await desk.pulls.merge(desk.worker, row.id)
    assert row.state == "merged" and (await desk.pulls.refresh(row)).state == "merged"
    assert (await desk.kinds())[1:] == ["merged", "branch_deleted"]


async def test_a_crash_after_the_merge_is_repaired_by_the_next_refresh(desk: Desk) -> None:
    desk.commit("feat: one")
    row, _ = await desk.open()

    def crash(verb: str) -> None:
        if verb == "merged":
            raise CrashError

    desk.hub.fault = crash
    with pytest.raises(CrashError):
        await desk.pulls.merge(desk.worker, row.id)
    desk.hub.fault = lambda verb: None
    row = await desk.pulls.refresh(row)
    assert row.state == "merged" and row.branch_deleted_at is not None


async def test_a_branch_with_commits_after_the_merge_is_kept(desk: Desk) -> None:
    desk.commit("feat: one")
    row, _ = await desk.open()
    await desk.pulls.refresh(row)
    desk.hub.say(1, state=PullState.MERGED)
    desk.commit("fix: after the merge")
    git(desk.work, "push", "-q", "origin", "HEAD:task-1")
    row = await desk.pulls.refresh(row)
    assert row.state == "merged" and row.branch_deleted_at is None and "task-1" in desk.branches()
    assert (await desk.kinds())[1:] == ["merged"]


async def test_a_branch_deleted_by_the_forge_is_recorded(desk: Desk) -> None:
    desk.commit("feat: one")
    row, _ = await desk.open()
    desk.hub.say(1, state=PullState.MERGED)
    git(desk.bare, "update-ref", "-d", "refs/heads/task-1")
    row = await desk.pulls.refresh(row)
    assert row.branch_deleted_at is not None and (await desk.kinds())[1:] == ["merged", "branch_deleted"]


async def test_a_branch_is_kept_while_another_pull_request_targets_it(desk: Desk) -> None:
    desk.commit("feat: one")
    row, _ = await desk.open()
    second = await desk.another("task-2")
    desk.commit("feat: on top")
    await desk.pulls.open(desk.worker, second, base="task-1")
    row = await desk.pulls.merge(desk.worker, row.id)
    assert row.branch_deleted_at is None and "task-1" in desk.branches()


async def test_the_base_branch_of_the_project_is_never_deleted(desk: Desk) -> None:
    await desk.world.projects.update(desk.owner, desk.project.id, base_branch="task-1")
    desk.commit("feat: one")
    row, _ = await desk.open()
    row = await desk.pulls.merge(desk.worker, row.id)
    assert row.branch_deleted_at is None and "task-1" in desk.branches()


async def test_branches_are_kept_if_the_project_is_configured_so(desk: Desk) -> None:
    await desk.settings(deleteBranch=False, mergeMethod="rebase")
    desk.commit("feat: one")
    row, _ = await desk.open()
    row = await desk.pulls.merge(desk.worker, row.id)
    assert row.branch_deleted_at is None and "task-1" in desk.branches()
    assert desk.hub.merges[0]["method"] == MergeMethod.REBASE


async def test_closing_is_idempotent_and_keeps_the_branch(desk: Desk) -> None:
    desk.commit("feat: one")
    row, _ = await desk.open()
    for _ in range(2):
        row = await desk.pulls.close(desk.worker, row.id)
    assert row.state == "closed" and (await desk.kinds())[1:] == ["closed"] and "task-1" in desk.branches()


# permissions -----------------------------------------------------------------------------------------------------------


async def test_only_permitted_users_can_see_and_change_a_pull_request(desk: Desk) -> None:
    member, eve = [(await desk.world.person(name)).principal for name in ("maja", "eve")]
    await desk.world.projects.add_member(desk.owner, desk.project.id, member.user_id)
    desk.commit("feat: one")
    with pytest.raises(NotFoundError):
        await desk.open(eve)
    row, _ = await desk.open(member)
    for verb in (desk.pulls.merge, desk.pulls.close, desk.pulls.mark_ready):
        with pytest.raises(ForbiddenError):
            await verb(member, row.id)
        with pytest.raises(NotFoundError):
            await verb(eve, row.id)
    for lookup in (
        desk.pulls.get(eve, None, 1),
        desk.pulls.get(eve, desk.project.id, 1),
        desk.pulls.get_for_task(eve, desk.task_id),
        desk.pulls.get_for_session(eve, desk.session_id),
    ):
        with pytest.raises(NotFoundError):
            await lookup
    assert (await desk.pulls.list(eve, PageRequest())).items == []
    assert [found.id for found in (await desk.pulls.list(member, PageRequest())).items] == [row.id]
    await desk.world.projects.remove_member(desk.owner, desk.project.id, desk.worker.user_id)
    for lookup in (
        desk.pulls.get(desk.worker, None, 1, refresh=True),
        desk.pulls.get_by_id(desk.worker, row.id),
        desk.pulls.get_for_task(desk.worker, desk.task_id),
        desk.pulls.get_for_session(desk.worker, desk.session_id),  # it is their own session, but belongs to the project
        desk.pulls.merge(desk.worker, row.id),
    ):
        with pytest.raises(NotFoundError):
            await lookup
    assert (await desk.pulls.list(desk.worker, PageRequest())).items == []
    await desk.world.projects.add_member(desk.owner, desk.project.id, desk.worker.user_id)
    assert (await desk.pulls.merge(desk.worker, row.id)).state == "merged"


async def test_pull_requests_are_found_and_refreshed_on_demand(desk: Desk) -> None:
    desk.commit("feat: one")
    row, _ = await desk.open()
    for found in (
        await desk.pulls.get(desk.owner, None, 1),
        await desk.pulls.get(desk.owner, desk.project.id, 1),
        await desk.pulls.get_for_task(desk.owner, desk.task_id),
        await desk.pulls.get_for_session(desk.worker, desk.session_id),
    ):
        assert found.id == row.id
    listed = [
        len((await desk.pulls.list(desk.owner, PageRequest(), project_id=project, state=state)).items)
        for project, state in (
            (None, None),
            (desk.project.id, PullState.OPEN),
            (None, PullState.MERGED),
            ("prj_x", None),
        )
    ]
    assert listed == [1, 1, 0, 0]
    desk.hub.say(1, title="Renamed")
    assert (await desk.pulls.get(desk.owner, None, 1)).title == "feat: one"
    assert (await desk.pulls.get(desk.owner, None, 1, refresh=True)).title == "Renamed"
    with pytest.raises(NotFoundError, match="no pull request 2"):
        await desk.pulls.get(desk.owner, None, 2)


async def test_a_number_used_by_two_projects_needs_a_project_id(desk: Desk) -> None:
    desk.commit("feat: one")
    row, _ = await desk.open()
    other = await desk.world.projects.create(desk.owner, "other")
    columns = {column.key: getattr(row, column.key) for column in PullRequest.__table__.columns}
    async with desk.world.database.transaction() as tx:
        tx.add(PullRequest(**columns | {"id": "pul_twin", "project_id": other.id, "session_id": None}))
    with pytest.raises(ConflictError, match="projectId"):
        await desk.pulls.get(desk.owner, None, 1)
    assert (await desk.pulls.get(desk.owner, other.id, 1)).id == "pul_twin"
    assert (await desk.pulls.get(desk.worker, None, 1)).id == row.id  # this user sees only one of them


async def test_an_unreachable_forge_changes_nothing(desk: Desk) -> None:
    desk.commit("feat: one")
    row, _ = await desk.open()
    desk.doors.refused = ForgeUnreachableError()
    with pytest.raises(ForgeUnreachableError):
        await desk.pulls.refresh(row)
    desk.doors.refused = None
    (stored,) = await desk.rows()
    assert (stored.state, stored.looked_at) == ("open", row.looked_at) and replace(desk.hub.pulls[1]).number == 1
