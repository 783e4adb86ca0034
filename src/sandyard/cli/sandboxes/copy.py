"""`sandyard sandbox cp`: copy files and directories into and out of a sandbox."""

from __future__ import annotations

import posixpath
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sandyard.cli.completion import complete_copy_ends
from sandyard.cli.connection import connect, get_sandbox_id
from sandyard.cli.errors import CommandError, LocalNotFoundError

if TYPE_CHECKING:
    from sandyard.cli.sandboxes.files import Files

REMOTE = re.compile(r"(?P<name>(?:sbx|ses)_[A-Za-z0-9]+):(?P<path>.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Remote:
    """A path in a sandbox. A relative path starts in the home directory."""

    sandbox: str
    path: str


@click.command()
@click.argument("source", shell_complete=complete_copy_ends)
@click.argument("target", shell_complete=complete_copy_ends)
@click.option("-q", "--quiet", is_flag=True, help="Do not show a progress bar.")
def cp(source: str, target: str, quiet: bool) -> None:
    """Copy files between this machine and a sandbox.

    Either SOURCE or TARGET is SANDBOX:PATH. Directories are copied with their contents. Like cp -r, it copies into TARGET if that is a
    directory or ends with a slash, otherwise to that name. `-` is standard input
    or output. Directories are sent as one tar stream if the sandbox has tar, otherwise file by file.
    """
    here, there = parse_end(source), parse_end(target)
    if isinstance(here, Remote) == isinstance(there, Remote):
        raise click.UsageError("One path must be SANDBOX:PATH and the other one local.")
    from sandyard.cli.sandboxes.files import Files  # noqa: PLC0415 - slow to load
    from sandyard.cli.sandboxes.progress import Progress  # noqa: PLC0415

    with connect() as client, Progress(shown=not quiet and sys.stderr.isatty()) as progress:
        if isinstance(there, Remote):
            assert not isinstance(here, Remote)
            _upload(Files(client, get_sandbox_id(client, there.sandbox), progress), here, there.path)
        else:
            assert isinstance(here, Remote)
            _download(Files(client, get_sandbox_id(client, here.sandbox), progress), here.path, there)


def parse_end(text: str) -> Remote | str:
    """Parse one side of a copy. `sbx_…:path` or `ses_…:path` is in a sandbox; everything else is local. Prefix `./` to force a local
    path."""
    found = REMOTE.fullmatch(text)
    if found is None:
        return text
    if not found["path"]:
        raise click.UsageError(f"{text!r} has no path. For the home directory, use {found['name']}:./")
    return Remote(found["name"], found["path"])


def _upload(files: Files, source: str, target: str) -> None:
    if source == "-":
        if target.endswith("/") or files.kind(target) == "dir":
            raise CommandError(f"{target} is a directory. To copy standard input, give a file name.")
        files.put_stream(sys.stdin.buffer, target)
        return
    local = Path(source)
    if not local.exists():
        raise LocalNotFoundError(f"No such file or directory: {source}")
    if target.endswith("/") or files.kind(target) == "dir":
        target = posixpath.join(target, local.resolve().name)
    if local.is_dir():
        if files.kind(target) == "file":
            raise CommandError(f"{target} is a file in the sandbox and cannot be replaced by a directory.")
        files.put_tree(local, target)
    elif local.is_file():
        files.put(local, target)
    else:
        raise CommandError(f"{source} is neither a file nor a directory.")


def _download(files: Files, source: str, target: str) -> None:
    kind = files.kind(source)
    if kind is None:
        raise LocalNotFoundError(f"No such file or directory in the sandbox: {source}")
    if target == "-":
        if kind == "dir":
            raise CommandError(f"{source} is a directory. Only a file can be copied to standard output.")
        files.get_stream(source, sys.stdout.buffer)
        return
    local = Path(target)
    if target.endswith("/") or local.is_dir():
        local = local / (posixpath.basename(posixpath.normpath(source)).lstrip(".") or "root")
    if not local.parent.is_dir():
        raise LocalNotFoundError(f"No such directory: {local.parent}")
    if kind == "dir":
        if local.is_file():
            raise CommandError(f"{local} is a file and cannot be replaced by a directory.")
        files.get_tree(source, local)
    else:
        files.get(source, local)
