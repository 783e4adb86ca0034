"""The file format of a backup: a tar archive, compressed with zstandard, encrypted in the age format.

    manifest.json        what is in the file, and its version
    data/…               files of the data directory
    SHA256SUMS           the digest of each file above, in the format of `sha256sum`

`age --decrypt --identity KEYFILE BACKUP | tar --zstd --extract` unpacks it without Sandyard.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

import zstandard

from sandyard.cli.errors import CommandError
from sandyard.kit.age import DecryptingReader, EncryptingWriter, Identity, Recipient, is_encrypted
from sandyard.kit.tar import BoundedTarInfo

FORMAT, VERSION = "sandyard-backup", 1
MANIFEST, CHECKSUMS, DATA = "manifest.json", "SHA256SUMS", "data"
COMPRESSION_LEVEL = 3
READ_SIZE = 1 << 20
MAX_MANIFEST_BYTES = 1 << 20
MAX_CHECKSUM_BYTES = 1 << 30
MAX_ENTRIES = 10_000_000
MAX_MTIME = 1 << 33
"""The latest time of a file, in the year 2242. Others become the epoch."""
ZSTANDARD_MAGIC = b"\x28\xb5\x2f\xfd"
OnBytes = Callable[[int, str], None]


class BackupDamagedError(CommandError):
    """The backup is incomplete or damaged."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The contents of a backup."""

    created: str
    sandyard: str
    database: str
    """`sqlite`, `postgresql`, or `none` if the database is backed up separately."""
    engine: bool
    """Whether there was an engine in the data directory."""
    format: str = FORMAT
    version: int = VERSION

    def encode(self) -> bytes:
        return json.dumps(asdict(self), indent=2).encode() + b"\n"

    @classmethod
    def decode(cls, data: bytes) -> Manifest:
        """Raises BackupDamagedError, and CommandError if a newer version wrote it."""
        try:
            fields: dict[str, Any] = json.loads(data)
            version = int(fields["version"])
            if fields["format"] != FORMAT:
                raise BackupDamagedError("This file is not a backup of Sandyard.")
            if version > VERSION:
                raise CommandError(
                    f"The backup was made by Sandyard {str(fields.get('sandyard'))[:40]} in a newer format ({version}). Install at least "
                    "that version of Sandyard to restore it."
                )
            known = {name: fields[name] for name in cls.__dataclass_fields__}
            return cls(**known)
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            raise BackupDamagedError("The backup's manifest is damaged.") from None


