from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from sandyard.kit.errors import NotFoundError
from sandyard.platform.domain.repositories.errors import (
    GitFailedError,
    RemoteMissingError,
    RemoteRefusedError,
    RemoteUnreachableError,
    TooMuchError,
)
from sandyard.platform.domain.repositories.merge_tree import find_conflicts
from sandyard.platform.domain.repositories.model import Bundle, Conflicts
from sandyard.platform.domain.repositories.remote import parse
from tests.forge.repositories import git
from tests.integration.platform.domain.repositories.mirrored import Mirrored

HEAD = "refs/sandyard/sandboxes/s1/head"


async def test_a_refresh_makes_the_mirror_and_follows_the_remote(place: Mirrored) -> None:
    mirror, site = place.mirror, place.site
    assert not mirror.exists
    assert await mirror.get_default_branch() is None
    first = site.head("main")
    site.commit({"b": "b"}, branch="topic/one")
    site.git("tag", "v1", "main")
    await place.refresh()
    assert mirror.exists
    assert await mirror.list_branches() == site.branches()
    assert await mirror.get_default_branch() == "main"
    assert await mirror.list_refs("refs/tags") == {"refs/tags/v1": first}
    site.delete_branch("topic/one")
    site.commit({"c": "c"}, branch="topic")  # where a folder of refs was
    site.git("tag", "-d", "v1")
    site.git("tag", "-a", "v2", "-m", "two", "main")
    await place.refresh()
    assert await mirror.list_branches() == site.branches()
    assert await mirror.list_refs("refs/tags") == {"refs/tags/v2": site.tags()["v2"]}
    assert await mirror.list_remote_branches(place.remote, place.credential) == site.branches()
    assert await mirror.get_remote_branch(place.remote, place.credential, "topic") == site.head("topic")
    assert await mirror.get_remote_branch(place.remote, place.credential, "none") is None


async def test_a_refresh_with_nothing_new_asks_once(place: Mirrored) -> None:
    await place.refresh()
    before = len(place.server.requests)
    await place.refresh()
    assert {asked.what for asked in place.server.requests[before:]} == {"refs"}


async def test_a_forced_push_on_the_remote_is_followed_and_own_refs_stay(place: Mirrored) -> None:
    await place.refresh()
    old = place.site.head("main")
    assert old is not None
    await place.mirror.set_ref(HEAD, old)
    place.site.git("update-ref", "-d", "refs/heads/main")
    new = place.site.commit({"x": "x"}, "chore: anew")
    await place.refresh()
    assert await place.mirror.list_branches() == {"main": new}
    assert await place.mirror.list_refs("refs/sandyard") == {HEAD: old}
    assert await place.mirror.is_on_remote(new)
    assert not await place.mirror.is_on_remote(old)


async def test_an_empty_repository_says_so(place: Mirrored) -> None:
    empty = place.server.repository("acme/empty")
    with pytest.raises(RemoteMissingError, match="no branches yet"):
        await place.mirror.refresh(parse(empty.url), place.credential)
    assert not place.mirror.exists


async def test_a_remote_without_a_usable_head_has_no_default_branch(place: Mirrored) -> None:
    place.site.git("symbolic-ref", "HEAD", "refs/heads/gone")
    await place.refresh()
    assert await place.mirror.get_default_branch() is None


async def test_a_credential_that_is_no_good_any_more(place: Mirrored) -> None:
    await place.refresh()
    place.token.revoke()
    with pytest.raises(RemoteRefusedError):
        await place.refresh()
    assert place.slept == []


async def test_a_fetch_that_is_cut_is_tried_again(place: Mirrored) -> None:
    place.site.commit({"big": os.urandom(300_000)}, "chore: big")
    place.server.faults.cut("fetch", after=20_000, times=2)
    await place.refresh()
    assert await place.mirror.list_branches() == place.site.branches()
    assert len(place.slept) == 2
    place.site.commit({"big": os.urandom(300_000)}, "chore: big")
    place.server.faults.cut("fetch", after=20_000, times=3)
    with pytest.raises(RemoteUnreachableError):
        await place.refresh()
    await place.refresh()
    assert await place.mirror.list_branches() == place.site.branches()


