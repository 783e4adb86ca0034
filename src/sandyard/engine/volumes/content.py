"""Operations on the files of a volume: stat, list, create, change, remove. All of them block: call them in a thread."""

from __future__ import annotations

import contextlib
import os
import posixpath
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sandyard.engine.volumes import removal
from sandyard.engine.volumes.descriptors import FOLDER, is_file, open_fd, open_path, proc_path, reopen, reopen_fd
from sandyard.engine.volumes.errors import translate_error
from sandyard.engine.volumes.model import Entry, Kind, Owner
from sandyard.kit.errors import ConflictError, InvalidInputError, NotFoundError

Parts = tuple[str, ...]

FILE_OWNER, FILE_MODE, FOLDER_MODE = 1000, 0o644, 0o755
DEEPEST, MOST_ENTRIES = 10, 50_000
MOST_CHARACTERS = 8 << 20  # total length of paths and links in one list, because each may have thousands of characters


def parts_of(path: str) -> Parts:
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
    def root(self) -> Iterator[int]:
        try:
            fd = os.open(self._folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            raise NotFoundError("The volume's files no longer exist.") from None
        try:
            yield fd
        finally:
            os.close(fd)

    def stat(self, path: str) -> Entry:
        """Return the entry at this path; a link is not followed. Raises NotFoundError."""
        parts = parts_of(path)
        with translate_errors(parts), self.root() as root, open_path(root, parts, os.O_PATH | os.O_NOFOLLOW) as fd:
            return entry(parts, fd)

    def list(self, path: str, depth: int = 1) -> list[Entry]:
        """Return the sorted entries of a directory and its subdirectories down to `depth`. Links are not followed."""
        if depth > DEEPEST:
            raise InvalidInputError(f"depth must be between 1 and {DEEPEST}")
        parts = parts_of(path)
        found = _Listing([])
        with translate_errors(parts), self.root() as root, open_path(root, parts) as fd:
            if not stat.S_ISDIR(os.fstat(fd).st_mode):
                raise InvalidInputError(f"{format_path(parts)} is not a directory.")
            with reopen(fd, os.O_RDONLY | os.O_DIRECTORY) as folder:
                _walk(folder, parts, max(depth, 1), found)
        return found.entries

    def make_dir(self, path: str, owner: Owner, *, force: bool) -> Entry:
        """Create a directory. With `force`, create missing parents and accept an existing directory; otherwise raises
        ConflictError."""
        parts = parts_of(path)
        with translate_errors(parts), self.root() as root:
            if not parts:
                raise ConflictError("Path / already exists")
            with self.parent(root, parts, owner if force else None) as parent:
                try:
                    os.mkdir(_name(parts), 0o700, dir_fd=parent)
                except FileExistsError:
                    if not force:
                        raise
                    with open_path(root, parts, os.O_PATH | os.O_DIRECTORY) as there:
                        return entry(parts, there)
                with _new_folder(parent, _name(parts), owner) as made:
                    return entry(parts, made)

    def change(self, path: str, owner: Owner) -> Entry:
        """Change owner and permissions; values that are None stay unchanged."""
        parts = parts_of(path)
        with translate_errors(parts), self.root() as root, open_path(root, parts) as fd:
            if owner.uid is not None or owner.gid is not None:
                os.chown(proc_path(fd), -1 if owner.uid is None else owner.uid, -1 if owner.gid is None else owner.gid)
            if owner.mode is not None:
                Path(proc_path(fd)).chmod(owner.mode)
            return entry(parts, fd)

    def remove(self, path: str) -> None:
        """Remove a file, a link, or a directory with its contents. Raises NotFoundError."""
        parts = parts_of(path)
        if not parts:
            raise InvalidInputError(
                "The volume's root directory can't be removed. Delete the volume, or the files in it."
            )
        with translate_errors(parts), self.root() as root, self.parent(root, parts, None) as parent:
            removal.remove(parent, _name(parts))

    def open_file(self, path: str) -> tuple[int, int]:
        """Open a regular file for reading. Return the descriptor, which the caller must close, and the current size."""
        parts = parts_of(path)
        with translate_errors(parts), self.root() as root, open_path(root, parts) as fd:
            if not is_file(fd):
                kind = "a directory" if stat.S_ISDIR(os.fstat(fd).st_mode) else "not a regular file"
                raise InvalidInputError(f"{format_path(parts)} is {kind}: only files can be read.")
            return reopen_fd(fd, os.O_RDONLY | os.O_NONBLOCK), os.fstat(fd).st_size

    @contextlib.contextmanager
    def parent(self, root: int, parts: Parts, make_for: Owner | None) -> Iterator[int]:
        """Open the directory that contains the last part. With `make_for`, create missing directories with that owner."""
        above = parts[:-1]
        try:
            fd = open_fd(root, above, os.O_PATH | os.O_DIRECTORY)
        except FileNotFoundError:
            if make_for is None:
                raise
            fd = _make_all(root, above, make_for)
        try:
            yield fd
        finally:
            os.close(fd)


def _make_all(root: int, parts: Parts, owner: Owner) -> int:
    """Create all missing directories on this path and return a descriptor of the last one."""
    here = os.dup(root)
    try:
        for number in range(1, len(parts) + 1):
            try:
                inner = open_fd(root, parts[:number], os.O_PATH | os.O_DIRECTORY)
            except FileNotFoundError:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(parts[number - 1], 0o700, dir_fd=here)
                    with _new_folder(here, parts[number - 1], Owner(owner.uid, owner.gid)):
                        pass
                inner = open_fd(root, parts[:number], os.O_PATH | os.O_DIRECTORY)
            os.close(here)
            here = inner
        return os.dup(here)
    finally:
        os.close(here)


@contextlib.contextmanager
def _new_folder(parent: int, name: str, owner: Owner) -> Iterator[int]:
    fd = os.open(name, FOLDER, dir_fd=parent)
    try:
        give(fd, owner, FOLDER_MODE)
        yield fd
    finally:
        os.close(fd)


def give(fd: int, owner: Owner, mode: int) -> None:
    """Set the owner and mode of a new file. Only root can change owners: without root, files stay owned by the engine's
    user, which is root in all its sandboxes, unless another owner was requested explicitly."""
    if os.geteuid() == 0 or owner.uid is not None or owner.gid is not None:
        chosen = [FILE_OWNER if wanted is None else wanted for wanted in (owner.uid, owner.gid)]
        os.fchown(fd, *chosen)
    os.fchmod(fd, mode if owner.mode is None else owner.mode)


@dataclass(slots=True)
class _Listing:
    """The entries found so far, with limits."""

    entries: list[Entry]
    characters: int = 0

    def make_room(self, parts: Parts, more: int) -> None:
        if len(self.entries) + more > MOST_ENTRIES or self.characters > MOST_CHARACTERS:
            raise InvalidInputError(
                f"{format_path(parts)} has more than {MOST_ENTRIES} entries, or their names are too long for one list. List a smaller "
                "directory, use less depth, or look at it in a sandbox that mounts the volume."
            )

    def add(self, parts: Parts, new: Entry) -> None:
        self.characters += len(new.path) + len(new.target or "")
        self.make_room(parts, 1)
        self.entries.append(new)


def _walk(folder: int, parts: Parts, depth: int, found: _Listing) -> None:
    names: list[str] = []
    with os.scandir(folder) as entries:
        for item in entries:
            names.append(item.name)
            found.make_room(parts, len(names))
    for name in sorted(names):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # removed in the meantime
            fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            try:
                new = entry((*parts, name), fd)
                found.add(parts, new)
                if depth > 1 and new.kind is Kind.DIRECTORY:
                    with reopen(fd, os.O_RDONLY | os.O_DIRECTORY) as inner:
                        _walk(inner, (*parts, name), depth - 1, found)
            finally:
                os.close(fd)


def _name(parts: Parts) -> str:
    return parts[-1]


def entry(parts: Parts, fd: int) -> Entry:
    """Describe the file of a descriptor, under the path that was requested."""
    status = os.fstat(fd)
    kinds = ((stat.S_ISREG, Kind.FILE), (stat.S_ISDIR, Kind.DIRECTORY), (stat.S_ISLNK, Kind.SYMLINK))
    kind = next((kind for test, kind in kinds if test(status.st_mode)), Kind.UNKNOWN)
    return Entry(
        name=_readable(parts[-1]) if parts else "/",
        path=_readable(format_path(parts)),
        kind=kind,
        size=status.st_size,
        mode=stat.S_IMODE(status.st_mode),
        uid=status.st_uid,
        gid=status.st_gid,
        atime=status.st_atime,
        mtime=status.st_mtime,
        ctime=status.st_ctime,
        target=_readable(os.readlink("", dir_fd=fd)) if kind is Kind.SYMLINK else None,
    )


def _readable(name: str) -> str:
    """Return a name as text for JSON. Names are bytes; invalid UTF-8 is shown with replacement characters."""
    return os.fsencode(name).decode(errors="replace")