class ArchiveWriter:
    """Writes a backup to `path`. The file appears there only when `finish` has written all of it to the disk."""

    def __init__(self, path: Path, recipients: Sequence[Recipient], on_bytes: OnBytes) -> None:
        """Raises CommandError if the file exists. Without recipients the file is not encrypted."""
        self._path = path
        self._partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
        if path.exists() or path.is_symlink():
            raise CommandError(f"{path} exists already. Delete it, or choose another name.")
        self._on_bytes = on_bytes
        self._checksums = bytearray()
        self._stack = contextlib.ExitStack()
        self._tar: Any = None
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._file = self._stack.enter_context(os.fdopen(os.open(self._partial, flags, 0o600), "wb"))
        try:
            self._encrypting = EncryptingWriter(self._file, recipients) if recipients else None
            target: Any = self._encrypting or self._file
            compressor = zstandard.ZstdCompressor(level=COMPRESSION_LEVEL, write_checksum=True)
            self._compressing: Any = compressor.stream_writer(target, closefd=False)
            open_tar: Any = tarfile.open
            sizes = {"bufsize": READ_SIZE, "copybufsize": READ_SIZE}
            self._tar = open_tar(fileobj=self._compressing, mode="w|", format=tarfile.PAX_FORMAT, **sizes)
        except BaseException:
            self.abandon()
            raise

    def add_manifest(self, manifest: Manifest) -> None:
        self._add_bytes(MANIFEST, manifest.encode())

    def add_folder(self, name: str, status: os.stat_result) -> None:
        self._tar.addfile(_make_header(name, tarfile.DIRTYPE, status.st_mode, status.st_mtime))

    def add_file(self, name: str, descriptor: int) -> None:
        """Add a file with its current size. Data that is appended in the meantime is left out."""
        status = os.fstat(descriptor)
        header = _make_header(name, tarfile.REGTYPE, status.st_mode, status.st_mtime)
        header.size = status.st_size
        content = _HashingReader(descriptor, status.st_size, lambda size: self._on_bytes(size, name))
        self._tar.addfile(header, content)
        self._record_checksum(name, content.digest.hexdigest())

    def finish(self) -> None:
        """Complete the file and move it to its path."""
        self._add_bytes(CHECKSUMS, bytes(self._checksums))
        self._tar.close()
        self._compressing.close()
        if self._encrypting is not None:
            self._encrypting.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        if self._path.exists():
            raise CommandError(f"{self._path} was created by another program in the meantime.")
        self._partial.rename(self._path)
        self._file.close()
        _sync_folder(self._path.parent)

    def abandon(self) -> None:
        """Remove the incomplete file. Does nothing after `finish`."""
        with contextlib.suppress(OSError, ValueError):  # perhaps what made the backup fail
            if self._tar is not None:
                self._tar.close()  # here: when Python closed it later, it would print that the file is closed
        self._stack.close()
        self._partial.unlink(missing_ok=True)

    def _add_bytes(self, name: str, data: bytes) -> None:
        header = _make_header(name, tarfile.REGTYPE, 0o600, time.time())
        header.size = len(data)
        self._tar.addfile(header, io.BytesIO(data))
        self._record_checksum(name, hashlib.sha256(data).hexdigest())

    def _record_checksum(self, name: str, digest: str) -> None:
        if "\n" in name:
            raise CommandError(f"The name of {name!r} contains a line break, which a backup cannot store. Rename it.")
        self._checksums += f"{digest}  {name}\n".encode(errors="surrogateescape")


class _HashingReader(io.RawIOBase):
    """Reads exactly `size` bytes and computes their digest. A file that has become shorter is padded with zeros."""

    def __init__(self, descriptor: int, size: int, on_bytes: Callable[[int], None]) -> None:
        self._descriptor = descriptor
        self._left = size
        self._on_bytes = on_bytes
        self.digest = hashlib.sha256()

    def read(self, size: int = -1, /) -> bytes:
        wanted = self._left if size < 0 else min(size, self._left)
        data = bytearray()
        while len(data) < wanted and (piece := os.read(self._descriptor, wanted - len(data))):
            data += piece
        data += bytes(wanted - len(data))
        self._left -= wanted
        self.digest.update(data)
        self._on_bytes(wanted)
        return bytes(data)


@dataclass(frozen=True, slots=True)
class Member:
    """A file or a folder of the data directory."""

    path: PurePosixPath
    """Relative to the data directory."""
    mode: int
    mtime: float
    content: io.RawIOBase | None
    """None for a folder."""


