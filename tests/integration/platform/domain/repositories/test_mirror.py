from __future__ import annotations

import asyncio
import http.server
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sandyard.kit.errors import NotFoundError
from sandyard.platform.domain.repositories import mirror
from sandyard.platform.domain.repositories.errors import (
    GitFailedError,
    RemoteMissingError,
    RemoteRefusedError,
    RemoteUnreachableError,
    RepositoryInvalidError,
    TooMuchError,
)
from sandyard.platform.domain.repositories.git_process import GitResult
from sandyard.platform.domain.repositories.merge_tree import find_conflicts
from sandyard.platform.domain.repositories.model import Bundle, Conflicts
from sandyard.platform.domain.repositories.remote import Remote, parse_remote
from tests.forge.repositories import git
from tests.harness.http_server import serve_http
from tests.integration.platform.domain.repositories.mirrored import MirrorHarness

HEAD = "refs/sandyard/sandboxes/s1/head"


async def test_a_refresh_creates_the_mirror_and_follows_the_remote(harness: MirrorHarness) -> None:
    mirror, site = harness.mirror, harness.site
    assert not mirror.exists
    assert await mirror.get_default_branch() is None
    first = site.head("main")
    site.commit({"b": "b"}, branch="topic/one")
    site.git("tag", "v1", "main")
    await harness.refresh()
    assert mirror.exists
    assert await mirror.list_branches() == site.branches()
    assert await mirror.get_default_branch() == "main"
    assert await mirror.list_refs("refs/tags") == {"refs/tags/v1": first}
    site.delete_branch("topic/one")
    site.commit({"c": "c"}, branch="topic")  # where a folder of refs was before
    site.git("tag", "-d", "v1")
    site.git("tag", "-a", "v2", "-m", "two", "main")
    await harness.refresh()
    assert await mirror.list_branches() == site.branches()
    assert await mirror.list_refs("refs/tags") == {"refs/tags/v2": site.tags()["v2"]}
    assert await mirror.list_remote_branches(harness.remote, harness.credential) == site.branches()
    assert await mirror.get_remote_branch(harness.remote, harness.credential, "topic") == site.head("topic")
    assert await mirror.get_remote_branch(harness.remote, harness.credential, "none") is None


async def test_a_refresh_without_changes_only_lists_the_refs(harness: MirrorHarness) -> None:
    await harness.refresh()
    before = len(harness.server.requests)
    await harness.refresh()
    assert {request.what for request in harness.server.requests[before:]} == {"refs"}


async def test_a_forced_push_on_the_remote_is_followed_and_own_refs_are_kept(harness: MirrorHarness) -> None:
    await harness.refresh()
    old = harness.site.head("main")
    assert old is not None
    await harness.mirror.set_ref(HEAD, old)
    harness.site.git("update-ref", "-d", "refs/heads/main")
    new = harness.site.commit({"x": "x"}, "chore: anew")
    await harness.refresh()
    assert await harness.mirror.list_branches() == {"main": new}
    assert await harness.mirror.list_refs("refs/sandyard") == {HEAD: old}
    assert await harness.mirror.is_on_remote(new)
    assert not await harness.mirror.is_on_remote(old)


async def test_an_empty_repository_is_reported(harness: MirrorHarness) -> None:
    empty = harness.server.repository("acme/empty")
    with pytest.raises(RemoteMissingError, match="no branches yet"):
        await harness.mirror.refresh(parse_remote(empty.url), harness.credential)
    assert not harness.mirror.exists


async def test_a_remote_without_a_usable_head_has_no_default_branch(harness: MirrorHarness) -> None:
    harness.site.git("symbolic-ref", "HEAD", "refs/heads/gone")
    await harness.refresh()
    assert await harness.mirror.get_default_branch() is None


async def test_a_revoked_credential_is_reported_without_retries(harness: MirrorHarness) -> None:
    await harness.refresh()
    harness.token.revoke()
    with pytest.raises(RemoteRefusedError):
        await harness.refresh()
    assert harness.sleeps == []


