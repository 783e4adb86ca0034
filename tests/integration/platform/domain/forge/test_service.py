"""Pull requests: opened once, brought up to date, followed, merged; and who may do what."""

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


async def test_a_branch_is_pushed_and_opened(desk: Desk) -> None:
    await desk.settings(labels=["bot"], reviewers=["grace"], draft=True)
    head = desk.commit("feat: log in again\n\nThe cookie was read too late.")
    row, made = await desk.open(labels=["login", "bot"])
    assert made and desk.git.pushed == 1 and "task-1" in desk.branches()
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


async def test_a_credential_that_may_only_read_leaves_no_branch_behind(desk: Desk) -> None:
    desk.commit("feat: one")
    desk.hub.writable = False
    with pytest.raises(ForgeForbiddenError):
        await desk.open()
    assert desk.git.pushed == 0 and desk.branches() == {"main"} and await desk.rows() == []


async def test_the_branch_is_ours_whatever_the_forge_says(desk: Desk) -> None:
    commit = desk.commit("feat: one")
    row, _ = await desk.open()
    for name in ("x" * 400, "main"):
        desk.hub.say(1, head=name)
        row = await desk.pulls.refresh(row)
        assert row.head_branch == "task-1"
    desk.hub.say(1, state=PullState.MERGED, merged_at=desk.hub.now(), head_commit=commit)
    await desk.pulls.refresh(row)
    assert desk.branches() == {"main"}  # its own branch is deleted, and not the one that was named


async def test_opening_again_finds_the_same_and_changes_only_what_is_given(desk: Desk) -> None:
    await desk.settings(labels=["bot"])
    desk.commit("feat: one")
    first, _ = await desk.open()
    desk.hub.say(1, title="A better title", draft=True)
    head = desk.commit("fix: two", **{"other.txt": "x"})
    again, made = await desk.open(labels=["urgent"])
    assert not made and again.id == first.id and len(desk.hub.pulls) == 1 and len(await desk.rows()) == 1
    assert (again.title, again.draft, again.head_commit) == ("A better title", True, head)
    draft = desk.hub.drafts[-1]
    assert (draft.title, draft.draft, draft.labels) == (None, None, ["urgent"])
    assert draft.body is not None and "- fix: two" in draft.body and draft.body.count(description.BEGIN) == 1
    assert set((await desk.kinds())[1:]) == {"updated"}
    third, made = await desk.open(title="Given", draft=False)
    assert (third.title, third.draft, made) == ("Given", False, False)
    assert desk.hub.drafts[-1].body is None  # it says this already


async def test_what_people_wrote_into_the_body_stays(desk: Desk) -> None:
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


async def test_what_the_opener_said_is_said_again(desk: Desk) -> None:
    desk.commit("feat: one")
    await desk.open(body="In my own words.")
    desk.commit("fix: two", **{"other.txt": "x"})
    await desk.open()
    body = desk.hub.pulls[1].body
    assert body is not None and body.count("In my own words.") == 1 and "`other.txt`" in body
    await desk.open(body="In other words.")
    body = desk.hub.pulls[1].body
    assert body is not None and "In my own words." not in body and "In other words." in body


async def test_a_crash_before_the_row_was_written_makes_no_second_one(desk: Desk) -> None:
    await desk.settings(labels=["bot"])
    desk.commit("feat: one")

    def die(verb: str) -> None:
        if verb == "opened":
            raise CrashError

    desk.hub.fault = die
    with pytest.raises(CrashError):
        await desk.open()
    desk.hub.fault = lambda verb: None
    assert await desk.rows() == [] and len(desk.hub.pulls) == 1
    row, made = await desk.open()
    assert (row.number, made, len(desk.hub.pulls)) == (1, False, 1)
    assert desk.hub.drafts[-1].labels == ("bot",)  # it may have died before they were set
    assert (await desk.kinds())[0] == "updated"


async def test_many_calls_at_once_open_one(desk: Desk) -> None:
    desk.commit("feat: one")
    opened = await asyncio.gather(*(desk.open() for _ in range(5)))
    assert [made for _, made in opened].count(True) == 1 and len({row.id for row, _ in opened}) == 1
    assert len(desk.hub.pulls) == 1 and len(await desk.rows()) == 1


async def test_a_branch_that_is_called_like_its_pull_request(desk: Desk) -> None:
    sandbox_id = await desk.another("#1")
    desk.commit("feat: one")
    first, _ = await desk.pulls.open(desk.worker, sandbox_id)
    async with asyncio.timeout(60):
        again, made = await desk.pulls.open(desk.worker, sandbox_id)
    assert (again.id, again.number, again.head_branch, made) == (first.id, 1, "#1", False)