def leftovers(place: Mirrored) -> list[Path]:
    return list(place.mirror.objects.rglob("*tmp_*"))


async def test_a_fetch_that_fails_leaves_nothing_on_the_disk(place: Mirrored) -> None:
    await place.refresh()
    place.site.commit({"big": os.urandom(3_000_000)})
    place.server.faults.cut("fetch", after=2_000_000, times=3)
    with pytest.raises(RemoteUnreachableError):
        await place.refresh()
    assert leftovers(place) == []
    place.server.faults.cut("fetch", after=2_000_000, times=3)
    (place.mirror.objects / "aa").mkdir(exist_ok=True)
    (place.mirror.objects / "aa" / "tmp_obj_x").touch()
    (place.mirror.objects / "tmp_objdir-incoming-x").mkdir()
    async with place.mirror.writing():  # somebody else's may be among them
        with pytest.raises(RemoteUnreachableError):
            await place.refresh()
        assert len(leftovers(place)) == 5
    assert leftovers(place) == []
    await place.refresh()
    assert await place.mirror.list_branches() == place.site.branches()


async def test_a_repository_larger_than_the_limit_is_not_fetched(place: Mirrored) -> None:
    place.restart(git_repository_limit=4 << 20)
    place.site.commit({"big": os.urandom(3 << 20)})
    await place.refresh()
    before = await place.mirror.list_branches()
    place.site.commit({"more": os.urandom(2 << 20)})  # what is there counts
    with pytest.raises(TooMuchError, match="git_repository_limit"):
        await place.refresh()
    place.restart(git_repository_limit=1 << 20)
    with pytest.raises(TooMuchError, match="git_repository_limit"):
        await place.refresh()
    assert place.slept == [], "it would be no smaller the next time"
    assert leftovers(place) == []
    assert await place.mirror.list_branches() == before
    place.restart(git_repository_limit=8 << 20)
    await place.refresh()
    assert await place.mirror.list_branches() == place.site.branches()


async def test_names_that_are_not_utf_8_are_not_told(place: Mirrored) -> None:
    first = place.site.head("main")
    assert first is not None
    odd, strange = "refs/heads/a\udcff\udcfe", "b\u2028c\x85é"
    place.site.git("update-ref", odd, first)
    place.site.git("update-ref", "refs/tags/t\udcff", first)
    place.site.git("update-ref", f"refs/heads/{strange}", first)
    place.site.git("symbolic-ref", "HEAD", odd)
    await place.refresh()
    expected = {"main": first, strange: first}
    assert await place.mirror.list_branches() == expected
    assert await place.mirror.list_remote_branches(place.remote, place.credential) == expected
    assert await place.mirror.list_refs("refs/tags") == {}
    assert await place.mirror.get_default_branch() is None
    place.site.git("symbolic-ref", "HEAD", f"refs/heads/{strange}")
    before = len(place.server.requests)
    await place.refresh()
    assert await place.mirror.get_default_branch() == strange
    assert {asked.what for asked in place.server.requests[before:]} == {"refs"}, "they are no reason to fetch again"


async def test_a_half_made_mirror_is_made_anew(place: Mirrored) -> None:
    await place.refresh()
    folder = place.mirror.folder
    (folder / "sandyard" / "complete").unlink()
    for pack in folder.glob("objects/pack/*"):
        pack.unlink()
    (folder / "HEAD").unlink()
    place.restart()
    assert not place.mirror.exists
    await place.refresh()
    assert await place.mirror.list_branches() == place.site.branches()


