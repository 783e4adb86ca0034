"""The ways git can fail, each with what a person can do about it. None of them ever holds a credential."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from sandyard.kit.errors import ConflictError, InvalidInputError, SandyardError
from sandyard.platform.domain.git.model import Conflict


class GitFailedError(SandyardError):
    """Git could not do this."""

    code, status = "git_failed", 409


class GitTimeoutError(GitFailedError):
    """Git took too long, and was stopped. Try again."""

    code, status = "git_timeout", 504


class RepositoryInvalidError(InvalidInputError):
    """This is not the address of a repository."""

    code = "repository_invalid"


class RemoteRefusedError(SandyardError):
    """The remote refuses the credential: it is missing, expired or revoked, or may not do this. Enter a new one."""

    code, status = "remote_refused", 409


class RemoteMissingError(SandyardError):
    """There is no such repository on the remote, or the credential may not see it."""

    code, status = "remote_missing", 409


class RemoteUnreachableError(SandyardError):
    """The remote does not answer, or the line was cut. Nothing was lost; try again."""

    code, status = "remote_unreachable", 502


class RemoteRejectedError(SandyardError):
    """The remote has rejected the push."""

    code, status = "remote_rejected", 409


class BranchMovedError(ConflictError):
    """The branch on the remote has commits that this checkout has not. Bring them in first, then push again."""

    code = "branch_moved"


class BranchCheckedOutError(ConflictError):
    """The branch is checked out in the work tree of the repository, which is not changed from here. Merge it there."""

    code = "branch_checked_out"


class BranchGoneError(ConflictError):
    """The branch was pushed before, but is not on the remote any more. Begin a new branch to push this work."""

    code = "branch_gone"


class ConflictsError(ConflictError):
    """Two sides have changed the same lines. `files` says which, `choices` what can be done (`how` of an update)."""

    code = "conflicts"

    def __init__(
        self, files: Sequence[Conflict], choices: Sequence[str] = ("agent", "give_up"), *, total: int = 0
    ) -> None:
        """`total`: how many there are, if not all of them are in `files`."""
        named = ", ".join(conflict.path for conflict in files[:5])
        others = max(total, len(files)) - len(files[:5])
        more = f" and {others} more" if others else ""
        super().__init__(f"There are conflicts in {named}{more}. Nothing was changed.")
        self.files = tuple(files)
        self.choices = tuple(choices)

    @property
    def extra(self) -> Mapping[str, object]:
        return {"files": [asdict(conflict) for conflict in self.files[:500]], "choices": list(self.choices)}


class CommitMessageError(InvalidInputError):
    """The commit's message does not follow the convention. `suggestion` is one that does."""

    code = "commit_message"

    def __init__(self, message: str, suggestion: str | None = None) -> None:
        super().__init__(message)
        self.suggestion = suggestion

    @property
    def extra(self) -> Mapping[str, object]:
        return {} if self.suggestion is None else {"suggestion": self.suggestion}


class NothingToCommitError(ConflictError):
    """There is nothing to commit: nothing was changed, or nothing is staged."""

    code = "nothing_to_commit"


class NoCheckoutError(ConflictError):
    """This sandbox has no checkout of a repository. Clone one into it first."""

    code = "no_checkout"


class NotInProjectError(ConflictError):
    """This sandbox does not belong to the project. A project's repository is checked out only in the project's own sandboxes, where its
    settings apply: start a session in the project, or create a sandbox with its projectId."""

    code = "not_in_project"


class UnsafeBundleError(SandyardError):
    """What came out of the sandbox is not a sound set of commits, and was not taken."""

    code, status = "unsafe_commits", 409


class TooMuchError(SandyardError):
    """There is more to transfer than the limit allows."""

    code, status = "too_large", 413


class GuestGitError(SandyardError):
    """Git in the sandbox does not work: look whether `git` is there, and whether its disk is full."""

    code, status = "sandbox_git", 409
