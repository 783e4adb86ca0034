"""Git in one sandbox: its checkout and all operations on it.

The agent controls everything in the sandbox, so no output is trusted: ids are checked, sizes are bounded, and
everything that is transferred out passes the mirror's checks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType

from sandyard.platform.domain.git import (
    guest_changes,
    guest_joining,
    guest_prepared,
    guest_transfer,
    guest_work,
    raw,
    reading,
)
from sandyard.platform.domain.git.errors import GitFailedError, GuestGitError
from sandyard.platform.domain.git.guest_prepared import Sealed
from sandyard.platform.domain.git.guest_run import LIMIT, Runner, script
from sandyard.platform.domain.git.guest_transfer import Sent
from sandyard.platform.domain.git.model import (
    FOLDER,
    Bundle,
    CommitDraft,
    Conflict,
    Identity,
    Status,
    Undone,
    WorkTree,
)
from sandyard.platform.domain.sandboxes.e2b import SandboxEngine

NONE: Mapping[str, str] = MappingProxyType({})
_MAX_STATE_LENGTH = 20
_OID = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")

_STATUS = script("""way=
if [ -d "$d/rebase-merge" ] || [ -d "$d/rebase-apply" ]; then way=rebase
elif [ -e "$d/MERGE_HEAD" ]; then way=merge
elif [ -e "$d/CHERRY_PICK_HEAD" ]; then way=cherry-pick
elif [ -e "$d/REVERT_HEAD" ]; then way=revert; fi
printf '%s\\0' "$way"
g status --porcelain=v2 -z --branch --no-ahead-behind --untracked-files=all --find-renames --ignore-submodules=dirty
""")
_TRACK = script("""g update-ref "refs/remotes/origin/$1" "$2" || exit 1
g show-ref -q --verify "refs/heads/$1" || exit 0
g config "branch.$1.remote" origin && g config "branch.$1.merge" "refs/heads/$1"
""")


class Guest:
    """A checkout in a sandbox, which is a Place.

    Every method raises NoCheckoutError if there is no checkout, GuestGitError if there is no git, NotEnoughSpaceError
    if the disk is full, GitTimeoutError, GitFailedError with git's message for all else, and the engine's errors if the
    sandbox is not running. `limit` bounds one bundle from the sandbox. Read-only methods are repeated if the connection
    breaks; the others run at most once. Only `commit` runs hooks of the checkout.
    """

    def __init__(self, engine: SandboxEngine, engine_id: str, folder: str = FOLDER, *, limit: int) -> None:
        self._runner = Runner(engine, engine_id, folder)
        self._limit = limit

    # transfer of commits ----------------------------------------------------------------------------------------------

    async def checkout(
        self,
        bundle: Bundle,
        *,
        commit: str,
        base_branch: str,
        branch: str,
        identity: Identity,
        origin: str,
        tracked: Mapping[str, str] = NONE,
    ) -> None:
        """Create a checkout of `branch` at `commit`.

        `tracked` maps branches of the remote to their commits, as far as the bundle has them; the base branch is at
        `commit` unless it is listed. Idempotent: a complete checkout is left alone, an incomplete one is created again.
        Raises GitFailedError if the folder contains something else.
        """
        await guest_transfer.checkout(
            self._runner,
            bundle,
            commit=commit,
            base_branch=base_branch,
            branch=branch,
            identity=identity,
            origin=origin,
            tracked=tracked,
        )

    async def seal(self, commit: str) -> Sealed:
        """Make the checkout on the branch PREPARED ready for a snapshot: on no branch, at `commit`, with tracked files
        restored.

        Other files stay and are ignored from then on. Idempotent.
        """
        return await guest_prepared.seal(self._runner, commit)

    async def adopt(
        self, bundle: Bundle | None, *, commit: str, base_branch: str, branch: str, identity: Identity, origin: str
    ) -> None:
        """Turn a sealed checkout into a checkout of `branch` at `commit`.

        The bundle holds the commit if the checkout lacks it. Untracked files stay. Idempotent: a checkout that is on
        that branch already is left alone. Raises GitFailedError if the checkout is a different one.
        """
        await guest_prepared.adopt(
            self._runner,
            bundle,
            commit=commit,
            base_branch=base_branch,
            branch=branch,
            identity=identity,
            origin=origin,
        )

    async def receive(self, bundle: Bundle, refs: Mapping[str, str]) -> None:
        """Add the bundle's commits to the checkout. `refs` maps refs of the bundle to refs of the checkout. Idempotent."""
        await guest_transfer.receive(self._runner, bundle, refs)

    async def send(self, into: Path, *, ref: str = "HEAD", have: Sequence[str]) -> Sent:
        """Write a bundle to the platform's machine with what `ref` (a ref or a commit) has and `have` has not.

        Writes no file if there is nothing new. A tag is sent as a tag object. Raises TooMuchError. Leaves nothing in
        the sandbox.
        """
        return await guest_transfer.send(self._runner, into, ref=ref, have=have, limit=self._limit)

    async def track(self, branch: str, commit: str) -> None:
        """Set the remote's branch to `commit` and make it the upstream of the local branch. Idempotent."""
        await self._runner.script(_TRACK, branch, commit)

    # reads ------------------------------------------------------------------------------------------------------------

    async def status(self) -> Status:
        ran = await self._runner.script(_STATUS, reads=True)
        way, _, output = ran.stdout.partition(b"\0")
        under_way = way[:_MAX_STATE_LENGTH].decode("ascii", "replace") or None
        return await raw.parsed(output, partial(reading.parse_status, under_way=under_way, truncated=ran.truncated))

    async def head(self) -> str:
        """Return the commit of HEAD. Raises GitFailedError if there is no commit yet."""
        output, _ = await self.read("rev-parse", "-q", "--verify", "HEAD^{commit}")
        return _parse_commit(output)

    async def branch(self) -> str | None:
        """Return the current branch. None if HEAD is detached."""
        output, _ = await self.read("branch", "--show-current")
        return output.decode(errors="replace").strip() or None

    async def read(self, *arguments: str, limit: int = LIMIT) -> tuple[bytes, bool]:
        return await self._runner.read(*arguments, limit=limit)

    # changes ----------------------------------------------------------------------------------------------------------

    async def stage(self, paths: Sequence[str], *, unstage: bool = False) -> None:
        """Stage or unstage these paths, which are names and not patterns. A folder includes everything in it.
        Idempotent."""
        await guest_changes.stage(self._runner, paths, unstage=unstage)

    async def discard(self, paths: Sequence[str], *, everything: bool = False) -> list[str]:
        """Restore files to HEAD, staged or not, and return those that had changes.

        Untracked files are deleted; ignored files stay. Idempotent.
        """
        return await guest_changes.discard(self._runner, paths, everything=everything)

    async def commit(self, draft: CommitDraft) -> str:
        """Commit and return the new commit's id.

        Raises NothingToCommitError, and GitFailedError with the output if hooks reject the commit or if files still
        have conflict markers.
        """
        return _parse_commit((await guest_changes.commit(self._runner, draft)).encode())

    async def create_branch(self, name: str, *, start: str | None = None) -> None:
        """Create a branch and switch to it. Does nothing if it is the current branch."""
        await guest_changes.create_branch(self._runner, name, start)

    async def tag(self, name: str, message: str | None, identity: Identity) -> str:
        """Tag HEAD and return its commit. Without a message the tag is a lightweight one.

        Idempotent: an existing tag of that name is left as it is. Raises GitFailedError if that tag is not on HEAD.
        """
        return _parse_commit((await guest_changes.tag(self._runner, name, message, identity)).encode())

    # merge and rebase -------------------------------------------------------------------------------------------------

    async def rebase(self, onto: str) -> None:
        """Rebase onto a commit. Raises ConflictsError, and then everything is as before."""
        await guest_joining.rebase(self._runner, onto)

    async def merge(self, with_: str, *, message: str, leave_conflicts: bool, identity: Identity) -> list[Conflict]:
        """Merge a commit and return the conflicts.

        With `leave_conflicts` the merge stays in progress, with markers in the files. Otherwise raises ConflictsError,
        and everything is as before.
        """
        return await guest_joining.merge(
            self._runner, with_, message=message, leave_conflicts=leave_conflicts, identity=identity
        )

    async def abort(self) -> bool:
        """Abort the merge or rebase in progress. Returns False if there was none."""
        return await guest_joining.abort(self._runner)

    # the whole work tree ----------------------------------------------------------------------------------------------

    async def work_tree(self) -> WorkTree:
        """Store everything except ignored files as a commit that no ref names.

        Leaves the index, files and refs untouched, and is safe while another git process is running. The same work tree
        gives the same commit. If there is no commit yet, `head` is an empty one.
        """
        return await guest_work.work_tree(self._runner)

    async def restore(self, commit: str) -> None:
        """Restore HEAD, its branch, the index and the files.

        Other files are deleted unless they are ignored, and a merge or rebase in progress is ended. Idempotent.
        """
        await guest_work.restore(self._runner, commit)

    async def undo(self, before: str) -> Undone | None:
        """Restore the files and the index to what `work_tree` returned as `before`.

        New files are deleted unless they were ignored at that time; changed and deleted files are restored. Changes
        nothing if HEAD has moved since. Returns None if the checkout has no such work tree. Idempotent.
        """
        return await guest_work.undo(self._runner, before)


def _parse_commit(output: bytes) -> str:
    commit = output.decode("ascii", "replace").strip()
    if not commit:
        raise GitFailedError("The checkout has no commits yet.")
    if not _OID.fullmatch(commit):
        raise GuestGitError("Git in the sandbox returned an invalid commit.")
    return commit