async def test_recorded_while_somebody_holds_its_session_and_needs_its_project(desk: Desk) -> None:
    """Like one who provisions the session anew."""
    database = desk.world.database
    if database.is_sqlite:
        pytest.skip("one writes after the other there")
    origin = Provenance(desk.project.id, ForgeKind.PLAIN, "task-1", desk.sandbox_id, desk.session_id, desk.task_id)
    commit = desk.commit("feat: one")
    pull = pushed_branch.make_pushed_pull(
        desk.world.settings, desk.project.id, title="x", base="main", head="task-1", head_commit=commit
    )
    async with asyncio.timeout(60):
        async with database.transaction() as tx:
            await tx.session.get(Session, desk.session_id, with_for_update=True)
            recording = asyncio.create_task(
                PullRequestRecorder(database, desk.world.clock).record(origin, pull, made=True)
            )
            async with database.reading() as session:
                while not await session.scalar(text("SELECT count(*) FROM pg_locks WHERE NOT granted")):
                    await asyncio.sleep(0.02)
            tx.add(Delivery(project_id=desk.project.id, delivery="x", event="x", received_at=utc_now()))
            await tx.session.flush()
        assert (await recording).session_id == desk.session_id


async def test_one_that_somebody_opened_by_hand_is_taken_up(desk: Desk) -> None:
    desk.commit("feat: one")
    await desk.open()
    desk.hub.say(1, body="By hand.", title="By hand", remarks=(remark("comment", 5, "Why?"),))
    async with desk.world.database.transaction() as tx:
        await tx.session.delete(await tx.session.get(PullRequest, (await desk.rows())[0].id))
    row, made = await desk.open()
    assert not made and row.title == "By hand"
    body = desk.hub.pulls[1].body
    assert body is not None and body.startswith("By hand.\n\n" + description.BEGIN)
    assert [message.parts[0]["text"] for message in await desk.messages()] == ["Why?"]


async def test_nothing_to_open(desk: Desk) -> None:
    with pytest.raises(ConflictError, match="task-1 has no commits that are not in main"):
        await desk.open()
    desk.commit("feat: one")
    with pytest.raises(InvalidInputError, match="no branch 'nowhere'"):
        await desk.open(base="nowhere")
    with pytest.raises(InvalidInputError, match="into itself"):
        await desk.open(base="task-1")
    assert desk.hub.pulls == {} and await desk.told() == []


async def test_a_push_that_fails_opens_nothing(desk: Desk) -> None:
    desk.commit("feat: one")
    desk.git.failure = BranchMovedError()
    with pytest.raises(BranchMovedError):
        await desk.open()
    assert desk.hub.drafts == []


async def test_what_was_merged_is_not_opened_again_until_there_is_more(desk: Desk) -> None:
    await desk.settings(deleteBranch=False)
    desk.commit("feat: one")
    row, _ = await desk.open()
    await desk.pulls.merge(desk.worker, row.id)
    with pytest.raises(ConflictError, match="has already merged this branch"):
        await desk.open()
    desk.commit("fix: two")
    second, made = await desk.open()
    assert made and second.number == 2


async def test_a_branch_that_was_deleted_after_its_merge_does_not_come_back(desk: Desk) -> None:
    desk.commit("feat: one")
    row, _ = await desk.open()
    await desk.pulls.merge(desk.worker, row.id)
    with pytest.raises(ConflictError, match="has already merged this branch"):
        await desk.open()
    assert desk.git.pushed == 2 and "task-1" not in desk.branches()


async def test_a_plain_remote_ends_at_the_pushed_branch(desk: Desk) -> None:
    desk.doors.kind = ForgeKind.PLAIN
    head = desk.commit("feat: one")
    row, made = await desk.open(title="Compare me")
    assert made and (row.number, row.state, row.forge, row.title) == (None, "pushed", "plain", "Compare me")
    assert row.url == f"http://127.0.0.1:8700/api/v1/projects/{desk.project.id}/compare?base=main&head=task-1"
    assert row.head_commit == head and (await desk.pulls.refresh(row)).state == "pushed"
    head = desk.commit("fix: two")
    again, made = await desk.open()
    assert (again.id, again.head_commit, made) == (row.id, head, False) and len(await desk.rows()) == 1
    for verb in (desk.pulls.close, desk.pulls.mark_ready):
        with pytest.raises(ForgeUnsupportedError, match="no pull requests"):
            await verb(desk.worker, row.id)
    assert await desk.kinds() == ["opened", "updated"] and desk.hub.asked == 0


