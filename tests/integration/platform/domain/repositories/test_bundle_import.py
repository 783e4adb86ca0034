"""Bundles that an agent could send as its commits, and how the mirror handles them."""

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
from tests.integration.platform.domain.repositories.mirrored import MirrorHarness

REF = "refs/sandyard/sandboxes/s1/head"
PERSON = b"A <a@b> 1700000000 +0000"
COMMIT, TREE, BLOB, TAG, DELTA = 1, 2, 3, 4, 7
KINDS = {COMMIT: b"commit", TREE: b"tree", BLOB: b"blob", TAG: b"tag"}


@pytest.fixture
async def refreshed(harness: MirrorHarness) -> AsyncIterator[MirrorHarness]:
    """A mirror that was refreshed. `expect_refused` checks that it stays unchanged."""
    await harness.refresh()
    yield harness


def hash_object(kind: int, content: bytes) -> str:
    return hashlib.sha1(KINDS[kind] + b" %d\0" % len(content) + content).hexdigest()


def encode_entry(mode: bytes, path: bytes, object_id: str) -> bytes:
    return mode + b" " + path + b"\0" + bytes.fromhex(object_id)


def build_pack(*objects: tuple[int, bytes], count: int | None = None, base: str = "") -> bytes:
    """Build a pack in the format of git from any objects. `base`: the object its deltas refer to."""
    out = b"PACK" + struct.pack(">II", 2, len(objects) if count is None else count)
    for kind, content in objects:
        size, first = len(content) >> 4, kind << 4 | len(content) & 15
        while size:
            out += bytes([first | 128])
            first, size = size & 127, size >> 7
        out += bytes([first]) + (bytes.fromhex(base) if kind == DELTA else b"") + zlib.compress(content)
    return out + hashlib.sha1(out).digest()


def write_bundle(harness: MirrorHarness, tip: str, pack: bytes, *, header: bytes = b"", ref: str = "HEAD") -> Path:
    path = harness.folder / "made.bundle"
    path.write_bytes(b"# v2 git bundle\n" + header + f"{tip} {ref}\n\n".encode() + pack)
    return path


def write_tree_bundle(harness: MirrorHarness, tree: bytes, *more: tuple[int, bytes]) -> Path:
    """Write a bundle of one commit with this tree."""
    commit = (
        b"tree "
        + hash_object(TREE, tree).encode()
        + b"\nauthor "
        + PERSON
        + b"\ncommitter "
        + PERSON
        + b"\n\nfeat: x\n"
    )
    return write_bundle(harness, hash_object(COMMIT, commit), build_pack((COMMIT, commit), (TREE, tree), *more))


async def expect_refused(
    harness: MirrorHarness, path: Path, *, match: str | None = None, refs: dict[str, str] | None = None
) -> None:
    before = sorted(harness.mirror.objects.rglob("*"))
    with pytest.raises(UnsafeBundleError, match=match) as error:
        await harness.mirror.import_bundle(path, refs or {"HEAD": REF})
    assert error.value.message.endswith((".", "…")) or "It said:" in error.value.message
    assert await harness.mirror.list_refs("refs/sandyard") == {}
    assert sorted(harness.mirror.objects.rglob("*")) == before, "no object of it is kept"
    assert not list(harness.mirror.folder.glob("sandyard/scratch/*"))


HELLO = b"hello\n"
HELLO_ID = hash_object(BLOB, HELLO)


async def test_valid_commits_can_be_imported_repeatedly(refreshed: MirrorHarness) -> None:
    commit = refreshed.commit_in_guest({"a": "a", "run.sh": "#!/bin/sh\n"})
    path = refreshed.create_bundle("HEAD", "--not", "origin/main")
    for _ in range(2):
        assert await refreshed.mirror.import_bundle(path, {"HEAD": REF}) == {REF: commit}
    assert await refreshed.mirror.list_refs("refs/sandyard") == {REF: commit}
    assert await refreshed.mirror.read("cat-file", "blob", f"{commit}:a") == (b"a", False)
    assert len(list(refreshed.mirror.objects.glob("pack/*.pack"))) == 2
    git("fsck", "--strict", cwd=refreshed.mirror.folder)


