"""Trees of a few bytes that unfold to billions of paths: what reads them stops early, and none are taken out of a sandbox."""

from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from sandyard.platform.domain.repositories import bare_repository, git_process, tree_paths
from sandyard.platform.domain.repositories.diff import read_diff
from sandyard.platform.domain.repositories.errors import GitFailedError, TooMuchError, UnsafeBundleError
from sandyard.platform.domain.repositories.git_process import Git
from sandyard.platform.domain.repositories.merge_tree import find_conflicts
from sandyard.platform.domain.repositories.mirror import Mirror, Mirrors
from sandyard.platform.domain.repositories.status import read_stored_status
from tests.forge.repositories import git
from tests.integration.platform.domain.repositories.mirrored import Mirrored

REF = "refs/sandyard/sandboxes/s1/head"
SMALL = 64 << 20


def tree(repository: Path, entries: dict[str, str], mode: str = "100644 blob") -> str:
    lines = "".join(f"{mode} {object_id}\t{name}\n" for name, object_id in entries.items())
    return git("mktree", cwd=repository, stdin=lines.encode()).decode().strip()


def nested(repository: Path, text: str = "x", *, width: int = 16, depth: int = 8) -> str:
    """A tree with `width` ** `depth` files."""
    blob = git("hash-object", "-w", "--stdin", cwd=repository, stdin=text.encode()).decode().strip()
    names = [f"{number:02}" for number in range(width)]
    made = tree(repository, dict.fromkeys(names, blob))
    for _ in range(depth - 1):
        made = tree(repository, dict.fromkeys(names, made), "040000 tree")
    return made


def commit(repository: Path, made: str, *parents: str) -> str:
    onto = [word for parent in parents for word in ("-p", parent)]
    return git("commit-tree", *onto, "-m", "feat: more", made, cwd=repository).decode().strip()


def pushed(place: Mirrored, *commits: str) -> None:
    """On branches of the remote, where nobody counts."""
    for number, one in enumerate(commits):
        place.site.git("update-ref", f"refs/heads/bomb{number}", one)


Read = Callable[[Mirror, str, str, str], Coroutine[Any, Any, object]]
READERS: dict[str, Read] = {
    "diff": lambda mirror, base, one, _: read_diff(mirror, base, one),
    "status": lambda mirror, base, one, _: read_stored_status(mirror, one, branch="main"),
    "merge": lambda mirror, base, one, other: find_conflicts(mirror, one, other),
}


