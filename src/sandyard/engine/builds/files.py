"""Files that clients upload for COPY: archives stored under the hash of their contents, either complete or absent.

An upload needs no API key but a link with a token, like a presigned URL; the token is valid for one hash and one hour.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import hmac
import os
import re
import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path

from sandyard.engine.store.database import Database
from sandyard.kit.errors import ForbiddenError, InvalidInputError, NoSpaceError, SandyardError
from sandyard.kit.ids import random_id, random_secret
from sandyard.kit.logging import get_logger

log = get_logger(__name__)

LINK_S = 3600
FRESH_S = 2 * 3600  # an archive this recent may belong to a build that has not started yet
CHUNK = 256 << 10
LOOK_EVERY = 64 << 20
_HASH = re.compile(r"[0-9a-f]{64}")
_TOKEN = re.compile(r"([0-9]{1,12})-([0-9a-f]{64})")
_PARTIAL = ".part"
_GZIP, _TAR, _TAR_AT = b"\x1f\x8b", b"ustar", 257
_SECRET = "build_upload_secret"  # noqa: S105 - the name under which it is stored


class TooLargeError(SandyardError):
    """The upload is too large."""

    code, status = "too_large", 413


def checked_hash(text: str) -> str:
    if not _HASH.fullmatch(text):
        raise InvalidInputError("The hash of the files is not valid. It must be a SHA-256 in lowercase hexadecimal.")
    return text


class Archives:
    """Stores one file per hash in `folder`. Sizes are in MiB: `limit_mb` for one archive, `kept_mb` for all archives
    that no build is about to use, `reserve_mb` for the disk space that uploads leave free."""

    def __init__(self, folder: Path, database: Database, *, limit_mb: int, kept_mb: int, reserve_mb: int) -> None:
        self._folder = folder
        self._database = database
        self._limit = limit_mb << 20
        self._kept = kept_mb << 20
        self._reserve = reserve_mb << 20

    def open(self) -> None:
        """Create the folder, and remove files that a crash left incomplete."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for path in self._folder.glob(f"*{_PARTIAL}"):
            path.unlink(missing_ok=True)
        if self._database.meta(_SECRET) is None:
            self._database.set_meta(_SECRET, random_secret().reveal())

    def has(self, files: str) -> bool:
        return self._path(files).exists()

    def size(self, files: str) -> int:
        """Return the size in bytes, or 0 if the archive does not exist."""
        path = self._path(files)
        return path.stat().st_size if path.exists() else 0

    def token(self, files: str) -> str:
        """Return a token for one upload of these files."""
        until = int(time.time()) + LINK_S
        return f"{until}-{self._sign(files, until)}"

    def check(self, files: str, token: str) -> None:
        """Raise ForbiddenError if the token is not valid for these files or has expired."""
        found = _TOKEN.fullmatch(token)
        if found is None or not hmac.compare_digest(self._sign(files, int(found[1])), found[2]):
            raise ForbiddenError("The upload link is not valid. Request a new one.")
        if int(found[1]) < time.time():
            raise ForbiddenError("The upload link has expired after one hour. Request a new one.")

    async def receive(self, files: str, body: AsyncIterator[bytes], announced: int | None) -> None:
        """Store an archive and replace an existing one. An interrupted upload leaves nothing behind."""
        if announced is not None and announced > self._limit:
            raise self._too_large()
        self._require_room(announced or 0)
        partial = self._folder / f"{files}-{random_id('', 8)}{_PARTIAL}"
        try:
            size = await self._write(partial, body)
            if announced is not None and size != announced:
                raise InvalidInputError(f"The upload was interrupted after {size} of {announced} bytes. Try again.")
            await asyncio.to_thread(_check_archive, partial)
            partial.replace(self._path(files))
        except OSError as error:
            if error.errno in {errno.ENOSPC, errno.EDQUOT}:
                raise NoSpaceError("Could not store the upload: the disk is full.") from error
            raise SandyardError(f"Could not store the upload: {error.strerror}.") from error
        finally:
            partial.unlink(missing_ok=True)
        log.info("build_files_uploaded", files=files, size=size)
        await asyncio.to_thread(self.shrink)

    async def read(self, files: str) -> AsyncIterator[bytes]:
        """Yield the archive in chunks and mark it as used. Raises FileNotFoundError."""
        path = self._path(files)
        os.utime(path)
        with path.open("rb") as file:  # replacing or removing the file does not affect an open descriptor
            while piece := await asyncio.to_thread(file.read, CHUNK):
                yield piece

    def shrink(self) -> None:
        """Remove the least recently used archives above the limit, except recent ones."""
        found = []
        for path in self._folder.iterdir():
            with contextlib.suppress(FileNotFoundError):
                found.append((path.stat().st_mtime, path.stat().st_size, path))
        total = sum(size for _, size, _ in found)
        for used_at, size, path in sorted(found):
            if total <= self._kept or used_at > time.time() - FRESH_S:
                return
            path.unlink(missing_ok=True)
            total -= size

    async def _write(self, path: Path, body: AsyncIterator[bytes]) -> int:
        size = looked = 0
        with path.open("xb") as file:
            async for piece in body:
                size += len(piece)
                if size > self._limit:
                    raise self._too_large()
                if size - looked > LOOK_EVERY:
                    looked = size
                    self._require_room(0)
                file.write(piece)
            file.flush()
            await asyncio.to_thread(os.fsync, file.fileno())
        return size

    def _require_room(self, size: int) -> None:
        if shutil.disk_usage(self._folder).free - size < self._reserve:
            raise NoSpaceError("Could not store the upload: only the engine's disk reserve is left (disk_reserve_mb).")

    def _too_large(self) -> TooLargeError:
        return TooLargeError(
            f"The files of one COPY may have at most {self._limit >> 20} MiB, compressed. Exclude some (.dockerignore), "
            "copy them in several steps, or raise build_upload_mb."
        )

    def _sign(self, files: str, until: int) -> str:
        secret = self._database.meta(_SECRET) or ""
        return hmac.new(secret.encode(), f"{files} {until}".encode(), hashlib.sha256).hexdigest()

    def _path(self, files: str) -> Path:
        return self._folder / checked_hash(files)


def _check_archive(path: Path) -> None:
    with path.open("rb") as file:
        head = file.read(_TAR_AT + len(_TAR))
    if not head.startswith(_GZIP) and not head.endswith(_TAR) and head.strip(b"\0"):
        raise InvalidInputError("The upload is not a tar archive (gzipped or uncompressed).")
    if not head:
        raise InvalidInputError("The upload is empty.")
