"""Errors of git operations on checkouts, each with what a person can do about it."""

from __future__ import annotations

from collections.abc import Mapping

from sandyard.kit.errors import ConflictError, InvalidInputError, SandyardError


class CommitMessageError(InvalidInputError):
    """The commit message does not follow the convention. `suggestion` is one that does."""

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
    """This sandbox does not belong to the project. Start a session in the project, or create a sandbox with its projectId.

    A project's repository can be checked out only in its own sandboxes, where its settings apply.
    """

    code = "not_in_project"


class SandboxGitError(SandyardError):
    """Git in the sandbox does not work. Check that `git` is installed and that the disk is not full."""

    code, status = "sandbox_git", 409
