"""A checkout that is sealed, kept and adopted by a session, in sandboxes of a real engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandyard.platform.domain.git.checkout.sandbox_git import MAX_NAMES
from sandyard.platform.domain.git.errors import NoCheckoutError
from sandyard.platform.domain.git.model import PREPARED_BRANCH
from sandyard.platform.domain.repositories.errors import GitFailedError
from sandyard.platform.domain.repositories.model import Bundle
from tests.integration.platform.domain.git.sandbox_checkout import SandboxCheckout, create_checkout
from tests.integration.platform.domain.repositories.plain import ANN, BOB, Repository

ORIGIN = "https://forge.example/o/r.git"


async def test_a_sealed_checkout_is_clean_and_keeps_the_files_of_the_setup(
    empty_guest: SandboxCheckout,
    bundle: Bundle,
    upstream: Repository,
    tmp_path: Path,
) -> None:
    commit = upstream.head
    await create_checkout(empty_guest, bundle, upstream, PREPARED_BRANCH)
    await empty_guest.sh(
        "echo more >>a.txt; rm b.txt; mkdir ignored made; echo 1 >ignored/x; echo 2 >made/y; git add c.txt"
    )
    await empty_guest.sh(
        "echo 3 >'!odd #[x]*  '; echo 4 >$'new\\nline'; git -c user.name=x commit -qam 'a commit of the setup'"
    )
    await empty_guest.sh("for i in $(seq 30); do echo $i >many-$i; done; touch .git/index.lock")
    sealed = await empty_guest.seal(commit)
    assert sealed.restored == ("a.txt", "b.txt") and sealed.restored_count == 2
    assert (len(sealed.ignored), sealed.ignored_count) == (MAX_NAMES, 33)
    assert await empty_guest.sh("git status --porcelain") == '?? "new\\nline"\n', (
        "only a name that no ignore pattern can express is listed"
    )
    assert await empty_guest.sh("cat ignored/x made/y '!odd #[x]*  '; git rev-parse HEAD") == f"1\n2\n3\n{commit}\n"
    assert PREPARED_BRANCH not in await empty_guest.sh("git for-each-ref") and await empty_guest.get_branch() is None
    assert (await empty_guest.seal(commit)).restored_count == 0

    newer = upstream.commit("feat: newer", **{"a.txt": "newer\n"})
    more = upstream.bundle(tmp_path / "more", "refs/heads/main", f"^{commit}")
    wanted = {"commit": newer, "base_branch": "main", "branch": "task/2", "identity": BOB, "origin": ORIGIN}
    await empty_guest.adopt(more, **wanted)  # type: ignore[arg-type]
    script = "cat a.txt made/y; git branch --show-current; git rev-parse origin/main HEAD; git config user.name"
    assert await empty_guest.sh(script) == f"newer\n2\ntask/2\n{newer}\n{newer}\nBob\n"
    assert await empty_guest.list_leftovers() == ""
    await empty_guest.sh("git commit -q --allow-empty -m work; echo mine >a.txt")
    before = await empty_guest.describe_state()
    await empty_guest.adopt(None, **wanted)  # type: ignore[arg-type]
    assert await empty_guest.describe_state() == before, "an adopted checkout is left alone"
    with pytest.raises(GitFailedError, match="another"):
        await empty_guest.adopt(None, **{**wanted, "branch": "task/3"})  # type: ignore[arg-type]


async def test_a_shallow_checkout_can_be_adopted_and_a_missing_one_cannot(
    empty_guest: SandboxCheckout,
    upstream: Repository,
    tmp_path: Path,
) -> None:
    for number in range(3):
        upstream.commit(f"feat: {number}", **{"a.txt": f"{number}\n"})
    wanted = {"base_branch": "main", "branch": "task/1", "identity": ANN, "origin": ORIGIN}
    with pytest.raises(NoCheckoutError):
        await empty_guest.adopt(None, commit=upstream.head, **wanted)  # type: ignore[arg-type]
    copy = tmp_path / "shallow"
    upstream.git("clone", "-q", "--bare", "--depth=1", f"file://{upstream.path}", str(copy))
    shallow = Repository(copy).bundle(tmp_path / "bundle", "refs/heads/main")
    await create_checkout(empty_guest, Bundle(shallow.path, shallow.size, (upstream.head,)), upstream, PREPARED_BRANCH)
    await empty_guest.seal(upstream.head)
    await empty_guest.adopt(None, commit=upstream.head, **wanted)  # type: ignore[arg-type]
    assert await empty_guest.sh("git rev-list --count HEAD; git fsck 2>&1; git status --porcelain") == "1\n"
