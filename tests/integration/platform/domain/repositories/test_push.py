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
from sandyard.platform.domain.repositories.remote import parse
from tests.forge.repositories import git
from tests.integration.platform.domain.repositories.mirrored import Mirrored


@pytest.fixture
async def fresh(place: Mirrored) -> AsyncIterator[Mirrored]:
    await place.refresh()
    yield place


async def push(place: Mirrored, commit: str, *, branch: str = "work", expected: str | None = None) -> None:
    await place.mirror.push(place.remote, place.credential, commit, branch, expected=expected)


async def test_a_branch_is_made_and_moved_forward(fresh: Mirrored) -> None:
    first = await fresh.brought({"a": "a"})
    await push(fresh, first)
    assert fresh.site.head("work") == first
    assert (await fresh.mirror.list_branches())["work"] == first
    second = await fresh.brought({"b": "b"})
    await push(fresh, second, expected=first)
    before = len(fresh.server.requests)
    await push(fresh, second, expected=first)
    assert fresh.site.head("work") == second
    assert {asked.what for asked in fresh.server.requests[before:]} == {"refs"}, "nothing was sent again"


async def test_a_branch_that_moved_is_never_overwritten(fresh: Mirrored) -> None:
    mine = await fresh.brought({"a": "a"})
    await push(fresh, mine)
    theirs = fresh.site.commit({"theirs": "x"}, branch="work")
    more = await fresh.brought({"b": "b"})
    with pytest.raises(BranchMovedError, match="Update the branch first"):
        await push(fresh, more, expected=mine)
    await fresh.refresh()  # also when the mirror knows their commit
    with pytest.raises(BranchMovedError, match="Update the branch first"):
        await push(fresh, more, expected=mine)
    assert fresh.site.head("work") == theirs


async def test_who_is_quicker_by_a_moment_is_not_overwritten(fresh: Mirrored) -> None:
    commit = await fresh.brought({"a": "a"})
    fresh.server.faults.before_push(lambda: fresh.site.commit({"theirs": "x"}, branch="work"))
    with pytest.raises(BranchMovedError):
        await push(fresh, commit)
    assert fresh.site.head("work") != commit


async def test_a_branch_of_that_name_that_is_an_ancestor_is_moved_forward(fresh: Mirrored) -> None:
    base = fresh.site.head("main")
    assert base is not None
    fresh.site.set_branch("work", base)
    commit = await fresh.brought({"a": "a"})
    await push(fresh, commit)
    assert fresh.site.head("work") == commit


async def test_a_branch_that_was_deleted_is_not_made_again(fresh: Mirrored) -> None:
    first = await fresh.brought({"a": "a"})
    await push(fresh, first)
    fresh.site.delete_branch("work")
    second = await fresh.brought({"b": "b"})
    with pytest.raises(BranchGoneError, match="deleted"):
        await push(fresh, second, expected=first)
    assert fresh.site.head("work") is None


async def test_a_push_that_is_cut_is_tried_again(fresh: Mirrored) -> None:
    commit = await fresh.brought({"big": os.urandom(200_000).hex()})
    fresh.server.faults.cut("push", after=5_000, times=2)
    await push(fresh, commit)
    assert fresh.site.head("work") == commit
    assert fresh.slept == [1.0, 4.0]


async def test_a_push_that_arrived_unheard_is_not_sent_again(fresh: Mirrored) -> None:
    commit = await fresh.brought({"a": "a"})
    fresh.server.faults.cut_answer()
    await push(fresh, commit)
    assert fresh.site.head("work") == commit
    assert len([asked for asked in fresh.server.requests if asked.what == "push"]) == 1


async def test_trouble_of_the_server_is_waited_out_three_times(fresh: Mirrored) -> None:
    commit = await fresh.brought({"a": "a"})
    fresh.server.faults.answer(503, on="push", times=2)
    await push(fresh, commit)
    assert fresh.site.head("work") == commit
    more = await fresh.brought({"b": "b"})
    fresh.server.faults.answer(502, on="push", times=3)
    with pytest.raises(RemoteUnreachableError, match="failed internally"):
        await push(fresh, more, expected=commit)
    assert fresh.server.faults.left == 0
    assert fresh.site.head("work") == commit
    await push(fresh, more, expected=commit)
    assert fresh.site.head("work") == more


