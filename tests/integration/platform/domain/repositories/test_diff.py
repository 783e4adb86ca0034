"""Reading history, diffs and status from repositories made by plain git, with unusual names and files."""

from __future__ import annotations

import os
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sandyard.platform.domain.repositories.diff import read_diff
from sandyard.platform.domain.repositories.errors import GitFailedError
from sandyard.platform.domain.repositories.history import read_history
from sandyard.platform.domain.repositories.model import Change, FileDiff, Status, StatusEntry
from sandyard.platform.domain.repositories.output import is_commit_id, parse_output
from sandyard.platform.domain.repositories.status import parse_status, read_stored_status
from tests.integration.platform.domain.repositories.plain import ANN, BOB, Repository

EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
ODD = [
    b"with space",
    b"tab\there",
    b"new\nline",
    b"-dash",
    b"--",
    b'quo"te',
    b"back\\slash",
    "unicode é🙂".encode(),
    b"latin \xe9\xff",
    b"*",
    b":(top)x",
    b"bell\x07",
    b" lead",
    b"trail ",
    b"a\ndiff --git a/x b/x",
    b":100644 000000",
]


class HostileReader:
    """A repository whose git prints arbitrary output."""

    def __init__(self, *answers: bytes) -> None:
        self.answers = iter(answers)

    async def read(self, *arguments: str, limit: int = 8 << 20) -> tuple[bytes, bool]:
        output = next(self.answers)
        return output[:limit], len(output) > limit


def encode_entry(name: bytes, letter: bytes = b"M") -> bytes:
    return b":100644 100644 %s %s %s\0%s\0" % (b"a" * 40, b"b" * 40, letter, name)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository.new(tmp_path / "repository")


def decode_name(name: bytes) -> str:
    return name.decode(errors="replace")


# history -----------------------------------------------------------------------------------------------------------------


async def test_history_lists_commits_and_merges(repository: Repository) -> None:
    first = repository.commit("feat: first\n\nIts body\nhas lines.\n\nCo-authored-by: C <c@d>", a="1")
    second = repository.commit("fix: second", a="2")
    repository.git("checkout", "-q", "-b", "side", first)
    side = repository.commit("docs: side", b="1")
    repository.git("checkout", "-q", "main")
    repository.git("merge", "-q", "--no-ff", "-m", "Merge side", "side")
    found = await read_history(repository, "HEAD", limit=10)
    assert {commit.id for commit in found} == {repository.head, first, second, side}
    merge, last = found[0], found[-1]
    assert merge.parents == (second, side)
    assert (merge.subject, merge.body) == ("Merge side", "")
    assert (last.id, last.parents, last.author, last.committer) == (first, (), ANN, BOB)
    assert (last.subject, last.body) == ("feat: first", "Its body\nhas lines.\n\nCo-authored-by: C <c@d>")
    assert abs((last.authored_at - datetime.now(UTC)).total_seconds()) < 600
    assert [commit.id for commit in await read_history(repository, f"{first}..{second}", limit=10)] == [second]
    assert len(await read_history(repository, "HEAD", limit=2)) == 2
    assert [c.id for c in await read_history(repository, "HEAD", limit=9, skip=3)] == [first]
    assert await read_history(repository, f"{second}..{second}", limit=10) == []


async def test_history_of_an_empty_repository_is_empty_and_unknown_revisions_fail(repository: Repository) -> None:
    assert await read_history(repository, "HEAD", limit=10) == []
    repository.commit(a="1")
    for bad in ("nowhere", "--all", "-1", "HEAD~99"):
        with pytest.raises(GitFailedError):
            await read_history(repository, bad, limit=10)


async def test_history_with_strange_bytes_and_dates(repository: Repository) -> None:
    tree = repository.git("write-tree")
    raw = b"tree %s\nauthor \xe9\xff <a@b> 99999999999999 +9900\ncommitter C <> -5 +0000\n\n\xff subject\n\nbody \xe9\n"
    commit = repository.git("hash-object", "-t", "commit", "-w", "--literally", "--stdin", stdin=raw % tree.encode())
    (found,) = await read_history(repository, commit, limit=1)
    assert (found.author.name, found.subject, found.body) == ("\ufffd\ufffd", "\ufffd subject", "body \ufffd")
    assert found.authored_at.tzinfo is UTC


