"""Push to a remote. Never forces, and finds out what arrived if the connection broke."""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from sandyard.kit.logging import get_logger
from sandyard.kit.text import append_quote
from sandyard.platform.domain.repositories.bare_repository import BareRepository, list_remote_refs, parse_refs
from sandyard.platform.domain.repositories.error_translation import (
    clean_line,
    extract_server_message,
    translate_error,
)
from sandyard.platform.domain.repositories.errors import (
    BranchCheckedOutError,
    BranchGoneError,
    BranchMovedError,
    RemoteRejectedError,
    RemoteUnreachableError,
)
from sandyard.platform.domain.repositories.git_process import Git
from sandyard.platform.domain.repositories.model import Credential, Progress
from sandyard.platform.domain.repositories.remote import Remote

_log = get_logger(__name__)
_REJECTION = re.compile(r"^!\t[^\t]*\t\[(?P<by>[^\]]+)\](?: \((?P<why>.*)\))?$", re.MULTILINE)
_RACE_REASONS = ("failed to update ref", "cannot lock ref", "reference already exists", "failed to lock")
_PAUSES = (1.0, 4.0)
_MAX_REASON_LENGTH = 500
_MAX_FILE_BYTES = 1 << 20
"""Maximum size of a file that git writes during a push. A server that speaks the smart HTTP protocol needs none."""
_NO_REFS = "refs/sandyard/none/*"
_CHECK_TIMEOUT_S, _CHECK_MEMORY_BYTES = 60.0, 512 << 20
T = TypeVar("T")


@dataclass(frozen=True)
class RetryPolicy:
    """The number of retries after connection errors, and the delay before each."""

    pauses: Sequence[float] = _PAUSES
    sleep: Callable[[float], Awaitable[None]] = field(default=asyncio.sleep)

    async def run(self, attempt: Callable[[], Awaitable[T]], action: str) -> T:
        """Retry until it succeeds, fails for another reason than the connection, or all retries are used."""
        for pause in self.pauses:
            try:
                return await attempt()
            except RemoteUnreachableError as error:
                _log.info("git_remote_faulty", what=action, reason=error.message, pause_s=pause)
                await self.sleep(pause)
        return await attempt()


@dataclass(frozen=True, slots=True)
class RemoteConnection:
    """A remote with its credential."""

    repository: BareRepository
    remote: Remote
    credential: Credential | None

    async def list_refs(self, *patterns: str) -> dict[str, str]:
        """Return the remote's current refs by full name."""
        listing = await list_remote_refs(self.repository.git, self.remote, self.credential, *patterns)
        return await asyncio.to_thread(
            lambda: {name: commit for commit, name in parse_refs(listing) if not name.endswith("^{}")}
        )

    async def get_ref(self, ref: str) -> str | None:
        return (await self.list_refs(ref)).get(ref)

    async def push_once(self, refspec: str, ref: str, progress: Progress, *options: str) -> None:
        """Push once. Raises BranchMovedError, RemoteRejectedError, and the errors of Git.run.

        A server that speaks only the dumb HTTP protocol can make git download objects during a push. They are discarded.
        """
        with self.repository.create_quarantine() as objects:
            result = await self.repository.git.run(
                f"--git-dir={self.repository.folder}",
                "push",
                "--porcelain",
                "--progress",
                *options,
                "--",
                self.remote.url,
                refspec,
                cwd=self.repository.folder,
                remote=self.remote,
                credential=self.credential,
                progress=progress,
                ok=(0, 1),
                objects=objects,
                max_file_size=_MAX_FILE_BYTES if self.remote.kind == "http" else None,
            )
        if result.code == 0:
            return
        rejected = _REJECTION.search(result.stdout.decode(errors="replace"))
        if rejected is None or rejected["by"] == "remote failure":
            raise translate_error(result.stderr, "push")
        if rejected["by"] != "remote rejected":
            raise BranchMovedError
        reason = clean_line(rejected["why"] or "it does not say why")[:_MAX_REASON_LENGTH]
        if reason.startswith(_RACE_REASONS):
            raise RemoteUnreachableError(f"{ref} was changed by somebody else at the same time. Try again.")
        if reason == "branch is currently checked out":
            raise BranchCheckedOutError
        raise RemoteRejectedError(
            append_quote(f"The remote rejected the push ({reason}).", extract_server_message(result.stderr))
        )


