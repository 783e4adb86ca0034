"""What an agent could hand out as its commits, and what the mirror makes of it."""

from __future__ import annotations

import asyncio
import hashlib
import os
import struct
import zlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from sandyard.platform.domain.repositories import bundle_import, mirror
from sandyard.platform.domain.repositories.bare_repository import BareRepository
from sandyard.platform.domain.repositories.errors import GitTimeoutError, TooMuchError, UnsafeBundleError
from tests.forge.repositories import git
from tests.integration.platform.domain.repositories.mirrored import Mirrored

REF = "refs/sandyard/sandboxes/s1/head"
PERSON = b"A <a@b> 1700000000 +0000"
COMMIT, TREE, BLOB, TAG, DELTA = 1, 2, 3, 4, 7
KINDS = {COMMIT: b"commit", TREE: b"tree", BLOB: b"blob", TAG: b"tag"}


@pytest.fixture
async def fresh(place: Mirrored) -> AsyncIterator[Mirrored]:
    """A mirror that is as it was when the test ends, however the test tries to change it with `refused`."""
    await place.refresh()
    yield place


def name(kind: int, content: bytes) -> str:
    return hashlib.sha1(KINDS[kind] + b" %d\0" % len(content) + content).hexdigest()


def entry(mode: bytes, path: bytes, object_id: str) -> bytes:
    return mode + b" " + path + b"\0" + bytes.fromhex(object_id)


def packed(*objects: tuple[int, bytes], count: int | None = None, base: str = "") -> bytes:
    """A pack as git writes one, of whatever it is told. `base`: what its deltas are upon."""
    out = b"PACK" + struct.pack(">II", 2, len(objects) if count is None else count)
    for kind, content in objects:
        size, first = len(content) >> 4, kind << 4 | len(content) & 15
        while size:
            out += bytes([first | 128])
            first, size = size & 127, size >> 7
        out += bytes([first]) + (bytes.fromhex(base) if kind == DELTA else b"") + zlib.compress(content)
    return out + hashlib.sha1(out).digest()


def bundle(place: Mirrored, tip: str, pack: bytes, *, header: bytes = b"", ref: str = "HEAD") -> Path:
    path = place.folder / "made.bundle"
    path.write_bytes(b"# v2 git bundle\n" + header + f"{tip} {ref}\n\n".encode() + pack)
    return path


def of_tree(place: Mirrored, tree: bytes, *more: tuple[int, bytes]) -> Path:
    """A bundle of one commit with this tree."""
    commit = b"tree " + name(TREE, tree).encode() + b"\nauthor " + PERSON + b"\ncommitter " + PERSON + b"\n\nfeat: x\n"
    return bundle(place, name(COMMIT, commit), packed((COMMIT, commit), (TREE, tree), *more))


async def refused(place: Mirrored, path: Path, *, match: str | None = None, refs: dict[str, str] | None = None) -> None:
    before = sorted(place.mirror.objects.rglob("*"))
    with pytest.raises(UnsafeBundleError, match=match) as error:
        await place.mirror.import_bundle(path, refs or {"HEAD": REF})
    assert error.value.message.endswith((".", "…")) or "It said:" in error.value.message
    assert await place.mirror.list_refs("refs/sandyard") == {}
    assert sorted(place.mirror.objects.rglob("*")) == before, "nothing of it stays"
    assert not list(place.mirror.folder.glob("sandyard/scratch/*"))


HELLO = b"hello\n"
HELLO_ID = name(BLOB, HELLO)


async def test_sound_commits_are_taken_as_often_as_one_likes(fresh: Mirrored) -> None:
    commit = fresh.work({"a": "a", "run.sh": "#!/bin/sh\n"})
    path = fresh.bundled("HEAD", "--not", "origin/main")
    for _ in range(2):
        assert await fresh.mirror.import_bundle(path, {"HEAD": REF}) == {REF: commit}
    assert await fresh.mirror.list_refs("refs/sandyard") == {REF: commit}
    assert await fresh.mirror.read("cat-file", "blob", f"{commit}:a") == (b"a", False)
    assert len(list(fresh.mirror.objects.glob("pack/*.pack"))) == 2
    git("fsck", "--strict", cwd=fresh.mirror.folder)


