"""Trees of a few bytes that expand to billions of paths: reading them stops early, and none are imported from a sandbox."""

from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest

from sandyard.kit.tasks import end_tasks
from sandyard.platform.domain.repositories import bare_repository, git_process, tree_paths
from sandyard.platform.domain.repositories.diff import read_diff
from sandyard.platform.domain.repositories.errors import GitFailedError, TooMuchError, UnsafeBundleError
from sandyard.platform.domain.repositories.git_process import Git
from sandyard.platform.domain.repositories.merge_tree import find_conflicts
from sandyard.platform.domain.repositories.mirror import Mirror, Mirrors
from sandyard.platform.domain.repositories.status import read_stored_status
from tests.forge.repositories import git
from tests.integration.platform.domain.repositories.mirrored import MirrorHarness

REF = "refs/sandyard/sandboxes/s1/head"
SMALL_MEMORY = 64 << 20


def write_tree(repository: Path, entries: dict[str, str], mode: str = "100644 blob") -> str:
    lines = "".join(f"{mode} {object_id}\t{name}\n" for name, object_id in entries.items())
    return git("mktree", cwd=repository, stdin=lines.encode()).decode().strip()


def write_nested_trees(repository: Path, text: str = "x", *, width: int = 16, depth: int = 8) -> str:
    """Write a tree with `width` ** `depth` files."""
    blob = git("hash-object", "-w", "--stdin", cwd=repository, stdin=text.encode()).decode().strip()
    names = [f"{number:02}" for number in range(width)]
    created = write_tree(repository, dict.fromkeys(names, blob))
    for _ in range(depth - 1):
        created = write_tree(repository, dict.fromkeys(names, created), "040000 tree")
    return created


def create_commit(repository: Path, tree_id: str, *parents: str) -> str:
    options = [option for parent in parents for option in ("-p", parent)]
    return git("commit-tree", *options, "-m", "feat: more", tree_id, cwd=repository).decode().strip()


def push_branches(harness: MirrorHarness, *commits: str) -> None:
    """Create branches on the remote, where paths are not counted."""
    for number, commit_id in enumerate(commits):
        harness.site.git("update-ref", f"refs/heads/bomb{number}", commit_id)


Read = Callable[[Mirror, str, str, str], Coroutine[Any, Any, object]]
READERS: dict[str, Read] = {
    "diff": lambda mirror, base, one, _: read_diff(mirror, base, one),
    "status": lambda mirror, base, one, _: read_stored_status(mirror, one, branch="main"),
    "merge": lambda mirror, base, one, other: find_conflicts(mirror, one, other),
}


