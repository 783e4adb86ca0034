"""Git in one sandbox: its checkout, and every verb the platform has for it.

The agent owns everything in there. Nothing that comes back is believed: ids are checked, sizes are bounded, and whatever is
brought out goes through the mirror's own checks.
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
_WAY = 20
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
    """A Place. Every verb raises NoCheckoutError where there is no checkout, GuestGitError where there is no git,
    NotEnoughSpaceError when the disk is full, GitTimeoutError, GitFailedError with git's words for all else, and what the
    engine raises for a sandbox that does not run. `limit` bounds one bundle out of the sandbox. Verbs that only read are
    repeated when the line breaks; the others happen at most once. Only `commit` runs hooks of the checkout."""

    def __init__(self, engine: SandboxEngine, engine_id: str, folder: str = FOLDER, *, limit: int) -> None:
        self._runner = Runner(engine, engine_id, folder)
        self._limit = limit

    # commits in and out ------------------------------------------------------------------------------------------------

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
        """A checkout of `branch` at `commit`. `tracked` are branches of the remote and their commits, as far as the bundle has
        them; the base branch is at `commit` unless it is among them. Idempotent: one that is whole is left alone, one that
        is not is made anew. GitFailedError where there is something else in the folder."""
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
        """Make the checkout that `checkout` has made on the branch PREPARED ready to be kept: on no branch, at `commit`, tracked files
        as that has them. What is there besides stays, and is ignored from now on. Idempotent."""
        return await guest_prepared.seal(self._runner, commit)

    async def adopt(
        self, bundle: Bundle | None, *, commit: str, base_branch: str, branch: str, identity: Identity, origin: str
    ) -> None:
        """A sealed checkout becomes one of `branch` at `commit`, which the bundle brings if it was not there; files that are not tracked
        stay. Idempotent: one that is on that branch already is left alone. GitFailedError where it is another one."""
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
        """Its commits into the checkout: refs of the bundle, and which refs of the checkout they become. Idempotent."""
        await guest_transfer.receive(self._runner, bundle, refs)

    async def send(self, into: Path, *, ref: str = "HEAD", have: Sequence[str]) -> Sent:
        """A bundle of what `ref` (a ref or a commit) has that `have` has not, on the platform's machine; where there is nothing
        new, no file is written. A tag is sent as the object it is. TooMuchError. Nothing of it stays in the sandbox."""
        return await guest_transfer.send(self._runner, into, ref=ref, have=have, limit=self._limit)

    async def track(self, branch: str, commit: str) -> None:
        """The remote's branch is known to be at `commit`, and is where the local one belongs. Idempotent."""
        await self._runner.script(_TRACK, branch, commit)

    # what is there -----------------------------------------------------------------------------------------------------

    async def status(self) -> Status:
        ran = await self._runner.script(_STATUS, reads=True)
        way, _, told = ran.stdout.partition(b"\0")
        under_way = way[:_WAY].decode("ascii", "replace") or None
        return await raw.parsed(told, partial(reading.parse_status, under_way=under_way, truncated=ran.truncated))

    async def head(self) -> str:
        """GitFailedError when there is no commit yet."""
        told, _ = await self.read("rev-parse", "-q", "--verify", "HEAD^{commit}")
        return _checked(told)

    async def branch(self) -> str | None:
        """None: HEAD is on no branch."""
        told, _ = await self.read("branch", "--show-current")
        return told.decode(errors="replace").strip() or None

    async def read(self, *arguments: str, limit: int = LIMIT) -> tuple[bytes, bool]:
        return await self._runner.read(*arguments, limit=limit)

    # changes -----------------------------------------------------------------------------------------------------------

    async def stage(self, paths: Sequence[str], *, unstage: bool = False) -> None:
        """Idempotent. Paths are names and not patterns; a folder stands for all in it."""
        await guest_changes.stage(self._runner, paths, unstage=unstage)

    async def discard(self, paths: Sequence[str], *, everything: bool = False) -> list[str]:
        """The files are as HEAD has them, staged or not; untracked ones are gone, ignored ones stay. Says which had changes.
        Idempotent."""
        return await guest_changes.discard(self._runner, paths, everything=everything)

    async def commit(self, draft: CommitDraft) -> str:
        """NothingToCommitError. GitFailedError with their words when hooks refuse it, and when files that had conflicts still
        have the markers."""
        return _checked((await guest_changes.commit(self._runner, draft)).encode())

    async def create_branch(self, name: str, *, start: str | None = None) -> None:
        """And go to it. Nothing happens when that is where HEAD is."""
        await guest_changes.create_branch(self._runner, name, start)

    async def tag(self, name: str, message: str | None, identity: Identity) -> str:
        """The commit it is on, which is HEAD. Without a message a plain one. Idempotent: one of that name that is there already is left
        as it is, and GitFailedError if it is not on HEAD."""
        return _checked((await guest_changes.tag(self._runner, name, message, identity)).encode())

    # joining -----------------------------------------------------------------------------------------------------------

    async def rebase(self, onto: str) -> None:
        """ConflictsError: everything is as before."""
        await guest_joining.rebase(self._runner, onto)

    async def merge(self, with_: str, *, message: str, leave_conflicts: bool, identity: Identity) -> list[Conflict]:
        """With `leave_conflicts` the merge stays under way, with markers in the files; else ConflictsError, and everything is
        as before."""
        return await guest_joining.merge(
            self._runner, with_, message=message, leave_conflicts=leave_conflicts, identity=identity
        )

    async def abort(self) -> bool:
        """Give up what is under way. False: nothing was."""
        return await guest_joining.abort(self._runner)

    # the whole work tree -----------------------------------------------------------------------------------------------

    async def work_tree(self) -> WorkTree:
        """Everything but what is ignored, as a commit that no ref names. Index, files and refs stay untouched, also while
        another git is at work. The same work tree gives the same commit. Where there is no commit yet, `head` is an empty
        one."""
        return await guest_work.work_tree(self._runner)

    async def restore(self, commit: str) -> None:
        """HEAD, its branch, the index and the files are as they were; what is there besides and not ignored is gone, and so is
        a merge or rebase that was under way. Idempotent."""
        await guest_work.restore(self._runner, commit)

    async def undo(self, before: str) -> Undone | None:
        """Put the files and the index back to what `work_tree` returned as `before`: new files are removed unless they were ignored then,
        changed and deleted ones restored. Changes nothing if HEAD has moved since. None if the checkout has no such work tree.
        Idempotent."""
        return await guest_work.undo(self._runner, before)


def _checked(told: bytes) -> str:
    commit = told.decode("ascii", "replace").strip()
    if not commit:
        raise GitFailedError("The checkout has no commits yet.")
    if not _OID.fullmatch(commit):
        raise GuestGitError("Git in the sandbox returned an invalid commit.")
    return commit
