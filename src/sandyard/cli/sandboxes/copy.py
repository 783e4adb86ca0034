"""`sandyard sandbox cp`: copy files and directories into and out of a sandbox."""

from __future__ import annotations

import posixpath
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sandyard.cli.completion import complete_copy_paths
from sandyard.cli.connection import connect, get_sandbox_id
from sandyard.cli.errors import CommandError, PathNotFoundError

if TYPE_CHECKING:
    from sandyard.cli.sandboxes.files import SandboxFiles

REMOTE = re.compile(r"(?P<name>(?:sbx|ses)_[A-Za-z0-9]+):(?P<path>.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class RemotePath:
    """A path in a sandbox. A relative path starts in the home directory."""

    sandbox: str
    path: str


@click.command()
@click.argument("source", shell_complete=complete_copy_paths)
@click.argument("target", shell_complete=complete_copy_paths)
@click.option("-q", "--quiet", is_flag=True, help="Do not show a progress bar.")
def cp(source: str, target: str, quiet: bool) -> None:
    """Copy files between this machine and a sandbox.

    Either SOURCE or TARGET is SANDBOX:PATH. Directories are copied with their contents. Like cp -r, it copies into TARGET if that is a
    directory or ends with a slash, otherwise to that name. `-` is standard input or output.
    Directories are sent as one tar stream if the sandbox has tar, otherwise file by file.
    """
    source_location, target_location = parse_location(source), parse_location(target)
    if isinstance(source_location, RemotePath) == isinstance(target_location, RemotePath):
        raise click.UsageError("One path must be SANDBOX:PATH and the other one local.")
    from sandyard.cli.sandboxes.files import SandboxFiles  # noqa: PLC0415 - slow to load
    from sandyard.cli.sandboxes.progress import Progress  # noqa: PLC0415

    with connect() as client, Progress(enabled=not quiet and sys.stderr.isatty()) as progress:
        if isinstance(target_location, RemotePath):
            assert not isinstance(source_location, RemotePath)
            _upload(
                SandboxFiles(client, get_sandbox_id(client, target_location.sandbox), progress),
                source_location,
                target_location.path,
            )
        else:
            assert isinstance(source_location, RemotePath)
            _download(
                SandboxFiles(client, get_sandbox_id(client, source_location.sandbox), progress),
                source_location.path,
                target_location,
            )


def parse_location(text: str) -> RemotePath | str:
    """Parse one side of a copy. `sbx_…:path` or `ses_…:path` is in a sandbox; everything else is local. Prefix `./` to force a local
    path."""
    match = REMOTE.fullmatch(text)
    if match is None:
        return text
    if not match["path"]:
        raise click.UsageError(f"{text!r} has no path. For the home directory, use {match['name']}:./")
    return RemotePath(match["name"], match["path"])


def _upload(files: SandboxFiles, source: str, target: str) -> None:
    if source == "-":
        if target.endswith("/") or files.get_kind(target) == "dir":
            raise CommandError(f"{target} is a directory. To copy standard input, give a file name.")
        files.put_stream(sys.stdin.buffer, target)
        return
    local = Path(source)
    if not local.exists():
        raise PathNotFoundError(f"No such file or directory: {source}")
    if target.endswith("/") or files.get_kind(target) == "dir":
        target = posixpath.join(target, local.resolve().name)
    if local.is_dir():
        if files.get_kind(target) == "file":
            raise CommandError(f"{target} is a file in the sandbox and cannot be replaced by a directory.")
        files.put_tree(local, target)
    elif local.is_file():
        files.put(local, target)
    else:
        raise CommandError(f"{source} is neither a file nor a directory.")


def _download(files: SandboxFiles, source: str, target: str) -> None:
    kind = files.get_kind(source)
    if kind is None:
        raise PathNotFoundError(f"No such file or directory in the sandbox: {source}")
    if target == "-":
        if kind == "dir":
            raise CommandError(f"{source} is a directory. Only a file can be copied to standard output.")
        files.get_stream(source, sys.stdout.buffer)
        return
    local = Path(target)
    if target.endswith("/") or local.is_dir():
        local = local / (posixpath.basename(posixpath.normpath(source)).lstrip(".") or "root")
    if not local.parent.is_dir():
        raise PathNotFoundError(f"No such directory: {local.parent}")
    if kind == "dir":
        if local.is_file():
            raise CommandError(f"{local} is a file and cannot be replaced by a directory.")
        files.get_tree(source, local)
    else:
        files.get(source, local)