async def test_an_interrupted_fetch_is_retried(harness: MirrorHarness) -> None:
    harness.site.commit({"big": os.urandom(300_000)}, "chore: big")
    harness.server.faults.cut("fetch", after=20_000, times=2)
    await harness.refresh()
    assert await harness.mirror.list_branches() == harness.site.branches()
    assert len(harness.sleeps) == 2
    harness.site.commit({"big": os.urandom(300_000)}, "chore: big")
    harness.server.faults.cut("fetch", after=20_000, times=3)
    with pytest.raises(RemoteUnreachableError):
        await harness.refresh()
    await harness.refresh()
    assert await harness.mirror.list_branches() == harness.site.branches()


def list_leftovers(harness: MirrorHarness) -> list[Path]:
    return list(harness.mirror.objects.rglob("*tmp_*"))


async def test_a_failed_fetch_leaves_nothing_on_the_disk(harness: MirrorHarness) -> None:
    await harness.refresh()
    harness.site.commit({"big": os.urandom(3_000_000)})
    harness.server.faults.cut("fetch", after=2_000_000, times=3)
    with pytest.raises(RemoteUnreachableError):
        await harness.refresh()
    assert list_leftovers(harness) == []
    harness.server.faults.cut("fetch", after=2_000_000, times=3)
    (harness.mirror.objects / "aa").mkdir(exist_ok=True)
    (harness.mirror.objects / "aa" / "tmp_obj_x").touch()
    (harness.mirror.objects / "tmp_objdir-incoming-x").mkdir()
    async with harness.mirror.writing():  # some of them may belong to another writer
        with pytest.raises(RemoteUnreachableError):
            await harness.refresh()
        assert len(list_leftovers(harness)) == 5
    assert list_leftovers(harness) == []
    await harness.refresh()
    assert await harness.mirror.list_branches() == harness.site.branches()


async def test_a_repository_larger_than_the_limit_is_not_fetched(harness: MirrorHarness) -> None:
    harness.restart(git_repository_limit=4 << 20)
    harness.site.commit({"big": os.urandom(3 << 20)})
    await harness.refresh()
    before = await harness.mirror.list_branches()
    harness.site.commit({"more": os.urandom(2 << 20)})  # existing objects count too
    with pytest.raises(TooMuchError, match="git_repository_limit"):
        await harness.refresh()
    harness.restart(git_repository_limit=1 << 20)
    with pytest.raises(TooMuchError, match="git_repository_limit"):
        await harness.refresh()
    assert harness.sleeps == [], "a retry would not make it smaller"
    assert list_leftovers(harness) == []
    assert await harness.mirror.list_branches() == before
    harness.restart(git_repository_limit=8 << 20)
    await harness.refresh()
    assert await harness.mirror.list_branches() == harness.site.branches()


async def test_loose_objects_count_towards_the_limit(harness: MirrorHarness) -> None:
    harness.restart(git_repository_limit=4 << 20)
    await harness.refresh()
    (harness.mirror.objects / "aa").mkdir(exist_ok=True)
    (harness.mirror.objects / "aa" / ("b" * 38)).write_bytes(bytes(4 << 20))
    harness.site.commit({"more": "x"})
    with pytest.raises(TooMuchError, match="git_repository_limit"):
        await harness.refresh()


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serve_dumb(folder: Path) -> Iterator[Remote]:
    """Serve a repository as plain files, which is git's dumb HTTP protocol."""
    handler = partial(QuietHandler, directory=str(folder.parent))
    with serve_http(handler) as server:
        yield parse_remote(f"http://127.0.0.1:{server.server_port}/{folder.name}")