@pytest.mark.parametrize("what", READERS)
async def test_reading_a_tree_bomb_ends_at_the_memory_limit(
    harness: MirrorHarness, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """In a mirror, where it came from a remote."""
    site, first = harness.site.path, str(harness.site.head("main"))
    base = create_commit(site, write_nested_trees(site), first)
    one = create_commit(site, write_nested_trees(site, "y"), *((first, base) if what == "status" else (base,)))
    other = create_commit(site, write_nested_trees(site, "z"), base)
    push_branches(harness, one, other)
    await harness.refresh()
    monkeypatch.setattr(bare_repository, "READ_MEMORY_BYTES", SMALL_MEMORY)
    with pytest.raises(TooMuchError, match="memory that Git may use") as error:
        await READERS[what](harness.mirror, first if what == "diff" else base, one, other)
    assert error.value.status == 413
    assert not list(harness.mirror.folder.glob("sandyard/scratch/*"))


async def test_git_and_its_children_get_the_memory_limit_but_never_more_than_the_platform(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = Git(tmp_path / "git", timeout_s=30)

    async def limit(**options: int) -> int:
        done = await runner.run("-c", "alias.limit=!ulimit -Hd", "limit", cwd=None, **options)  # type: ignore[arg-type]
        return int(done.stdout) << 10

    assert await limit() == git_process.DEFAULT_MEMORY_BYTES
    assert await limit(memory=SMALL_MEMORY, max_file_size=1 << 20) == SMALL_MEMORY
    monkeypatch.setattr(resource, "getrlimit", lambda _: (SMALL_MEMORY, SMALL_MEMORY))
    assert await limit() == SMALL_MEMORY


async def test_a_missing_git_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(GitFailedError, match="not installed"):
        await Git(tmp_path / "git", timeout_s=30).run("version", cwd=None)


async def test_the_number_of_concurrent_git_processes_is_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(git_process, "MAX_PROCESSES", 2)
    runner = Git(tmp_path / "git", timeout_s=30)
    started, proceed = tmp_path / "started", tmp_path / "go"
    os.mkfifo(proceed)
    started.mkdir()
    alias = f"alias.hold=!touch {started}/$$; read x < {proceed}; true"
    tasks = [asyncio.create_task(runner.run("-c", alias, "hold", cwd=None)) for _ in range(3)]
    async with asyncio.timeout(30):
        while len(list(started.iterdir())) < 2:
            await asyncio.sleep(0.01)
        assert sum(1 for task in tasks if task.done()) == 0
        assert len(list(started.iterdir())) == 2, "the third one waits"
        tasks[0].cancel()  # a cancelled one frees its slot
        while len(list(started.iterdir())) < 3:
            await asyncio.sleep(0.01)
        tasks[1].cancel()
        tasks[2].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    assert (await runner.run("version", cwd=None)).code == 0


async def test_the_repositories_of_one_user_do_not_take_all_slots(harness: MirrorHarness, tmp_path: Path) -> None:
    assert bare_repository.MAX_PROCESSES < git_process.MAX_PROCESSES
    held, proceed = asyncio.Semaphore(0), asyncio.Event()

    class HeldGit(Git):
        async def run(self, *_words: object, **_options: object) -> git_process.GitResult:
            held.release()
            await proceed.wait()
            return git_process.GitResult(0, b"", "")

    async def get_owner_id(project_id: str) -> str:
        return "other" if project_id == "prj_3" else "owner"

    mirrors = Mirrors(HeldGit(tmp_path, timeout_s=30), harness.settings, get_owner_id=get_owner_id)
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        for project in ("prj_1", "prj_2") * bare_repository.MAX_PROCESSES:
            group.create_task(mirrors.get(project).read("version"))
        for _ in range(bare_repository.MAX_PROCESSES):
            await held.acquire()
        group.create_task(mirrors.get("prj_3").read("version"))
        await held.acquire()
        assert held.locked()  # the other reads of the first user wait
        proceed.set()


async def test_imports_that_wait_for_processes_of_their_user_do_not_block_those_of_others(
    harness: MirrorHarness, tmp_path: Path
) -> None:
    harness.commit_in_guest({"a.txt": "new"})
    bundle = harness.create_bundle("HEAD", "--not", "origin/main")
    held, proceed = asyncio.Semaphore(0), asyncio.Event()

    class HeldGit(Git):
        async def run(self, *words: str, **_options: object) -> git_process.GitResult:
            if "version" in words:
                held.release()
                await proceed.wait()
            return git_process.GitResult(0, b"", "")

    async def get_owner_id(project_id: str) -> str:
        return project_id.partition("-")[0]

    async def import_into(project: str) -> None:
        with pytest.raises(UnsafeBundleError, match="commits that the platform does not have"):
            await mirrors.get(project).import_bundle(bundle, {"HEAD": REF})

    mirrors = Mirrors(HeldGit(tmp_path, timeout_s=30), harness.settings, get_owner_id=get_owner_id)
    busy = ("ann-1", "ann-2", "ben-1", "ben-2")
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        for project in busy * (bare_repository.MAX_PROCESSES // 2):
            group.create_task(mirrors.get(project).read("version"))
        for _ in range(2 * bare_repository.MAX_PROCESSES):
            await held.acquire()
        waiting = [group.create_task(import_into(project)) for project in busy]
        for _ in range(20):
            await asyncio.sleep(0)
        async with asyncio.timeout(5):
            await import_into("eve-1")
        assert not any(task.done() for task in waiting)
        proceed.set()


@pytest.mark.parametrize("have", [(), ("a" * 40,)], ids=["full", "incremental"])
async def test_packing_leaves_processes_for_other_commands(
    harness: MirrorHarness, tmp_path: Path, have: Sequence[str]
) -> None:
    commit, held = "a" * 40, asyncio.Semaphore(0)

    class HeldGit(Git):
        async def run(self, *words: str, **_options: object) -> git_process.GitResult:
            if "cat-file" not in words:
                held.release()
                await asyncio.Event().wait()
            return git_process.GitResult(0, f"{commit} commit\n".encode(), "")

    async def get_owner_id(_project_id: str) -> str:
        return "owner"

    mirrors = Mirrors(HeldGit(tmp_path, timeout_s=30), harness.settings, get_owner_id=get_owner_id)
    packing = [
        asyncio.create_task(mirrors.get(f"prj_{number}").bundles.create(commit, ref="refs/heads/main", have=have))
        for number in range(2 * bare_repository.MAX_PROCESSES)
    ]
    try:
        async with asyncio.timeout(30):
            for _ in range(bare_repository.MAX_PACKS):
                await held.acquire()
            for _ in range(50):
                await asyncio.sleep(0)
            assert held.locked(), "more packs than the limit"
            assert await mirrors.get("prj_other").has_commit(commit)
    finally:
        await end_tasks(*packing)


async def import_commit(harness: MirrorHarness, tip: str, *known: str) -> None:
    git("update-ref", "refs/heads/out", tip, cwd=harness.clone_guest())
    path = harness.create_bundle("refs/heads/out", "--not", "origin/main", *known)
    await harness.mirror.import_bundle(path, {"refs/heads/out": REF})


async def test_a_tree_bomb_is_refused_anywhere_in_the_history(harness: MirrorHarness) -> None:
    await harness.refresh()
    work, main = harness.clone_guest(), str(harness.site.head("main"))
    one = create_commit(work, write_nested_trees(work), main)
    for tip in (one, create_commit(work, f"{main}^{{tree}}", one)):
        with pytest.raises(UnsafeBundleError, match="more than 1,000,000 files and folders"):
            await import_commit(harness, tip)
        assert await harness.mirror.list_refs("refs/sandyard") == {}
        assert not await harness.mirror.has_commit(tip)


async def test_paths_are_counted_exactly_including_those_of_known_trees(
    harness: MirrorHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree_paths, "MAX_PATHS", 2 * 14 + 2)
    monkeypatch.setattr(tree_paths, "BATCH", 2)
    await harness.refresh()
    work, main = harness.clone_guest(), str(harness.site.head("main"))
    inner = write_nested_trees(work, width=2, depth=3)  # 2 + 4 + 8
    first = create_commit(work, inner, main)
    await import_commit(harness, first)
    second = create_commit(work, write_tree(work, {"a": inner, "b": inner}, "040000 tree"), first)
    for restarted in (False, True):
        if restarted:
            harness.restart()
        await import_commit(harness, second, first)
        third = create_commit(work, write_tree(work, {"a": inner, "b": inner, "c": inner}, "040000 tree"), first)
        with pytest.raises(UnsafeBundleError, match="more than 30 files"):
            await import_commit(harness, third, first)


async def test_a_folder_with_an_unusual_mode_is_counted(
    harness: MirrorHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Git treats every mode of this kind as a folder."""
    monkeypatch.setattr(tree_paths, "MAX_PATHS", 5)
    counter = tree_paths.PathCounter({b"a" * 20: 3})
    for number, mode in enumerate((b"40000", b"040000", b"40755", b"1040000")):
        assert counter.add_tree(bytes([number]) * 20, mode + b" x\0" + b"a" * 20) == []
        assert counter.paths[bytes([number]) * 20] == 4
    counter.add_tree(b"f" * 20, b"100644 x\0" + b"a" * 20 + b"160000 y\0" + b"a" * 20)
    assert counter.paths[b"f" * 20] == 2


async def test_deeply_nested_trees_are_counted() -> None:
    counter = tree_paths.PathCounter({})
    depth = 5000
    ids = [number.to_bytes(20, "big") for number in range(depth)]
    for number in range(depth - 1, 0, -1):
        counter.add_tree(ids[number], b"40000 x\0" + ids[number - 1] + b"40000 y\0" + ids[number - 1])
    counter.add_tree(ids[0], b"")
    counter.add_up()
    assert counter.paths[ids[3]] == 14
    assert counter.paths[ids[-1]] == tree_paths.MAX_PATHS + 1


async def test_trees_that_cannot_be_counted_are_refused(
    harness: MirrorHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    await harness.refresh()
    work, main = harness.clone_guest(), str(harness.site.head("main"))
    tip = create_commit(work, write_nested_trees(work, width=2, depth=3), main)
    with monkeypatch.context() as patched:
        patched.setattr(tree_paths, "MAX_TREES", 2)
        with pytest.raises(UnsafeBundleError, match="more than 2 new folders"):
            await import_commit(harness, tip)
    with monkeypatch.context() as patched:
        patched.setattr(tree_paths, "OUTPUT_LIMIT", 50)
        with pytest.raises(UnsafeBundleError, match="MiB of names"):
            await import_commit(harness, tip)
    with monkeypatch.context() as patched:
        patched.setattr(tree_paths, "MAX_PENDING_FOLDERS", 1)
        patched.setattr(tree_paths, "BATCH", 1)
        counter = tree_paths.PathCounter({})
        with pytest.raises(TooMuchError, match="more than 1 folders"):
            counter.add_tree(b"f" * 20, b"40000 x\0" + b"a" * 20 + b"40000 y\0" + b"b" * 20)
    await import_commit(harness, tip)
