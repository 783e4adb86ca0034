"""Run git and the programs of this package in a sandbox, and translate their failures to our errors.

An operation of several steps is one program, because each run costs a login shell. A program receives its values as
arguments, never as part of its text.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Container, Iterator, Mapping
from importlib import resources

from sandyard.kit.text import append_quote
from sandyard.platform.domain.git.errors import NoCheckoutError, SandboxGitError
from sandyard.platform.domain.repositories.errors import GitFailedError, GitTimeoutError
from sandyard.platform.domain.repositories.model import Identity
from sandyard.platform.domain.sandboxes.e2b import (
    DirectoryMissingError,
    NotEnoughSpaceError,
    ProgramResult,
    ProgramTimeoutError,
    SandboxEngine,
)
from sandyard.platform.domain.sandboxes.e2b.errors import ProcessesFullError, says_processes_full
from sandyard.platform.domain.sandboxes.e2b.programs import STDERR_LIMIT, replace_control_characters

DEFAULT_TIMEOUT_S = 120.0
DEFAULT_LIMIT = 8 << 20
NO_GIT, NO_CHECKOUT = 90, 91
"""Exit codes of all programs. A program's own codes start at 92; 1 and all others are git's."""
_MAX_MESSAGE_CHARS = 2000

# An agent may configure git as it likes, except where that would mislead the platform or make it wait for input.
_GIT_SETTINGS = (
    "core.fsmonitor=false core.quotePath=true color.ui=false core.pager=cat advice.addEmbeddedRepo=false gc.auto=0 "
    "maintenance.auto=false commit.gpgSign=false tag.gpgSign=false tag.forceSignAnnotated=false rerere.enabled=false "
    "log.showSignature=false protocol.allow=never merge.conflictStyle=merge merge.renames=true core.checkStat=default "
    "core.trustctime=true core.ignoreStat=false core.bare=false core.safecrlf=false safe.directory=*"
)
_OPTIONS = ("--no-pager", *(word for setting in _GIT_SETTINGS.split() for word in ("-c", setting)))
GIT = ("git", *_OPTIONS, "--literal-pathspecs", "-c", "core.hooksPath=/dev/null")
"""The git command without the checkout's hooks, the same as `g` in programs."""
_PROGRAMS = resources.files(__package__) / "programs"
_INCLUDE = re.compile(r"[ ]*\. \./(?P<name>[a-z_]+)\.sh")
_ENVIRONMENT = {
    "LC_ALL": "C",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_EDITOR": "true",
    "GIT_SEQUENCE_EDITOR": "true",
    "GIT_MERGE_AUTOEDIT": "no",
    "GIT_LFS_SKIP_SMUDGE": "1",
    "GIT_NO_LAZY_FETCH": "1",
}


def load_program(name: str) -> str:
    """Return the text of a program in the folder `programs`, which `bash -c` runs in a sandbox.

    Included files become part of the text. Lines that are empty or a comment are left out, because the text is sent
    with every run.
    """
    options = f"git_options=({shlex.join(_OPTIONS)})"
    return "\n".join((options, *_read_lines(name), ""))


def _read_lines(name: str) -> Iterator[str]:
    for line in (_PROGRAMS / f"{name}.sh").read_text(encoding="utf-8").splitlines():
        if include := _INCLUDE.fullmatch(line):
            yield from _read_lines(include["name"])
        elif line.strip() and not line.lstrip().startswith("#"):
            yield line


def make_identity_variables(author: Identity, committer: Identity | None = None) -> dict[str, str]:
    """Return the environment variables that set git's author and committer."""
    committer = committer or author
    return {
        "GIT_AUTHOR_NAME": author.name,
        "GIT_AUTHOR_EMAIL": author.email,
        "GIT_COMMITTER_NAME": committer.name,
        "GIT_COMMITTER_EMAIL": committer.email,
    }


class ProgramRunner:
    """Runs git in one folder of one sandbox."""

    def __init__(self, engine: SandboxEngine, engine_id: str, folder: str) -> None:
        self.engine = engine
        self.engine_id = engine_id
        self.folder = folder

    async def run(
        self,
        program: str,
        *arguments: str,
        envs: Mapping[str, str] | None = None,
        ok: Container[int] = (0,),
        read_only: bool = False,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        limit: int = DEFAULT_LIMIT,
    ) -> ProgramResult:
        """Run a program that `load_program` returned. Exit codes that are not in `ok` are raised as errors.

        `read_only`: the program changes nothing, takes no locks, and may be repeated if the connection breaks.
        """
        argv = ["bash", "-c", program, "sandyard", self.folder, *arguments]
        return await self._run_command(
            argv, envs=envs or {}, ok=ok, read_only=read_only, timeout_s=timeout_s, limit=limit, cwd=None
        )

    async def read(
        self, *arguments: str, limit: int = DEFAULT_LIMIT, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> tuple[bytes, bool]:
        """Run a read-only git command. Return its output and whether it was truncated."""
        result = await self._run_command(
            [*GIT, *arguments], envs={}, ok=(0,), read_only=True, timeout_s=timeout_s, limit=limit, cwd=self.folder
        )
        return result.stdout, result.truncated

    async def _run_command(
        self,
        argv: list[str],
        *,
        envs: Mapping[str, str],
        ok: Container[int],
        read_only: bool,
        timeout_s: float,
        limit: int,
        cwd: str | None,
    ) -> ProgramResult:
        parent = self.folder.rpartition("/")[0] or "/"
        variables = {**_ENVIRONMENT, "GIT_CEILING_DIRECTORIES": parent, **envs}
        if read_only:
            variables["GIT_OPTIONAL_LOCKS"] = "0"
        try:
            result = await self.engine.programs.run(
                self.engine_id,
                argv,
                cwd=cwd,
                envs=variables,
                timeout_s=timeout_s,
                limit=limit,
                idempotent=read_only,
            )
        except ProgramTimeoutError as error:
            raise GitTimeoutError(
                f"Git in the sandbox did not finish within {timeout_s:g} s and was stopped. Try again."
            ) from error
        except DirectoryMissingError:
            raise NoCheckoutError from None
        if result.exit_code in ok or (result.truncated and read_only):
            return result
        raise translate_failure(result)


def translate_failure(result: ProgramResult) -> Exception:
    """Return the error for git's exit code and messages."""
    message = extract_message(result.stderr)
    if "No space left on device" in message or "Disk quota exceeded" in message:
        return NotEnoughSpaceError()
    if says_processes_full(message):
        return ProcessesFullError()
    if result.exit_code in (NO_GIT, 127):
        return SandboxGitError("Git is not installed in the sandbox. Install it in the template.")
    if result.exit_code == NO_CHECKOUT or "not a git repository" in message:
        return NoCheckoutError()
    if ".lock': File exists" in message:
        return GitFailedError(
            append_quote(
                "Another Git process is running in the sandbox. Try again when it has finished; if none is running, remove its lock.",
                message,
            )
        )
    return GitFailedError(append_quote("Git failed in the sandbox.", message) if message else None)


def extract_message(stderr: str) -> str:
    """Return the end of git's messages without its hints, safe for an error message and for the database."""
    text = replace_control_characters(stderr[-STDERR_LIMIT:])
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("hint:")]
    return "\n".join(lines).strip()[-_MAX_MESSAGE_CHARS:]