async def test_history_is_truncated_at_the_read_limit(repository: Repository) -> None:
    repository.commit("feat: first")
    repository.git("commit", "-q", "--allow-empty", "-F", "-", stdin=b"feat: long\n\n" + b"x" * (9 << 20))
    repository.commit("feat: last")
    assert [commit.subject for commit in await read_history(repository, "HEAD", limit=9)] == ["feat: last"]


@pytest.mark.parametrize("limit", [0, 1, 3])
async def test_no_more_commits_than_requested_are_returned(limit: int) -> None:
    started = time.process_time()
    assert len(await read_history(HostileReader(b"\0" * (8 << 20)), "HEAD", limit=limit)) <= limit
    assert time.process_time() - started < 5


async def test_long_fields_of_a_commit_are_truncated() -> None:
    date = b"9" * 5000
    long = "é🙂".encode() * 50_000
    fields = [b"a" * 9000, b"b " * 90_000, long, long, date, long, long, date, long, b"\n" + long + b"\n"]
    (found,) = await read_history(HostileReader(b"\0".join([*fields, b""])), "HEAD", limit=5)
    assert (found.subject, found.body) == ("é🙂" * 500, "é🙂" * 10_000)
    assert {found.author.name, found.author.email, found.committer.name, found.committer.email} == {"é🙂" * 150}
    assert (len(found.id), len(found.parents)) == (64, 3250)
    assert found.authored_at == found.committed_at == datetime.fromtimestamp(0, UTC)


async def test_long_output_is_parsed_in_another_thread() -> None:
    assert await parse_output(b"x" * (256 << 10), lambda _: threading.current_thread()) is threading.current_thread()
    other = await parse_output(b"x" * ((256 << 10) + 1), lambda _: threading.current_thread())
    assert other is not threading.current_thread()


# diffs -------------------------------------------------------------------------------------------------------------------


async def read_diff_to_head(repository: Repository, base: str = "HEAD~1", **options: object) -> dict[str, FileDiff]:
    found = await read_diff(repository, base, "HEAD", **options)  # type: ignore[arg-type]
    assert not found.truncated
    return {file.path: file for file in found.files}


async def test_every_kind_of_change_to_a_file_is_reported(repository: Repository) -> None:
    text = "".join(f"line {number}\n" for number in range(40))
    names = "changed deleted renamed moved copied source mode binary link type"
    for name in names.split():
        repository.write(name, text + name)
    repository.write("binary", b"\0\1\2" + text.encode())
    repository.write("same", "same")
    repository.commit()
    repository.write("changed", text.replace("line 3\n", "line three\nand more\n") + "changed")
    (repository.path / "deleted").unlink()
    (repository.path / "renamed").rename(repository.path / "new name")
    (repository.path / "moved").unlink()
    repository.write("folder/moved", text + "moved a little")
    repository.write("copied", text + "copied, then changed")
    repository.write("copy", text + "copied")
    repository.write("mode", text + "mode", 0o755)
    repository.write("binary", b"\0\1\3" + text.encode())
    for name in ("link", "type"):
        (repository.path / name).unlink()
    (repository.path / "type").symlink_to("elsewhere")
    (repository.path / "fresh link").symlink_to("../outside")
    repository.write("empty", b"")
    repository.write("no newline", "end")
    repository.commit()
    found = await read_diff_to_head(repository)

    changed = found["changed"]
    assert (changed.change, changed.added, changed.removed) == (Change.MODIFIED, 2, 1)
    assert changed.patch is not None
    assert "-line 3\n+line three\n+and more\n" in changed.patch
    assert changed.patch.startswith("diff --git a/changed b/changed\n")
    assert (found["deleted"].change, found["deleted"].removed, found["deleted"].new_mode) == (Change.DELETED, 41, None)
    renamed = found["new name"]
    assert (renamed.change, renamed.old_path, renamed.added, renamed.removed) == (Change.RENAMED, "renamed", 0, 0)
    assert renamed.patch is not None
    assert "rename from renamed" in renamed.patch
    moved = found["folder/moved"]
    assert (moved.change, moved.old_path, moved.added, moved.removed) == (Change.RENAMED, "moved", 1, 1)
    assert (found["copy"].change, found["copy"].old_path) == (Change.COPIED, "copied")
    mode = found["mode"]
    assert (mode.change, mode.old_mode, mode.new_mode) == (Change.MODIFIED, "100644", "100755")
    assert mode.patch is not None
    assert "new mode 100755" in mode.patch
    binary = found["binary"]
    assert (binary.binary, binary.patch, binary.truncated, binary.added) == (True, None, False, None)
    kind = found["type"]
    assert (kind.change, kind.old_mode, kind.new_mode) == (Change.TYPE, "100644", "120000")
    assert kind.patch is not None
    assert kind.patch.count("diff --git") == 2
    assert "+elsewhere" in kind.patch
    assert found["fresh link"].new_mode == "120000"
    assert (found["empty"].added, found["empty"].binary) == (0, False)
    assert found["empty"].patch is not None
    assert "\\ No newline at end of file" in (found["no newline"].patch or "")
    assert "same" not in found