class ArchiveReader:
    """Reads a backup once, from start to end, and checks everything in it.

    `manifest` is available at once. Iterate over the members, and read the content of each before the next one. Raises
    BackupDamagedError.
    """

    def __init__(
        self, file: IO[bytes], identities: Sequence[Identity], on_bytes: OnBytes = lambda size, name: None
    ) -> None:
        start = file.read(64)
        file.seek(0)
        if not is_encrypted(start) and not start.startswith(ZSTANDARD_MAGIC):
            raise BackupDamagedError("This file is not a backup of Sandyard.")
        source: Any = io.BufferedReader(DecryptingReader(file, identities), READ_SIZE) if is_encrypted(start) else file
        decompressor = zstandard.ZstdDecompressor()
        self._on_bytes = on_bytes
        self._stream = io.BufferedReader(decompressor.stream_reader(source, closefd=False), READ_SIZE)
        self._source = source
        self._digests: dict[str, str] = {}
        self._entries = 0
        with _translate_read_errors():
            self._tar: Any = tarfile.open(fileobj=self._stream, mode="r|", tarinfo=BoundedTarInfo)  # noqa: SIM115
            self.manifest = Manifest.decode(self._read_small(self._next(), MANIFEST, MAX_MANIFEST_BYTES))

    def __iter__(self) -> Iterator[Member]:
        while True:
            with _translate_read_errors():
                info = self._next()
                if info.name == CHECKSUMS:
                    self._check(self._read_small(info, CHECKSUMS, MAX_CHECKSUM_BYTES))
                    return
                member, reader = self._open(info)
            yield member
            with _translate_read_errors():
                if reader is not None:
                    while reader.read(READ_SIZE):
                        pass
                    self._digests[info.name] = reader.digest.hexdigest()

    def _next(self) -> tarfile.TarInfo:
        info: tarfile.TarInfo | None = self._tar.next()
        if info is None:
            raise BackupDamagedError("The backup is incomplete: it ends too early.")
        self._tar.members.clear()  # tarfile keeps all of them otherwise
        self._entries += 1
        if self._entries > MAX_ENTRIES:
            raise BackupDamagedError(f"The backup is damaged: it has more than {MAX_ENTRIES} entries.")
        return info

    def _open(self, info: tarfile.TarInfo) -> tuple[Member, _CheckingReader | None]:
        path = PurePosixPath(info.name)
        parts = path.parts
        is_valid = len(parts) > 1 and parts[0] == DATA and ".." not in parts and str(path) == info.name
        if not is_valid or "\0" in info.name or info.name in self._digests or not (info.isreg() or info.isdir()):
            raise BackupDamagedError(f"The backup contains an entry that does not belong there: {info.name[:200]!r}.")
        relative = PurePosixPath(*parts[1:])
        mtime = info.mtime if 0 <= info.mtime < MAX_MTIME else 0  # also for NaN
        if info.isdir():
            return Member(relative, info.mode & 0o777, mtime, None), None
        content = self._tar.extractfile(info)
        assert content is not None, "a regular file has a content"
        reader = _CheckingReader(content, lambda size: self._on_bytes(size, info.name))
        self._digests[info.name] = ""  # until it has been read
        return Member(relative, info.mode & 0o777, mtime, reader), reader

    def _read_small(self, info: tarfile.TarInfo, name: str, limit: int) -> bytes:
        content = self._tar.extractfile(info) if info.isreg() and info.name == name and info.size <= limit else None
        if content is None:
            raise BackupDamagedError(f"This file is not a backup of Sandyard: it has no {name}.")
        data: bytes = content.read()
        self._digests[name] = hashlib.sha256(data).hexdigest()
        return data

    def _check(self, checksums: bytes) -> None:
        self._digests.pop(CHECKSUMS)
        expected = {}
        for line in checksums.decode(errors="surrogateescape").split("\n")[:-1]:
            digest, _, name = line.partition("  ")
            expected[name] = digest
        if wrong := sorted(
            name for name in expected.keys() | self._digests.keys() if expected.get(name) != self._digests.get(name)
        ):
            raise BackupDamagedError(f"The backup is damaged: {wrong[0][:200]!r} does not have the recorded checksum.")
        while self._source.read(READ_SIZE):  # the end is authenticated too
            pass


class _CheckingReader(io.RawIOBase):
    """Computes the digest of what is read."""

    def __init__(self, content: IO[bytes], on_bytes: Callable[[int], None]) -> None:
        self._content = content
        self._on_bytes = on_bytes
        self.digest = hashlib.sha256()

    def read(self, size: int = -1, /) -> bytes:
        with _translate_read_errors():
            data = self._content.read(size)
        self.digest.update(data)
        self._on_bytes(len(data))
        return data


@contextlib.contextmanager
def _translate_read_errors() -> Iterator[None]:
    try:
        yield
    except (tarfile.TarError, zstandard.ZstdError, EOFError) as error:
        raise BackupDamagedError(f"The backup is incomplete or damaged: {error}.") from None


def _make_header(name: str, kind: bytes, mode: int, mtime: float) -> tarfile.TarInfo:
    header = tarfile.TarInfo(name)
    header.type, header.mode, header.mtime = kind, mode & 0o777, int(mtime)
    return header


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
