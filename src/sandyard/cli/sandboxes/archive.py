"""Pack a directory into a tar stream and unpack it. Data from a sandbox is not trusted: nothing is written outside the target
directory or through a link, and no link leads out of it."""

from __future__ import annotations

import io
import itertools
import os
import shutil
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from sandyard.cli.errors import CommandError
from sandyard.kit.tar import BoundedTarInfo, read_entries

CHUNK = 1 << 18
BLOCK = 512


class _Link(NamedTuple):
    """A symbolic link of an archive."""

    name: str
    target: str


def estimate_size(folder: Path) -> int:
    """Return roughly how many bytes `pack` yields."""
    total = 2 * BLOCK
    for root, folders, files in os.walk(folder):
        total += BLOCK * (len(folders) + len(files))
        for name in files:
            length = (Path(root) / name).lstat().st_size
            total += -(-length // BLOCK) * BLOCK  # rounded up to whole blocks
    return total


def pack(folder: Path) -> Iterator[bytes]:
    """Yield the contents of `folder` as a tar stream, with itself as `.`: files, directories and links. Sockets and devices are skipped."""
    reader, writer = os.pipe()
    errors: list[BaseException] = []

    def fill() -> None:
        try:
            with os.fdopen(writer, "wb") as sink, tarfile.open(fileobj=sink, mode="w|", bufsize=CHUNK) as tar:
                tar.add(folder, arcname=".", filter=_filter_entry)
        except BrokenPipeError:
            pass  # the reader is gone
        except BaseException as error:  # raised again by the reader
            errors.append(error)

    thread = threading.Thread(target=fill, name="pack", daemon=True)
    with os.fdopen(reader, "rb", buffering=0) as source:
        thread.start()
        while chunk := source.read(CHUNK):
            yield chunk
    thread.join()
    if errors:
        raise errors[0]


def unpack(chunks: Iterator[bytes], target: Path) -> list[str]:
    """Create `target` and unpack everything there. Return the symbolic links that were skipped, because they can lead elsewhere. Raises
    CommandError for an entry that would be written elsewhere or through a link.

    Extracts entries itself, because Debian 12's Python does not have the filters of `tarfile`. Links are created last: until then
    nothing can be written through one of them."""
    refuse_link(target)
    target.mkdir(exist_ok=True)
    root = target.resolve()
    links: dict[Path, _Link] = {}
    try:
        with tarfile.open(fileobj=_ChunkReader(chunks), mode="r|", bufsize=CHUNK, tarinfo=BoundedTarInfo) as tar:
            for entry in read_entries(tar):
                _extract_entry(tar, entry, root, links)
    except tarfile.TarError as error:
        raise CommandError(f"The sandbox did not send a valid tar archive: {error}.") from None
    return _create_links(links, root)


def refuse_link(folder: Path) -> None:
    """Raise CommandError if there is a symbolic link in place of a directory: it could lead anywhere."""
    if folder.is_symlink():
        raise CommandError(
            f"Copying stopped: {str(folder)!r} is a link on this machine, but a directory in the sandbox. Delete the link, or copy to "
            "another directory."
        )


def _extract_entry(tar: tarfile.TarFile, entry: tarfile.TarInfo, root: Path, links: dict[Path, _Link]) -> None:
    """Write a file or directory. Symbolic links are added to `links`."""
    path = _locate(root, entry.name)
    links.pop(path, None)
    if entry.isdir():
        refuse_link(path)
        path.mkdir(parents=True, exist_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink() or path.is_file():
        path.unlink()
    if entry.issym():
        links[path] = _Link(entry.name, entry.linkname)
    elif entry.islnk():
        source = _locate(root, entry.linkname)
        if source in links:
            links[path] = _Link(entry.name, links[source].target)
        elif source.is_symlink():  # of an earlier copy
            links[path] = _Link(entry.name, str(source.readlink()))
        else:
            path.hardlink_to(source)
    elif entry.isfile() and (content := tar.extractfile(entry)) is not None:
        with path.open("wb") as file:
            shutil.copyfileobj(content, file, CHUNK)
        path.chmod((entry.mode & 0o755) | 0o600)
        os.utime(path, (entry.mtime, entry.mtime))


def _create_links(links: dict[Path, _Link], root: Path) -> list[str]:
    """Create the links that lead to a place below `root`. Return the names of the others."""
    skipped = []
    for path, link in links.items():
        if path.is_dir():
            raise CommandError(
                f"Copying stopped: {link.name!r} is a link in the sandbox, but a directory on this machine. Delete the directory, or "
                "copy to another one."
            )
        if _can_lead_outside(root, path, link.target):
            skipped.append(link.name)
        else:
            path.symlink_to(link.target)
    # a link may lead through one that the user has created
    for path, link in links.items():
        if path.is_symlink() and not _is_inside(root, path):
            path.unlink()
            skipped.append(link.name)
    return skipped


def _can_lead_outside(root: Path, path: Path, target: str) -> bool:
    """Return whether a link at `path` can lead out of `root`, now or after later copies. A `..` after a name is not accepted, because that
    name can become a link."""
    parts = PurePosixPath(target).parts
    names = list(itertools.dropwhile(lambda part: part == "..", parts))
    depth = len(path.relative_to(root).parts) - 1
    return target.startswith("/") or ".." in names or len(parts) - len(names) > depth


def _is_inside(root: Path, path: Path) -> bool:
    """Return whether the path is below `root` after resolving all links."""
    real = Path(os.path.realpath(path))
    return real == root or root in real.parents


def _locate(root: Path, name: str) -> Path:
    """Return the path of an entry below `root`. Raises CommandError if there is a link on the way. The last component may be a link."""
    parts = PurePosixPath(name).parts
    if name.startswith("/") or ".." in parts:
        raise CommandError(f"Copying stopped: {name!r} would be written outside {root}.")
    path = root.joinpath(*parts)
    for folder in reversed(path.parents[: max(len(parts) - 1, 0)]):
        refuse_link(folder)
    return path


def _filter_entry(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return entry if entry.isfile() or entry.isdir() or entry.issym() or entry.islnk() else None


class _ChunkReader(io.RawIOBase):
    """A file that can be read once, from an iterator of chunks."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = b""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        while size < 0 or len(self._rest) < size:
            chunk = next(self._chunks, b"")
            if not chunk:
                break
            self._rest += chunk
        data, self._rest = (self._rest, b"") if size < 0 else (self._rest[:size], self._rest[size:])
        return data
