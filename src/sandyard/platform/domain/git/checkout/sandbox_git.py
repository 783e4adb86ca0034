"""Git in one sandbox: its checkout and all operations on it.

The agent controls everything in the sandbox, so no output is trusted: ids are checked, sizes are bounded, and
everything that is transferred out passes the mirror's checks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from pathlib import Path
from types import MappingProxyType

from sandyard.kit.errors import InvalidInputError
from sandyard.kit.text import append_quote
from sandyard.platform.domain.git import commit_messages
from sandyard.platform.domain.git.checkout.conflicts import parse_conflicts
from sandyard.platform.domain.git.checkout.program_runner import (
    DEFAULT_LIMIT,
    ProgramRunner,
    extract_message,
    load_program,
    make_identity_variables,
)
from sandyard.platform.domain.git.checkout.transfer import download, make_too_much_error, remove_in_sandbox, upload
from sandyard.platform.domain.git.errors import NothingToCommitError, SandboxGitError
from sandyard.platform.domain.git.model import CommitDraft, UndoneChanges, WorkTree
from sandyard.platform.domain.repositories.errors import ConflictsError, GitFailedError, UnsafeBundleError
from sandyard.platform.domain.repositories.model import Bundle, Conflict, Identity, Status
from sandyard.platform.domain.repositories.output import decode_name, is_commit_id, parse_output
from sandyard.platform.domain.repositories.status import parse_status

SENT_REF = "refs/sandyard/sent"
"""The name of the requested ref in every bundle that comes from a sandbox."""
MAX_NAMES = 20
"""Maximum number of restored, ignored or reverted files that a result lists."""
_TRANSFER_TIMEOUT_S = 600.0
_WORK_TREE_TIMEOUT_S = 300.0
_MERGE_TIMEOUT_S = 300.0
_COMMIT_TIMEOUT_S = 300.0
"""Time limit of a commit, which includes the hooks of the checkout."""
_MAX_SEALED = 10_000
"""Maximum number of fields to parse of a sealed checkout, whose program lists MAX_NAMES files in each of two lists."""
_MAX_DISCARDED = 10_000
"""Maximum number of discarded paths to return."""
_MAX_SKIPPED = 1000
"""Maximum number of files to return that are not part of a saved work tree."""
_MAX_PATHS_BYTES = 1 << 20
_MAX_MESSAGE_BYTES = 64 << 10
_MAX_STATE_LENGTH = 20
_COUNT = re.compile("[0-9]{1,9}")
_SEND_FOLDER = re.compile(r"/tmp/\.sandyard-send-[A-Za-z0-9]{16}")  # noqa: S108 - in the sandbox
_NO_BRANCHES: Mapping[str, str] = MappingProxyType({})
_WORK_TREE_DATE = "1700000000 +0000"

_BEGIN_CHECKOUT = load_program("begin_checkout")
_CREATE_CHECKOUT = load_program("create_checkout")
_SEAL_CHECKOUT = load_program("seal_checkout")
_ADOPT_CHECKOUT = load_program("adopt_checkout")
_RECEIVE_BUNDLE = load_program("receive_bundle")
_SEND_BUNDLE = load_program("send_bundle")
_TRACK_BRANCH = load_program("track_branch")
_STATUS = load_program("status")
_STAGE = load_program("stage")
_UNSTAGE = load_program("unstage")
_DISCARD = load_program("discard")
_COMMIT = load_program("commit")
_CREATE_BRANCH = load_program("create_branch")
_CREATE_TAG = load_program("create_tag")
_MERGE = load_program("merge")
_REBASE = load_program("rebase")
_ABORT = load_program("abort")
_SAVE_WORK_TREE = load_program("save_work_tree")
_RESTORE_WORK_TREE = load_program("restore_work_tree")
_UNDO_CHANGES = load_program("undo_changes")

# exit codes, which each program describes in its first lines
_OTHER_CHECKOUT, _NOT_EMPTY = 92, 93
_NO_REF, _TOO_MUCH = 92, 93
_NOTHING_TO_COMMIT, _CONFLICT_MARKERS, _COMMIT_REJECTED = 92, 93, 94
_NAME_EXISTS, _NO_START = 92, 93
_IN_PROGRESS, _CONFLICTS, _NOT_UNDONE = 92, 93, 94
_NOT_A_WORK_TREE = 92


@dataclass(frozen=True, slots=True)
class SentCommit:
    """Result of `SandboxGit.send`: the newest commit, and its ref in the bundle, if a bundle was needed."""

    commit: str
    ref: str = SENT_REF


@dataclass(frozen=True, slots=True)
class SealedCheckout:
    """Result of sealing a checkout.

    `restored`: tracked files that differed from the commit and were restored. `ignored`: untracked files that were not
    ignored and are ignored now. Both list at most MAX_NAMES files; the counts include all.
    """

    restored: tuple[str, ...]
    restored_count: int
    ignored: tuple[str, ...]
    ignored_count: int


class SandboxGit:
    """Git in the checkout of one sandbox. Implements RepositoryReader.

    Every method raises NoCheckoutError if there is no checkout, SandboxGitError if there is no git, NotEnoughSpaceError
    if the disk is full, GitTimeoutError, GitFailedError with git's message for all else, and the engine's errors if the
    sandbox is not running. `limit` bounds one bundle from the sandbox. Read-only methods are repeated if the connection
    breaks; the others run at most once. Only `commit` runs hooks of the checkout.
    """

    def __init__(self, runner: ProgramRunner, *, limit: int) -> None:
        self._runner = runner
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
        tracked: Mapping[str, str] = _NO_BRANCHES,
    ) -> None:
        """Create a checkout of `branch` at `commit`.

        `tracked` maps branches of the remote to their commits, as far as the bundle has them; the base branch is at
        `commit` unless it is listed. Idempotent: a complete checkout is left alone, an incomplete one is created again.
        Raises GitFailedError if the folder contains something else.
        """
        runner = self._runner
        started = await runner.run(_BEGIN_CHECKOUT, branch, ok=(0, _OTHER_CHECKOUT, _NOT_EMPTY))
        if started.exit_code == _OTHER_CHECKOUT:
            raise self._make_other_checkout_error()
        if started.exit_code == _NOT_EMPTY:
            raise GitFailedError(
                f"{runner.folder} in the sandbox is not empty and is not a checkout. Empty it, then try again."
            )
        if started.stdout.strip() == b"found":
            return
        index = ("", "")
        if bundle.index is not None:
            index = (await upload(runner, bundle.index.path), bundle.index.pack)
        path = await upload(runner, bundle.path, 0 if bundle.index is None else bundle.index.offset)
        arguments = [word for pair in tracked.items() for word in pair]
        shallow = "\n".join(bundle.shallow)
        await runner.run(
            _CREATE_CHECKOUT,
            *(path, commit, base_branch, branch, identity.name, identity.email, origin, shallow, *index, *arguments),
            timeout_s=_TRANSFER_TIMEOUT_S,
        )

    async def seal(self, commit: str) -> SealedCheckout:
        """Prepare the checkout for a snapshot: leave the branch PREPARED_BRANCH, detach HEAD at `commit`, restore tracked files.

        Untracked files stay and are ignored from then on. Idempotent.
        """
        result = await self._runner.run(_SEAL_CHECKOUT, commit, timeout_s=_TRANSFER_TIMEOUT_S)
        return await parse_output(result.stdout, _parse_sealed)

    async def adopt(
        self, bundle: Bundle | None, *, commit: str, base_branch: str, branch: str, identity: Identity, origin: str
    ) -> None:
        """Turn a sealed checkout into a checkout of `branch` at `commit`.

        The bundle holds the commit if the checkout lacks it. Untracked files stay. Idempotent: a checkout that is on
        that branch already is left alone. Raises GitFailedError if the checkout is a different one.
        """
        path = "" if bundle is None else await upload(self._runner, bundle.path)
        shallow = "" if bundle is None else "\n".join(bundle.shallow)
        result = await self._runner.run(
            _ADOPT_CHECKOUT,
            *(path, commit, base_branch, branch, identity.name, identity.email, origin, shallow),
            ok=(0, _OTHER_CHECKOUT),
            timeout_s=_TRANSFER_TIMEOUT_S,
        )
        if result.exit_code == _OTHER_CHECKOUT:
            raise self._make_other_checkout_error()

    def _make_other_checkout_error(self) -> GitFailedError:
        return GitFailedError(
            f"{self._runner.folder} already contains another repository, or another branch of this one."
        )

    async def receive(self, bundle: Bundle, refs: Mapping[str, str]) -> None:
        """Add the bundle's commits to the checkout. `refs` maps refs of the bundle to refs of the checkout. Idempotent."""
        path = await upload(self._runner, bundle.path)
        pairs = [word for pair in refs.items() for word in pair]
        shallow = "\n".join(bundle.shallow)
        await self._runner.run(_RECEIVE_BUNDLE, path, shallow, *pairs, timeout_s=_TRANSFER_TIMEOUT_S)

    async def send(self, into: Path, *, ref: str = "HEAD", have: Sequence[str]) -> SentCommit:
        """Transfer a bundle to the platform with all commits that `ref` (a ref or a commit) contains and the commits `have` do not.

        Writes no file if there is nothing new. A tag is sent as a tag object. Raises TooMuchError. Leaves nothing in
        the sandbox.
        """
        known = [commit for commit in dict.fromkeys(have) if is_commit_id(commit)]
        result = await self._runner.run(
            _SEND_BUNDLE, ref, str(self._limit), *known, ok=(0, _NO_REF, _TOO_MUCH), timeout_s=_TRANSFER_TIMEOUT_S
        )
        if result.exit_code == _NO_REF:
            raise GitFailedError(f"The checkout in the sandbox has no commit {ref!r}.")
        if result.exit_code == _TOO_MUCH:
            raise make_too_much_error(self._limit)
        fields = result.stdout.decode("ascii", "replace").split()
        if len(fields) != 3 or not is_commit_id(fields[0]):
            raise UnsafeBundleError
        commit, _, folder = fields
        if folder == "-":
            return SentCommit(commit)
        if not _SEND_FOLDER.fullmatch(folder):
            raise UnsafeBundleError
        try:
            await download(self._runner, f"{folder}/bundle", into, self._limit)
        finally:
            await remove_in_sandbox(self._runner, folder)
        return SentCommit(commit)

    async def track(self, branch: str, commit: str) -> None:
        """Set the remote's branch to `commit` and make it the upstream of the local branch. Idempotent."""
        await self._runner.run(_TRACK_BRANCH, branch, commit)

    # reads ------------------------------------------------------------------------------------------------------------

    async def get_status(self) -> Status:
        result = await self._runner.run(_STATUS, read_only=True)
        state, _, output = result.stdout.partition(b"\0")
        under_way = state[:_MAX_STATE_LENGTH].decode("ascii", "replace") or None
        return await parse_output(output, partial(parse_status, under_way=under_way, truncated=result.truncated))

    async def get_head(self) -> str:
        """Return the commit of HEAD. Raises GitFailedError if there is no commit yet."""
        output, _ = await self.read("rev-parse", "-q", "--verify", "HEAD^{commit}")
        return _parse_commit(output)

    async def get_branch(self) -> str | None:
        """Return the current branch. None if HEAD is detached."""
        output, _ = await self.read("branch", "--show-current")
        return output.decode(errors="replace").strip() or None

    async def read(self, *arguments: str, limit: int = DEFAULT_LIMIT) -> tuple[bytes, bool]:
        return await self._runner.read(*arguments, limit=limit)

    # changes ----------------------------------------------------------------------------------------------------------

    async def stage(self, paths: Sequence[str], *, unstage: bool = False) -> None:
        """Stage or unstage these paths, which are names and not patterns. A folder includes everything in it. Idempotent."""
        _check_paths(paths)
        if paths:
            await self._runner.run(_UNSTAGE if unstage else _STAGE, *paths)

    async def discard(self, paths: Sequence[str], *, everything: bool = False) -> list[str]:
        """Restore files to HEAD, staged or not, and return those that had changes.

        Untracked files are deleted; ignored files stay. Idempotent.
        """
        _check_paths(paths)
        if not paths and not everything:
            return []
        result = await self._runner.run(_DISCARD, "yes" if everything else "", *([] if everything else paths))
        return await parse_output(result.stdout, _parse_discarded)

    async def commit(self, draft: CommitDraft) -> str:
        """Commit and return the new commit's id.

        Raises NothingToCommitError, and GitFailedError with the output if hooks reject the commit or if files still
        have conflict markers.
        """
        _check_paths(draft.paths)
        message = commit_messages.add_trailers(draft.message, draft.co_authors)
        if not message.strip():
            raise InvalidInputError("A commit needs a message.")
        if len(message.encode()) > _MAX_MESSAGE_BYTES:
            raise InvalidInputError(f"The commit message is longer than {_MAX_MESSAGE_BYTES >> 10} KiB.")
        scope = "paths" if draft.paths else "everything" if draft.everything else "staged"
        result = await self._runner.run(
            _COMMIT,
            *(scope, message, *draft.paths),
            envs=make_identity_variables(draft.author, draft.committer),
            ok=(0, _NOTHING_TO_COMMIT, _CONFLICT_MARKERS, _COMMIT_REJECTED),
            timeout_s=_COMMIT_TIMEOUT_S,
        )
        output = extract_message(result.stderr)
        if result.exit_code == _NOTHING_TO_COMMIT:
            raise NothingToCommitError
        if result.exit_code == _CONFLICT_MARKERS:
            raise GitFailedError(f"These files still have conflict markers. Resolve them first: {output}")
        if result.exit_code == _COMMIT_REJECTED:
            raise GitFailedError(append_quote("The commit was rejected in the sandbox.", output))
        return _parse_commit(result.stdout)

    async def create_branch(self, name: str, *, start: str | None = None) -> None:
        """Create a branch and switch to it. Does nothing if it is the current branch."""
        result = await self._runner.run(_CREATE_BRANCH, name, start or "", ok=(0, _NAME_EXISTS, _NO_START))
        if result.exit_code == _NAME_EXISTS:
            raise GitFailedError(f"The checkout already has a branch {name!r}. Choose another name.")
        if result.exit_code == _NO_START:
            raise GitFailedError(f"The checkout has no commit {start!r} to start a branch from.")

    async def create_tag(self, name: str, message: str | None, identity: Identity) -> str:
        """Tag HEAD and return its commit. Without a message the tag is a lightweight one.

        Idempotent: an existing tag of that name is left as it is. Raises GitFailedError if that tag is not on HEAD.
        """
        variables = make_identity_variables(identity)
        result = await self._runner.run(_CREATE_TAG, name, message or "", envs=variables, ok=(0, _NAME_EXISTS))
        if result.exit_code == _NAME_EXISTS:
            raise GitFailedError(f"The checkout already has a tag {name!r}. Choose another name.")
        return _parse_commit(result.stdout)

    # merge and rebase -------------------------------------------------------------------------------------------------

    async def rebase(self, onto: str) -> None:
        """Rebase onto a commit. Raises ConflictsError, and then everything is as before."""
        result = await self._runner.run(
            _REBASE, onto, ok=(0, 1, _IN_PROGRESS, _CONFLICTS, _NOT_UNDONE), timeout_s=_MERGE_TIMEOUT_S
        )
        conflicts = _interpret_merge(result.exit_code, result.stdout, result.stderr, "rebase")
        if conflicts:
            raise ConflictsError(conflicts, ("merge", "agent", "give_up"))

    async def merge(self, other: str, *, message: str, leave_conflicts: bool, identity: Identity) -> list[Conflict]:
        """Merge a commit and return the conflicts.

        With `leave_conflicts` the merge stays in progress, with markers in the files. Otherwise raises ConflictsError,
        and everything is as before.
        """
        result = await self._runner.run(
            _MERGE,
            *("yes" if leave_conflicts else "", other, message),
            envs=make_identity_variables(identity),
            ok=(0, 1, _IN_PROGRESS, _CONFLICTS, _NOT_UNDONE),
            timeout_s=_MERGE_TIMEOUT_S,
        )
        conflicts = _interpret_merge(result.exit_code, result.stdout, result.stderr, "merge")
        if conflicts and not leave_conflicts:
            raise ConflictsError(conflicts)
        return conflicts

    async def abort(self) -> bool:
        """Abort the merge or rebase in progress. Returns False if there was none."""
        return b"ended" in (await self._runner.run(_ABORT)).stdout

    # the whole work tree ----------------------------------------------------------------------------------------------

    async def save_work_tree(self) -> WorkTree:
        """Store everything except ignored files as a commit that no ref names.

        Leaves the index, files and refs untouched, and is safe while another git process is running. The same work tree
        gives the same commit, which has the shape of a git-stash commit. If there is no commit yet, `head` is an empty
        one.
        """
        result = await self._runner.run(_SAVE_WORK_TREE, envs=self._work_tree_variables, timeout_s=_WORK_TREE_TIMEOUT_S)
        return await parse_output(result.stdout, _parse_work_tree)

    @property
    def _work_tree_variables(self) -> dict[str, str]:
        """Author and date of commits of the work tree.

        The date is fixed, so that the same work tree gives the same commit, which is sent only once. The sandbox's id makes it
        differ from the commits of other sandboxes, which the mirror does not accept from this one.
        """
        identity = Identity("Sandyard", f"{self._runner.engine_id}@localhost")
        dates = {"GIT_AUTHOR_DATE": _WORK_TREE_DATE, "GIT_COMMITTER_DATE": _WORK_TREE_DATE}
        return make_identity_variables(identity) | dates

    async def restore_work_tree(self, commit: str) -> None:
        """Restore HEAD, its branch, the index and the files.

        Other files are deleted unless they are ignored, and a merge or rebase in progress is ended. Idempotent.
        """
        result = await self._runner.run(
            _RESTORE_WORK_TREE, commit, ok=(0, _NOT_A_WORK_TREE), timeout_s=_WORK_TREE_TIMEOUT_S
        )
        if result.exit_code == _NOT_A_WORK_TREE:
            raise GitFailedError(f"{commit[:12]} is not in the checkout, or is not a saved work tree.")

    async def undo_changes(self, before: str) -> UndoneChanges | None:
        """Restore the files and the index of the work tree `before`, a commit that `save_work_tree` returned.

        New files are deleted unless they were ignored at that time; changed and deleted files are restored. Changes
        nothing if HEAD has moved since. Returns None if the checkout has no such work tree. Idempotent.
        """
        result = await self._runner.run(
            _UNDO_CHANGES,
            before,
            envs=self._work_tree_variables,
            ok=(0, _NOT_A_WORK_TREE),
            timeout_s=_WORK_TREE_TIMEOUT_S,
        )
        if result.exit_code == _NOT_A_WORK_TREE:
            return None
        undone, repeat = await parse_output(result.stdout, _parse_undone)
        if not repeat:
            return undone
        # files that the program's own ignore rules had hidden are visible now
        result = await self._runner.run(
            _UNDO_CHANGES, before, envs=self._work_tree_variables, timeout_s=_WORK_TREE_TIMEOUT_S
        )
        rest, _ = await parse_output(result.stdout, _parse_undone)
        return UndoneChanges(
            undone.commit, count=undone.count + rest.count, paths=(*undone.paths, *rest.paths)[:MAX_NAMES]
        )