async def test_unusual_names_are_reported(repository: Repository) -> None:
    for name in ODD:
        repository.write(name, b"old " + name)
    repository.commit()
    for name in ODD:
        repository.write(name, b"new " + name)
        repository.write(b"added/" + name, b"added " + name)
    repository.commit()
    found = await read_diff(repository, "HEAD~1", "HEAD")
    assert {file.path for file in found.files} == {decode_name(name) for odd in ODD for name in (odd, b"added/" + odd)}
    for file in found.files:
        assert file.patch is not None, file.path
        what = "added" if file.change is Change.ADDED else "new"
        name = file.path.removeprefix("added/")
        assert f"\n+{what} {name.splitlines()[0]}" in file.patch.replace("\n+", "\n+"), file.path
    for name in ("*", ":(top)x", "-dash", "--", "new\nline"):
        one = await read_diff(repository, "HEAD~1", "HEAD", paths=[name])
        assert [file.path for file in one.files] == [name], "a path is a name, not a pattern"
    odd = os.fsdecode(b"latin \xe9\xff")
    assert [file.path for file in (await read_diff(repository, "HEAD~1", "HEAD", paths=[odd])).files] == [
        decode_name(b"latin \xe9\xff")
    ]


async def test_renames_of_unusual_names_and_large_files_are_reported(repository: Repository) -> None:
    """Patches are then requested by name."""
    for name in ODD:
        repository.write(b"before/" + name, b"a\nb\nc\nd\n" + name * 3)
    repository.write("large", "x\n")
    repository.commit()
    (repository.path / "before").rename(repository.path / "after")
    repository.write("large", "line\n" * 200_000)
    repository.write("long line", "y" * 300_000)
    repository.commit()
    found = await read_diff_to_head(repository)
    for name in ODD:
        file = found[decode_name(b"after/" + name)]
        assert (file.change, file.old_path) == (Change.RENAMED, decode_name(b"before/" + name))
        assert file.patch is not None
        assert "rename to" in file.patch
    large = found["large"]
    assert (large.patch, large.truncated, large.added, large.removed) == (None, True, 200_000, 1)
    assert (found["long line"].patch, found["long line"].truncated) == (None, True)


async def test_a_very_large_file_does_not_hide_the_others(repository: Repository) -> None:
    repository.commit()
    repository.write("a large", b"word " * (4 << 20))
    repository.write("b large", b"line of text\n" * (1 << 20))
    repository.write("c small", "small\n")
    repository.commit()
    found = await read_diff_to_head(repository)
    assert [(found[name].patch, found[name].truncated) for name in ("a large", "b large")] == [(None, True)] * 2
    assert "+small" in (found["c small"].patch or "")


@pytest.mark.parametrize("files", [1500, pytest.param(5000, marks=pytest.mark.slow)])
async def test_a_diff_of_thousands_of_files_is_truncated(repository: Repository, files: int) -> None:
    repository.commit()
    for number in range(files):
        repository.write(f"folder {number % 50}/file {number}", f"{number}\n" * 3)
    repository.commit()
    found = await read_diff(repository, "HEAD~1", "HEAD")
    assert (len(found.files), found.truncated, found.added, found.removed) == (1000, True, 3 * files, 0)
    assert all(file.patch is not None for file in found.files)
    found = await read_diff(repository, "HEAD~1", "HEAD", max_files=6000, max_bytes=100_000)
    assert (len(found.files), found.truncated) == (files, False)
    with_patch = [file for file in found.files if file.patch is not None]
    assert 100 < len(with_patch) < min(files, 2000)
    assert all(file.truncated for file in found.files if file.patch is None)
    found = await read_diff(repository, "HEAD~1", "HEAD", max_files=6000, patches=False)
    assert {(file.patch, file.truncated, file.added) for file in found.files} == {(None, False, 3)}


