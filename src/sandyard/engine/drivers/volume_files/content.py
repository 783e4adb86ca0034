"""Blocking operations on the files of a volume: stat, list, create, change, remove."""

from __future__ import annotations

import contextlib
import os
import posixpath
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sandyard.engine.contract import FileEntry, FileKind, FileOwner
from sandyard.engine.drivers.volume_files import removal
from sandyard.engine.drivers.volume_files.descriptors import (
    OPEN_FOLDER,
    get_proc_path,
    is_file,
    open_fd,
    open_path,
    reopen,
    reopen_fd,
)
from sandyard.engine.drivers.volume_files.errors import translate_error
from sandyard.kit.errors import ConflictError, InvalidInputError, NotFoundError

Parts = tuple[str, ...]

FILE_OWNER, FILE_MODE, FOLDER_MODE = 1000, 0o644, 0o755
MAX_DEPTH, MAX_ENTRIES = 10, 50_000
MAX_CHARACTERS = 8 << 20  # total length of paths and links in one list, because each may have thousands of characters


def parse_path(path: str) -> Parts:
    """Split a client's path into its parts. `..` at the top stays at the volume's root. Raises InvalidInputError."""
    if not path.strip() or "\0" in path:
        raise InvalidInputError(
            "path is not valid: use the path of a file or directory in the volume, such as /folder/file."
        )
    try:
        path.encode()
    except UnicodeEncodeError:
        raise InvalidInputError("path is not valid: it is not UTF-8.") from None
    return tuple(part for part in posixpath.normpath(f"/{path}").split("/") if part)


def format_path(parts: Parts) -> str:
    return "/" + "/".join(parts)


@contextlib.contextmanager
def translate_errors(parts: Parts) -> Iterator[None]:
    """Translate an OSError into an error message about this path."""
    try:
        yield
    except OSError as error:
        raise translate_error(error, format_path(parts)) from error


