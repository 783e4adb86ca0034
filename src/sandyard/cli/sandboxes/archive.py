"""A directory as a stream of tar bytes and back. What comes out of a sandbox is not trusted: nothing of it lands outside of
the directory it was copied to."""

from __future__ import annotations

import io
import os
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

from sandyard.cli.errors import CommandError

CHUNK = 1 << 18
BLOCK = 512


def size(folder: Path) -> int:
    """About how many bytes `pack` gives."""
    total = 2 * BLOCK
    for root, folders, files in os.walk(folder):
        total += BLOCK * (len(folders) + len(files))
        for name in files:
            length = (Path(root) / name).lstat().st_size
            total += -(-length // BLOCK) * BLOCK
    return total


def pack(folder: Path) -> Iterator[bytes]:
    """The content of `folder`, itself as `.`: files, directories and links. Sockets and devices are left out."""
    reader, writer = os.pipe()
    failed: list[BaseException] = []

    def fill() -> None:
        try:
            with os.fdopen(writer, "wb") as sink, tarfile.open(fileobj=sink, mode="w|", bufsize=CHUNK) as tar:
                tar.add(folder, arcname=".", filter=_plain)
        except BrokenPipeError:
            pass  # nobody reads on
        except BaseException as error:  # raised again by the reader
            failed.append(error)

    thread = threading.Thread(target=fill, name="pack", daemon=True)
    with os.fdopen(reader, "rb", buffering=0) as source:
        thread.start()
        while chunk := source.read(CHUNK):
            yield chunk
    thread.join()
    if failed:
        raise failed[0]


def unpack(chunks: Iterator[bytes], target: Path) -> None:
    """Make `target` and put everything there. CommandError at something that would land elsewhere."""
    target.mkdir(exist_ok=True)
    try:
        with tarfile.open(fileobj=_Stream(chunks), mode="r|", bufsize=CHUNK) as tar:
            tar.extractall(target, filter="data")
    except tarfile.FilterError as error:
        raise CommandError(f"The rest was not copied: {error}.") from None
    except tarfile.TarError as error:
        raise CommandError(f"What the sandbox sent is not a tar archive: {error}.") from None


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return entry if entry.isfile() or entry.isdir() or entry.issym() or entry.islnk() else None


class _Stream(io.RawIOBase):
    """Chunks as a file that is read once."""

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
        answer, self._rest = (self._rest, b"") if size < 0 else (self._rest[:size], self._rest[size:])
        return answer