@pytest.mark.parametrize("method", ["squash", "merge", "rebase"])
async def test_a_branch_of_a_plain_remote_is_merged_here(desk: Desk, method: str) -> None:
    desk.doors.kind = ForgeKind.PLAIN
    await desk.settings(mergeMethod=method, deleteBranch=method != "merge")
    desk.commit("feat: one")
    head = desk.commit("fix: two", other="2\n")
    row, _ = await desk.open(title="feat: one and two")
    if method != "rebase":
        colleague(desk, "new.txt", "meanwhile\n")
    merged = await desk.pulls.merge(desk.worker, row.id)
    assert (merged.state, merged.merged_at is not None, merged.head_commit) == ("merged", True, head)
    assert git(desk.bare, "show", "main:other") == "2"
    said = git(desk.bare, "log", "-1", "--format=%B%n%P", "main")
    if method == "squash":
        assert (
            said.startswith("feat: one and two\n\n* feat: one\n* fix: two\n")
            and len(said.splitlines()[-1].split()) == 1
        )
    elif method == "merge":
        assert said.startswith("feat: one and two\n\nMerge branch task-1 into main.") and said.endswith(head)
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
        second, made = await desk.open()
        assert made and second.id != row.id and second.state == "pushed"


async def test_a_branch_of_a_plain_remote_that_cannot_be_merged(desk: Desk) -> None:
    desk.doors.kind = ForgeKind.PLAIN
    await desk.settings(deleteBranch=False)
    head = desk.commit("feat: one", clash="ours\n")
    row, _ = await desk.open()
    before = git(desk.bare, "rev-parse", "main")
    for other in (before, "0" * 40):  # what main has already is not this branch's work
        with pytest.raises(BranchMovedError, match="not what was shown here"):
            await desk.pulls.merge(desk.worker, row.id, head_commit=other)
    clash = colleague(desk, "clash", "theirs\n")
    with pytest.raises(ConflictsError, match="clash"):
        await desk.pulls.merge(desk.worker, row.id)
    with pytest.raises(ConflictError, match="Choose another way to merge"):
        await desk.pulls.merge(desk.worker, row.id, MergeMethod.REBASE)
    assert git(desk.bare, "rev-parse", "main") == clash
    git(desk.bare, "update-ref", "refs/heads/main", before)
    git(desk.bare, "config", "core.bare", "false")  # somebody's folder, where main is checked out
    git(desk.bare, "config", "core.worktree", str(desk.work))
    with pytest.raises(BranchCheckedOutError, match=r"main is checked out in .* git -C .*website.git merge task-1"):
        await desk.pulls.merge(desk.worker, row.id)
    assert (await desk.pulls.refresh(row)).state == "pushed"
    git(desk.bare, "update-ref", "refs/heads/main", head)  # as they do there
    assert (await desk.pulls.refresh(row)).state == "merged"


def colleague(desk: Desk, name: str, text: str) -> str:
    """Somebody else commits to main."""
    other = desk.work.with_name("colleague")
    git(desk.work, "clone", "-q", "-b", "main", str(desk.bare), str(other))
    (other / name).write_text(text)
    git(other, "add", "-A")
    git(other, "-c", "user.name=Otto", "-c", "user.email=otto@example.org", "commit", "-q", "-m", "feat: meanwhile")
    git(other, "push", "-q", "origin", "main")
    return git(other, "rev-parse", "HEAD")


# following -------------------------------------------------------------------------------------------------------------


async def test_what_people_say_becomes_events_and_one_message(desk: Desk) -> None:
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
    created = [event for event in await desk.world.emitted() if event.kind == "message.created"]
    assert [(event.session_id, event.data["messageId"]) for event in created] == [(desk.session_id, message.id)]
    assert row.review == "changes_requested" and row.detail["remarks"][0]["text"] == "Not yet."
    reviewed = (await desk.told())[1]
    assert (reviewed.data["remark"], reviewed.data["verdict"], reviewed.data["state"]) == (
        "review",
        "changes_requested",
        "open",
    )


async def test_checks_that_fail_and_pass(desk: Desk) -> None:
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


async def test_approval_without_a_word_is_told_once(desk: Desk) -> None:
    desk.commit("feat: one")
    row, _ = await desk.open()
    desk.hub.say(1, review=Review.APPROVED)
    for _ in range(2):
        row = await desk.pulls.refresh(row)
    assert (await desk.kinds())[1:] == ["reviewed"] and row.review == "approved"