async def test_overlong_numbers_are_ignored() -> None:
    output = (
        encode_entry(b"a") + encode_entry(b"b") + b"%s\t1\ta\0" % (b"9" * 5000) + b"999999999999\t%s\tb\0" % (b"1" * 13)
    )
    found = await read_diff(HostileReader(output), "a", "b", patches=False)
    assert [(file.path, file.added, file.removed) for file in found.files] == [
        ("a", None, 1),
        ("b", 999_999_999_999, None),
    ]
    assert (found.added, found.removed) == (999_999_999_999, 1)


@pytest.mark.parametrize(
    "output",
    [
        encode_entry(b"a") * 100_000,
        encode_entry(b"") * 100_000,
        b":" * (9 << 20),
        b":\0" * (5 << 20),
        encode_entry(b"a") * 2000 + b"1\t1\ta\0" * (1 << 20),
        encode_entry(b"a") * 2000 + b"9" * (8 << 20),
    ],
)
async def test_the_number_of_files_from_hostile_output_is_bounded(output: bytes) -> None:
    started = time.process_time()
    found = await read_diff(HostileReader(output, b""), "a", "b", max_files=5)
    assert (len(found.files), found.truncated) == (5 if output.startswith(b":1") else 0, True)
    assert found.added <= 2000, "each file is counted once"
    assert time.process_time() - started < 5


@pytest.mark.parametrize(
    "patches",
    [
        b"diff --git \n" * 400_000,
        b"\n" * (5 << 20),
        b":1 M\ta\n" * 600_000,
        b":1 M\ta\n" * 20_000 + b"\n" + b"diff --git a\n" * 400_000,
        b":1 M\ta\n\n" + b"diff --git a\n" * 400_000,
        b':1 M\t"' + b"\\001" * (1 << 20) + b'"\n\n',
    ],
)
async def test_patches_that_do_not_match_the_list_of_files_are_dropped(patches: bytes) -> None:
    started = time.process_time()
    found = await read_diff(HostileReader(encode_entry(b"a") + b"1\t1\ta\0", patches, b""), "a", "b")
    assert [(file.path, file.patch, file.truncated) for file in found.files] == [("a", None, True)]
    assert time.process_time() - started < 5


async def test_context_and_paths_restrict_the_diff(repository: Repository) -> None:
    repository.commit(a="".join(f"{n}\n" for n in range(30)), b="b\n")
    repository.commit(a="".join(f"{n if n != 15 else 'x'}\n" for n in range(30)), b="c\n")
    assert set(await read_diff_to_head(repository, paths=["b"])) == {"b"}
    assert set(await read_diff_to_head(repository, paths=["nowhere"])) == set()
    lines = (await read_diff_to_head(repository, context=0))["a"].patch or ""
    assert "\n 14\n" not in lines
    assert "\n 14\n" in ((await read_diff_to_head(repository))["a"].patch or "")
    assert (await read_diff(repository, "HEAD", "HEAD")).files == ()
    assert set(await read_diff_to_head(repository, EMPTY_TREE)) == {"a", "b"}
    with pytest.raises(GitFailedError):
        await read_diff(repository, "--output=/tmp/x", "HEAD")


async def test_changed_submodules_are_reported(repository: Repository, tmp_path: Path) -> None:
    repository.commit()
    inner = Repository.new(repository.path / "inner")
    first = inner.commit(a="1")
    repository.commit()
    second = inner.commit(a="2")
    repository.commit()
    found = await read_diff_to_head(repository)
    assert (found["inner"].change, found["inner"].new_mode) == (Change.MODIFIED, "160000")
    assert f"-Subproject commit {first}\n+Subproject commit {second}\n" in (found["inner"].patch or "")