async def test_rewritten_history_and_several_refs_are_imported(refreshed: MirrorHarness) -> None:
    await refreshed.import_commit({"a": "a"})
    git("reset", "-q", "--hard", "origin/main", cwd=refreshed.clone_guest())
    commit = refreshed.commit_in_guest({"b": "b"})
    git("tag", "-a", "v1", "-m", "one", cwd=refreshed.clone_guest())
    path = refreshed.create_bundle("HEAD", "refs/tags/v1", "--not", "origin/main")
    imported = await refreshed.mirror.import_bundle(
        path, {"HEAD": "refs/sandyard/guest", "refs/tags/v1": "refs/sandyard/tags/v1"}
    )
    assert imported == {"refs/sandyard/guest": commit, "refs/sandyard/tags/v1": commit}
    refs = await refreshed.mirror.list_refs("refs/sandyard")
    assert refs["refs/sandyard/guest"] == commit
    assert await refreshed.mirror.resolve("refs/sandyard/tags/v1") == commit
    assert await refreshed.mirror.list_refs("refs/tags") == {}


async def test_a_bundle_built_by_these_helpers_is_valid(refreshed: MirrorHarness) -> None:
    """So each refusal below is caused only by the fault of its bundle."""
    await refreshed.mirror.import_bundle(
        write_tree_bundle(refreshed, encode_entry(b"100644", b"a", HELLO_ID), (BLOB, HELLO)), {"HEAD": REF}
    )
    assert await refreshed.mirror.read("cat-file", "blob", f"{REF}:a") == (HELLO, False)


@pytest.mark.parametrize("path", [b".git", b"..", b".", b"", b".GIT", b"git~1", b"a/b", b".g\xe2\x80\x8cit"])
async def test_a_file_with_an_unsafe_path_is_refused(refreshed: MirrorHarness, path: bytes) -> None:
    await expect_refused(
        refreshed, write_tree_bundle(refreshed, encode_entry(b"100644", path, HELLO_ID), (BLOB, HELLO))
    )


async def test_a_git_folder_with_a_config_is_refused(refreshed: MirrorHarness) -> None:
    config = b"[core]\n\tfsmonitor = touch /tmp/never\n"
    inner = encode_entry(b"100644", b"config", hash_object(BLOB, config))
    await expect_refused(
        refreshed,
        write_tree_bundle(
            refreshed, encode_entry(b"40000", b".git", hash_object(TREE, inner)), (TREE, inner), (BLOB, config)
        ),
    )


async def test_duplicate_file_names_are_refused(refreshed: MirrorHarness) -> None:
    twice = encode_entry(b"100644", b"a", HELLO_ID) + encode_entry(b"120000", b"a", HELLO_ID)
    await expect_refused(refreshed, write_tree_bundle(refreshed, twice, (BLOB, HELLO)))


@pytest.mark.parametrize(
    "text",
    [
        b'[submodule "../../x"]\n\tpath = x\n\turl = https://h/x\n',
        b'[submodule "x"]\n\tpath = x\n\turl = -u./payload\n',
        b'[submodule "x"]\n\tpath = -x\n\turl = https://h/x\n',
        b'[submodule "x"]\n\tpath = x\n\turl = https://h/x\n\tupdate = !touch /tmp/never\n',
    ],
)
async def test_submodules_that_could_run_a_command_are_refused(refreshed: MirrorHarness, text: bytes) -> None:
    await expect_refused(
        refreshed,
        write_tree_bundle(refreshed, encode_entry(b"100644", b".gitmodules", hash_object(BLOB, text)), (BLOB, text)),
    )


async def test_a_gitmodules_file_that_is_a_symlink_is_refused(refreshed: MirrorHarness) -> None:
    await expect_refused(
        refreshed, write_tree_bundle(refreshed, encode_entry(b"120000", b".gitmodules", HELLO_ID), (BLOB, HELLO))
    )


