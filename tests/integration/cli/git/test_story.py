"""The git workflow with `sandyard project, session, git, pr`, the real server and a local repository."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.up import Installation, run_json
from tests.harness.upstream_repository import Upstream


@pytest.fixture
def upstream(tmp_path: Path) -> Upstream:
    return Upstream(tmp_path)


@pytest.fixture
def site(installation: Installation, upstream: Upstream) -> Iterator[str]:
    """The name of a project."""
    name = f"site-{upstream.bare.parent.name}"
    run_json(installation, "project", "add", name, "--repository", str(upstream.bare))
    yield name
    for session in run_json(installation, "session", "list", "--project", name)["items"]:
        installation.ok("session", "delete", session["id"], "--yes")
    installation.ok("project", "delete", name, "--yes")


def test_changes_in_a_session_become_a_pushed_branch(installation: Installation, upstream: Upstream, site: str) -> None:
    assert run_json(installation, "project", "test", site)["ok"]
    made = run_json(installation, "session", "create", "--project", site, "--title", "Mend", "--wait")
    name = made["id"]
    status = run_json(installation, "git", "status", name)
    assert (status["clean"], status["live"]) == (True, True), "--wait waits for the checkout"
    assert made["id"] in [
        session["id"] for session in run_json(installation, "session", "list", "--project", site)["items"]
    ]

    change = r"printf 'one\n2\nthree\n' > a.txt && git mv b.txt c.txt && printf 'x\033[31m\n' > new.txt"
    installation.ok("sandbox", "exec", "--cwd", "/home/user/workspace", name, change)
    shown = installation.ok("git", "status", name)
    assert "  renamed:      b.txt -> c.txt\n" in shown
    assert "  modified:     a.txt\n" in shown
    assert "Untracked:\n  new.txt\n" in shown
    patch = installation.ok("git", "diff", name)
    assert "\n-two\n+2\n" in patch
    assert "\n+x^[[31m\n" in patch
    upstream.git("apply", "--check", str(_write_patch(upstream, installation.run("git", "diff", name, "--raw").stdout)))
    assert installation.ok("git", "diff", name, "--name-only", "--", "a.txt") == "a.txt\n"

    refused = installation.run("git", "commit", name, "-m", "Mended it")
    assert refused.returncode == 1
    hint = refused.stderr.decode().splitlines()[1]
    assert hint.startswith(f"Try: sandyard git commit {name} -m ")
    installation.ok("git", "stage", name, "a.txt")
    installation.ok("git", "commit", name, "-m", "fix: say 2", "--staged")
    installation.ok("git", "commit", name, "-m", "feat: more", "-m", "Why.")
    assert installation.run("git", "commit", name, "-m", "feat: more").returncode == 1, "nothing is left to commit"
    subjects = [line.partition(" ")[2] for line in installation.ok("git", "log", name).splitlines()]
    assert subjects == ["feat: more", "fix: say 2", "feat: begin"], "its own commits, and the commit it started from"

    pushed = run_json(installation, "git", "push", name)
    branch = pushed["detail"]["branch"]
    assert upstream.subjects(branch) == ["feat: more", "fix: say 2", "feat: begin"]
    assert installation.ok("git", "push", name, "-o", "table").startswith("Everything up to date")
    address = installation.ok("pr", "open", name).splitlines()[-1]
    assert address.startswith("http")
    assert run_json(installation, "pr", "show", name)["url"] == address
    kinds = [git["kind"] for git in run_json(installation, "git", "operations", name)["items"]]
    assert kinds[-1] == "clone"
    assert {"push", "commit", "stage"} <= set(kinds)


@pytest.mark.slow  # the tests of the API cover the same operations
def test_a_session_is_updated_with_commits_of_others(installation: Installation, upstream: Upstream, site: str) -> None:
    name = run_json(installation, "session", "create", "--project", site, "--wait")["id"]

    def write(text: str, message: str) -> None:
        installation.ok("sandbox", "exec", "--cwd", "/home/user/workspace", name, f"printf '{text}' > a.txt")
        installation.ok("git", "commit", name, "-m", message)

    write(r"one\n2\nthree\n", "fix: say 2")
    upstream.commit("docs: elsewhere", **{"b.txt": "bb\n"})
    assert installation.ok("git", "update", name, "-o", "table").startswith("Added 1 commit from main")
    upstream.commit("feat: zwei", **{"a.txt": "one\nzwei\nthree\n"})
    assert installation.run("git", "update", name, "--check").returncode == 1
    refused = installation.run("git", "update", name)
    printed = refused.stderr.decode()
    assert refused.returncode == 1
    assert "  a.txt (content)\n" in printed
    assert f"  sandyard git update {name} --agent " in printed
    installation.ok("git", "update", name, "--agent")
    assert "Conflicts:\n  conflict:     a.txt\n" in installation.ok("git", "status", name)
    assert installation.ok("git", "update", name, "--give-up", "-o", "table") == "Restored the previous state.\n"

    branch = run_json(installation, "git", "push", name)["detail"]["branch"]
    upstream.git("fetch", "-q")
    upstream.git("checkout", "-q", "-B", "theirs", f"origin/{branch}")
    upstream.commit("docs: theirs", branch, **{"d.txt": "d\n"})
    installation.ok("sandbox", "exec", "--cwd", "/home/user/workspace", name, "echo e > e.txt")
    installation.ok("git", "commit", name, "-m", "docs: mine")
    moved = installation.run("git", "push", name)
    assert moved.returncode == 1
    assert f"sandyard git update {name} --source branch" in moved.stderr.decode()
    installation.ok("git", "update", name, "--source", "branch")
    installation.ok("git", "push", name)
    assert upstream.subjects(branch)[:2] == ["docs: mine", "docs: theirs"]


def test_a_checkpoint_restores_uncommitted_changes(installation: Installation, site: str) -> None:
    made = run_json(installation, "session", "create", "--project", site, "--wait")
    name = made["id"]
    installation.ok("sandbox", "exec", "--cwd", "/home/user/workspace", name, "echo draft > draft.txt")
    checkpoint = run_json(installation, "git", "checkpoint", name)["detail"]["checkpointId"]
    installation.ok("git", "discard", name, "--all", "--yes")
    assert run_json(installation, "git", "status", name)["clean"]
    assert checkpoint in installation.ok("git", "checkpoints", name, "-o", "table")
    restored = run_json(installation, "git", "restore", checkpoint)
    assert restored["sandboxId"] != made["sandboxId"]
    installation.ok("session", "pause", name)
    status = installation.ok("git", "status", name)
    assert "The sandbox is paused" in status
    assert "  draft.txt\n" in status
    assert "\n+draft\n" in installation.ok("git", "diff", name, "--against", "head")
    assert run_json(installation, "session", "show", name)["sandbox"]["status"] == "paused", (
        "reading does not resume the sandbox"
    )


def test_a_sandbox_without_a_session_can_clone_its_project(installation: Installation, site: str) -> None:
    unrelated = run_json(installation, "sandbox", "create")["id"]
    refused = installation.run("git", "clone", unrelated, "--project", site)
    assert refused.returncode == 1
    assert b"sandyard sandbox create --project" in refused.stderr
    installation.ok("sandbox", "kill", unrelated)
    sandbox = run_json(installation, "sandbox", "create", "--project", site)["id"]
    none = installation.run("git", "diff", sandbox)
    assert none.returncode == 1
    assert b"sandyard git clone" in none.stderr
    detail = run_json(installation, "git", "clone", sandbox, "--branch", "feature/x")["detail"]
    assert (detail["branch"], detail["baseBranch"]) == ("feature/x", "main")
    assert json.loads(installation.ok("git", "branch", sandbox, "other"))["detail"]["branch"] == "other"
    installation.ok("sandbox", "kill", sandbox)


def test_an_unreachable_repository_is_reported(installation: Installation, tmp_path: Path) -> None:
    command = ("project", "add", "nowhere", "--repository", str(tmp_path / "none.git"))
    done = installation.run(*command)
    assert done.returncode == 1
    assert "✗ repository: " in done.stderr.decode()
    assert not [
        project for project in run_json(installation, "project", "list")["items"] if project["name"] == "nowhere"
    ]
    made = run_json(installation, *command, "--no-test")
    opened = installation.run("session", "create", "--project", made["id"], "--wait")
    assert opened.returncode != 0
    assert b"was created without a checkout: " in opened.stderr
    installation.ok("project", "delete", made["id"], "-y")


def _write_patch(upstream: Upstream, patch: bytes) -> Path:
    file = upstream.clone.parent / "change.patch"
    file.write_bytes(patch)
    return file