async def test_configuration_of_the_repository_does_not_change_the_result(repository: Repository) -> None:
    """An agent may configure its checkout in any way."""
    for name, value in {
        "diff.noprefix": "true",
        "diff.external": "false",
        "diff.renames": "false",
        "color.ui": "always",
        "diff.x.textconv": "echo fooled",
        "diff.x.command": "false",
        "core.quotePath": "false",
        "diff.context": "0",
        "diff.ignoreSubmodules": "all",
        "log.showSignature": "true",
        "format.pretty": "oneline",
        "diff.submodule": "log",
    }.items():
        repository.git("config", name, value)
    repository.write(".gitattributes", "* diff=x\n")
    repository.commit(a="1\n2\n3\n4\n", é="1\n2\n3\n")
    (repository.path / "a").rename(repository.path / "b")
    repository.commit(é="1\n2\nx\n")
    found = await read_diff_to_head(repository)
    assert (found["b"].change, found["b"].old_path) == (Change.RENAMED, "a")
    assert " 1\n 2\n-3\n+x\n" in (found["é"].patch or "")
    assert (await read_history(repository, "HEAD", limit=1))[0].subject == "feat: more"


# status ------------------------------------------------------------------------------------------------------------------


def read_status(repository: Repository) -> dict[str, StatusEntry]:
    output = repository.raw("status", "--porcelain=v2", "-z", "--branch", "--untracked-files=all")
    return {entry.path: entry for entry in parse_status(output).entries}


async def test_the_status_lists_every_kind_of_change(repository: Repository) -> None:
    text = "".join(f"line {n}\n" for n in range(20))
    for name in ("staged", "loose", "both", "gone", "removed", "old", "mode"):
        repository.write(name, text + name)
    repository.commit()
    repository.write("staged", "x")
    repository.write("both", "x")
    (repository.path / "removed").unlink()
    (repository.path / "old").rename(repository.path / "new")
    repository.write("added", "x")
    repository.git("add", "-A")
    repository.write("both", "y")
    repository.write("loose", "x")
    repository.write("mode", text + "mode", 0o755)
    (repository.path / "gone").unlink()
    for name in ODD:
        repository.write(b"odd/" + name)
    found = read_status(repository)
    assert found["staged"] == StatusEntry("staged", index=Change.MODIFIED)
    assert found["both"] == StatusEntry("both", Change.MODIFIED, Change.MODIFIED)
    assert found["removed"] == StatusEntry("removed", index=Change.DELETED)
    assert found["new"] == StatusEntry("new", index=Change.RENAMED, old_path="old")
    assert found["added"] == StatusEntry("added", index=Change.ADDED)
    assert found["loose"] == StatusEntry("loose", worktree=Change.MODIFIED)
    assert found["mode"] == StatusEntry("mode", worktree=Change.MODIFIED)
    assert found["gone"] == StatusEntry("gone", worktree=Change.DELETED)
    for name in ODD:
        path = decode_name(b"odd/" + name)
        assert found[path] == StatusEntry(path, worktree=Change.UNTRACKED)
    assert len(found) == 8 + len(ODD)


async def test_the_status_of_conflicts_empty_repositories_and_truncated_output_is_parsed(
    repository: Repository,
) -> None:
    parsed = parse_status(repository.raw("status", "--porcelain=v2", "-z", "--branch"))
    assert (parsed.branch, parsed.head, parsed.clean) == ("main", None, True)
    first = repository.commit(**{"a file": "1"})
    repository.git("checkout", "-q", "-b", "side")
    repository.commit(**{"a file": "2"})
    repository.git("checkout", "-q", "main")
    head = repository.commit(**{"a file": "3"})
    with pytest.raises(GitFailedError):
        repository.git("merge", "side")
    output = repository.raw("status", "--porcelain=v2", "-z", "--branch")
    parsed = parse_status(output, under_way="merge")
    assert (parsed.branch, parsed.head, parsed.under_way, parsed.live) == ("main", head, "merge", True)
    assert parsed.entries == (StatusEntry("a file", Change.CONFLICTED, Change.CONFLICTED),)
    assert parse_status(output[:-3], truncated=True).entries == ()
    assert parse_status(b"").entries == ()
    assert parse_status(b"1 M\x00u\x002 R. a b\0\xff\0? \0").entries == (StatusEntry("", worktree=Change.UNTRACKED),)
    repository.git("reset", "-q", "--hard")
    repository.git("checkout", "-q", "--detach", first)
    parsed = parse_status(repository.raw("status", "--porcelain=v2", "-z", "--branch"))
    assert (parsed.branch, parsed.head) == (None, first)