class Content:
    """The files of one volume. All methods except `stat` follow a link at the end of a path, inside the volume."""

    def __init__(self, folder: Path) -> None:
        """`folder` itself must not be writable by any sandbox."""
        self._folder = folder

    @contextlib.contextmanager
    def open_root(self) -> Iterator[int]:
        """Open the volume's root directory. Raises NotFoundError if it no longer exists."""
        try:
            fd = os.open(self._folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            raise NotFoundError("The volume's files no longer exist.") from None
        try:
            yield fd
        finally:
            os.close(fd)

    def stat(self, path: str) -> FileEntry:
        """Return the entry at this path; a link is not followed. Raises NotFoundError."""
        parts = parse_path(path)
        with translate_errors(parts), self.open_root() as root, open_path(root, parts, os.O_PATH | os.O_NOFOLLOW) as fd:
            return make_entry(parts, fd)

    def list(self, path: str, depth: int = 1) -> list[FileEntry]:
        """Return the sorted entries of a directory and its subdirectories down to `depth`. Links are not followed."""
        if depth > MAX_DEPTH:
            raise InvalidInputError(f"depth must be between 1 and {MAX_DEPTH}")
        parts = parse_path(path)
        listing = _Listing([])
        with translate_errors(parts), self.open_root() as root, open_path(root, parts) as fd:
            if not stat.S_ISDIR(os.fstat(fd).st_mode):
                raise InvalidInputError(f"{format_path(parts)} is not a directory.")
            with reopen(fd, os.O_RDONLY | os.O_DIRECTORY) as folder:
                _walk(folder, parts, max(depth, 1), listing)
        return listing.entries

    def make_dir(self, path: str, owner: FileOwner, *, force: bool) -> FileEntry:
        """Create a directory. With `force`, create missing parents and accept an existing directory; otherwise raises
        ConflictError."""
        parts = parse_path(path)
        with translate_errors(parts), self.open_root() as root:
            if not parts:
                raise ConflictError("Path / already exists")
            with self.open_parent(root, parts, owner if force else None) as parent:
                try:
                    os.mkdir(_get_name(parts), 0o700, dir_fd=parent)
                except FileExistsError:
                    if not force:
                        raise
                    with open_path(root, parts, os.O_PATH | os.O_DIRECTORY) as existing:
                        return make_entry(parts, existing)
                with _open_new_folder(parent, _get_name(parts), owner) as created:
                    return make_entry(parts, created)

    def change(self, path: str, owner: FileOwner) -> FileEntry:
        """Change owner and permissions; values that are None stay unchanged."""
        parts = parse_path(path)
        with translate_errors(parts), self.open_root() as root, open_path(root, parts) as fd:
            if owner.uid is not None or owner.gid is not None:
                os.chown(
                    get_proc_path(fd), -1 if owner.uid is None else owner.uid, -1 if owner.gid is None else owner.gid
                )
            if owner.mode is not None:
                Path(get_proc_path(fd)).chmod(owner.mode)
            return make_entry(parts, fd)

    def remove(self, path: str) -> None:
        """Remove a file, a link, or a directory with its contents. Raises NotFoundError."""
        parts = parse_path(path)
        if not parts:
            raise InvalidInputError(
                "The volume's root directory can't be removed. Delete the volume, or the files in it."
            )
        with translate_errors(parts), self.open_root() as root, self.open_parent(root, parts, None) as parent:
            removal.remove(parent, _get_name(parts))

    def open_file(self, path: str) -> tuple[int, int]:
        """Open a regular file for reading. Return the descriptor, which the caller must close, and the current size."""
        parts = parse_path(path)
        with translate_errors(parts), self.open_root() as root, open_path(root, parts) as fd:
            if not is_file(fd):
                kind = "a directory" if stat.S_ISDIR(os.fstat(fd).st_mode) else "not a regular file"
                raise InvalidInputError(f"{format_path(parts)} is {kind}: only files can be read.")
            return reopen_fd(fd, os.O_RDONLY | os.O_NONBLOCK), os.fstat(fd).st_size

    @contextlib.contextmanager
    def open_parent(self, root: int, parts: Parts, create_as: FileOwner | None) -> Iterator[int]:
        """Open the directory that contains the last part. With `create_as`, create missing directories with that owner."""
        parent_parts = parts[:-1]
        try:
            fd = open_fd(root, parent_parts, os.O_PATH | os.O_DIRECTORY)
        except FileNotFoundError:
            if create_as is None:
                raise
            fd = _make_folders(root, parent_parts, create_as)
        try:
            yield fd
        finally:
            os.close(fd)


def _make_folders(root: int, parts: Parts, owner: FileOwner) -> int:
    """Create all missing directories on this path and return a descriptor of the last one."""
    folder = os.dup(root)
    try:
        for number in range(1, len(parts) + 1):
            try:
                child = open_fd(root, parts[:number], os.O_PATH | os.O_DIRECTORY)
            except FileNotFoundError:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(parts[number - 1], 0o700, dir_fd=folder)
                    with _open_new_folder(folder, parts[number - 1], FileOwner(owner.uid, owner.gid)):
                        pass
                child = open_fd(root, parts[:number], os.O_PATH | os.O_DIRECTORY)
            os.close(folder)
            folder = child
        return os.dup(folder)
    finally:
        os.close(folder)


@contextlib.contextmanager
def _open_new_folder(parent: int, name: str, owner: FileOwner) -> Iterator[int]:
    fd = os.open(name, OPEN_FOLDER, dir_fd=parent)
    try:
        set_owner(fd, owner, FOLDER_MODE)
        yield fd
    finally:
        os.close(fd)


def set_owner(fd: int, owner: FileOwner, mode: int) -> None:
    """Set the owner and mode of a new file. Only root can change owners: without root, files stay owned by the engine's
    user, which is root in all its sandboxes, unless another owner was requested explicitly."""
    if os.geteuid() == 0 or owner.uid is not None or owner.gid is not None:
        uid, gid = (FILE_OWNER if number is None else number for number in (owner.uid, owner.gid))
        os.fchown(fd, uid, gid)
    os.fchmod(fd, mode if owner.mode is None else owner.mode)


@dataclass(slots=True)
class _Listing:
    """The entries found so far, with limits."""

    entries: list[FileEntry]
    characters: int = 0

    def require_room(self, parts: Parts, count: int) -> None:
        """Raise InvalidInputError if `count` more entries exceed the limits."""
        if len(self.entries) + count > MAX_ENTRIES or self.characters > MAX_CHARACTERS:
            raise InvalidInputError(
                f"{format_path(parts)} has more than {MAX_ENTRIES} entries, or their names are too long for one list. List a smaller "
                "directory, use less depth, or look at it in a sandbox that mounts the volume."
            )

    def add(self, parts: Parts, new_entry: FileEntry) -> None:
        self.characters += len(new_entry.path) + len(new_entry.target or "")
        self.require_room(parts, 1)
        self.entries.append(new_entry)


def _walk(folder: int, parts: Parts, depth: int, listing: _Listing) -> None:
    names: list[str] = []
    with os.scandir(folder) as entries:
        for item in entries:
            names.append(item.name)
            listing.require_room(parts, len(names))
    for name in sorted(names):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # removed in the meantime
            fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            try:
                new_entry = make_entry((*parts, name), fd)
                listing.add(parts, new_entry)
                if depth > 1 and new_entry.kind is FileKind.DIRECTORY:
                    with reopen(fd, os.O_RDONLY | os.O_DIRECTORY) as child:
                        _walk(child, (*parts, name), depth - 1, listing)
            finally:
                os.close(fd)


def _get_name(parts: Parts) -> str:
    return parts[-1]


def make_entry(parts: Parts, fd: int) -> FileEntry:
    """Describe the file of a descriptor, under the path that was requested."""
    status = os.fstat(fd)
    kinds = ((stat.S_ISREG, FileKind.FILE), (stat.S_ISDIR, FileKind.DIRECTORY), (stat.S_ISLNK, FileKind.SYMLINK))
    kind = next((kind for test, kind in kinds if test(status.st_mode)), FileKind.UNKNOWN)
    return FileEntry(
        name=_decode_name(parts[-1]) if parts else "/",
        path=_decode_name(format_path(parts)),
        kind=kind,
        size=status.st_size,
        mode=stat.S_IMODE(status.st_mode),
        uid=status.st_uid,
        gid=status.st_gid,
        atime=status.st_atime,
        mtime=status.st_mtime,
        ctime=status.st_ctime,
        target=_decode_name(os.readlink("", dir_fd=fd)) if kind is FileKind.SYMLINK else None,
    )


def _decode_name(name: str) -> str:
    """Return a name as text for JSON. Names are bytes; invalid UTF-8 is shown with replacement characters."""
    return os.fsencode(name).decode(errors="replace")