async def test_a_rewritten_history_and_several_refs_are_taken(fresh: Mirrored) -> None:
    await fresh.brought({"a": "a"})
    git("reset", "-q", "--hard", "origin/main", cwd=fresh.guest())
    commit = fresh.work({"b": "b"})
    git("tag", "-a", "v1", "-m", "one", cwd=fresh.guest())
    path = fresh.bundled("HEAD", "refs/tags/v1", "--not", "origin/main")
    taken = await fresh.mirror.import_bundle(
        path, {"HEAD": "refs/sandyard/guest", "refs/tags/v1": "refs/sandyard/tags/v1"}
    )
    assert taken == {"refs/sandyard/guest": commit, "refs/sandyard/tags/v1": commit}
    refs = await fresh.mirror.list_refs("refs/sandyard")
    assert refs["refs/sandyard/guest"] == commit
    assert await fresh.mirror.resolve("refs/sandyard/tags/v1") == commit
    assert await fresh.mirror.list_refs("refs/tags") == {}


async def test_what_this_test_makes_is_what_git_makes(fresh: Mirrored) -> None:
    """So that the refusals below are of what is wrong with each."""
    await fresh.mirror.import_bundle(of_tree(fresh, entry(b"100644", b"a", HELLO_ID), (BLOB, HELLO)), {"HEAD": REF})
    assert await fresh.mirror.read("cat-file", "blob", f"{REF}:a") == (HELLO, False)


@pytest.mark.parametrize("path", [b".git", b"..", b".", b"", b".GIT", b"git~1", b"a/b", b".g\xe2\x80\x8cit"])
async def test_a_file_that_would_be_written_elsewhere_is_refused(fresh: Mirrored, path: bytes) -> None:
    await refused(fresh, of_tree(fresh, entry(b"100644", path, HELLO_ID), (BLOB, HELLO)))


async def test_a_folder_dot_git_with_a_config_is_refused(fresh: Mirrored) -> None:
    config = b"[core]\n\tfsmonitor = touch /tmp/never\n"
    inner = entry(b"100644", b"config", name(BLOB, config))
    await refused(fresh, of_tree(fresh, entry(b"40000", b".git", name(TREE, inner)), (TREE, inner), (BLOB, config)))


async def test_two_files_of_one_name_are_refused(fresh: Mirrored) -> None:
    twice = entry(b"100644", b"a", HELLO_ID) + entry(b"120000", b"a", HELLO_ID)
    await refused(fresh, of_tree(fresh, twice, (BLOB, HELLO)))


@pytest.mark.parametrize(
    "text",
    [
        b'[submodule "../../x"]\n\tpath = x\n\turl = https://h/x\n',
        b'[submodule "x"]\n\tpath = x\n\turl = -u./payload\n',
        b'[submodule "x"]\n\tpath = -x\n\turl = https://h/x\n',
        b'[submodule "x"]\n\tpath = x\n\turl = https://h/x\n\tupdate = !touch /tmp/never\n',
    ],
)
async def test_submodules_that_run_something_are_refused(fresh: Mirrored, text: bytes) -> None:
    await refused(fresh, of_tree(fresh, entry(b"100644", b".gitmodules", name(BLOB, text)), (BLOB, text)))


async def test_a_gitmodules_that_is_a_link_is_refused(fresh: Mirrored) -> None:
    await refused(fresh, of_tree(fresh, entry(b"120000", b".gitmodules", HELLO_ID), (BLOB, HELLO)))


async def test_missing_objects_are_refused(fresh: Mirrored) -> None:
    await refused(fresh, of_tree(fresh, entry(b"100644", b"a", HELLO_ID)))  # the file
    await refused(fresh, of_tree(fresh, entry(b"40000", b"a", "4" * 40)))  # a folder
    await refused(fresh, of_tree(fresh, entry(b"100644", b".gitmodules", HELLO_ID)))
    await refused(fresh, bundle(fresh, "5" * 40, packed((BLOB, HELLO))))  # the commit
    orphan = (
        b"tree " + b"6" * 40 + b"\nparent " + b"7" * 40 + b"\nauthor " + PERSON + b"\ncommitter " + PERSON + b"\n\nx\n"
    )
    await refused(fresh, bundle(fresh, name(COMMIT, orphan), packed((COMMIT, orphan))))


async def test_a_ref_that_is_not_a_commit_is_refused(fresh: Mirrored) -> None:
    await refused(fresh, bundle(fresh, HELLO_ID, packed((BLOB, HELLO))), match="not a commit")
    tag = f"object {HELLO_ID}\ntype blob\ntag v1\ntagger ".encode() + PERSON + b"\n\nx\n"
    await refused(fresh, bundle(fresh, name(TAG, tag), packed((TAG, tag), (BLOB, HELLO))), match="not a commit")


