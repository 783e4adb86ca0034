"""Test all git verbs of the SDK, with a bare repository in the sandbox as the remote."""

from __future__ import annotations

import pytest
from e2b import AsyncSandbox, GitUpstreamException, InvalidArgumentException, Sandbox

REMOTE = "/home/user/remote.git"
WORK = "/home/user/work"


@pytest.mark.timeout(180)
def test_git_verbs(sandbox: Sandbox) -> None:
    git, files = sandbox.git, sandbox.files
    git.init(REMOTE, bare=True, initial_branch="main")
    git.init(WORK, initial_branch="main")
    git.configure_user("A Person", "person@example.com")
    assert git.get_config("user.name") == "A Person"
    git.set_config("pull.rebase", "false", scope="local", path=WORK)
    assert git.get_config("pull.rebase", scope="local", path=WORK) == "false"
    git.remote_add(WORK, "origin", REMOTE)
    assert git.remote_get(WORK, "origin") == REMOTE
    assert git.remote_get(WORK, "absent") is None

    files.write(f"{WORK}/a.txt", "one\n")
    assert [entry.name for entry in git.status(WORK).file_status] == ["a.txt"]
    git.add(WORK, ["a.txt"])
    assert git.status(WORK).has_staged
    git.commit(WORK, "first")
    assert git.status(WORK).is_clean
    git.push(WORK, "origin", "main")
    assert git.status(WORK).upstream == "origin/main"

    git.create_branch(WORK, "side")
    assert git.branches(WORK).current_branch == "side"
    with pytest.raises(GitUpstreamException):
        git.pull(WORK)
    git.checkout_branch(WORK, "main")
    git.delete_branch(WORK, "side")
    assert git.branches(WORK).branches == ["main"]

    other = f"{WORK}-2"
    git.clone(REMOTE, other, branch="main")
    files.write(f"{other}/b.txt", "two\n")
    git.add(other)
    git.commit(other, "second", author_name="Another", author_email="another@example.com")
    git.push(other, "origin", "main")
    git.pull(WORK, "origin", "main")
    assert files.read(f"{WORK}/b.txt") == "two\n"

    files.write(f"{WORK}/a.txt", "changed\n")
    git.restore(WORK, ["a.txt"])
    assert files.read(f"{WORK}/a.txt") == "one\n"
    git.reset(WORK, mode="hard", target="HEAD~1")
    assert not files.exists(f"{WORK}/b.txt")
    assert git.status(WORK).behind == 1


def test_credentials_are_stored_for_git(sandbox: Sandbox) -> None:
    sandbox.git.dangerously_authenticate("person", "hidden-token", host="git.example.com")
    credential_command = "printf 'protocol=https\\nhost=git.example.com\\n\\n' | git credential fill"
    assert "password=hidden-token" in sandbox.commands.run(credential_command).stdout
    with pytest.raises(InvalidArgumentException):
        sandbox.git.dangerously_authenticate("person", "")


@pytest.mark.timeout(180)
async def test_git_verbs_async(async_sandbox: AsyncSandbox) -> None:
    git, files = async_sandbox.git, async_sandbox.files
    await git.init(REMOTE, bare=True, initial_branch="main")
    await git.clone(REMOTE, WORK)
    await git.configure_user("A Person", "person@example.com")
    await git.set_config("core.autocrlf", "false")
    assert await git.get_config("core.autocrlf") == "false"
    assert await git.remote_get(WORK, "origin") == REMOTE
    await git.remote_add(WORK, "second", REMOTE)
    await files.write(f"{WORK}/a.txt", "one\n")
    await git.add(WORK)
    await git.commit(WORK, "first")
    await git.push(WORK, "origin", "main")
    assert (await git.status(WORK)).is_clean
    await git.create_branch(WORK, "side")
    await git.checkout_branch(WORK, "main")
    await git.delete_branch(WORK, "side", force=True)
    assert (await git.branches(WORK)).branches == ["main"]
    await git.pull(WORK, "origin", "main")
    await files.write(f"{WORK}/a.txt", "two\n")
    await git.restore(WORK, ["a.txt"])
    await git.commit(WORK, "empty", allow_empty=True)
    await git.reset(WORK, mode="hard", target="origin/main")
    assert (await git.status(WORK)).ahead == 0
    await git.dangerously_authenticate("person", "hidden-token", host="git.example.com")
    assert "hidden-token" in await files.read("/home/user/.git-credentials")
