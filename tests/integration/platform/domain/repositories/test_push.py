from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

import pytest

from sandyard.platform.domain.repositories.errors import (
    BranchGoneError,
    BranchMovedError,
    RemoteRefusedError,
    RemoteRejectedError,
    RemoteUnreachableError,
)
from sandyard.platform.domain.repositories.remote import parse_remote
from tests.forge.repositories import git
from tests.integration.platform.domain.repositories.mirrored import MirrorHarness


@pytest.fixture
async def refreshed(harness: MirrorHarness) -> AsyncIterator[MirrorHarness]:
    await harness.refresh()
    yield harness


async def push(harness: MirrorHarness, commit: str, *, branch: str = "work", expected: str | None = None) -> None:
    await harness.mirror.push(harness.remote, harness.credential, commit, branch, expected=expected)


async def test_a_branch_is_created_and_fast_forwarded(refreshed: MirrorHarness) -> None:
    first = await refreshed.import_commit({"a": "a"})
    await push(refreshed, first)
    assert refreshed.site.head("work") == first
    assert (await refreshed.mirror.list_branches())["work"] == first
    second = await refreshed.import_commit({"b": "b"})
    await push(refreshed, second, expected=first)
    before = len(refreshed.server.requests)
    await push(refreshed, second, expected=first)
    assert refreshed.site.head("work") == second
    assert {request.what for request in refreshed.server.requests[before:]} == {"refs"}, "nothing is sent again"


async def test_a_branch_that_moved_is_never_overwritten(refreshed: MirrorHarness) -> None:
    mine = await refreshed.import_commit({"a": "a"})
    await push(refreshed, mine)
    theirs = refreshed.site.commit({"theirs": "x"}, branch="work")
    more = await refreshed.import_commit({"b": "b"})
    with pytest.raises(BranchMovedError, match="Update the branch first"):
        await push(refreshed, more, expected=mine)
    await refreshed.refresh()  # even if the mirror knows their commit
    with pytest.raises(BranchMovedError, match="Update the branch first"):
        await push(refreshed, more, expected=mine)
    assert refreshed.site.head("work") == theirs


async def test_a_concurrent_push_is_not_overwritten(refreshed: MirrorHarness) -> None:
    commit = await refreshed.import_commit({"a": "a"})
    refreshed.server.faults.before_push(lambda: refreshed.site.commit({"theirs": "x"}, branch="work"))
    with pytest.raises(BranchMovedError):
        await push(refreshed, commit)
    assert refreshed.site.head("work") != commit


async def test_an_existing_branch_that_is_an_ancestor_is_fast_forwarded(refreshed: MirrorHarness) -> None:
    base = refreshed.site.head("main")
    assert base is not None
    refreshed.site.set_branch("work", base)
    commit = await refreshed.import_commit({"a": "a"})
    await push(refreshed, commit)
    assert refreshed.site.head("work") == commit


async def test_a_deleted_branch_is_not_created_again(refreshed: MirrorHarness) -> None:
    first = await refreshed.import_commit({"a": "a"})
    await push(refreshed, first)
    refreshed.site.delete_branch("work")
    second = await refreshed.import_commit({"b": "b"})
    with pytest.raises(BranchGoneError, match="deleted"):
        await push(refreshed, second, expected=first)
    assert refreshed.site.head("work") is None


async def test_an_interrupted_push_is_retried(refreshed: MirrorHarness) -> None:
    commit = await refreshed.import_commit({"big": os.urandom(200_000).hex()})
    refreshed.server.faults.cut("push", after=5_000, times=2)
    await push(refreshed, commit)
    assert refreshed.site.head("work") == commit
    assert refreshed.sleeps == [1.0, 4.0]


async def test_a_push_whose_response_was_lost_is_not_repeated(refreshed: MirrorHarness) -> None:
    commit = await refreshed.import_commit({"a": "a"})
    refreshed.server.faults.cut_answer()
    await push(refreshed, commit)
    assert refreshed.site.head("work") == commit
    assert len([request for request in refreshed.server.requests if request.what == "push"]) == 1