async def test_the_stored_status_of_a_work_tree_equals_the_original(repository: Repository) -> None:
    text = "".join(f"line {n}\n" for n in range(20))
    for name in ("staged", "both", "gone", "old", "kept"):
        repository.write(name, text + name)
    head = repository.commit()
    repository.write("staged", "x")
    repository.write("both", "x")
    (repository.path / "old").rename(repository.path / "new")
    repository.write("added", "x")
    repository.git("add", "-A")
    repository.git("rm", "-q", "--cached", "kept")
    repository.write("both", "y")
    (repository.path / "gone").unlink()
    for name in ODD:
        repository.write(b"odd/" + name)
    before = parse_status(
        repository.raw("status", "--porcelain=v2", "-z", "--branch", "--untracked-files=all", "--find-renames")
    )
    index = repository.git("commit-tree", "-p", head, "-m", "index", repository.git("write-tree"))
    repository.git("add", "-A")
    commit = repository.git("commit-tree", "-p", head, "-p", index, "-m", "w", repository.git("write-tree"))
    saved_at = datetime.now(UTC)
    after = await read_stored_status(repository, commit, branch="main", as_of=saved_at)

    def entries(status: Status) -> list[StatusEntry]:
        return sorted(status.entries, key=str)

    assert entries(after) == entries(before)
    assert (after.branch, after.head, after.live, after.as_of) == ("main", head, False, saved_at)
    limited = await read_stored_status(repository, commit, branch="main", limit=300)
    assert limited.truncated
    assert 0 < len(limited.entries) < len(after.entries)


@pytest.mark.parametrize(
    "output",
    [
        b"? ab\0" * ((8 << 20) // 5),
        b"1 M. N... 100644 100644 100644 a b x\0" * 200_000,
        b"2 R. N... 100644 100644 100644 a b R1 x\0y\0" * 190_000,
        b"\0" * (8 << 20),
        b"# branch.head x\0" * (1 << 19),
        b"? " + b"\xff" * (8 << 20),
    ],
)
def test_the_number_of_status_entries_is_bounded(output: bytes) -> None:
    started = time.process_time()
    found = parse_status(output[: 8 << 20], under_way="x" * 1000)
    assert time.process_time() - started < 5
    assert found.truncated
    assert len(found.entries) == (10_000 if output[:4] in (b"? ab", b"1 M.", b"2 R.") else 0)
    assert len(found.under_way or "") < 100


def test_status_entries_within_the_limits_are_complete() -> None:
    head = b"# branch.oid %s\0# branch.head main\0" % (b"a" * 40)
    whole = parse_status(head + b"2 R. N... 100644 100644 100644 a b R1 x\0y\0" * 10_000)
    assert (len(whole.entries), whole.truncated, whole.branch, whole.head) == (10_000, False, "main", "a" * 40)
    assert set(whole.entries) == {StatusEntry("x", index=Change.RENAMED, old_path="y")}
    (long,) = parse_status(b"? " + b"x" * 10_000 + b"\0").entries
    assert len(long.path) == 4096


async def test_a_stored_status_is_truncated_at_the_limit() -> None:
    output = b"".join(encode_entry(b"%d" % number) for number in range(11_000))
    found = await read_stored_status(HostileReader(b"a" * 40, output, output), "c", branch="main")
    assert (len(found.entries), found.truncated) == (10_000, True)
    assert {(item.index, item.worktree) for item in found.entries} == {(Change.MODIFIED, Change.MODIFIED)}
    found = await read_stored_status(HostileReader(b"a" * 40, output[: len(output) // 2], b""), "c", branch="main")
    assert (5400 < len(found.entries) < 6000, found.truncated) == (True, False)


def test_commit_ids_are_recognized() -> None:
    assert is_commit_id("a" * 40)
    assert is_commit_id("0" * 64)
    assert not any(is_commit_id(text) for text in ("", "HEAD", "a" * 39, "A" * 40, "a" * 40 + "\n", "g" * 40))