async def test_bundles_with_missing_objects_are_refused(refreshed: MirrorHarness) -> None:
    # the file is missing
    await expect_refused(refreshed, write_tree_bundle(refreshed, encode_entry(b"100644", b"a", HELLO_ID)))
    # a folder is missing
    await expect_refused(refreshed, write_tree_bundle(refreshed, encode_entry(b"40000", b"a", "4" * 40)))
    await expect_refused(refreshed, write_tree_bundle(refreshed, encode_entry(b"100644", b".gitmodules", HELLO_ID)))
    # the commit is missing
    await expect_refused(refreshed, write_bundle(refreshed, "5" * 40, build_pack((BLOB, HELLO))))
    orphan = (
        b"tree " + b"6" * 40 + b"\nparent " + b"7" * 40 + b"\nauthor " + PERSON + b"\ncommitter " + PERSON + b"\n\nx\n"
    )
    await expect_refused(refreshed, write_bundle(refreshed, hash_object(COMMIT, orphan), build_pack((COMMIT, orphan))))


async def test_a_ref_that_is_not_a_commit_is_refused(refreshed: MirrorHarness) -> None:
    await expect_refused(refreshed, write_bundle(refreshed, HELLO_ID, build_pack((BLOB, HELLO))), match="not a commit")
    tag = f"object {HELLO_ID}\ntype blob\ntag v1\ntagger ".encode() + PERSON + b"\n\nx\n"
    await expect_refused(
        refreshed,
        write_bundle(refreshed, hash_object(TAG, tag), build_pack((TAG, tag), (BLOB, HELLO))),
        match="not a commit",
    )


async def test_commits_on_unknown_parents_are_refused(refreshed: MirrorHarness) -> None:
    refreshed.commit_in_guest({"a": "a"})
    refreshed.commit_in_guest({"b": "b"})
    await expect_refused(refreshed, refreshed.create_bundle("HEAD", "--not", "HEAD~1"), match="does not have")


async def test_a_commit_of_another_sandbox_is_refused(refreshed: MirrorHarness) -> None:
    """The bundle lacks the commit, which is found because the mirror has it for another sandbox."""
    mirror, other = refreshed.mirror, "refs/sandyard/sandboxes/s2/head"
    theirs = refreshed.commit_in_guest({"secret": "s3cret"})
    await mirror.import_bundle(refreshed.create_bundle("HEAD", "--not", "origin/main"), {"HEAD": other})
    tag = f"object {theirs}\ntype commit\ntag v1\ntagger ".encode() + PERSON + b"\n\nx\n"
    by_name = write_bundle(refreshed, theirs, build_pack())
    with pytest.raises(UnsafeBundleError, match="another sandbox"):
        await mirror.import_bundle(by_name, {"HEAD": REF})
    # a delta of the commit that copies all of it, so that the pack contains the commit
    content = git("cat-file", "commit", theirs, cwd=refreshed.clone_guest())
    size = bytes([len(content) & 127 | 128, len(content) >> 7])
    copy = size + size + b"\xb0" + struct.pack("<H", len(content))
    by_delta = write_bundle(refreshed, theirs, build_pack((DELTA, copy), base=theirs))
    with pytest.raises(UnsafeBundleError):
        await mirror.import_bundle(by_delta, {"HEAD": REF})
    by_tag = write_bundle(refreshed, hash_object(TAG, tag), build_pack((TAG, tag)))
    with pytest.raises(UnsafeBundleError, match="another sandbox"):
        await mirror.import_bundle(by_tag, {"HEAD": "refs/sandyard/tags/v1"})
    assert await mirror.list_refs("refs/sandyard") == {other: theirs}

    by_name = write_bundle(refreshed, theirs, build_pack())
    assert await mirror.import_bundle(by_name, {"HEAD": REF}, own_refs=[other]) == {REF: theirs}
    for ref in (other, REF):
        await mirror.delete_ref(ref)  # like a crash before the refs were set
    assert await mirror.import_bundle(by_name, {"HEAD": REF}) == {REF: theirs}
    main = refreshed.site.head("main")
    assert main is not None
    by_name = write_bundle(refreshed, main, build_pack())
    assert await mirror.import_bundle(by_name, {"HEAD": "refs/sandyard/sandboxes/s3/head"})