async def test_what_a_killed_git_left_behind_is_not_in_the_way(place: Mirrored) -> None:
    await place.refresh()
    folder = place.mirror.folder
    for name in ("packed-refs.lock", "config.lock", "refs/remotes/origin/main.lock", "shallow.lock", "gc.pid"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    (folder / "objects/pack/tmp_pack_abc").touch()
    (folder / "sandyard/scratch/abc").mkdir(parents=True)
    (folder / "sandyard/bundles").mkdir()
    (folder / "sandyard/bundles/part-abc.bundle.lock").touch()
    place.site.commit({"c": "c"})
    place.restart()
    await place.refresh()
    assert await place.mirror.list_branches() == place.site.branches()
    left = {path.name for path in folder.rglob("*")}
    assert not [name for name in left if name.endswith(".lock") or name.startswith(("tmp_", "part-", "abc", "gc.pid"))]


async def test_a_cancelled_refresh_leaves_no_lock(place: Mirrored) -> None:
    await place.refresh()
    place.site.commit({"big": os.urandom(300_000)})
    gate = place.server.faults.hold("fetch", after=10_000)
    fetching = asyncio.create_task(place.refresh())
    await asyncio.to_thread(gate.wait)
    (place.mirror.folder / "refs/remotes/origin").mkdir(parents=True, exist_ok=True)
    (place.mirror.folder / "refs/remotes/origin/main.lock").touch()  # as one that was killed in the middle would leave
    fetching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await fetching
    gate.release()
    await place.refresh()
    assert await place.mirror.list_branches() == place.site.branches()


async def test_commits_are_taken_while_a_fetch_is_stuck(place: Mirrored) -> None:
    await place.refresh()
    place.site.commit({"big": os.urandom(300_000)}, branch="other")
    gate = place.server.faults.hold("fetch", after=10_000)
    fetching = asyncio.create_task(place.refresh())
    await asyncio.to_thread(gate.wait)
    commit = await place.brought({"a": "a"})
    await place.mirror.tidy()
    assert not fetching.done()
    gate.release()
    await fetching
    assert await place.mirror.list_refs("refs/sandyard") == {"refs/sandyard/guest": commit}
    assert await place.mirror.list_branches() == place.site.branches()


async def test_reading_what_is_there(place: Mirrored) -> None:
    first = place.site.head("main")
    second = place.site.commit({"a": "a"})
    side = place.site.commit({"b": "b"}, branch="side", start=first)
    await place.refresh()
    mirror = place.mirror
    assert first is not None
    assert await mirror.resolve("refs/remotes/origin/main") == second
    assert await mirror.resolve("nothing") is None
    assert await mirror.resolve("--all") is None
    assert await mirror.has(first)
    assert not await mirror.has("0" * 40)
    assert not await mirror.has("--batch-all-objects")
    assert await mirror.is_ancestor(first, second)
    assert not await mirror.is_ancestor(second, first)
    assert not await mirror.is_ancestor("1" * 40, first)
    assert await mirror.merge_base(second, side) == first
    assert await mirror.count_commits(f"{side}..{second}") == 1
    assert await mirror.read("cat-file", "blob", f"{second}:a") == (b"a", False)
    with pytest.raises(GitFailedError):
        await mirror.read("cat-file", "blob", f"{second}:none")
    await mirror.set_ref(HEAD, first)
    main, other = "refs/remotes/origin/main", "refs/remotes/origin/side"
    assert await mirror.reaches(first, ["refs/none", other])
    assert await mirror.reaches(second, [other, main])
    assert not await mirror.reaches(second, [other, HEAD])
    for no_ref in ("refs/none", "refs/remotes/origin", "refs/remotes/origin/*", "origin/main", "main", "--all", ""):
        assert not await mirror.reaches(second, [no_ref])
    assert not await mirror.reaches(second, [])
    for no_commit in (second[:10], "main", main, "1" * 40, "", "--all", f"{second}^{{tree}}"):
        assert not await mirror.reaches(no_commit, [main])
    await mirror.drop_ref(HEAD)
    await mirror.drop_ref(HEAD)
    assert await mirror.list_refs("refs/sandyard") == {}


async def test_features_that_a_checkout_will_lack(place: Mirrored) -> None:
    await place.refresh()
    plain = place.site.head("main")
    rich = place.site.commit(
        {
            ".gitmodules": '[submodule "x"]\n\tpath = x\n\turl = https://h/x\n',
            "sub/.gitattributes": "*.bin filter=lfs\n",
        }
    )
    await place.refresh()
    assert plain is not None
    assert await place.mirror.list_limitations(plain) == []
    submodules, lfs = await place.mirror.list_limitations(rich)
    assert "submodules" in submodules
    assert "LFS" in lfs


async def test_conflicts_are_told_by_file_and_kind_and_leave_no_trace(place: Mirrored) -> None:
    site = place.site
    site.commit({"text": "one\n", "gone": "gone\n", "quiet": "1\n2\n3\n4\n5\n"})
    ours = site.commit({"text": "ours\n", "gone": None, "new é": "ours\n", "quiet": "x\n2\n3\n4\n5\n"}, branch="ours")
    theirs = site.commit(
        {"text": "theirs\n", "gone": "x\n", "new é": "theirs\n", "quiet": "1\n2\n3\n4\ny\n"}, branch="t"
    )
    await place.refresh()
    objects = sorted(place.mirror.objects.rglob("*"))
    found = {conflict.path: conflict for conflict in (await find_conflicts(place.mirror, ours, theirs)).files}
    assert {path: conflict.kind for path, conflict in found.items()} == {
        "text": "content",
        "gone": "modify/delete",
        "new é": "add/add",
    }
    assert "Merge conflict in text" in found["text"].detail
    assert await find_conflicts(place.mirror, ours, "refs/remotes/origin/main") == Conflicts()
    assert sorted(place.mirror.objects.rglob("*")) == objects


# bundles -----------------------------------------------------------------------------------------------------------------


def received(bundle: Bundle, into: Path, ref: str = "refs/heads/main") -> str:
    """What a sandbox does with it; the commit it then has."""
    if not into.exists():
        git("init", "-q", "--bare", str(into), cwd=into.parent)
    if bundle.shallow:
        (into / "shallow").write_text("".join(f"{one}\n" for one in bundle.shallow))
    git("bundle", "unbundle", bundle.path, cwd=into)
    heads = git("bundle", "list-heads", bundle.path, cwd=into).decode().split()
    assert heads[1:] == [ref]
    git("update-ref", ref, heads[0], cwd=into)
    git("fsck", "--strict", "--connectivity-only", cwd=into)
    return heads[0]


async def test_a_full_bundle_is_made_once_and_three_are_kept(place: Mirrored, tmp_path: Path) -> None:
    commits = [place.site.commit({"a": str(number)}) for number in range(5)]
    await place.refresh()
    first, second = await asyncio.gather(
        *(place.mirror.bundles.create(commits[-1], ref="refs/heads/main") for _ in range(2))
    )
    assert first == second
    assert received(first, tmp_path / "r.git") == commits[-1]
    inode = Path(first.path).stat().st_ino
    await place.mirror.bundles.release(first)
    await place.mirror.bundles.release(second)
    place.restart()
    again = await place.mirror.bundles.create(commits[-1], ref="refs/heads/main")
    assert Path(again.path).stat().st_ino == inode
    for commit in commits[:4]:
        await place.mirror.bundles.release(await place.mirror.bundles.create(commit, ref="refs/heads/main"))
    assert Path(again.path).exists(), "it is held"
    await place.mirror.bundles.release(again)
    assert len(list(Path(again.path).parent.iterdir())) == 9  # three bundles, their indexes, and what is known of them
    await place.mirror.tidy()
    assert len(list(Path(again.path).parent.iterdir())) == 9
    for path in Path(again.path).parent.iterdir():
        os.utime(path, (0, 0))
    await place.mirror.tidy()
    assert list(Path(again.path).parent.iterdir()) == []


async def test_a_shallow_bundle_has_so_many_generations(place: Mirrored, tmp_path: Path) -> None:
    commits = [place.site.commit({"a": str(number)}) for number in range(6)]
    side = place.site.commit({"b": "b"}, branch="side", start=commits[1])
    tip = place.site.merge("main", "side", method="merge", title="chore: merge")
    await place.refresh()
    bundle = await place.mirror.bundles.create(tip, ref="refs/heads/main", depth=3)
    assert set(bundle.shallow) == {commits[4], commits[1]}
    assert received(bundle, tmp_path / "r.git") == tip
    there = git("rev-list", "refs/heads/main", cwd=tmp_path / "r.git").decode().split()
    assert set(there) == {tip, side, commits[5], commits[4], commits[1]}
    again = await place.mirror.bundles.create(tip, ref="refs/heads/main", depth=3)
    assert again == bundle
    whole = await place.mirror.bundles.create(tip, ref="refs/heads/main", depth=50)
    assert whole.shallow == ()


async def test_an_incremental_bundle_has_what_is_new(place: Mirrored, tmp_path: Path) -> None:
    old = place.site.commit({"big": os.urandom(100_000)})
    await place.refresh()
    full = await place.mirror.bundles.create(old, ref="refs/heads/main")
    received(full, tmp_path / "r.git")
    new = place.site.commit({"small": "x"})
    await place.refresh()
    more = await place.mirror.bundles.create(new, ref="refs/heads/main", have=[old, "2" * 40])
    assert more.size < 2000
    assert received(more, tmp_path / "r.git") == new
    nothing = await place.mirror.bundles.create(old, ref="refs/heads/main", have=[new])
    assert nothing.size < 110_000
    assert received(nothing, tmp_path / "r.git") == old
    await place.mirror.bundles.release(more)
    await place.mirror.bundles.release(nothing)
    assert not Path(more.path).exists()
    assert not Path(nothing.path).exists()
    assert Path(full.path).exists()


async def test_an_incremental_bundle_for_a_shallow_checkout_leaves_nothing_out(place: Mirrored, tmp_path: Path) -> None:
    """What a new commit takes up again from before the boundary is not there, though the mirror's history has it."""
    ancient = place.site.commit({"old": "as it was\n"})
    place.site.commit({"old": None})
    base = [place.site.commit({"a": str(number)}) for number in range(5)][-1]
    await place.refresh()
    first = await place.mirror.bundles.create(base, ref="refs/heads/main", depth=2)
    received(first, tmp_path / "r.git")
    place.site.commit({"b": "b"}, branch="side", start=ancient)
    place.site.commit({"old": "as it was\n"})
    tip = place.site.merge("main", "side", method="merge", title="chore: merge")
    await place.refresh()
    await place.mirror.run("repack", "-adb")  # with bitmaps, which know the whole history
    more = await place.mirror.bundles.create(tip, ref="refs/heads/main", have=[base], shallow=first.shallow)
    assert received(more, tmp_path / "r.git") == tip
    for known in (base, first.shallow[0]):  # nothing new, and its parents are beyond the boundary
        nothing = await place.mirror.bundles.create(known, ref="refs/heads/main", have=[tip], shallow=first.shallow)
        assert received(nothing, tmp_path / "r.git") == known


async def test_a_bundle_that_is_too_large_or_of_nothing_is_refused(place: Mirrored) -> None:
    await place.refresh()
    with pytest.raises(NotFoundError):
        await place.mirror.bundles.create("3" * 40, ref="refs/heads/main")
    place.restart(git_transfer_limit=1 << 20)
    big = place.site.commit({"big": os.urandom(2 << 20)})
    await place.refresh()
    with pytest.raises(TooMuchError, match="2 MiB"):
        await place.mirror.bundles.create(big, ref="refs/heads/main")
    assert not list((place.mirror.folder / "sandyard/bundles").glob("*.bundle"))


# upkeep ------------------------------------------------------------------------------------------------------------------


async def test_tidying_packs_many_packs_into_few_and_loses_nothing(place: Mirrored) -> None:
    await place.refresh()
    for number in range(22):
        await place.brought({"a": str(number)})
    await place.mirror.tidy()
    assert len(list(place.mirror.objects.glob("pack/*.pack"))) <= 2
    tip = (await place.mirror.list_refs("refs/sandyard"))["refs/sandyard/guest"]
    assert await place.mirror.count_commits(tip) == 23


async def test_large_is_measured_by_the_packs(place: Mirrored) -> None:
    await place.refresh()
    assert not await place.mirror.is_large()
    place.restart(git_shallow_over=10)
    assert await place.mirror.is_large()


async def test_removing_is_final_and_can_be_repeated(place: Mirrored) -> None:
    await place.refresh()
    assert place.mirrors.list_project_ids() == ["p1"]
    folder = place.mirror.folder
    shutil.copytree(folder, folder.with_name("p0-x.removed"))
    await place.mirrors.remove("p1")
    await place.mirrors.remove("p1")
    assert place.mirrors.list_project_ids() == []
    assert [path for path in folder.parent.iterdir() if path.is_dir()] == []
    place.mirror = place.mirrors.get("p1")
    await place.refresh()
    assert place.mirror.exists
    for bad in ("../x", "", "a/b", ".x"):
        with pytest.raises(ValueError, match="project"):
            place.mirrors.get(bad)