async def test_a_crash_before_it_was_told_loses_nothing_and_doubles_nothing(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.commit("feat: one")
    row, _ = await desk.open()
    desk.hub.say(1, remark("comment", 1, "Hello."))

    def die(*_: object, **__: object) -> None:
        raise CrashError

    with monkeypatch.context() as patch, pytest.raises(CrashError):
        patch.setattr("sandyard.platform.domain.forge.records._add_message", die)
        await desk.pulls.refresh(row)
    assert (await desk.kinds())[1:] == [] and await desk.messages() == []
    await asyncio.gather(*(desk.pulls.refresh(row) for _ in range(4)))
    assert (await desk.kinds())[1:] == ["commented"] and len(await desk.messages()) == 1


async def test_closed_and_reopened_on_the_forge(desk: Desk) -> None:
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


async def test_an_answer_that_comes_late_changes_nothing(desk: Desk) -> None:
    desk.commit("feat: one")
    row, _ = await desk.open()
    await desk.pulls.refresh(row)
    old = desk.hub.pulls[1]
    desk.hub.say(1, state=PullState.CLOSED)
    row = await desk.pulls.refresh(row)
    desk.hub.pulls[1] = old
    assert (await desk.pulls.refresh(row)).state == "closed"
    assert (await desk.kinds())[1:] == ["closed"]


async def test_feedback_on_what_has_no_session_any_more_is_an_event_of_the_project(desk: Desk) -> None:
    desk.commit("feat: one")
    row, _ = await desk.open()
    async with desk.world.database.transaction() as tx:
        known = await tx.session.get(PullRequest, row.id)
        assert known is not None
        known.session_id = None
    desk.hub.say(1, remark("comment", 1, "Hello."))
    await desk.pulls.refresh(row)
    assert (await desk.told())[-1].owner_id == desk.owner.user_id and await desk.messages() == []


async def test_very_much_feedback_is_told_in_several_messages(desk: Desk) -> None:
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
async def test_other_ways_to_merge_leave_the_words_to_the_forge(desk: Desk, method: MergeMethod) -> None:
    desk.commit("feat: one")
    row, _ = await desk.open()
    await desk.pulls.merge(desk.owner, row.id, method)
    assert desk.hub.merges == [{"method": method, "title": None, "message": None}]


async def test_only_what_was_seen_is_merged(desk: Desk) -> None:
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


async def test_a_draft_is_made_ready_first(desk: Desk) -> None:
    desk.commit("feat: one")
    row, _ = await desk.open(draft=True)
    with pytest.raises(ConflictError, match="draft"):
        await desk.pulls.merge(desk.worker, row.id)
    assert (await desk.pulls.mark_ready(desk.worker, row.id)).draft is False
    assert (await desk.pulls.merge(desk.worker, row.id)).state == "merged"


async def test_reads_that_lag_behind_do_not_undo_a_merge(desk: Desk) -> None:
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


async def test_a_crash_after_the_merge_is_made_good_by_the_next_look(desk: Desk) -> None:
    desk.commit("feat: one")
    row, _ = await desk.open()

    def die(verb: str) -> None:
        if verb == "merged":
            raise CrashError

    desk.hub.fault = die
    with pytest.raises(CrashError):
        await desk.pulls.merge(desk.worker, row.id)
    desk.hub.fault = lambda verb: None
    row = await desk.pulls.refresh(row)
    assert row.state == "merged" and row.branch_deleted_at is not None


async def test_a_branch_that_moved_on_after_the_merge_is_kept(desk: Desk) -> None:
    desk.commit("feat: one")
    row, _ = await desk.open()
    await desk.pulls.refresh(row)
    desk.hub.say(1, state=PullState.MERGED)
    desk.commit("fix: after the merge")
    git(desk.work, "push", "-q", "origin", "HEAD:task-1")
    row = await desk.pulls.refresh(row)
    assert row.state == "merged" and row.branch_deleted_at is None and "task-1" in desk.branches()
    assert (await desk.kinds())[1:] == ["merged"]


async def test_a_branch_that_the_forge_has_deleted_is_noted(desk: Desk) -> None:
    desk.commit("feat: one")
    row, _ = await desk.open()
    desk.hub.say(1, state=PullState.MERGED)
    git(desk.bare, "update-ref", "-d", "refs/heads/task-1")
    row = await desk.pulls.refresh(row)
    assert row.branch_deleted_at is not None and (await desk.kinds())[1:] == ["merged", "branch_deleted"]


async def test_a_branch_is_kept_while_another_pull_request_goes_into_it(desk: Desk) -> None:
    desk.commit("feat: one")
    row, _ = await desk.open()
    second = await desk.another("task-2")
    desk.commit("feat: on top")
    await desk.pulls.open(desk.worker, second, base="task-1")
    row = await desk.pulls.merge(desk.worker, row.id)
    assert row.branch_deleted_at is None and "task-1" in desk.branches()


async def test_the_project_s_own_branch_is_never_deleted(desk: Desk) -> None:
    await desk.world.projects.update(desk.owner, desk.project.id, base_branch="task-1")
    desk.commit("feat: one")
    row, _ = await desk.open()
    row = await desk.pulls.merge(desk.worker, row.id)
    assert row.branch_deleted_at is None and "task-1" in desk.branches()


async def test_the_project_may_want_branches_to_stay(desk: Desk) -> None:
    await desk.settings(deleteBranch=False, mergeMethod="rebase")
    desk.commit("feat: one")
    row, _ = await desk.open()
    row = await desk.pulls.merge(desk.worker, row.id)
    assert row.branch_deleted_at is None and "task-1" in desk.branches()
    assert desk.hub.merges[0]["method"] == MergeMethod.REBASE


async def test_closing(desk: Desk) -> None:
    desk.commit("feat: one")
    row, _ = await desk.open()
    for _ in range(2):
        row = await desk.pulls.close(desk.worker, row.id)
    assert row.state == "closed" and (await desk.kinds())[1:] == ["closed"] and "task-1" in desk.branches()


# who sees and who may --------------------------------------------------------------------------------------------------


async def test_who_may_do_what(desk: Desk) -> None:
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
    for look in (
        desk.pulls.get(eve, None, 1),
        desk.pulls.get(eve, desk.project.id, 1),
        desk.pulls.of_task(eve, desk.task_id),
        desk.pulls.of_session(eve, desk.session_id),
    ):
        with pytest.raises(NotFoundError):
            await look
    assert (await desk.pulls.list(eve, PageRequest())).items == []
    assert [found.id for found in (await desk.pulls.list(member, PageRequest())).items] == [row.id]
    await desk.world.projects.remove_member(desk.owner, desk.project.id, desk.worker.user_id)
    assert (await desk.pulls.of_session(desk.worker, desk.session_id)).id == row.id  # it is their own session
    with pytest.raises(NotFoundError):  # and the credential is the project's
        await desk.pulls.merge(desk.worker, row.id)
    await desk.world.projects.add_member(desk.owner, desk.project.id, desk.worker.user_id)
    assert (await desk.pulls.merge(desk.worker, row.id)).state == "merged"


async def test_looking(desk: Desk) -> None:
    desk.commit("feat: one")
    row, _ = await desk.open()
    for found in (
        await desk.pulls.get(desk.owner, None, 1),
        await desk.pulls.get(desk.owner, desk.project.id, 1),
        await desk.pulls.of_task(desk.owner, desk.task_id),
        await desk.pulls.of_session(desk.worker, desk.session_id),
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


async def test_a_number_that_two_projects_have_needs_a_project(desk: Desk) -> None:
    desk.commit("feat: one")
    row, _ = await desk.open()
    other = await desk.world.projects.create(desk.owner, "other")
    twin = {column.key: getattr(row, column.key) for column in PullRequest.__table__.columns}
    async with desk.world.database.transaction() as tx:
        tx.add(PullRequest(**twin | {"id": "pul_twin", "project_id": other.id, "session_id": None}))
    with pytest.raises(ConflictError, match="projectId"):
        await desk.pulls.get(desk.owner, None, 1)
    assert (await desk.pulls.get(desk.owner, other.id, 1)).id == "pul_twin"
    assert (await desk.pulls.get(desk.worker, None, 1)).id == row.id  # who sees one of them only


async def test_a_forge_that_does_not_answer_changes_nothing(desk: Desk) -> None:
    desk.commit("feat: one")
    row, _ = await desk.open()
    desk.doors.refused = ForgeUnreachableError()
    with pytest.raises(ForgeUnreachableError):
        await desk.pulls.refresh(row)
    desk.doors.refused = None
    (known,) = await desk.rows()
    assert (known.state, known.looked_at) == ("open", row.looked_at) and replace(desk.hub.pulls[1]).number == 1