def _check_paths(paths: Sequence[str]) -> None:
    if any(not path for path in paths):
        raise InvalidInputError("A path must not be empty.")
    if sum(len(path.encode(errors="surrogateescape")) + 9 for path in paths) > _MAX_PATHS_BYTES:
        raise InvalidInputError("Too many paths for one request. Name their folders instead.")


def _parse_commit(output: bytes) -> str:
    commit = output.decode("ascii", "replace").strip()
    if not commit:
        raise GitFailedError("The checkout has no commits yet.")
    if not is_commit_id(commit):
        raise SandboxGitError("Git in the sandbox returned an invalid commit.")
    return commit


def _parse_discarded(output: bytes) -> list[str]:
    return [decode_name(entry[3:]) for entry in output.split(b"\0", _MAX_DISCARDED)[:-1]]


def _interpret_merge(code: int, stdout: bytes, stderr: str, action: str) -> list[Conflict]:
    """Return the conflicts of a merge or rebase. Raises GitFailedError if it failed for another reason."""
    message = extract_message(stderr)
    if code == _IN_PROGRESS:
        raise GitFailedError("A merge or rebase is in progress in the sandbox. Finish or abort it first.")
    if code == _NOT_UNDONE:
        raise GitFailedError(
            append_quote(f"There were conflicts, and the {action} could not be undone. Check the sandbox.", message)
        )
    if code == 1:
        changed = "unstaged changes" in message or "uncommitted changes" in message or "local changes" in message
        if changed or "untracked working tree files" in message:
            raise GitFailedError(
                append_quote(
                    f"The {action} would overwrite uncommitted changes in the sandbox. Commit or discard them first.",
                    message,
                )
            )
        raise GitFailedError(append_quote(f"Git in the sandbox could not {action}.", message))
    return parse_conflicts(stdout) if code == _CONFLICTS else []


