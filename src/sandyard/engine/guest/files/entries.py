"""`EntryInfo`: the protocol's description of a file, a directory or any other entry."""

from __future__ import annotations

import functools
import os
import posixpath
import stat
from typing import Any

from sandyard.engine.guest.files import metadata
from sandyard.engine.guest.sandbox import Sandbox
from sandyard.engine.guest.wire import protojson

_FILE, _DIRECTORY, _UNSPECIFIED = "FILE_TYPE_FILE", "FILE_TYPE_DIRECTORY", "FILE_TYPE_UNSPECIFIED"
_DIRECTORY_SIZE = 4096  # used where the file system (btrfs) reports 0 for an empty one


def describe(sandbox: Sandbox, path: str) -> dict[str, Any]:
    """Return the EntryInfo of an absolute path in the sandbox. Raises OSError if it does not exist."""
    sandbox.accounts.refresh()
    return describe_status(sandbox, path, os.lstat(sandbox.to_host_path(path)))


def describe_status(sandbox: Sandbox, path: str, status: os.stat_result) -> dict[str, Any]:
    """Return the EntryInfo for a known status. A symbolic link has the type and mode of its target, and its own other
    properties. User and group names are those of the last `accounts.refresh()`."""
    host = sandbox.to_host_path(path)
    mode = status.st_mode
    is_link = stat.S_ISLNK(mode)
    kind, bits = _get_file_type(mode), mode & 0o777
    target: str | None = None
    if is_link:
        target = _resolve_link(sandbox, path)
        try:
            followed = os.stat(host).st_mode
        except OSError:
            kind, bits = _UNSPECIFIED, 0
        else:
            kind, bits = _get_file_type(followed), followed & 0o777
    entry: dict[str, Any] = {
        "name": protojson.make_printable(posixpath.basename(path.rstrip("/")) or "/"),
        "type": kind,
        "path": protojson.make_printable(path),
        "size": str(status.st_size or (_DIRECTORY_SIZE if kind == _DIRECTORY else 0)),
        "mode": bits,
        "permissions": format_permissions(mode),
        "owner": sandbox.accounts.get_user_name(status.st_uid),
        "group": sandbox.accounts.get_group_name(status.st_gid),
        "modifiedTime": protojson.format_timestamp(status.st_mtime_ns),
    }
    if target is not None:
        entry["symlinkTarget"] = protojson.make_printable(target)
        entry["isSymlink"] = True
    if kind in (_FILE, _DIRECTORY):
        stored = metadata.read(host)
        if stored:
            entry["metadata"] = stored
    return entry


def _resolve_link(sandbox: Sandbox, path: str) -> str:
    """Return the final target of a link, or the link's own path if it is broken."""
    try:
        return sandbox.to_sandbox_path(os.path.realpath(sandbox.to_host_path(path), strict=True))
    except OSError:
        return path


def _get_file_type(mode: int) -> str:
    if stat.S_ISREG(mode):
        return _FILE
    return _DIRECTORY if stat.S_ISDIR(mode) else _UNSPECIFIED


@functools.lru_cache(256)
def format_permissions(mode: int) -> str:
    """Format like Go's FileMode.String: letters for special bits, then nine for rwx."""
    letters = ""
    if stat.S_ISDIR(mode):
        letters += "d"
    if stat.S_ISLNK(mode):
        letters += "L"
    if stat.S_ISBLK(mode) or stat.S_ISCHR(mode):
        letters += "D"
    if stat.S_ISFIFO(mode):
        letters += "p"
    if stat.S_ISSOCK(mode):
        letters += "S"
    for bit, letter in ((stat.S_ISUID, "u"), (stat.S_ISGID, "g")):
        if mode & bit:
            letters += letter
    if stat.S_ISCHR(mode):
        letters += "c"
    if mode & stat.S_ISVTX:
        letters += "t"
    rights = "".join(letter if mode & (0o400 >> place) else "-" for place, letter in enumerate("rwxrwxrwx"))
    return (letters or "-") + rights
