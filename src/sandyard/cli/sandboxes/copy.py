"""`sandyard sandbox cp`: files and directories, into a sandbox and out of it."""

from __future__ import annotations

import posixpath
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sandyard.cli.completion import copy_ends
from sandyard.cli.connection import connect, sandbox_of
from sandyard.cli.errors import CommandError, LocalNotFoundError

if TYPE_CHECKING:
    from sandyard.cli.sandboxes.files import Files

REMOTE = re.compile(r"(?P<name>(?:sbx|ses)_[A-Za-z0-9]+):(?P<path>.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Remote:
    """A path in a sandbox. One that does not begin with a slash begins in the home directory there."""

    sandbox: str
    path: str


@click.command()
@click.argument("source", shell_complete=copy_ends)
@click.argument("target", shell_complete=copy_ends)
@click.option("-q", "--quiet", is_flag=True, help="No progress bar.")
def cp(source: str, target: str, quiet: bool) -> None:
    """Copy a file or a directory between this machine and a sandbox: one of the two is SANDBOX:PATH.

    As with cp -r: into TARGET when that is a directory or ends with a slash, else to that name. `-` is standard input
    or output. Directories cross as one tar stream where the sandbox has tar, else file by file.
    """
    here, there = end_of(source), end_of(target)
    if isinstance(here, Remote) == isinstance(there, Remote):
        raise click.UsageError("One of the two must be SANDBOX:PATH, the other a path on this machine.")
    from sandyard.cli.sandboxes.files import Files  # noqa: PLC0415 - slow to load
    from sandyard.cli.sandboxes.progress import Progress  # noqa: PLC0415

    with connect() as client, Progress(shown=not quiet and sys.stderr.isatty()) as progress:
        if isinstance(there, Remote):
            assert not isinstance(here, Remote)
            _upload(Files(client, sandbox_of(client, there.sandbox), progress), here, there.path)
        else:
            assert isinstance(here, Remote)
            _download(Files(client, sandbox_of(client, here.sandbox), progress), here.path, there)


def end_of(text: str) -> Remote | str:
    """`sbx_…:path` or `ses_…:path` is in a sandbox; everything else is here, and `./` in front makes sure of it."""
    found = REMOTE.fullmatch(text)
    if found is None:
        return text
    if not found["path"]:
        raise click.UsageError(f"{text!r} names no path. The home directory is {found['name']}:./")
    return Remote(found["name"], found["path"])


def _upload(files: Files, source: str, target: str) -> None:
    if source == "-":
        if target.endswith("/") or files.kind(target) == "dir":
            raise CommandError(f"{target} is a directory; standard input needs the name of a file.")
        files.put_stream(sys.stdin.buffer, target)
        return
    local = Path(source)
    if not local.exists():
        raise LocalNotFoundError(f"There is no {source} here.")
    if target.endswith("/") or files.kind(target) == "dir":
        target = posixpath.join(target, local.resolve().name)
    if local.is_dir():
        if files.kind(target) == "file":
            raise CommandError(f"{target} is a file in the sandbox; a directory cannot take its place.")
        files.put_tree(local, target)
    elif local.is_file():
        files.put(local, target)
    else:
        raise CommandError(f"{source} is neither a file nor a directory.")


def _download(files: Files, source: str, target: str) -> None:
    kind = files.kind(source)
    if kind is None:
        raise LocalNotFoundError(f"There is no {source} in the sandbox.")
    if target == "-":
        if kind == "dir":
            raise CommandError(f"{source} is a directory; standard output takes a file.")
        files.get_stream(source, sys.stdout.buffer)
        return
    local = Path(target)
    if target.endswith("/") or local.is_dir():
        local = local / (posixpath.basename(posixpath.normpath(source)).lstrip(".") or "root")
    if not local.parent.is_dir():
        raise LocalNotFoundError(f"There is no directory {local.parent} here.")
    if kind == "dir":
        if local.is_file():
            raise CommandError(f"{local} is a file; a directory cannot take its place.")
        files.get_tree(source, local)
    else:
        files.get(source, local)