async def test_server_errors_are_retried_up_to_the_limit(refreshed: MirrorHarness) -> None:
    commit = await refreshed.import_commit({"a": "a"})
    refreshed.server.faults.answer(503, on="push", times=2)
    await push(refreshed, commit)
    assert refreshed.site.head("work") == commit
    more = await refreshed.import_commit({"b": "b"})
    refreshed.server.faults.answer(502, on="push", times=3)
    with pytest.raises(RemoteUnreachableError, match="failed internally"):
        await push(refreshed, more, expected=commit)
    assert refreshed.server.faults.left == 0
    assert refreshed.site.head("work") == commit
    await push(refreshed, more, expected=commit)
    assert refreshed.site.head("work") == more


async def test_an_unreachable_server_is_reported_after_retries(refreshed: MirrorHarness) -> None:
    commit = await refreshed.import_commit({"a": "a"})
    refreshed.server.stop()
    with pytest.raises(RemoteUnreachableError):
        await push(refreshed, commit)
    assert refreshed.sleeps == [1.0, 4.0]


async def test_a_rejection_is_reported_in_the_words_of_the_server(refreshed: MirrorHarness) -> None:
    commit = await refreshed.import_commit({"a": "a"})
    refreshed.site.reject("Only on Mondays.")
    with pytest.raises(RemoteRejectedError, match="Only on Mondays"):
        await push(refreshed, commit)
    refreshed.site.accept()
    refreshed.site.protect("work")
    with pytest.raises(RemoteRejectedError, match="GH006: Protected branch"):
        await push(refreshed, commit)
    assert refreshed.sleeps == []
    assert refreshed.site.head("work") is None


async def test_the_hooks_of_a_local_remote_can_reject_a_push(refreshed: MirrorHarness) -> None:
    commit = await refreshed.import_commit({"a": "a"})
    refreshed.site.reject("Only on Mondays.")
    with pytest.raises(RemoteRejectedError, match="Only on Mondays"):
        await refreshed.mirror.push(parse_remote(str(refreshed.site.path)), None, commit, "work", expected=None)
    refreshed.site.accept()
    await refreshed.mirror.push(parse_remote(str(refreshed.site.path)), None, commit, "work", expected=None)
    assert refreshed.site.head("work") == commit


async def test_a_read_only_token_is_rejected_without_retries(refreshed: MirrorHarness) -> None:
    commit = await refreshed.import_commit({"a": "a"})
    refreshed.token.write = False
    with pytest.raises(RemoteRefusedError):
        await push(refreshed, commit)
    assert refreshed.sleeps == []


async def test_concurrent_pushes_to_different_branches_succeed(refreshed: MirrorHarness) -> None:
    commits = [await refreshed.import_commit({"a": str(number)}) for number in range(5)]
    await asyncio.gather(*(push(refreshed, commit, branch=f"w{number}") for number, commit in enumerate(commits)))
    assert [refreshed.site.head(f"w{number}") for number in range(5)] == commits


async def test_a_tag_is_pushed_once_and_never_moved(refreshed: MirrorHarness) -> None:
    await refreshed.import_commit({"a": "a"})
    git("tag", "-a", "v1", "-m", "one", cwd=refreshed.clone_guest())
    path = refreshed.create_bundle("refs/tags/v1", "--not", "origin/main")
    await refreshed.mirror.import_bundle(
        path, {"refs/tags/v1": "refs/sandyard/tags/v1"}, own_refs=["refs/sandyard/guest"]
    )
    for _ in range(2):
        await refreshed.mirror.push_tag(refreshed.remote, refreshed.credential, "v1")
    tag = refreshed.site.tags()["v1"]
    assert await refreshed.mirror.list_refs("refs/tags") == {"refs/tags/v1": tag}
    main = refreshed.site.head("main")
    assert main is not None
    await refreshed.mirror.set_ref("refs/sandyard/tags/v1", main)
    with pytest.raises(RemoteRejectedError, match="different tag v1"):
        await refreshed.mirror.push_tag(refreshed.remote, refreshed.credential, "v1")
    assert refreshed.site.tags()["v1"] == tag


async def test_a_branch_is_deleted_only_at_the_expected_commit(refreshed: MirrorHarness) -> None:
    commit = await refreshed.import_commit({"a": "a"})
    await push(refreshed, commit)
    delete = refreshed.mirror.delete_remote_branch
    assert not await delete(refreshed.remote, refreshed.credential, "work", "1" * 40)
    assert refreshed.site.head("work") == commit
    assert await delete(refreshed.remote, refreshed.credential, "work", commit)
    assert await delete(refreshed.remote, refreshed.credential, "work", commit)
    assert refreshed.site.head("work") is None
    assert "work" not in await refreshed.mirror.list_branches()
