"""Git in sandboxes of a real engine, with bundles made by plain git."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandyard.kit.errors import InvalidInputError
from sandyard.platform.domain.git.checkout.conflicts import parse_conflicts
from sandyard.platform.domain.git.checkout.program_runner import (
    ProgramRunner,
    extract_message,
    translate_failure,
)
from sandyard.platform.domain.git.checkout.sandbox_git import SENT_REF, SandboxGit
from sandyard.platform.domain.git.errors import NoCheckoutError, NothingToCommitError, SandboxGitError
from sandyard.platform.domain.git.model import CHECKOUT_FOLDER, CommitDraft, UndoneChanges
from sandyard.platform.domain.repositories.diff import read_diff
from sandyard.platform.domain.repositories.errors import ConflictsError, GitFailedError, TooMuchError
from sandyard.platform.domain.repositories.history import read_history
from sandyard.platform.domain.repositories.model import Bundle, Change, StatusEntry
from sandyard.platform.domain.repositories.status import read_stored_status
from sandyard.platform.domain.sandboxes.e2b import (
    NotEnoughSpaceError,
    ProgramResult,
    SandboxEngine,
    SandboxNotRunningError,
)
from tests.integration.platform.domain.git.sandbox_checkout import ODD_NAMES, TEXT, SandboxCheckout, create_checkout
from tests.integration.platform.domain.repositories.plain import ANN, BOB, Repository
from tests.integration.platform.domain.sandboxes.e2b.conftest import NewSandbox


@pytest.fixture
async def guest(empty_guest: SandboxCheckout, bundle: Bundle, upstream: Repository) -> SandboxCheckout:
    await create_checkout(empty_guest, bundle, upstream)
    return empty_guest


def draft(message: str = "feat: work", **options: object) -> CommitDraft:
    return CommitDraft(message, ANN, BOB, **options)  # type: ignore[arg-type]


async def stream_chunks(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


# checkout ----------------------------------------------------------------------------------------------------------------


async def test_a_checkout_equals_a_clone(guest: SandboxCheckout, upstream: Repository) -> None:
    assert await guest.get_head() == upstream.head
    assert await guest.get_branch() == "task/1"
    status = await guest.get_status()
    assert (status.branch, status.head, status.clean, status.live, status.under_way) == (
        "task/1",
        upstream.head,
        True,
        True,
        None,
    )
    output = await guest.sh(
        "cat .git/config; git for-each-ref --format='%(refname) %(objectname)'; stat -c %A run.sh; readlink link; git fsck --strict; "
        "git log --oneline; ls -A .git"
    )
    for line in (
        "name = Ann Ång",
        "email = ann@example.org",
        "url = https://forge.example/o/r.git",
        "-rwxr-xr-x",
        "a.txt",
    ):
        assert line in output
    assert f"refs/remotes/origin/main {upstream.head}" in output
    assert f"refs/heads/task/1 {upstream.head}" in output
    assert "sandyard-begun" not in output
    for name in ODD_NAMES:
        assert await guest.sh('cat -- "$1"', os.fsdecode(b"odd/" + name)) == os.fsdecode(name)
    assert await guest.list_leftovers() == ""


async def test_byproducts_of_programs_are_not_work_unless_the_repository_has_some(
    empty_guest: SandboxCheckout, bundle: Bundle, upstream: Repository, tmp_path: Path
) -> None:
    make = "mkdir -p src/__pycache__ node_modules/a; touch src/__pycache__/a.pyc node_modules/a/b.js b.pyc new.py"
    await create_checkout(empty_guest, bundle, upstream)
    await empty_guest.sh(make)
    assert (await empty_guest.sh("git add -A; git diff --cached --name-only")).split() == ["new.py"]
    await empty_guest.sh("find . -mindepth 1 -delete")
    upstream.commit("build: bundle the action", **{"node_modules/index.js": "1\n"})
    await create_checkout(empty_guest, upstream.bundle(tmp_path / "bundle2", "refs/heads/main"), upstream)
    await empty_guest.sh(make)
    assert "node_modules/a/b.js" in await empty_guest.sh("git add -A; git diff --cached --name-only")


async def test_a_complete_checkout_is_kept_and_a_partial_one_is_replaced(
    guest: SandboxCheckout, bundle: Bundle, upstream: Repository
) -> None:
    await guest.write("work", "mine")
    await create_checkout(guest, bundle, upstream)
    assert await guest.sh("cat work") == "mine"
    with pytest.raises(GitFailedError, match="another branch"):
        await create_checkout(guest, bundle, upstream, "task/2")
    await guest.create_branch("task/2")
    await create_checkout(guest, bundle, upstream, "task/2")
    assert await guest.sh("cat work") == "mine"

    await guest.sh("touch .git/sandyard-begun; rm .git/HEAD; rm -rf odd")
    await create_checkout(guest, bundle, upstream)
    assert (await guest.get_status()).clean
    assert await guest.sh("ls work 2>/dev/null || echo gone") == "gone\n"
    await guest.sh("find . -mindepth 1 -delete; mkdir .git")
    await create_checkout(guest, bundle, upstream)
    assert await guest.get_head() == upstream.head


async def test_existing_files_in_the_folder_are_not_overwritten(
    empty_guest: SandboxCheckout, bundle: Bundle, upstream: Repository
) -> None:
    await empty_guest.engine.files.write(empty_guest.id, f"{CHECKOUT_FOLDER}/precious", stream_chunks(b"x"))
    with pytest.raises(GitFailedError, match="is not empty"):
        await create_checkout(empty_guest, bundle, upstream)
    await empty_guest.sh("git init -q")
    with pytest.raises(GitFailedError, match="another repository"):
        await create_checkout(empty_guest, bundle, upstream)
    assert await empty_guest.sh("cat precious") == "x"
    assert await empty_guest.list_leftovers() == ""


async def test_a_shallow_checkout_can_send_and_receive_commits(
    empty_guest: SandboxCheckout,
    upstream: Repository,
    tmp_path: Path,
    engine: SandboxEngine,
) -> None:
    old = upstream.head
    base = upstream.commit("feat: second", d="d")
    shallow = Repository.new(tmp_path / "shallow")
    shallow.git("fetch", "-q", "--depth=1", f"file://{upstream.path}", "main:refs/heads/kept")
    made = shallow.bundle(tmp_path / "shallow-bundle", "refs/heads/kept")
    made = Bundle(made.path, made.size, (base,))
    await create_checkout(empty_guest, made, upstream, tracked={"main": base, "gone": old, "task/1": base})
    assert (
        await empty_guest.sh("git rev-list --count HEAD; git rev-parse --abbrev-ref task/1@{u}") == "1\norigin/task/1\n"
    )
    assert old not in await empty_guest.sh("git for-each-ref")
    await empty_guest.write("new", "new")
    commit = await empty_guest.commit(draft())
    sent = await empty_guest.send(tmp_path / "out", have=[base, old, "f" * 40])
    assert sent.commit == commit
    upstream.git("fetch", "-q", str(tmp_path / "out"), f"{sent.ref}:refs/heads/came")
    assert upstream.git("rev-parse", "came~1") == base
    newer = upstream.commit("feat: third", e="e")
    await empty_guest.receive(
        upstream.bundle(tmp_path / "more", "refs/heads/main", f"^{base}"),
        {"refs/heads/main": "refs/remotes/origin/main"},
    )
    await empty_guest.merge("origin/main", message="chore: merge", leave_conflicts=False, identity=BOB)
    assert newer in await empty_guest.sh("git rev-list HEAD")


async def test_sha256_repositories_are_supported(empty_guest: SandboxCheckout, tmp_path: Path) -> None:
    made = Repository(tmp_path / "sha256")
    made.path.mkdir()
    made.git("init", "-q", "-b", "main", "--object-format=sha256")
    made.commit(a="1")
    await create_checkout(empty_guest, made.bundle(tmp_path / "b", "refs/heads/main"), made)
    assert await empty_guest.get_head() == made.head
    await empty_guest.write("b")
    sent = await empty_guest.send(tmp_path / "out", ref=(await empty_guest.save_work_tree()).commit, have=[made.head])
    made.git("fetch", "-q", str(tmp_path / "out"), f"{sent.ref}:refs/heads/came")
    assert made.git("ls-tree", "--name-only", "came") == "a\nb"


async def test_a_missing_checkout_git_or_sandbox_is_reported(
    empty_guest: SandboxCheckout, bundle: Bundle, upstream: Repository
) -> None:
    for verb in (empty_guest.get_status, empty_guest.get_head, empty_guest.save_work_tree, empty_guest.abort):
        with pytest.raises(NoCheckoutError):
            await verb()
    await empty_guest.engine.files.make_dir(empty_guest.id, CHECKOUT_FOLDER)
    await empty_guest.sh("git init -q ..")
    for verb in (empty_guest.get_status, empty_guest.get_head):
        with pytest.raises(NoCheckoutError):
            await verb()
    await empty_guest.sh(
        "rm -rf ../.git; mkdir /tmp/bin; for p in bash base64 head timeout mkdir; do ln -s $(type -P $p) /tmp/bin; done"
    )
    await empty_guest.sh("echo PATH=/tmp/bin >../.bash_profile")
    for verb in (empty_guest.get_status, empty_guest.get_head):
        with pytest.raises(SandboxGitError, match="Git is not installed in the sandbox"):
            await verb()
    with pytest.raises(SandboxGitError):
        await create_checkout(empty_guest, bundle, upstream)
    await empty_guest.engine.pause(empty_guest.id)
    with pytest.raises(SandboxNotRunningError):
        await empty_guest.get_status()


async def test_a_full_disk_is_reported(guest: SandboxCheckout) -> None:
    await guest.sh("head -c 2M /dev/urandom >new; head -c 1G /dev/zero >ignored 2>/dev/null || true")
    before = await guest.get_status()
    for verb in (guest.save_work_tree(), guest.commit(draft()), guest.stage(["new"])):
        with pytest.raises(NotEnoughSpaceError):
            await verb
    assert await guest.get_status() == before
    await guest.sh("rm ignored")
    assert (await guest.save_work_tree()).changed == 1
    await guest.commit(draft())


# sending and receiving ---------------------------------------------------------------------------------------------------


async def test_commits_are_sent_as_a_bundle(guest: SandboxCheckout, upstream: Repository, tmp_path: Path) -> None:
    out = tmp_path / "out"
    sent = await guest.send(out, have=[upstream.head])
    assert (sent.commit, out.exists()) == (upstream.head, False)
    await guest.write("new", "new")
    commit = await guest.commit(draft())
    before = await guest.describe_state()
    sent = await guest.send(out, have=[upstream.head, "0" * 40, "nonsense", "--all"])
    assert (sent.commit, sent.ref) == (commit, SENT_REF)
    upstream.git("fetch", "-q", str(out), f"{SENT_REF}:refs/heads/came")
    assert upstream.git("rev-parse", "came") == commit
    assert await guest.describe_state() == before
    whole = await guest.send(tmp_path / "whole", ref="refs/heads/task/1", have=[])
    fresh = Repository.new(tmp_path / "fresh")
    fresh.git("fetch", "-q", str(tmp_path / "whole"), f"{whole.ref}:refs/heads/came")
    assert fresh.git("rev-list", "--count", "came") == "2"
    for bad in ("refs/heads/none", "--all", "HEAD:a.txt", ""):
        with pytest.raises(GitFailedError, match="no commit"):
            await guest.send(tmp_path / "bad", ref=bad, have=[])
    assert not (tmp_path / "bad").exists()
    assert await guest.list_leftovers() == ""


async def test_an_annotated_tag_is_sent_unchanged(guest: SandboxCheckout, upstream: Repository, tmp_path: Path) -> None:
    assert await guest.create_tag("v1", "Version 1\n\n#1", BOB) == upstream.head
    assert await guest.create_tag("light", None, BOB) == upstream.head
    assert await guest.create_tag("v1", "again", BOB) == upstream.head  # the first tag stays
    sent = await guest.send(tmp_path / "out", ref="refs/tags/v1", have=[upstream.head])
    assert sent.commit == upstream.head
    upstream.git("fetch", "-q", str(tmp_path / "out"), f"{sent.ref}:refs/sandyard/tags/v1")
    assert upstream.git("cat-file", "-t", "refs/sandyard/tags/v1") == "tag"
    tag = upstream.git("cat-file", "-p", "refs/sandyard/tags/v1")
    assert "Version 1\n\n#1" in tag
    assert f"tagger {BOB}" in tag
    await guest.send(tmp_path / "none", ref="refs/tags/light", have=[upstream.head])
    assert not (tmp_path / "none").exists()


async def test_a_bundle_over_the_limit_is_not_sent(
    guest: SandboxCheckout, upstream: Repository, tmp_path: Path
) -> None:
    await guest.sh("head -c 3000000 /dev/urandom >large")
    await guest.commit(draft())
    small = SandboxCheckout(guest.engine, guest.id, limit=1 << 20)
    with pytest.raises(TooMuchError, match="more than 1 MiB"):
        await small.send(tmp_path / "out", have=[upstream.head])
    assert not (tmp_path / "out").exists()
    assert await guest.list_leftovers() == ""
    # a sandbox that reports a wrong size
    await guest.sh(
        "mkdir ../bin; printf '#!/bin/sh\\necho 5\\n' >../bin/wc; chmod +x ../bin/wc; echo PATH=$HOME/bin:$PATH >../.bash_profile"
    )
    await guest.sh("printf '#!/bin/sh\\nexec cat\\n' >../bin/head; chmod +x ../bin/head")
    with pytest.raises(TooMuchError):
        await small.send(tmp_path / "out", have=[upstream.head])
    assert not (tmp_path / "out").exists()
    assert await guest.list_leftovers() == ""


async def test_a_cancelled_send_leaves_no_files(guest: SandboxCheckout, upstream: Repository, tmp_path: Path) -> None:
    await guest.sh("head -c 20000000 /dev/urandom >large")
    await guest.commit(draft())
    read = guest.engine.files.read

    async def cancel_and_read(engine_id: str, path: str) -> tuple[int | None, AsyncIterator[bytes]]:
        task.cancel()
        return await read(engine_id, path)

    guest.engine.files.read = cancel_and_read  # type: ignore[method-assign]
    task = asyncio.create_task(guest.send(tmp_path / "out", have=[upstream.head]))
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not (tmp_path / "out").exists()
    assert await guest.list_leftovers() == ""


async def test_commits_are_received_and_branches_tracked(
    guest: SandboxCheckout, upstream: Repository, tmp_path: Path
) -> None:
    old = upstream.head
    new = upstream.commit("feat: second", **{"a.txt": "other"})
    made = upstream.bundle(tmp_path / "more", "refs/heads/main", f"^{old}")
    for _ in range(2):
        await guest.receive(made, {"refs/heads/main": "refs/remotes/origin/main"})
    assert (await guest.sh("git rev-parse origin/main")).strip() == new
    with pytest.raises(GitFailedError, match="does not have refs/heads/none"):
        await guest.receive(made, {"refs/heads/none": "refs/remotes/origin/none"})
    with pytest.raises(GitFailedError):
        await guest.receive(made, {"refs/heads/main": "refs/heads/../../x"})
    await guest.track("task/1", old)
    await guest.track("elsewhere", old)
    assert (
        await guest.sh("git rev-parse --abbrev-ref @{u}; git rev-parse origin/elsewhere") == f"origin/task/1\n{old}\n"
    )
    assert await guest.list_leftovers() == ""


# changes -----------------------------------------------------------------------------------------------------------------


async def test_changes_are_listed_staged_and_committed(guest: SandboxCheckout, upstream: Repository) -> None:
    await guest.write("a.txt", "changed")
    for name in ODD_NAMES:
        await guest.write(b"more/" + name, "new")
    await guest.sh(
        "git config status.showUntrackedFiles no; git config core.quotePath false; git config status.renames false"
    )
    status = await guest.get_status()
    assert StatusEntry("a.txt", worktree=Change.MODIFIED) in status.entries
    names = {os.fsdecode(b"more/" + name) for name in ODD_NAMES}
    assert {e.path for e in status.entries if e.worktree is Change.UNTRACKED} == {
        os.fsencode(name).decode(errors="replace") for name in names
    }
    await guest.stage([*names])
    assert all(e.index is Change.ADDED for e in (await guest.get_status()).entries if e.path != "a.txt")
    await guest.stage(["more/*", "more/:(top)x"], unstage=True)
    untracked = {e.path for e in (await guest.get_status()).entries if e.worktree is Change.UNTRACKED}
    assert untracked == {"more/*", "more/:(top)x"}, "a path is a name, not a pattern"
    with pytest.raises(GitFailedError, match="did not match"):
        await guest.stage(["nowhere"])
    with pytest.raises(InvalidInputError):
        await guest.stage([""])

    message = "feat: staged\n\n# not a comment\n- 'quoted' $HOME `id`"
    commit = await guest.commit(draft(message, everything=False, co_authors=[BOB]))
    (made,) = await read_history(guest, f"{upstream.head}..HEAD", limit=5)
    assert (made.id, made.author, made.committer, made.subject) == (commit, ANN, BOB, "feat: staged")
    assert made.body == f"# not a comment\n- 'quoted' $HOME `id`\n\nCo-authored-by: {BOB}"
    assert {e.path for e in (await guest.get_status()).entries} == {"a.txt", "more/*", "more/:(top)x"}
    await guest.commit(draft(paths=["more/*"]))
    assert {e.path for e in (await guest.get_status()).entries} == {"a.txt", "more/:(top)x"}
    await guest.commit(draft())
    assert (await guest.get_status()).clean
    for none in ({"everything": True}, {"everything": False}, {"paths": ["a.txt"]}):
        with pytest.raises(NothingToCommitError):
            await guest.commit(draft(**none))
    with pytest.raises(InvalidInputError):
        await guest.commit(draft(" \n"))


async def test_a_commit_of_some_paths_leaves_the_rest_staged(guest: SandboxCheckout) -> None:
    await guest.write("a.txt", "a")
    await guest.write("b.txt", "b")
    await guest.sh("rm c.txt")
    await guest.stage(["b.txt"])
    await guest.commit(draft(paths=["a.txt", "c.txt"]))
    assert (await guest.get_status()).entries == (StatusEntry("b.txt", index=Change.MODIFIED),)
    assert await guest.sh("git show --name-status --format= HEAD") == "M\ta.txt\nD\tc.txt\n"


async def test_hooks_can_reject_a_commit(guest: SandboxCheckout) -> None:
    hook = "#!/bin/sh\\necho checking; echo 'no: line 3 is too long' >&2; sleep 300 & exit 1\\n"
    await guest.sh(f'printf "{hook}" >.git/hooks/pre-commit; chmod +x .git/hooks/pre-commit')
    await guest.write("new")
    with pytest.raises(GitFailedError, match=r"rejected.*(?s:.*)no: line 3 is too long"):
        await asyncio.wait_for(guest.commit(draft()), 60)
    await guest.sh("printf '#!/bin/sh\\nyes no | head -c 9000000; exit 1' >.git/hooks/pre-commit")
    with pytest.raises(GitFailedError) as refused:
        await guest.commit(draft())
    assert len(str(refused.value)) < 3000
    await guest.sh("printf '#!/bin/sh\\nsleep 300 & echo fine' >.git/hooks/pre-commit; git config commit.gpgSign true")
    await asyncio.wait_for(guest.commit(draft()), 60)
    assert (await guest.get_status()).clean


async def test_discarding_restores_files_and_keeps_ignored_ones(guest: SandboxCheckout) -> None:
    await guest.sh(
        "echo x >a.txt; rm b.txt; echo x >c.txt; git add c.txt; mkdir -p new; echo x >new/*; echo x >new/other; echo x >ignored"
    )
    await guest.sh("rm link; mkdir link; echo x >link/file; chmod -x run.sh; rm -r odd; echo x >odd")
    assert await guest.discard(["new/*", "a.txt", "link"]) == ["a.txt", "link", "link/file", "new/*"]
    paths = {entry.path for entry in (await guest.get_status()).entries}
    assert {"a.txt", "link", "new/*"}.isdisjoint(paths)
    assert {"b.txt", "c.txt", "new/other", "run.sh"} <= paths
    assert await guest.discard(["c.txt", "nowhere"]) == ["c.txt"]
    assert await guest.discard([]) == []
    assert "new/other" in await guest.discard([], everything=True)
    assert (await guest.get_status()).clean
    assert await guest.sh("cat ignored; stat -c %A run.sh") == "x\n-rwxr-xr-x\n"


async def test_branches_are_created_and_invalid_names_rejected(guest: SandboxCheckout, upstream: Repository) -> None:
    await guest.write("a.txt", "kept")
    await guest.create_branch("task/1")
    await guest.create_branch("other")
    assert await guest.get_branch() == "other"
    assert await guest.sh("cat a.txt") == "kept"
    await guest.commit(draft())
    await guest.create_branch("third", start=upstream.head)
    assert await guest.get_head() == upstream.head
    for name, start, why in (
        ("other", None, "already"),
        ("-x", None, "no name"),
        ("a..b", None, "no name"),
        ("new", "--all", "no commit"),
        ("new", "nowhere", "no commit"),
    ):
        with pytest.raises(GitFailedError, match=why):
            await guest.create_branch(name, start=start)


async def test_a_running_git_process_is_reported(guest: SandboxCheckout) -> None:
    await guest.write("a.txt", "changed")
    await guest.sh("touch .git/index.lock")
    before = await guest.get_status()
    assert len(before.entries) == 1
    assert (await guest.save_work_tree()).changed == 1
    with pytest.raises(GitFailedError, match="Another Git process is running"):
        await guest.stage(["a.txt"])


@pytest.mark.parametrize("files", [1500, pytest.param(5000, marks=pytest.mark.slow)])
async def test_many_files_are_staged_committed_and_discarded(
    guest: SandboxCheckout, upstream: Repository, tmp_path: Path, files: int
) -> None:
    await guest.sh(
        f"mkdir d{{0..49}}; for i in {{1..{files}}}; do "
        'echo "$i" >"d$((i % 50))/a file with a name that is so long that all of them are too long for a command line $i"; done'
    )
    status = await guest.get_status()
    assert (len(status.entries), status.truncated) == (files, False)
    paths = [entry.path for entry in status.entries]
    await guest.stage(paths[:-1000])
    tree = await guest.save_work_tree()
    assert tree.changed == files
    found = await read_diff(guest, tree.head, tree.commit)
    assert (len(found.files), found.truncated, found.added) == (1000, True, files)
    await guest.commit(draft(paths=paths[:-500]))
    assert len((await guest.get_status()).entries) == 500
    assert len(await guest.discard(paths[-500:])) == 500
    assert (await guest.get_status()).clean


# merging and rebasing ----------------------------------------------------------------------------------------------------


async def create_divergence(guest: SandboxCheckout, upstream: Repository, tmp_path: Path) -> str:
    """Change the same files on both sides, in every way. Return the new upstream commit."""
    old = upstream.head
    (upstream.path / "b.txt").unlink()
    upstream.git("mv", "run.sh", "start.sh")
    new = upstream.commit(
        "feat: theirs", **{"a.txt": TEXT.replace("line 5\n", "theirs\n"), "both new": "theirs", "c.txt": "theirs"}
    )
    made = upstream.bundle(tmp_path / "theirs", "refs/heads/main", f"^{old}")
    await guest.receive(made, {"refs/heads/main": "refs/remotes/origin/main"})
    await guest.write("a.txt", TEXT.replace("line 5\n", "ours\n"))
    await guest.write("b.txt", TEXT + "ours")
    await guest.write("both new", "ours")
    await guest.sh("rm c.txt; git mv run.sh go.sh")
    await guest.commit(draft("feat: ours"))
    return new


CONFLICT_KINDS = {
    "a.txt": "content",
    "b.txt": "modify/delete",
    "c.txt": "modify/delete",
    "both new": "add/add",
    "run.sh": "rename/rename",
    "go.sh": "rename/rename",
    "start.sh": "rename/rename",
}


def test_many_conflicts_are_parsed_quickly() -> None:
    """Git in a sandbox may print anything."""
    messages = "".join(f"CONFLICT (content): Merge conflict in {'a ' * 50}{number}\n" for number in range(4000))
    paths = [*(f"{number}" for number in range(1000)), "with spaces", *(f"{number:0>90}" for number in range(1999))]
    messages = "CONFLICT (rename/delete): x was renamed to with spaces\n" + messages
    output = messages.encode() + b"\0" + b"\0".join(f"100644 2\t{path}".encode() for path in paths)
    started = time.process_time()
    found = {item.path: item for item in parse_conflicts(output)}
    assert time.process_time() - started < 3, "searching every message for every path would take half a minute"
    assert (found["7"].kind, found["with spaces"].kind) == ("content", "rename/delete")
    assert found["7"].detail.endswith(" 7")


async def test_conflicts_are_reported_and_the_checkout_is_unchanged(
    guest: SandboxCheckout, upstream: Repository, tmp_path: Path
) -> None:
    theirs = await create_divergence(guest, upstream, tmp_path)
    await guest.write("untracked", "stays")
    before = await guest.describe_state()
    with pytest.raises(ConflictsError) as found:
        await guest.merge(theirs, message="chore: merge", leave_conflicts=False, identity=BOB)
    assert {file.path: file.kind for file in found.value.files} == CONFLICT_KINDS
    assert all(file.detail for file in found.value.files)
    assert await guest.describe_state() == before
    with pytest.raises(ConflictsError) as found:
        await guest.rebase("origin/main")
    assert {file.path for file in found.value.files} == set(CONFLICT_KINDS)
    assert await guest.describe_state() == before
    assert await guest.abort() is False


async def test_conflicts_can_be_left_resolved_and_aborted(
    guest: SandboxCheckout, upstream: Repository, tmp_path: Path
) -> None:
    theirs = await create_divergence(guest, upstream, tmp_path)
    before = await guest.describe_state()
    remaining = await guest.merge(theirs, message="chore: merge", leave_conflicts=True, identity=BOB)
    assert {item.path for item in remaining} == set(CONFLICT_KINDS)
    status = await guest.get_status()
    assert status.under_way == "merge"
    assert StatusEntry("a.txt", Change.CONFLICTED, Change.CONFLICTED) in status.entries
    for verb in (
        guest.rebase("origin/main"),
        guest.merge(theirs, message="chore: merge", leave_conflicts=True, identity=BOB),
    ):
        with pytest.raises(GitFailedError, match="is in progress"):
            await verb
    tree = await guest.save_work_tree()
    assert tree.changed > 0
    with pytest.raises(GitFailedError, match=r"conflict markers(?s:.*)a\.txt"):
        await guest.commit(draft())
    assert await guest.abort() is True
    assert await guest.describe_state() == before

    await guest.merge(theirs, message="chore: merge", leave_conflicts=True, identity=BOB)
    await guest.sh("echo resolved >a.txt; echo resolved >'both new'; git rm -qf --ignore-unmatch run.sh c.txt")
    commit = await guest.commit(draft("Merge main"))
    (made, *_) = await read_history(guest, "HEAD", limit=1)
    assert (made.id, len(made.parents)) == (commit, 2)
    assert (await guest.get_status()).under_way is None


async def test_merge_and_rebase_without_conflicts_succeed(
    guest: SandboxCheckout, upstream: Repository, tmp_path: Path
) -> None:
    old = upstream.head
    new = upstream.commit("feat: theirs", theirs="theirs")
    await guest.receive(
        upstream.bundle(tmp_path / "b", "refs/heads/main", f"^{old}"), {"refs/heads/main": "refs/remotes/origin/main"}
    )
    await guest.write("ours", "ours")
    await guest.commit(draft())
    await guest.create_branch("merged")
    await guest.sh(
        "git config merge.ff only; git config commit.gpgSign true; printf '#!/bin/sh\\nexit 1' >.git/hooks/pre-rebase; chmod +x .git/hooks/*"
    )
    await guest.write("uncommitted", "stays")
    assert await guest.merge("origin/main", message="chore: merge", leave_conflicts=False, identity=BOB) == []
    merge = (await read_history(guest, "HEAD", limit=1))[0]
    assert (len(merge.parents), merge.committer) == (2, BOB)
    await guest.create_branch("rebased", start="task/1")
    await guest.rebase(new)
    assert (await guest.sh("git rev-parse HEAD~1")).strip() == new
    assert (await read_history(guest, "HEAD", limit=1))[0].author == ANN
    await guest.rebase(new)
    await guest.write("a.txt", "dirty")
    with pytest.raises(GitFailedError, match="uncommitted changes"):
        await guest.rebase(new)
    with pytest.raises(GitFailedError):
        await guest.merge("nowhere", message="chore: merge", leave_conflicts=False, identity=BOB)
    assert await guest.sh("cat a.txt uncommitted") == "dirtystays"


# the whole work tree -----------------------------------------------------------------------------------------------------

CHANGES = r"""
echo staged >a.txt; git add a.txt; echo loose >>a.txt
rm b.txt; git rm -q --cached c.txt; git mv run.sh moved.sh
mkdir -p deep/er; echo new >deep/er/untracked; echo added >deep/added; git add deep/added; rm deep/added
printf '\0\1\2' >binary; ln -s /etc/passwd absolute; ln -sf elsewhere link; chmod +x a.txt
echo ignored >ignored; echo x >x.log; : >empty; echo x >-dash; printf x >$'new\nline'; printf x >$'latin \xe9'
git rm -q 'odd/*' 2>/dev/null || true
"""


async def test_changes_made_by_a_program_are_undone(guest: SandboxCheckout) -> None:
    """New files are deleted, changed and deleted ones restored; earlier changes, ignored and large files stay."""
    await guest.write("mine/new.txt", "mine\n")
    await guest.write("a.txt", "mine\n")
    await guest.sh("git add a.txt; rm b.txt; truncate -s 101M large.bin")
    state, before = await guest.describe_state(), (await guest.save_work_tree()).commit
    assert await guest.undo_changes(before) == UndoneChanges(before, 0)
    for name in ODD_NAMES:
        await guest.write(b"mine/cache/" + name)
    await guest.sh(
        "echo check >>mine/new.txt; echo check >a.txt; rm c.txt run.sh; mkdir run.sh; echo >run.sh/inside; echo >b.txt; echo >out.txt; "
        "git add out.txt c.txt; echo >ignored; git init -q nested; "
        "git -C nested -c user.name=x -c user.email=x commit -q --allow-empty -m x; "
        "mkdir mine/sealed; echo >mine/sealed/x; chmod 500 mine/sealed"
    )
    undone = await guest.undo_changes(before)
    assert undone is not None
    assert (undone.count, len(undone.paths)) == (len(ODD_NAMES) + 9, len(ODD_NAMES) + 9)
    assert {"mine/cache/with space", "mine/new.txt", "out.txt", "nested", "c.txt"} < set(undone.paths)
    assert await guest.sh("rm ignored; git show $1:out.txt | wc -l", undone.commit) == "1\n", "nothing is lost"
    assert await guest.describe_state() == state
    assert (await guest.undo_changes(before)) == UndoneChanges(before, 0)
    await guest.sh(
        "echo >kept.txt; git add kept.txt; git commit -q -m 'feat: somebody commits meanwhile'; echo >too.txt"
    )
    assert (undone := await guest.undo_changes(before)) is not None
    assert (undone.count, await guest.sh("ls kept.txt too.txt")) == (0, "kept.txt\ntoo.txt\n")
    assert await guest.undo_changes("0" * 40) is None


async def test_previously_ignored_files_are_not_undone_when_the_rules_change(guest: SandboxCheckout) -> None:
    """But files that a program hides with its own rules are undone."""
    await guest.sh(
        "printf 'ignored\\n*.log\\n.env\\ncache/\\n' >.gitignore; git add .gitignore; git commit -q -m 'chore: rules'"
    )
    await guest.sh(
        "echo secret >.env; mkdir -p cache/deep sub; echo kept >cache/deep/x; git init -q cache/nested; echo kept >sub/y.log; "
        "git -C cache/nested -c user.name=x -c user.email=x commit -q --allow-empty -m x"
    )
    script = "cat .env cache/deep/x sub/y.log; ls -d cache/nested/.git; git status --porcelain"
    state, before = await guest.sh(script), (await guest.save_work_tree()).commit
    await guest.sh(
        "printf 'hidden/\\n' >.gitignore; mkdir hidden; echo >hidden/x; echo >out; printf '!y.log\\n' >sub/.gitignore"
    )
    undone = await guest.undo_changes(before)
    assert undone is not None
    assert set(undone.paths) == {".gitignore", "sub/.gitignore", "out", "hidden/x"}
    assert (undone.count, await guest.sh(script)) == (4, state)
    await guest.sh("test ! -e hidden && test ! -e out; git add -f .env")
    assert await guest.undo_changes(before) is not None
    assert await guest.sh(script) == state, "it stays although it was added to the index by force"


async def test_saving_a_work_tree_changes_nothing_and_it_can_be_restored_elsewhere(
    guest: SandboxCheckout,
    bundle: Bundle,
    upstream: Repository,
    tmp_path: Path,
    new_sandbox: NewSandbox,
) -> None:
    await guest.write("committed", "in the branch")
    await guest.commit(draft())
    await guest.sh(CHANGES)
    before, status = await guest.describe_state(), await guest.get_status()
    tree = await guest.save_work_tree()
    assert (tree.head, tree.branch, tree.skipped) == (await guest.get_head(), "task/1", ())
    assert tree == await guest.save_work_tree(), "the same work tree gives the same commit"
    assert await guest.describe_state() == before
    assert await guest.list_leftovers() == ""

    sent = await guest.send(tmp_path / "out", ref=tree.commit, have=[upstream.head])
    assert sent.commit == tree.commit
    upstream.git("fetch", "-q", str(tmp_path / "out"), f"{sent.ref}:refs/heads/kept")
    stored = await read_stored_status(upstream, tree.commit, branch=tree.branch)
    assert sorted(stored.entries, key=str) == sorted(status.entries, key=str)
    assert tree.changed == len((await read_diff(upstream, tree.head, tree.commit, patches=False)).files) + 1  # a rename

    other = SandboxCheckout(guest.engine, (await new_sandbox()).id)
    whole = upstream.bundle(tmp_path / "whole", "refs/heads/kept")
    await create_checkout(other, whole, upstream, commit=tree.head, tracked={"main": upstream.head})
    await other.sh("echo in the way >deep; echo besides >besides; echo ignored >ignored; echo x >x.log; rm a.txt")
    for _ in range(2):
        await other.restore_work_tree(tree.commit)
        after = await other.describe_state()
        assert after == before
    saved = await other.save_work_tree()
    assert saved.commit != tree.commit, "another sandbox, another commit"
    await other.sh(f"git diff --exit-code {tree.commit} {saved.commit}")


async def test_a_work_tree_is_restored_over_any_state(
    guest: SandboxCheckout, upstream: Repository, tmp_path: Path
) -> None:
    await guest.sh(CHANGES)
    before, tree = await guest.describe_state(refs=False), await guest.save_work_tree()
    await guest.discard([], everything=True)
    await create_divergence(guest, upstream, tmp_path)
    await guest.merge("origin/main", message="chore: merge", leave_conflicts=True, identity=BOB)
    await guest.restore_work_tree(tree.commit)
    assert await guest.describe_state(refs=False) == before
    assert (await guest.get_status()).under_way is None
    assert (await guest.save_work_tree()).commit == tree.commit
    for bad in (upstream.head, "f" * 40, "--all", tree.head):
        with pytest.raises(GitFailedError, match="not a saved work tree"):
            await guest.restore_work_tree(bad)


async def test_a_work_tree_on_no_branch_or_without_commits_is_saved_and_restored(
    guest: SandboxCheckout, upstream: Repository
) -> None:
    await guest.sh("git checkout -q --detach; echo x >new")
    tree = await guest.save_work_tree()
    assert (tree.branch, tree.head, tree.changed) == (None, upstream.head, 1)
    await guest.sh("git checkout -q task/1; rm new")
    await guest.restore_work_tree(tree.commit)
    assert (await guest.get_branch(), await guest.sh("cat new")) == (None, "x\n")

    await guest.sh(
        "git checkout -q --orphan fresh; git rm -rqf --cached .; find . -mindepth 1 -maxdepth 1 -not -name .git "
        "-exec rm -r {} +; echo x >new"
    )
    before = await guest.describe_state()
    tree = await guest.save_work_tree()
    assert (tree.branch, tree.changed) == ("fresh", 1)
    assert await guest.describe_state() == before
    status = await guest.get_status()
    assert (status.branch, status.head) == ("fresh", None)
    with pytest.raises(GitFailedError):
        await guest.get_head()
    assert await read_history(guest, "HEAD", limit=5) == []
    await guest.sh("git checkout -qf task/1")
    await guest.restore_work_tree(tree.commit)
    assert await guest.describe_state() == before
    commit = await guest.commit(draft())
    assert (await read_history(guest, "HEAD", limit=5))[0].id == commit


async def test_files_that_cannot_be_saved_are_skipped_and_reported(guest: SandboxCheckout) -> None:
    await guest.sh(
        "echo x >kept; echo x >secret; chmod 000 secret; truncate -s 101M 'too large'; git init -q inner; "
        "cd inner; git -c user.name=a -c user.email=b commit -q --allow-empty -m x; echo x >file; cd ..; "
        "git init -q hollow; echo x >hollow/f"
    )
    before = await guest.sh("git status --porcelain -z")
    tree = await guest.save_work_tree()
    assert {name.rstrip("/") for name in tree.skipped} >= {"secret", "too large", "inner"}
    listing, _ = await guest.read("ls-tree", "-r", "--name-only", tree.commit)
    names = listing.decode().split("\n")
    assert "kept" in names
    assert not {"secret", "too large"} & set(names)
    assert await guest.sh("git status --porcelain -z") == before


async def test_configuration_and_hooks_of_the_agent_are_ignored(guest: SandboxCheckout) -> None:
    await guest.sh(
        "for h in post-checkout post-index-change reference-transaction pre-commit; do "
        "printf '#!/bin/sh\\ntouch /tmp/ran\\nexit 1\\n' >.git/hooks/$h; done; "
        "chmod +x .git/hooks/*; git config core.fsmonitor 'touch /tmp/ran'; git config core.pager 'touch /tmp/ran'; "
        "git config core.editor 'touch /tmp/ran'; git config user.useConfigOnly true; git config core.quotePath false; "
        "git config commit.gpgSign true; git config log.showSignature true; git config core.hooksPath .git/hooks"
    )
    await guest.write("é", "x")
    tree = await guest.save_work_tree()
    assert [entry.path for entry in (await guest.get_status()).entries] == ["é"]
    assert len((await read_diff(guest, tree.head, tree.commit)).files) == 1
    await guest.restore_work_tree(tree.commit)
    assert await guest.list_leftovers() == ""


# hostile output ----------------------------------------------------------------------------------------------------------


class HostileProgramRunner(ProgramRunner):
    """A sandbox whose git prints arbitrary output."""

    def __init__(self, output: bytes) -> None:
        self.engine_id = "hostile"
        self.output = output

    async def run(self, *_: object, **__: object) -> ProgramResult:  # type: ignore[override]
        return ProgramResult(0, self.output, "")


def create_hostile_git(output: bytes) -> SandboxGit:
    return SandboxGit(HostileProgramRunner(output), limit=1)


async def test_the_number_of_names_from_a_hostile_sandbox_is_bounded() -> None:
    head = b"%s\0%s\0main\0%d\0" % (b"a" * 40, b"b" * 40, 7)
    started = time.process_time()
    tree = await create_hostile_git(head + b"".join(b"%d\0" % number for number in range(500_000))).save_work_tree()
    assert (tree.commit, tree.branch, tree.changed) == ("a" * 40, "main", 7)
    assert tree.skipped == tuple(str(number) for number in range(1000))
    tree = await create_hostile_git(head + b"one\0two\0one\0half").save_work_tree()
    assert tree.skipped == ("one", "two")
    for output in (b"\0" * (8 << 20), b"a" * (8 << 20), b"", head.replace(b"7", b"9" * 5000)):
        with pytest.raises(SandboxGitError):
            await create_hostile_git(output).save_work_tree()
    discarded = await create_hostile_git(b"?? x\0" * 1_000_000).discard([], everything=True)
    assert discarded == ["x"] * 10_000
    assert await create_hostile_git(b"?? x\0 M y\0").discard(["x"], everything=False) == ["x", "y"]
    assert time.process_time() - started < 3


def test_messages_of_git_are_made_storable() -> None:
    assert extract_message("fatal: a\0b\ud800c\n\nhint: no\nend é\x1b\n") == "fatal: a\ufffdb\ufffdc\nend é\ufffd"
    assert len(extract_message("\0" * (1 << 20))) == 2000
    assert "\0" not in str(translate_failure(ProgramResult(1, b"", "\0\udfff")))


async def test_messages_of_a_hook_are_made_storable(guest: SandboxCheckout) -> None:
    await guest.write("a.txt", "changed")
    await guest.write(".git/hooks/pre-commit", '#!/bin/sh\nprintf "no\\000\\355\\240\\200way" >&2; exit 1\n')
    await guest.sh("chmod +x .git/hooks/pre-commit")
    with pytest.raises(GitFailedError, match=r"no\ufffd+way"):
        await guest.commit(draft())


@pytest.mark.parametrize("files", [12_000, pytest.param(100_000, marks=pytest.mark.slow)])
async def test_many_untracked_files_are_truncated_quickly(guest: SandboxCheckout, files: int) -> None:
    await guest.sh(f"mkdir many; cd many; seq {files} | xargs touch")
    started = time.monotonic()
    status = await guest.get_status()
    assert time.monotonic() - started < 10
    assert (status.branch, len(status.entries), status.truncated) == ("task/1", 10_000, True)