async def test_commits_upon_others_that_were_never_seen_are_refused(fresh: Mirrored) -> None:
    fresh.work({"a": "a"})
    fresh.work({"b": "b"})
    await refused(fresh, fresh.bundled("HEAD", "--not", "HEAD~1"), match="never seen")


async def test_malformed_commits_are_refused(fresh: Mirrored) -> None:
    tree = entry(b"100644", b"a", HELLO_ID)
    for who in (b"A <a@b> 99999999999999999999 +0000", b"no address", b"A <a@b>\nauthor B <b@c> 1 +0000"):
        bad = b"tree " + name(TREE, tree).encode() + b"\nauthor " + who + b"\ncommitter " + PERSON + b"\n\nx\n"
        path = bundle(fresh, name(COMMIT, bad), packed((COMMIT, bad), (TREE, tree), (BLOB, HELLO)))
        await refused(fresh, path)


async def test_refs_other_than_those_asked_for_are_refused(fresh: Mirrored) -> None:
    fresh.work({"a": "a"})
    await refused(fresh, fresh.bundled("HEAD", "main", "--not", "origin/main"), match="and nothing else")
    await refused(fresh, fresh.bundled("main", "--not", "origin/main"), match="and nothing else")
    path = fresh.bundled("HEAD", "--not", "origin/main")
    await refused(fresh, path, refs={"HEAD": REF, "refs/tags/v1": "refs/sandyard/tags/v1"})
    for forbidden in ("refs/remotes/origin/main", "refs/tags/v1", "refs/heads/x", "HEAD"):
        with pytest.raises(ValueError, match="refs/sandyard"):
            await fresh.mirror.import_bundle(path, {"HEAD": forbidden})


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"# v2 git bundle\n",
        b"# v2 git bundle\n\n",
        b"# v9 git bundle\n\nPACK",
        b"# v3 git bundle\n@filter=blob:none\n" + b"1" * 40 + b" HEAD\n\nPACK",
        b"# v3 git bundle\n@object-format=sha256\n" + b"1" * 64 + b" HEAD\n\nPACK",
        b"# v2 git bundle\n" + b"1" * 40 + b" HEAD\n" + b"1" * 40 + b" HEAD\n\nPACK",
        b"# v2 git bundle\n" + b"1" * 40 + b" HEAD\n\nPACK\0\0\0\2\0\0\0\1",
        b"# v2 git bundle\n" + b"1" * 40 + b" refs/heads/\xff\xfe\n\nPACK",
        b"# v2 git bundle\n-" + b"a" * 5000 + b"\n\nPACK",
        b"# v2 git bundle\n" + (b"-" + b"a" * 40 + b"\n") * 60_000 + b"\nPACK",
        b"# v2 git bundle\n--all\n\nPACK",
        b"\x7fELF" + b"\0" * 5000,
    ],
)
async def test_what_is_no_bundle_is_refused(fresh: Mirrored, content: bytes) -> None:
    path = fresh.folder / "made.bundle"
    path.write_bytes(content)
    await refused(fresh, path)


async def test_what_is_no_file_is_refused(fresh: Mirrored) -> None:
    fresh.work({"a": "a"})
    link = fresh.folder / "link"
    link.symlink_to(fresh.bundled("HEAD", "--not", "origin/main"))
    await refused(fresh, link, match="not a file")
    await refused(fresh, fresh.folder, match="not a file")
    fifo = fresh.folder / "fifo"
    os.mkfifo(fifo)
    await refused(fresh, fifo, match="not a file")


async def test_a_pack_that_is_damaged_or_lies_about_itself_is_refused(fresh: Mirrored) -> None:
    fresh.work({"a": "a" * 1000})
    path = fresh.bundled("HEAD", "--not", "origin/main")
    whole = path.read_bytes()
    path.write_bytes(whole[:-30])
    await refused(fresh, path)
    path.write_bytes(whole[:-60] + b"xxxx" + whole[-56:])
    await refused(fresh, path)
    await refused(fresh, bundle(fresh, HELLO_ID, packed((BLOB, HELLO), count=4_000_000_000)))