@pytest.mark.parametrize("what", READERS)
async def test_reading_one_ends_at_the_memory_limit(
    place: Mirrored, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """On a mirror, where a remote has put it."""
    site, first = place.site.path, str(place.site.head("main"))
    base = commit(site, nested(site), first)
    one = commit(site, nested(site, "y"), *((first, base) if what == "status" else (base,)))
    other = commit(site, nested(site, "z"), base)
    pushed(place, one, other)
    await place.refresh()
    monkeypatch.setattr(bare_repository, "MEMORY", SMALL)
    with pytest.raises(TooMuchError, match="memory that Git may use") as error:
        await READERS[what](place.mirror, first if what == "diff" else base, one, other)
    assert error.value.status == 413
    assert not list(place.mirror.folder.glob("sandyard/scratch/*"))


async def test_git_and_what_it_starts_have_the_limit_and_no_higher_one_than_the_platform(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = Git(tmp_path / "git", timeout_s=30)

    async def limit(**options: int) -> int:
        done = await runner.run("-c", "alias.limit=!ulimit -Hd", "limit", cwd=None, **options)  # type: ignore[arg-type]
        return int(done.stdout) << 10

    assert await limit() == git_process.MEMORY
    assert await limit(memory=SMALL, writes=1 << 20) == SMALL
    monkeypatch.setattr(resource, "getrlimit", lambda _: (SMALL, SMALL))
    assert await limit() == SMALL


async def test_a_machine_without_git_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(GitFailedError, match="not installed"):
        await Git(tmp_path / "git", timeout_s=30).run("version", cwd=None)


async def test_so_many_run_at_once_and_the_others_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(git_process, "AT_ONCE", 2)
    runner = Git(tmp_path / "git", timeout_s=30)
    started, go_on = tmp_path / "started", tmp_path / "go"
    os.mkfifo(go_on)
    started.mkdir()
    alias = f"alias.hold=!touch {started}/$$; read x < {go_on}; true"
    asked = [asyncio.create_task(runner.run("-c", alias, "hold", cwd=None)) for _ in range(3)]
    async with asyncio.timeout(30):
        while len(list(started.iterdir())) < 2:
            await asyncio.sleep(0.01)
        assert sum(1 for task in asked if task.done()) == 0
        assert runner._slots.locked()
        asked[0].cancel()  # one that is cancelled makes room
        while len(list(started.iterdir())) < 3:
            await asyncio.sleep(0.01)
        asked[1].cancel()
        asked[2].cancel()
        await asyncio.gather(*asked, return_exceptions=True)
    assert (await runner.run("version", cwd=None)).code == 0


async def test_the_repositories_of_one_person_leave_room_for_those_of_others(place: Mirrored, tmp_path: Path) -> None:
    assert bare_repository.AT_ONCE < git_process.AT_ONCE
    held, go_on = asyncio.Semaphore(0), asyncio.Event()

    class Held(Git):
        async def run(self, *_words: object, **_options: object) -> git_process.GitResult:
            held.release()
            await go_on.wait()
            return git_process.GitResult(0, b"", "")

    async def owner_of(project_id: str) -> str:
        return "other" if project_id == "prj_3" else "owner"

    mirrors = Mirrors(Held(tmp_path, timeout_s=30), place.settings, owner_of=owner_of)
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        for project in ("prj_1", "prj_2") * bare_repository.AT_ONCE:
            group.create_task(mirrors.get(project).read("version"))
        for _ in range(bare_repository.AT_ONCE):
            await held.acquire()
        group.create_task(mirrors.get("prj_3").read("version"))
        await held.acquire()
        assert held.locked()  # the rest of the first person's wait
        go_on.set()


async def take(place: Mirrored, tip: str, *known: str) -> None:
    git("update-ref", "refs/heads/out", tip, cwd=place.guest())
    path = place.bundled("refs/heads/out", "--not", "origin/main", *known)
    await place.mirror.import_bundle(path, {"refs/heads/out": REF})


async def test_none_is_taken_not_even_in_the_middle_of_a_history(place: Mirrored) -> None:
    await place.refresh()
    work, main = place.guest(), str(place.site.head("main"))
    one = commit(work, nested(work), main)
    for tip in (one, commit(work, f"{main}^{{tree}}", one)):
        with pytest.raises(UnsafeBundleError, match="more than 1,000,000 files and folders"):
            await take(place, tip)
        assert await place.mirror.list_refs("refs/sandyard") == {}
        assert not await place.mirror.has(tip)


async def test_paths_are_counted_exactly_also_those_of_trees_that_are_there(
    place: Mirrored, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree_paths, "MAX_PATHS", 2 * 14 + 2)
    monkeypatch.setattr(tree_paths, "_BATCH", 2)
    await place.refresh()
    work, main = place.guest(), str(place.site.head("main"))
    inner = nested(work, width=2, depth=3)  # 2 + 4 + 8
    first = commit(work, inner, main)
    await take(place, first)
    second = commit(work, tree(work, {"a": inner, "b": inner}, "040000 tree"), first)
    for restarted in (False, True):
        if restarted:
            place.restart()
        await take(place, second, first)
        third = commit(work, tree(work, {"a": inner, "b": inner, "c": inner}, "040000 tree"), first)
        with pytest.raises(UnsafeBundleError, match="more than 30 files"):
            await take(place, third, first)


async def test_a_folder_in_disguise_is_counted(place: Mirrored, monkeypatch: pytest.MonkeyPatch) -> None:
    """Git takes every mode of the kind for a folder."""
    monkeypatch.setattr(tree_paths, "MAX_PATHS", 5)
    counter = tree_paths._Counter({b"a" * 20: 3})
    for number, mode in enumerate((b"40000", b"040000", b"40755", b"1040000")):
        assert counter._add(bytes([number]) * 20, mode + b" x\0" + b"a" * 20) == []
        assert counter.paths[bytes([number]) * 20] == 4
    counter._add(b"f" * 20, b"100644 x\0" + b"a" * 20 + b"160000 y\0" + b"a" * 20)
    assert counter.paths[b"f" * 20] == 2


async def test_trees_nested_as_deeply_as_one_likes_are_counted() -> None:
    counter = tree_paths._Counter({})
    depth = 5000
    ids = [number.to_bytes(20, "big") for number in range(depth)]
    for number in range(depth - 1, 0, -1):
        counter._add(ids[number], b"40000 x\0" + ids[number - 1] + b"40000 y\0" + ids[number - 1])
    counter._add(ids[0], b"")
    counter.add_up()
    assert counter.paths[ids[3]] == 14
    assert counter.paths[ids[-1]] == tree_paths.MAX_PATHS + 1


async def test_what_cannot_be_counted_is_refused(place: Mirrored, monkeypatch: pytest.MonkeyPatch) -> None:
    await place.refresh()
    work, main = place.guest(), str(place.site.head("main"))
    tip = commit(work, nested(work, width=2, depth=3), main)
    with monkeypatch.context() as patched:
        patched.setattr(tree_paths, "_MAX_TREES", 2)
        with pytest.raises(UnsafeBundleError, match="more than 2 new folders"):
            await take(place, tip)
    with monkeypatch.context() as patched:
        patched.setattr(tree_paths, "OUTPUT_LIMIT", 50)
        with pytest.raises(UnsafeBundleError, match="MiB of names"):
            await take(place, tip)
    with monkeypatch.context() as patched:
        patched.setattr(tree_paths, "_MAX_OPEN", 1)
        patched.setattr(tree_paths, "_BATCH", 1)
        counter = tree_paths._Counter({})
        with pytest.raises(TooMuchError, match="more than 1 folders"):
            counter._add(b"f" * 20, b"40000 x\0" + b"a" * 20 + b"40000 y\0" + b"b" * 20)
    await take(place, tip)