async def test_malformed_commits_are_refused(refreshed: MirrorHarness) -> None:
    tree = encode_entry(b"100644", b"a", HELLO_ID)
    for who in (b"A <a@b> 99999999999999999999 +0000", b"no address", b"A <a@b>\nauthor B <b@c> 1 +0000"):
        bad = b"tree " + hash_object(TREE, tree).encode() + b"\nauthor " + who + b"\ncommitter " + PERSON + b"\n\nx\n"
        path = write_bundle(refreshed, hash_object(COMMIT, bad), build_pack((COMMIT, bad), (TREE, tree), (BLOB, HELLO)))
        await expect_refused(refreshed, path)


async def test_refs_that_were_not_requested_are_refused(refreshed: MirrorHarness) -> None:
    refreshed.commit_in_guest({"a": "a"})
    await expect_refused(
        refreshed, refreshed.create_bundle("HEAD", "main", "--not", "origin/main"), match="and nothing else"
    )
    await expect_refused(refreshed, refreshed.create_bundle("main", "--not", "origin/main"), match="and nothing else")
    path = refreshed.create_bundle("HEAD", "--not", "origin/main")
    await expect_refused(refreshed, path, refs={"HEAD": REF, "refs/tags/v1": "refs/sandyard/tags/v1"})
    for forbidden in ("refs/remotes/origin/main", "refs/tags/v1", "refs/heads/x", "HEAD"):
        with pytest.raises(ValueError, match="refs/sandyard"):
            await refreshed.mirror.import_bundle(path, {"HEAD": forbidden})


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
async def test_malformed_bundles_are_refused(refreshed: MirrorHarness, content: bytes) -> None:
    path = refreshed.folder / "made.bundle"
    path.write_bytes(content)
    await expect_refused(refreshed, path)


async def test_paths_that_are_not_regular_files_are_refused(refreshed: MirrorHarness) -> None:
    refreshed.commit_in_guest({"a": "a"})
    link = refreshed.folder / "link"
    link.symlink_to(refreshed.create_bundle("HEAD", "--not", "origin/main"))
    await expect_refused(refreshed, link, match="not a file")
    await expect_refused(refreshed, refreshed.folder, match="not a file")
    fifo = refreshed.folder / "fifo"
    os.mkfifo(fifo)
    await expect_refused(refreshed, fifo, match="not a file")


async def test_damaged_and_inconsistent_packs_are_refused(refreshed: MirrorHarness) -> None:
    refreshed.commit_in_guest({"a": "a" * 1000})
    path = refreshed.create_bundle("HEAD", "--not", "origin/main")
    whole = path.read_bytes()
    path.write_bytes(whole[:-30])
    await expect_refused(refreshed, path)
    path.write_bytes(whole[:-60] + b"xxxx" + whole[-56:])
    await expect_refused(refreshed, path)
    await expect_refused(refreshed, write_bundle(refreshed, HELLO_ID, build_pack((BLOB, HELLO), count=4_000_000_000)))


async def test_an_object_that_claims_gigabytes_is_refused(refreshed: MirrorHarness) -> None:
    """Only its size is given, in a few bytes: git must not allocate that much memory."""
    claimed = 8 << 30
    head, size = bytearray([COMMIT << 4 | claimed & 15 | 128]), claimed >> 4
    while size > 127:
        head.append(size & 127 | 128)
        size >>= 7
    head.append(size)
    out = b"PACK" + struct.pack(">II", 2, 1) + bytes(head) + zlib.compress(b"\0" * 1000)
    await expect_refused(
        refreshed, write_bundle(refreshed, "1" * 40, out + hashlib.sha1(out).digest()), match="memory that Git may use"
    )