async def test_a_dumb_http_remote_is_refused(harness: MirrorHarness) -> None:
    """Git applies neither the size limit nor fsck to what it downloads from one."""
    harness.restart(git_repository_limit=2 << 20)
    site = harness.site
    for number in range(3):
        site.commit({f"big{number}": os.urandom(1 << 20)})
        site.git("repack", "-q", "-d")
    site.git("update-server-info")
    with serve_dumb(site.path) as dumb:
        with pytest.raises(RepositoryInvalidError, match="dumb HTTP protocol"):
            await harness.mirror.refresh(dumb, None)
        assert not harness.mirror.exists
        assert harness.mirror.get_objects_size() == 0
        harness.restart(git_repository_limit=8 << 20)
        await harness.refresh()
        before, size = await harness.mirror.list_branches(), harness.mirror.get_objects_size()
        site.commit({"more": "x"})
        site.git("update-server-info")
        with pytest.raises(RepositoryInvalidError, match="dumb HTTP protocol"):
            await harness.mirror.refresh(dumb, None)
        assert (await harness.mirror.list_branches(), harness.mirror.get_objects_size()) == (before, size)
    assert harness.sleeps == []


async def test_known_commits_are_not_fetched_again(harness: MirrorHarness) -> None:
    site = harness.site
    for number in range(10):
        site.commit({"file": os.urandom(10_000)}, branch=f"b{number}")
    site.commit({"big": os.urandom(1 << 20)}, branch="old")
    await harness.refresh()
    size, before = harness.mirror.get_objects_size(), len(harness.server.requests)
    site.delete_branch("b0")
    await harness.refresh()
    site.git("branch", "-m", "old", "new")
    site.git("branch", "copy", "b1")
    site.git("tag", "v1", "b2")
    await harness.refresh()
    assert await harness.mirror.list_branches() == site.branches()
    assert {request.what for request in harness.server.requests[before:]} == {"refs"}
    site.commit({"more": "x"})
    await harness.refresh()
    assert await harness.mirror.list_branches() == site.branches()
    assert harness.mirror.get_objects_size() < size + 10_000


async def test_a_shallow_remote_is_refused(harness: MirrorHarness) -> None:
    await harness.refresh()
    before = await harness.mirror.list_branches()
    boundary = harness.site.commit({"b": "b"})
    harness.site.commit({"c": "c"})
    harness.site.commit({"d": "d"}, branch="other")
    (harness.site.path / "shallow").write_text(f"{boundary}\n")
    with pytest.raises(RepositoryInvalidError, match="shallow"):
        await harness.refresh()
    assert await harness.mirror.list_branches() == before
    (harness.site.path / "shallow").unlink()
    await harness.refresh()
    assert await harness.mirror.list_branches() == harness.site.branches()
    git("fsck", "--connectivity-only", cwd=harness.mirror.folder)


async def test_ref_names_that_are_not_utf_8_are_left_out(harness: MirrorHarness) -> None:
    first = harness.site.head("main")
    assert first is not None
    odd, strange = "refs/heads/a\udcff\udcfe", "b\u2028c\x85é"
    harness.site.git("update-ref", odd, first)
    harness.site.git("update-ref", "refs/tags/t\udcff", first)
    harness.site.git("update-ref", f"refs/heads/{strange}", first)
    harness.site.git("symbolic-ref", "HEAD", odd)
    await harness.refresh()
    expected = {"main": first, strange: first}
    assert await harness.mirror.list_branches() == expected
    assert await harness.mirror.list_remote_branches(harness.remote, harness.credential) == expected
    assert await harness.mirror.list_refs("refs/tags") == {}
    assert await harness.mirror.get_default_branch() is None
    harness.site.git("symbolic-ref", "HEAD", f"refs/heads/{strange}")
    before = len(harness.server.requests)
    await harness.refresh()
    assert await harness.mirror.get_default_branch() == strange
    assert {request.what for request in harness.server.requests[before:]} == {"refs"}, "they cause no further fetch"


async def test_an_incomplete_mirror_is_created_again(harness: MirrorHarness) -> None:
    await harness.refresh()
    folder = harness.mirror.folder
    (folder / "sandyard" / "complete").unlink()
    for pack in folder.glob("objects/pack/*"):
        pack.unlink()
    (folder / "HEAD").unlink()
    harness.restart()
    assert not harness.mirror.exists
    await harness.refresh()
    assert await harness.mirror.list_branches() == harness.site.branches()


