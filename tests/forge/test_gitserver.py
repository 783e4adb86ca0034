"""The git server with real git: access, and the effect of each fault on the client."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.forge.checkout import Clone, GitResult, run
from tests.forge.gitserver import GitServer
from tests.forge.repositories import GitError, Repository
from tests.forge.tokens import Token

LARGE = 2_000_000
"""More than git sends in one piece (http.postBuffer is 1 MiB): its requests then come in chunks, after a probe."""


@pytest.fixture
def server() -> Iterator[GitServer]:
    with GitServer() as server:
        yield server


@pytest.fixture
def site(server: GitServer) -> Repository:
    return server.repository("acme/website", files={"README.md": "# Website\n", "data.bin": os.urandom(200_000)})


@pytest.fixture
def clone(server: GitServer, site: Repository, tmp_path: Path) -> Clone:
    return Clone(tmp_path / "clone", site.url, server.tokens.make("ada"))


@pytest.mark.parametrize("size", [100, LARGE])
def test_clone_push_and_fetch_work(
    server: GitServer, site: Repository, clone: Clone, tmp_path: Path, size: int
) -> None:
    assert run("rev-parse", "HEAD", cwd=clone.folder).out.strip() == site.head("main")
    made = clone.commit("more.bin", os.urandom(size))
    assert clone.push("task-1").code == 0
    assert site.head("task-1") == made
    theirs = site.commit({"theirs.txt": "theirs\n"}, "fix: theirs")
    assert clone.fetch().code == 0
    assert run("rev-parse", "origin/main", cwd=clone.folder).out.strip() == theirs
    for number in range(3):
        clone.commit(f"{number}.txt", b"more")
    assert clone.push("task-1").code == 0
    assert site.log("task-1")[:3] == ["feat: more"] * 3
    assert {request.login for request in server.requests if request.status == 200} == {"ada"}


def test_access_depends_on_the_token(server: GitServer, site: Repository, clone: Clone, tmp_path: Path) -> None:
    tokens = server.tokens

    def list_refs(token: Token | str | None, *, bearer: bool = False) -> GitResult:
        return run("ls-remote", site.url, cwd=tmp_path, token=token, bearer=bearer)

    assert list_refs(tokens.make("bob", write=False)).code == 0
    assert list_refs(tokens.make("bob"), bearer=True).code == 0
    assert "could not read Username" in list_refs(None).err
    assert "could not read Username" in list_refs("ghp_unknown").err
    assert "Repository not found" in list_refs(tokens.make("eve", repositories=["acme/other"])).err
    missing = run("ls-remote", f"{server.url}/acme/nothing.git", cwd=tmp_path, token=clone.token)
    assert "Repository not found" in missing.err
    clone.commit("a", b"a")
    result = clone.push("task-1", tokens.make("bob", write=False))
    assert result.code != 0
    assert "Permission to acme/website.git denied to bob" in result.err
    clone.token.expire()
    assert "could not read Username" in clone.push("task-1").err
    clone.token.renew()
    assert clone.push("task-1").code == 0
    public_repository = server.repository("acme/open", files={"a": "a"}, anonymous=True)
    assert run("ls-remote", public_repository.url, cwd=tmp_path).code == 0


@pytest.mark.parametrize("size", [1000, LARGE])
def test_a_cut_push_does_not_arrive(server: GitServer, site: Repository, clone: Clone, size: int) -> None:
    made = clone.commit("more.bin", os.urandom(size))
    server.faults.cut("push", after=500)
    assert clone.push("task-1").code != 0
    assert site.head("task-1") is None
    server.faults.cut("push", after=100 * LARGE)
    assert clone.push("task-1").code != 0, "a push that is shorter than the cut loses its last byte"
    assert site.head("task-1") is None
    assert clone.push("task-1").code == 0
    assert site.head("task-1") == made
    assert server.faults.left == 0


@pytest.mark.parametrize("size", [1000, LARGE])
def test_a_push_arrives_although_its_answer_is_cut(
    server: GitServer, site: Repository, clone: Clone, size: int
) -> None:
    made = clone.commit("more.bin", os.urandom(size))
    server.faults.cut_answer()
    assert clone.push("task-1").code != 0
    assert site.head("task-1") == made
    assert server.faults.left == 0
    assert "Everything up-to-date" in clone.push("task-1").err


def test_a_cut_fetch_fails_and_can_be_repeated(server: GitServer, site: Repository, clone: Clone) -> None:
    theirs = site.commit({"more.bin": os.urandom(300_000)}, "feat: more")
    server.faults.cut("fetch", after=10_000)
    assert "RPC failed" in clone.fetch().err
    server.faults.cut("fetch", after=100 * LARGE)
    assert clone.fetch().code != 0
    assert clone.fetch().code == 0
    assert run("rev-parse", "origin/main", cwd=clone.folder).out.strip() == theirs


def test_requested_answers_are_sent(server: GitServer, site: Repository, clone: Clone) -> None:
    server.faults.answer(502, times=2, on="refs")
    assert "502" in clone.fetch().err
    assert "502" in clone.fetch().err
    assert clone.fetch().code == 0
    clone.commit("a", b"a")
    server.faults.answer(429, on="push", headers={"Retry-After": "1"})
    assert "429" in clone.push("task-1").err
    assert site.head("task-1") is None
    assert clone.push("task-1").code == 0


def test_a_push_of_another_user_in_between_is_a_conflict(server: GitServer, site: Repository, clone: Clone) -> None:
    clone.commit("mine", b"mine")
    assert clone.push("task-1").code == 0
    clone.commit("mine", b"mine again")
    server.faults.before_push(lambda: site.commit({"theirs": "theirs"}, branch="task-1"))
    result = clone.push("task-1")
    assert result.code != 0
    assert "cannot lock ref" in result.err
    assert "non-fast-forward" in clone.push("task-1").err or "fetch first" in clone.push("task-1").err
    assert "theirs" in site.files("task-1")


def test_a_rejected_push_shows_the_message_of_the_hook(site: Repository, clone: Clone) -> None:
    clone.commit("a", b"a")
    site.reject("Not on Sundays.")
    assert "remote: Not on Sundays." in clone.push("task-1").err
    site.accept()
    site.protect("main")
    assert "GH006" in clone.push("main").err
    assert clone.push("task-1").code == 0


def test_a_push_can_be_held_released_and_cut(server: GitServer, site: Repository, clone: Clone) -> None:
    clone.commit("more.bin", os.urandom(100_000))
    gate = server.faults.hold("push", after=500)
    pushing = threading.Thread(target=clone.push, args=("task-1",))
    pushing.start()
    gate.wait(10)
    assert site.head("task-1") is None
    gate.release()
    pushing.join(30)
    assert site.head("task-1") is not None
    gate = server.faults.hold("push", after=500)
    clone.commit("more.bin", os.urandom(100_000))
    pushing = threading.Thread(target=clone.push, args=("task-2",))
    pushing.start()
    gate.wait(10)
    gate.cut()
    pushing.join(30)
    assert site.head("task-2") is None


def test_merging_is_done_by_git(site: Repository) -> None:
    site.commit({"a.txt": "a\n"}, "feat: a", branch="one")
    site.commit({"a.txt": "b\n"}, "fix: a", branch="one")
    first = site.head("main")
    made = site.merge("main", "one", method="squash", title="feat: a (#1)", message="Both.")
    assert site.git("rev-list", "--parents", "-1", made).split()[1:] == [first]
    assert site.messages(made)[0] == "feat: a (#1)\n\nBoth."
    site.commit({"b.txt": "b\n"}, "feat: b", branch="two", start=str(first))
    site.merge("main", "two", method="merge", title="Merge pull request #2 from acme/two")
    assert site.is_ancestor("two", "main")
    site.commit({"a.txt": "other\n"}, "feat: clash", branch="three", start=str(first))
    assert not site.merges_cleanly("main", "three")
    with pytest.raises(GitError):
        site.merge("main", "three", method="rebase", title="x")
    assert site.log("main")[0] == "Merge pull request #2 from acme/two"