async def test_an_object_that_unfolds_to_gigabytes_is_refused(fresh: Mirrored) -> None:
    """Its size alone is told, in a few bytes: git must not ask for so much memory."""
    claimed = 8 << 30
    head, size = bytearray([COMMIT << 4 | claimed & 15 | 128]), claimed >> 4
    while size > 127:
        head.append(size & 127 | 128)
        size >>= 7
    head.append(size)
    out = b"PACK" + struct.pack(">II", 2, 1) + bytes(head) + zlib.compress(b"\0" * 1000)
    await refused(fresh, bundle(fresh, "1" * 40, out + hashlib.sha1(out).digest()), match="memory that Git may use")


def number(value: int) -> bytes:
    """As deltas have sizes."""
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


async def test_a_delta_that_unfolds_to_hundreds_of_megabytes_is_refused(fresh: Mirrored) -> None:
    part, times = bytes(1 << 20), 250
    delta = number(len(part)) + number(len(part) * times) + b"\xc0\x10" * times  # each: 1 MiB from its beginning
    made = packed((BLOB, part), (DELTA, delta), base=name(BLOB, part))
    assert len(made) < 3000
    await refused(fresh, bundle(fresh, "1" * 40, made), match="memory that Git may use")


@pytest.mark.slow
async def test_a_large_file_is_taken_all_the_same(fresh: Mirrored) -> None:
    large = bytes(210 << 20)
    path = of_tree(fresh, entry(b"100644", b"large", name(BLOB, large)), (BLOB, large))
    assert len(await fresh.mirror.import_bundle(path, {"HEAD": REF})) == 1


async def test_what_takes_too_long_is_stopped_and_leaves_nothing(
    fresh: Mirrored, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh.work({"a": "a"})
    path = fresh.bundled("HEAD", "--not", "origin/main")
    before = sorted(fresh.mirror.objects.rglob("*"))
    monkeypatch.setattr(bundle_import, "_TIMEOUT_S", 0)  # not a moment: git may be done in any other
    with pytest.raises(GitTimeoutError, match="index-pack"):
        await fresh.mirror.import_bundle(path, {"HEAD": REF})
    assert sorted(fresh.mirror.objects.rglob("*")) == before
    assert not list(fresh.mirror.folder.glob("sandyard/scratch/*"))


@pytest.mark.parametrize(("projects", "at_once"), [((1, 1, 1), 2), ((1, 1, 1, 2, 2, 3, 3), 4)])
async def test_a_few_are_taken_at_once_of_one_person_and_of_all(
    fresh: Mirrored, monkeypatch: pytest.MonkeyPatch, projects: tuple[int, ...], at_once: int
) -> None:
    now, most, last, go_on = 0, 0, asyncio.Event(), asyncio.Event()

    async def counted(bare: BareRepository, path: Path, refs: Mapping[str, str], *, limit: int) -> dict[str, str]:
        nonlocal now, most
        now += 1
        most = max(most, now)
        if now == at_once:
            last.set()
        await go_on.wait()
        now -= 1
        return dict(refs)

    monkeypatch.setattr(mirror, "import_bundle", counted)
    asked = [
        asyncio.create_task(fresh.mirrors.get(f"p{one}").import_bundle(fresh.folder, {"HEAD": REF})) for one in projects
    ]
    async with asyncio.timeout(60):
        await last.wait()
        for _ in range(20):
            await asyncio.sleep(0)  # all that can begin has begun
        go_on.set()
        assert await asyncio.gather(*asked) == [{"HEAD": REF}] * len(projects)
    assert most == at_once


async def test_names_that_cannot_be_stored_are_in_no_error(fresh: Mirrored) -> None:
    path = fresh.folder / "made.bundle"
    path.write_bytes(b"# v2 git bundle\n" + b"1" * 40 + b" refs/\0\x1b[2J\xff\n\nPACK")
    with pytest.raises(UnsafeBundleError, match="and nothing else") as error:
        await fresh.mirror.import_bundle(path, {"HEAD": REF})
    assert error.value.message.isprintable()


async def test_more_than_the_limit_is_refused(fresh: Mirrored) -> None:
    fresh.restart(git_transfer_limit=1 << 20)
    path = fresh.folder / "made.bundle"
    path.write_bytes(b"# v2 git bundle\n" + b"x" * (1 << 20))
    with pytest.raises(TooMuchError):
        await fresh.mirror.import_bundle(path, {"HEAD": REF})