async def check_push_access(git: Git, remote: Remote, credential: Credential | None) -> None:
    """Check that the remote lets the credential start a push. Sends nothing. Raises the errors of Git.run.

    A server that checks permissions only when it receives commits passes.
    """
    with tempfile.TemporaryDirectory(prefix="sandyard-push-") as name:
        folder = Path(name)
        await git.run("init", "--quiet", "--bare", name, cwd=folder)
        await git.run(
            # the pattern matches no ref, so that there is nothing to push
            *(f"--git-dir={name}", "push", "--dry-run", "--porcelain", "--", remote.url, f"{_NO_REFS}:{_NO_REFS}"),
            cwd=folder, remote=remote, credential=credential, timeout_s=_CHECK_TIMEOUT_S, memory=_CHECK_MEMORY_BYTES,
            max_file_size=_MAX_FILE_BYTES,
        )  # fmt: skip


async def push(
    connection: RemoteConnection,
    commit: str,
    branch: str,
    *,
    expected: str | None,
    base: str | None,
    progress: Progress,
    retry_policy: RetryPolicy,
) -> None:
    """Push `commit` to the branch. Idempotent: does nothing if the remote's branch is at `commit` already.

    `expected` is the branch's position after the last push; `base` is the commit that the work started from. Raises
    BranchGoneError if the branch should exist but was deleted. Raises BranchMovedError if the branch has commits that
    are not in `commit`, or if it should not exist and has nothing that is not in `base`, because then it was never
    pushed from here.
    """
    ref = f"refs/heads/{branch}"

    async def attempt() -> None:
        current = await connection.get_ref(ref)
        if current == commit:
            return
        if current is None and expected is not None:
            raise BranchGoneError(
                f"The branch {branch} was pushed before, but was deleted on the remote. Nothing was pushed. Create a new "
                "branch to push this work."
            )
        if (
            expected is None
            and base is not None
            and current is not None
            and await connection.repository.is_ancestor(current, base)
        ):
            raise BranchMovedError(
                f"The remote already has a branch {branch} that is somebody else's. Create a new branch to push this work."
            )
        if current is not None and not await connection.repository.is_ancestor(current, commit):
            raise BranchMovedError(
                f"The branch {branch} on the remote has commits that are not in this checkout. Update the branch first, then push again."
            )
        await connection.push_once(f"{commit}:{ref}", ref, progress)

    await retry_policy.run(attempt, f"push {branch}")


async def push_tag(
    connection: RemoteConnection, tag: str, name: str, *, progress: Progress, retry_policy: RetryPolicy
) -> None:
    """Push the tag object `tag`. Idempotent. Raises RemoteRejectedError if the remote has a different tag of that name."""
    ref = f"refs/tags/{name}"

    async def attempt() -> None:
        current = await connection.get_ref(ref)
        if current == tag:
            return
        if current is not None:
            raise RemoteRejectedError(
                f"The remote has a different tag {name}. Tags are not moved; choose another name."
            )
        await connection.push_once(f"{tag}:{ref}", ref, progress)

    await retry_policy.run(attempt, f"push tag {name}")


async def delete_branch(
    connection: RemoteConnection, branch: str, expected: str, *, progress: Progress, retry_policy: RetryPolicy
) -> bool:
    """Delete the branch if it is at `expected`. Returns whether it is gone. Idempotent."""
    ref = f"refs/heads/{branch}"

    async def attempt() -> bool:
        current = await connection.get_ref(ref)
        if current is None:
            return True
        if current != expected:
            return False
        try:
            # the lease makes the server compare again while it deletes
            await connection.push_once(f":{ref}", ref, progress, f"--force-with-lease={ref}:{expected}")
        except BranchMovedError:
            return False
        return True

    return await retry_policy.run(attempt, f"delete {branch}")