def encode_size(value: int) -> bytes:
    """Encode a size as in a delta."""
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


async def test_a_delta_that_expands_to_hundreds_of_megabytes_is_refused(refreshed: MirrorHarness) -> None:
    part, times = bytes(1 << 20), 250
    # each copies 1 MiB from the beginning
    delta = encode_size(len(part)) + encode_size(len(part) * times) + b"\xc0\x10" * times
    pack = build_pack((BLOB, part), (DELTA, delta), base=hash_object(BLOB, part))
    assert len(pack) < 3000
    await expect_refused(refreshed, write_bundle(refreshed, "1" * 40, pack), match="memory that Git may use")


@pytest.mark.slow
async def test_a_large_file_is_imported(refreshed: MirrorHarness) -> None:
    large = bytes(210 << 20)
    path = write_tree_bundle(refreshed, encode_entry(b"100644", b"large", hash_object(BLOB, large)), (BLOB, large))
    assert len(await refreshed.mirror.import_bundle(path, {"HEAD": REF})) == 1


async def test_an_import_over_the_time_limit_is_stopped_and_leaves_nothing(
    refreshed: MirrorHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    refreshed.commit_in_guest({"a": "a"})
    path = refreshed.create_bundle("HEAD", "--not", "origin/main")
    before = sorted(refreshed.mirror.objects.rglob("*"))
    monkeypatch.setattr(bundle_import, "TIMEOUT_S", 0)  # zero, because git might finish within any other time
    with pytest.raises(GitTimeoutError, match="index-pack"):
        await refreshed.mirror.import_bundle(path, {"HEAD": REF})
    assert sorted(refreshed.mirror.objects.rglob("*")) == before
    assert not list(refreshed.mirror.folder.glob("sandyard/scratch/*"))


@pytest.mark.parametrize(("projects", "at_once"), [((1, 1, 1), 2), ((1, 1, 1, 2, 2, 3, 3), 4)])
async def test_concurrent_imports_are_limited_per_user_and_in_total(
    refreshed: MirrorHarness, monkeypatch: pytest.MonkeyPatch, projects: tuple[int, ...], at_once: int
) -> None:
    running, highest, limit_reached, proceed = 0, 0, asyncio.Event(), asyncio.Event()

    async def import_held(bare: BareRepository, path: Path, refs: Mapping[str, str], **_: object) -> dict[str, str]:
        nonlocal running, highest
        running += 1
        highest = max(highest, running)
        if running == at_once:
            limit_reached.set()
        await proceed.wait()
        running -= 1
        return dict(refs)

    monkeypatch.setattr(mirror, "import_bundle", import_held)
    imports = [
        asyncio.create_task(refreshed.mirrors.get(f"p{project}").import_bundle(refreshed.folder, {"HEAD": REF}))
        for project in projects
    ]
    async with asyncio.timeout(60):
        await limit_reached.wait()
        for _ in range(20):
            await asyncio.sleep(0)  # until every import that can start has started
        proceed.set()
        assert await asyncio.gather(*imports) == [{"HEAD": REF}] * len(projects)
    assert highest == at_once


async def test_unprintable_ref_names_do_not_appear_in_errors(refreshed: MirrorHarness) -> None:
    path = refreshed.folder / "made.bundle"
    path.write_bytes(b"# v2 git bundle\n" + b"1" * 40 + b" refs/\0\x1b[2J\xff\n\nPACK")
    with pytest.raises(UnsafeBundleError, match="and nothing else") as error:
        await refreshed.mirror.import_bundle(path, {"HEAD": REF})
    assert error.value.message.isprintable()


async def test_a_bundle_over_the_limit_is_refused(refreshed: MirrorHarness) -> None:
    refreshed.restart(git_transfer_limit=1 << 20)
    path = refreshed.folder / "made.bundle"
    path.write_bytes(b"# v2 git bundle\n" + b"x" * (1 << 20))
    with pytest.raises(TooMuchError):
        await refreshed.mirror.import_bundle(path, {"HEAD": REF})