async def test_leftovers_of_a_killed_git_are_removed(harness: MirrorHarness) -> None:
    await harness.refresh()
    folder = harness.mirror.folder
    for name in ("packed-refs.lock", "config.lock", "refs/remotes/origin/main.lock", "shallow.lock", "gc.pid"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    (folder / "objects/pack/tmp_pack_abc").touch()
    (folder / "sandyard/scratch/abc").mkdir(parents=True)
    (folder / "sandyard/bundles").mkdir()
    (folder / "sandyard/bundles/part-abc.bundle.lock").touch()
    harness.site.commit({"c": "c"})
    harness.restart()
    await harness.refresh()
    assert await harness.mirror.list_branches() == harness.site.branches()
    remaining = {path.name for path in folder.rglob("*")}
    assert not [
        name for name in remaining if name.endswith(".lock") or name.startswith(("tmp_", "part-", "abc", "gc.pid"))
    ]


async def test_a_cancelled_refresh_leaves_no_lock(harness: MirrorHarness) -> None:
    await harness.refresh()
    harness.site.commit({"big": os.urandom(300_000)})
    gate = harness.server.faults.hold("fetch", after=10_000)
    fetching = asyncio.create_task(harness.refresh())
    await asyncio.to_thread(gate.wait)
    (harness.mirror.folder / "refs/remotes/origin").mkdir(parents=True, exist_ok=True)
    (harness.mirror.folder / "refs/remotes/origin/main.lock").touch()  # as a git killed in the middle leaves it
    fetching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await fetching
    gate.release()
    await harness.refresh()
    assert await harness.mirror.list_branches() == harness.site.branches()


async def test_commits_are_imported_while_a_fetch_is_stuck(harness: MirrorHarness) -> None:
    await harness.refresh()
    harness.site.commit({"big": os.urandom(300_000)}, branch="other")
    gate = harness.server.faults.hold("fetch", after=10_000)
    fetching = asyncio.create_task(harness.refresh())
    await asyncio.to_thread(gate.wait)
    commit = await harness.import_commit({"a": "a"})
    await harness.mirror.tidy()
    assert not fetching.done()
    gate.release()
    await fetching
    assert await harness.mirror.list_refs("refs/sandyard") == {"refs/sandyard/guest": commit}
    assert await harness.mirror.list_branches() == harness.site.branches()


async def test_a_refresh_does_not_forget_a_branch_that_is_pushed_meanwhile(
    harness: MirrorHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    await harness.refresh()
    commit = await harness.import_commit({"a.txt": "new"})
    run, listed, proceed = harness.mirror.git.run, asyncio.Event(), asyncio.Event()
    commands: list[tuple[str, ...]] = []

    async def wait_after_listing(*words: str, **options: Any) -> GitResult:
        commands.append(words)
        result = await run(*words, **options)
        if "--symref" in words:
            commands.clear()
            listed.set()
            await proceed.wait()
        return result

    monkeypatch.setattr(harness.mirror.git, "run", wait_after_listing)
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        group.create_task(harness.refresh())
        await listed.wait()
        pushing = harness.mirror.push(harness.remote, harness.credential, commit, "task/new", expected=None)
        push = group.create_task(pushing)
        for _ in range(20):
            await asyncio.sleep(0)
        if commands:  # the push did not wait for the refresh
            await push
        proceed.set()
    assert (await harness.mirror.list_branches())["task/new"] == commit


async def test_refs_and_commits_can_be_read(harness: MirrorHarness) -> None:
    first = harness.site.head("main")
    second = harness.site.commit({"a": "a"})
    side = harness.site.commit({"b": "b"}, branch="side", start=first)
    await harness.refresh()
    mirror = harness.mirror
    assert first is not None
    assert await mirror.resolve("refs/remotes/origin/main") == second
    assert await mirror.resolve("nothing") is None
    assert await mirror.resolve("--all") is None
    assert await mirror.has_commit(first)
    assert not await mirror.has_commit("0" * 40)
    assert not await mirror.has_commit("--batch-all-objects")
    assert await mirror.is_ancestor(first, second)
    assert not await mirror.is_ancestor(second, first)
    assert not await mirror.is_ancestor("1" * 40, first)
    assert await mirror.find_merge_base(second, side) == first
    assert await mirror.count_commits(f"{side}..{second}") == 1
    assert await mirror.read("cat-file", "blob", f"{second}:a") == (b"a", False)
    with pytest.raises(GitFailedError):
        await mirror.read("cat-file", "blob", f"{second}:none")
    await mirror.set_ref(HEAD, first)
    main, other = "refs/remotes/origin/main", "refs/remotes/origin/side"
    assert await mirror.is_reachable(first, ["refs/none", other])
    assert await mirror.is_reachable(second, [other, main])
    assert not await mirror.is_reachable(second, [other, HEAD])
    for no_ref in ("refs/none", "refs/remotes/origin", "refs/remotes/origin/*", "origin/main", "main", "--all", ""):
        assert not await mirror.is_reachable(second, [no_ref])
    assert not await mirror.is_reachable(second, [])
    for no_commit in (second[:10], "main", main, "1" * 40, "", "--all", f"{second}^{{tree}}"):
        assert not await mirror.is_reachable(no_commit, [main])
    await mirror.delete_ref(HEAD)
    await mirror.delete_ref(HEAD)
    assert await mirror.list_refs("refs/sandyard") == {}


async def test_features_that_a_checkout_does_not_support_are_listed(harness: MirrorHarness) -> None:
    await harness.refresh()
    plain = harness.site.head("main")
    rich = harness.site.commit(
        {
            ".gitmodules": '[submodule "x"]\n\tpath = x\n\turl = https://h/x\n',
            "sub/.gitattributes": "*.bin filter=lfs\n",
        }
    )
    await harness.refresh()
    assert plain is not None
    assert await harness.mirror.list_limitations(plain) == []
    submodules, lfs = await harness.mirror.list_limitations(rich)
    assert "submodules" in submodules
    assert "LFS" in lfs


async def test_conflicts_are_listed_by_file_and_kind_and_leave_no_trace(harness: MirrorHarness) -> None:
    site = harness.site
    site.commit({"text": "one\n", "gone": "gone\n", "quiet": "1\n2\n3\n4\n5\n"})
    ours = site.commit({"text": "ours\n", "gone": None, "new é": "ours\n", "quiet": "x\n2\n3\n4\n5\n"}, branch="ours")
    theirs = site.commit(
        {"text": "theirs\n", "gone": "x\n", "new é": "theirs\n", "quiet": "1\n2\n3\n4\ny\n"}, branch="t"
    )
    await harness.refresh()
    objects = sorted(harness.mirror.objects.rglob("*"))
    found = {conflict.path: conflict for conflict in (await find_conflicts(harness.mirror, ours, theirs)).files}
    assert {path: conflict.kind for path, conflict in found.items()} == {
        "text": "content",
        "gone": "modify/delete",
        "new é": "add/add",
    }
    assert "Merge conflict in text" in found["text"].detail
    assert await find_conflicts(harness.mirror, ours, "refs/remotes/origin/main") == Conflicts()
    assert sorted(harness.mirror.objects.rglob("*")) == objects


# bundles -----------------------------------------------------------------------------------------------------------------


def unbundle(bundle: Bundle, into: Path, ref: str = "refs/heads/main") -> str:
    """Unbundle as a sandbox does. Return the commit it then has."""
    if not into.exists():
        git("init", "-q", "--bare", str(into), cwd=into.parent)
    if bundle.shallow:
        (into / "shallow").write_text("".join(f"{item}\n" for item in bundle.shallow))
    git("bundle", "unbundle", bundle.path, cwd=into)
    heads = git("bundle", "list-heads", bundle.path, cwd=into).decode().split()
    assert heads[1:] == [ref]
    git("update-ref", ref, heads[0], cwd=into)
    git("fsck", "--strict", "--connectivity-only", cwd=into)
    return heads[0]


async def test_a_full_bundle_is_created_once_and_three_are_kept(harness: MirrorHarness, tmp_path: Path) -> None:
    commits = [harness.site.commit({"a": str(number)}) for number in range(5)]
    await harness.refresh()
    first, second = await asyncio.gather(
        *(harness.mirror.bundles.create(commits[-1], ref="refs/heads/main") for _ in range(2))
    )
    assert first == second
    assert unbundle(first, tmp_path / "r.git") == commits[-1]
    inode = Path(first.path).stat().st_ino
    await harness.mirror.bundles.release(first)
    await harness.mirror.bundles.release(second)
    harness.restart()
    again = await harness.mirror.bundles.create(commits[-1], ref="refs/heads/main")
    assert Path(again.path).stat().st_ino == inode
    for commit in commits[:4]:
        await harness.mirror.bundles.release(await harness.mirror.bundles.create(commit, ref="refs/heads/main"))
    assert Path(again.path).exists(), "the bundle is in use"
    await harness.mirror.bundles.release(again)
    assert len(list(Path(again.path).parent.iterdir())) == 9  # three bundles with their indexes and metadata
    await harness.mirror.tidy()
    assert len(list(Path(again.path).parent.iterdir())) == 9
    for path in Path(again.path).parent.iterdir():
        os.utime(path, (0, 0))
    await harness.mirror.tidy()
    assert list(Path(again.path).parent.iterdir()) == []


async def test_a_shallow_bundle_has_the_requested_depth(harness: MirrorHarness, tmp_path: Path) -> None:
    commits = [harness.site.commit({"a": str(number)}) for number in range(6)]
    side = harness.site.commit({"b": "b"}, branch="side", start=commits[1])
    tip = harness.site.merge("main", "side", method="merge", title="chore: merge")
    await harness.refresh()
    bundle = await harness.mirror.bundles.create(tip, ref="refs/heads/main", depth=3)
    assert set(bundle.shallow) == {commits[4], commits[1]}
    assert unbundle(bundle, tmp_path / "r.git") == tip
    commits_there = git("rev-list", "refs/heads/main", cwd=tmp_path / "r.git").decode().split()
    assert set(commits_there) == {tip, side, commits[5], commits[4], commits[1]}
    again = await harness.mirror.bundles.create(tip, ref="refs/heads/main", depth=3)
    assert again == bundle
    whole = await harness.mirror.bundles.create(tip, ref="refs/heads/main", depth=50)
    assert whole.shallow == ()


async def test_an_incremental_bundle_contains_only_new_objects(harness: MirrorHarness, tmp_path: Path) -> None:
    old = harness.site.commit({"big": os.urandom(100_000)})
    await harness.refresh()
    full = await harness.mirror.bundles.create(old, ref="refs/heads/main")
    unbundle(full, tmp_path / "r.git")
    new = harness.site.commit({"small": "x"})
    await harness.refresh()
    more = await harness.mirror.bundles.create(new, ref="refs/heads/main", have=[old, "2" * 40])
    assert more.size < 2000
    assert unbundle(more, tmp_path / "r.git") == new
    nothing = await harness.mirror.bundles.create(old, ref="refs/heads/main", have=[new])
    assert nothing.size < 110_000
    assert unbundle(nothing, tmp_path / "r.git") == old
    await harness.mirror.bundles.release(more)
    await harness.mirror.bundles.release(nothing)
    assert not Path(more.path).exists()
    assert not Path(nothing.path).exists()
    assert Path(full.path).exists()


async def test_an_incremental_bundle_for_a_shallow_checkout_is_complete(harness: MirrorHarness, tmp_path: Path) -> None:
    """An object from before the boundary that a new commit uses again is not in the checkout, though the mirror has it."""
    ancient = harness.site.commit({"old": "as it was\n"})
    harness.site.commit({"old": None})
    base = [harness.site.commit({"a": str(number)}) for number in range(5)][-1]
    await harness.refresh()
    first = await harness.mirror.bundles.create(base, ref="refs/heads/main", depth=2)
    unbundle(first, tmp_path / "r.git")
    harness.site.commit({"b": "b"}, branch="side", start=ancient)
    harness.site.commit({"old": "as it was\n"})
    tip = harness.site.merge("main", "side", method="merge", title="chore: merge")
    await harness.refresh()
    await harness.mirror.run("repack", "-adb")  # with bitmaps, which cover the whole history
    more = await harness.mirror.bundles.create(tip, ref="refs/heads/main", have=[base], shallow=first.shallow)
    assert unbundle(more, tmp_path / "r.git") == tip
    for known in (base, first.shallow[0]):  # nothing is new, and its parents are beyond the boundary
        nothing = await harness.mirror.bundles.create(known, ref="refs/heads/main", have=[tip], shallow=first.shallow)
        assert unbundle(nothing, tmp_path / "r.git") == known


async def test_a_bundle_that_is_too_large_or_of_an_unknown_commit_is_refused(harness: MirrorHarness) -> None:
    await harness.refresh()
    with pytest.raises(NotFoundError):
        await harness.mirror.bundles.create("3" * 40, ref="refs/heads/main")
    harness.restart(git_transfer_limit=1 << 20)
    big = harness.site.commit({"big": os.urandom(2 << 20)})
    await harness.refresh()
    with pytest.raises(TooMuchError, match="2 MiB"):
        await harness.mirror.bundles.create(big, ref="refs/heads/main")
    assert not list((harness.mirror.folder / "sandyard/bundles").glob("*.bundle"))


# maintenance -------------------------------------------------------------------------------------------------------------


async def test_tidying_combines_packs_and_loses_nothing(harness: MirrorHarness) -> None:
    await harness.refresh()
    for number in range(22):
        await harness.import_commit({"a": str(number)})
    await harness.mirror.tidy()
    assert len(list(harness.mirror.objects.glob("pack/*.pack"))) <= 2
    tip = (await harness.mirror.list_refs("refs/sandyard"))["refs/sandyard/guest"]
    assert await harness.mirror.count_commits(tip) == 23


async def test_tidying_a_repository_of_large_files_takes_little_memory(
    harness: MirrorHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Git compares files of similar sizes with each other, all of them in memory."""
    await harness.refresh()
    folder, packs = harness.mirror.folder, harness.mirror.objects / "pack"
    entries = b""
    for number in range(22):
        content = b"%032d" % number * (17 << 15 if number < 10 else 1)
        blob = git("hash-object", "-w", "--stdin", cwd=folder, stdin=content)
        git("pack-objects", "-q", str(packs / "pack"), cwd=folder, stdin=blob)
        entries += b"100644 blob %s\tfile%d\n" % (blob.strip(), number)
    git("prune-packed", "-q", cwd=folder)
    tree = git("mktree", cwd=folder, stdin=entries).decode().strip()
    commit = git("commit-tree", "-m", "feat: files", tree, cwd=folder).decode().strip()
    git("update-ref", "refs/sandyard/guest", commit, cwd=folder)
    monkeypatch.setattr(mirror, "DEFAULT_MEMORY_BYTES", 128 << 20)
    await harness.mirror.tidy()
    assert len(list(packs.glob("*.pack"))) <= 2


async def test_the_size_is_measured_by_the_packs(harness: MirrorHarness) -> None:
    await harness.refresh()
    assert not await harness.mirror.is_large()
    harness.restart(git_shallow_over=10)
    assert await harness.mirror.is_large()


async def test_removing_is_idempotent_and_a_mirror_can_be_created_again(harness: MirrorHarness) -> None:
    await harness.refresh()
    assert harness.mirrors.list_project_ids() == ["p1"]
    folder = harness.mirror.folder
    shutil.copytree(folder, folder.with_name("p0-x.removed"))
    await harness.mirrors.remove("p1")
    await harness.mirrors.remove("p1")
    assert harness.mirrors.list_project_ids() == []
    assert [path for path in folder.parent.iterdir() if path.is_dir()] == []
    harness.mirror = harness.mirrors.get("p1")
    await harness.refresh()
    assert harness.mirror.exists
    for bad in ("../x", "", "a/b", ".x"):
        with pytest.raises(ValueError, match="project"):
            harness.mirrors.get(bad)
