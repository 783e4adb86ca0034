"""Errors of git and of remotes, each with what a person can do about it. None of them ever holds a credential."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from sandyard.kit.errors import ConflictError, InvalidInputError, SandyardError
from sandyard.platform.domain.repositories.model import Conflict


class GitFailedError(SandyardError):
    """The Git command failed."""

    code, status = "git_failed", 409


class GitTimeoutError(GitFailedError):
    """Git took too long and was stopped. Try again."""

    code, status = "git_timeout", 504


class RepositoryInvalidError(InvalidInputError):
    """This is not a valid repository URL."""

    code = "repository_invalid"


class RemoteRefusedError(SandyardError):
    """The remote rejected the credential: it is missing, expired, revoked or lacks permission. Enter a new one."""

    code, status = "remote_refused", 409


class RemoteMissingError(SandyardError):
    """The remote has no such repository, or the credential may not see it."""

    code, status = "remote_missing", 409


class RemoteUnreachableError(SandyardError):
    """The remote did not respond, or the connection broke. Nothing was lost; try again."""

    code, status = "remote_unreachable", 502


class RemoteRejectedError(SandyardError):
    """The remote rejected the push."""

    code, status = "remote_rejected", 409


class BranchMovedError(ConflictError):
    """The branch on the remote has commits that are not in this checkout. Update the branch first, then push again."""

    code = "branch_moved"


class BranchCheckedOutError(ConflictError):
    """The branch is checked out in the repository's work tree, which the platform does not change. Merge it there."""

    code = "branch_checked_out"

    def __init__(self, message: str | None = None, *, command: str | None = None) -> None:
        """`command` merges the branch in the work tree."""
        super().__init__(message)
        self._command = command

    @property
    def extra(self) -> Mapping[str, object]:
        return {} if self._command is None else {"command": self._command}


class BranchGoneError(ConflictError):
    """The branch was pushed before, but no longer exists on the remote. Create a new branch to push this work."""

    code = "branch_gone"


class ConflictsError(ConflictError):
    """Both sides have changed the same lines. `files` lists the files, `choices` the options (`how` of an update)."""

    code = "conflicts"

    def __init__(
        self, files: Sequence[Conflict], choices: Sequence[str] = ("agent", "give_up"), *, total: int = 0
    ) -> None:
        """`total` is the number of conflicts if `files` does not list all of them."""
        named = ", ".join(conflict.path for conflict in files[:5])
        others = max(total, len(files)) - len(files[:5])
        more = f" and {others} more" if others else ""
        super().__init__(f"There are conflicts in {named}{more}. Nothing was changed.")
        self.files = tuple(files)
        self.choices = tuple(choices)

    @property
    def extra(self) -> Mapping[str, object]:
        return {"files": [asdict(conflict) for conflict in self.files[:500]], "choices": list(self.choices)}


class UnsafeBundleError(SandyardError):
    """The sandbox did not send valid commits; its data was rejected."""

    code, status = "unsafe_commits", 409


class TooMuchError(SandyardError):
    """The transfer exceeds the size limit."""

    code, status = "too_large", 413