def _parse_sealed(output: bytes) -> SealedCheckout:
    """Parse two lists: each has its count, names, and an empty field."""
    fields = iter(output.split(b"\0", _MAX_SEALED))
    lists: list[tuple[int, tuple[str, ...]]] = []
    for _ in range(2):
        count = next(fields, b"")
        names = [decode_name(name) for name in takewhile(bool, fields)]
        is_count = _COUNT.fullmatch(count.decode("ascii", "replace"))
        lists.append((int(count) if is_count else len(names), tuple(names[:MAX_NAMES])))
    (restored_count, restored), (ignored_count, ignored) = lists
    return SealedCheckout(restored, restored_count, ignored, ignored_count)


def _parse_work_tree(output: bytes) -> WorkTree:
    fields = [decode_name(field) for field in output.split(b"\0", 4 + _MAX_SKIPPED)]
    if len(fields) < 5 or not all(map(is_commit_id, fields[:2])) or not _COUNT.fullmatch(fields[3]):
        raise SandboxGitError
    commit, head, branch, changed, *skipped = fields[:-1]
    return WorkTree(commit, head, branch or None, changed=int(changed), skipped=tuple(dict.fromkeys(skipped)))


def _parse_undone(output: bytes) -> tuple[UndoneChanges, bool]:
    """Return the undone changes, and whether to undo a second time because ignore rules were reverted."""
    fields = [decode_name(field) for field in output.split(b"\0", 3 + MAX_NAMES)[:-1]]
    if len(fields) < 3 or not is_commit_id(fields[0]) or not _COUNT.fullmatch(fields[1]):
        raise SandboxGitError
    commit, count, repeat, *paths = fields
    return UndoneChanges(commit, count=int(count), paths=tuple(paths)), bool(repeat)