async def test_a_server_that_is_away(fresh: Mirrored) -> None:
    commit = await fresh.brought({"a": "a"})
    fresh.server.stop()
    with pytest.raises(RemoteUnreachableError):
        await push(fresh, commit)
    assert fresh.slept == [1.0, 4.0]


async def test_the_servers_rules_are_told_in_its_words(fresh: Mirrored) -> None:
    commit = await fresh.brought({"a": "a"})
    fresh.site.reject("Only on Mondays.")
    with pytest.raises(RemoteRejectedError, match="Only on Mondays"):
        await push(fresh, commit)
    fresh.site.accept()
    fresh.site.protect("work")
    with pytest.raises(RemoteRejectedError, match="GH006: Protected branch"):
        await push(fresh, commit)
    assert fresh.slept == []
    assert fresh.site.head("work") is None


async def test_the_hooks_of_a_local_remote_are_its_rules_too(fresh: Mirrored) -> None:
    commit = await fresh.brought({"a": "a"})
    fresh.site.reject("Only on Mondays.")
    with pytest.raises(RemoteRejectedError, match="Only on Mondays"):
        await fresh.mirror.push(parse(str(fresh.site.path)), None, commit, "work", expected=None)
    fresh.site.accept()
    await fresh.mirror.push(parse(str(fresh.site.path)), None, commit, "work", expected=None)
    assert fresh.site.head("work") == commit


async def test_a_token_that_may_only_read(fresh: Mirrored) -> None:
    commit = await fresh.brought({"a": "a"})
    fresh.token.write = False
    with pytest.raises(RemoteRefusedError):
        await push(fresh, commit)
    assert fresh.slept == []


async def test_ten_at_once_on_branches_of_their_own(fresh: Mirrored) -> None:
    commits = [await fresh.brought({"a": str(number)}) for number in range(5)]
    await asyncio.gather(*(push(fresh, commit, branch=f"w{number}") for number, commit in enumerate(commits)))
    assert [fresh.site.head(f"w{number}") for number in range(5)] == commits


async def test_a_tag_is_pushed_once_and_never_moved(fresh: Mirrored) -> None:
    await fresh.brought({"a": "a"})
    git("tag", "-a", "v1", "-m", "one", cwd=fresh.guest())
    path = fresh.bundled("refs/tags/v1", "--not", "origin/main")
    await fresh.mirror.import_bundle(path, {"refs/tags/v1": "refs/sandyard/tags/v1"})
    for _ in range(2):
        await fresh.mirror.push_tag(fresh.remote, fresh.credential, "v1")
    tag = fresh.site.tags()["v1"]
    assert await fresh.mirror.list_refs("refs/tags") == {"refs/tags/v1": tag}
    main = fresh.site.head("main")
    assert main is not None
    await fresh.mirror.set_ref("refs/sandyard/tags/v1", main)
    with pytest.raises(RemoteRejectedError, match="different tag v1"):
        await fresh.mirror.push_tag(fresh.remote, fresh.credential, "v1")
    assert fresh.site.tags()["v1"] == tag


async def test_a_branch_is_deleted_only_where_it_was_left(fresh: Mirrored) -> None:
    commit = await fresh.brought({"a": "a"})
    await push(fresh, commit)
    delete = fresh.mirror.delete_remote_branch
    assert not await delete(fresh.remote, fresh.credential, "work", "1" * 40)
    assert fresh.site.head("work") == commit
    assert await delete(fresh.remote, fresh.credential, "work", commit)
    assert await delete(fresh.remote, fresh.credential, "work", commit)
    assert fresh.site.head("work") is None
    assert "work" not in await fresh.mirror.list_branches()
