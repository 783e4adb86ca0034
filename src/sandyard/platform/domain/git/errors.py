"""Errors of git operations on checkouts, each with what a person can do about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sandyard.kit.errors import ConflictError, InvalidInputError, SandyardError

_MAX_FILES, _MAX_FILE_LENGTH = 5, 200
"""Maximum number of files that a message names, and of characters of each name."""


class CommitMessageError(InvalidInputError):
    """The commit message does not follow the convention. `suggestion` is one that does."""

    code = "commit_message"

    def __init__(self, message: str, suggestion: str | None = None) -> None:
        super().__init__(message)
        self.suggestion = suggestion

    @property
    def extra(self) -> Mapping[str, object]:
        return {} if self.suggestion is None else {"suggestion": self.suggestion}


class CiFilesError(ConflictError):
    """The commits change files that continuous integration would run with the repository's secrets, or have old versions of them.

    The project can allow it.
    """

    code = "ci_files"

    def __init__(self, files: Sequence[str]) -> None:
        named = ", ".join(" ".join(file.split())[:_MAX_FILE_LENGTH] for file in files[:_MAX_FILES])
        more = f" and {len(files) - _MAX_FILES} more" if len(files) > _MAX_FILES else ""
        super().__init__(
            f"The commits of this branch change {named}{more} or have an old version, and nothing was pushed: the forge would run these "
            "files with the repository's secrets before anybody has reviewed them. Remove these commits; or review them, and push again "
            "once the project's owner has allowed such changes (git.ciFiles)."
        )


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
