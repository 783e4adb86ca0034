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
from sandyard.kit.ids import make_random_id, make_random_secret
from sandyard.kit.logging import get_logger

log = get_logger(__name__)

LINK_LIFETIME_S = 3600
RECENT_S = 2 * 3600  # an archive this recent may belong to a build that has not started yet
CHUNK = 256 << 10
SPACE_CHECK_BYTES = 64 << 20  # bytes between two checks of the free space
_HASH = re.compile(r"[0-9a-f]{64}")
_TOKEN = re.compile(r"([0-9]{1,12})-([0-9a-f]{64})")
_PARTIAL = ".part"
_GZIP_MAGIC, _TAR_MAGIC, _TAR_MAGIC_OFFSET = b"\x1f\x8b", b"ustar", 257
_SECRET_META_KEY = "build_upload_secret"  # noqa: S105 - the key under which it is stored


class TooLargeError(SandyardError):
    """The upload is too large."""

    code, status = "too_large", 413


def validate_hash(text: str) -> str:
    """Return the hash if it is well-formed. Raises InvalidInputError."""
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
        if self._database.get_meta(_SECRET_META_KEY) is None:
            self._database.set_meta(_SECRET_META_KEY, make_random_secret().reveal())

    def has(self, files_hash: str) -> bool:
        return self._path(files_hash).exists()

    def get_size(self, files_hash: str) -> int:
        """Return the size in bytes, or 0 if the archive does not exist."""
        path = self._path(files_hash)
        return path.stat().st_size if path.exists() else 0

    def create_token(self, files_hash: str) -> str:
        """Return a token for one upload of the files with this hash."""
        expires_at = int(time.time()) + LINK_LIFETIME_S
        return f"{expires_at}-{self._sign(files_hash, expires_at)}"

    def check_token(self, files_hash: str, token: str) -> None:
        """Raise ForbiddenError if the token is not valid for this hash or has expired."""
        match = _TOKEN.fullmatch(token)
        if match is None or not hmac.compare_digest(self._sign(files_hash, int(match[1])), match[2]):
            raise ForbiddenError("The upload link is not valid. Request a new one.")
        if int(match[1]) < time.time():
            raise ForbiddenError("The upload link has expired after one hour. Request a new one.")

    async def receive(self, files_hash: str, body: AsyncIterator[bytes], declared_size: int | None) -> None:
        """Store an archive and replace an existing one. An interrupted upload leaves nothing behind."""
        if declared_size is not None and declared_size > self._limit:
            raise self._make_too_large_error()
        self._require_free_space(declared_size or 0)
        partial = self._folder / f"{files_hash}-{make_random_id('', 8)}{_PARTIAL}"
        try:
            size = await self._write(partial, body)
            if declared_size is not None and size != declared_size:
                raise InvalidInputError(f"The upload was interrupted after {size} of {declared_size} bytes. Try again.")
            await asyncio.to_thread(_check_archive, partial)
            partial.replace(self._path(files_hash))
        except OSError as error:
            if error.errno in {errno.ENOSPC, errno.EDQUOT}:
                raise NoSpaceError(
                    "Could not store the upload: the disk is full. Free some space and try again."
                ) from error
            raise SandyardError(f"Could not store the upload: {error.strerror}.") from error
        finally:
            partial.unlink(missing_ok=True)
        log.info("build_files_uploaded", files=files_hash, size=size)
        await asyncio.to_thread(self.shrink)

    async def read(self, files_hash: str) -> AsyncIterator[bytes]:
        """Yield the archive in chunks and mark it as used. Raises FileNotFoundError."""
        path = self._path(files_hash)
        os.utime(path)
        with path.open("rb") as file:  # replacing or removing the file does not affect an open descriptor
            while piece := await asyncio.to_thread(file.read, CHUNK):
                yield piece

    def shrink(self) -> None:
        """Remove the least recently used archives above the limit, except recent ones."""
        for path in self.list_excess():
            path.unlink(missing_ok=True)

    def list_excess(self) -> list[Path]:
        """Return the least recently used archives above the limit, except recent ones."""
        archives, excess = [], list[Path]()
        for path in self._folder.iterdir():
            with contextlib.suppress(FileNotFoundError):
                archives.append((path.stat().st_mtime, path.stat().st_size, path))
        total = sum(size for _, size, _ in archives)
        for used_at, size, path in sorted(archives):
            if total <= self._kept or used_at > time.time() - RECENT_S:
                break
            excess.append(path)
            total -= size
        return excess

    async def _write(self, path: Path, body: AsyncIterator[bytes]) -> int:
        size = checked_size = 0
        with path.open("xb") as file:
            async for piece in body:
                size += len(piece)
                if size > self._limit:
                    raise self._make_too_large_error()
                if size - checked_size > SPACE_CHECK_BYTES:
                    checked_size = size
                    self._require_free_space(0)
                file.write(piece)
            file.flush()
            await asyncio.to_thread(os.fsync, file.fileno())
        return size

    def _require_free_space(self, size: int) -> None:
        if shutil.disk_usage(self._folder).free - size < self._reserve:
            raise NoSpaceError(
                "Could not store the upload: the disk is full except for the engine's reserve (disk_reserve_mb). "
                "Free some space and try again."
            )

    def _make_too_large_error(self) -> TooLargeError:
        return TooLargeError(
            f"The files of one COPY may have at most {self._limit >> 20} MiB, compressed. Exclude some (.dockerignore), "
            "copy them in several steps, or raise build_upload_mb."
        )

    def _sign(self, files_hash: str, expires_at: int) -> str:
        secret = self._database.get_meta(_SECRET_META_KEY) or ""
        return hmac.new(secret.encode(), f"{files_hash} {expires_at}".encode(), hashlib.sha256).hexdigest()

    def _path(self, files_hash: str) -> Path:
        return self._folder / validate_hash(files_hash)


def _check_archive(path: Path) -> None:
    with path.open("rb") as file:
        head = file.read(_TAR_MAGIC_OFFSET + len(_TAR_MAGIC))
    if not head.startswith(_GZIP_MAGIC) and not head.endswith(_TAR_MAGIC) and head.strip(b"\0"):
        raise InvalidInputError("The upload is not a tar archive (gzipped or uncompressed).")
    if not head:
        raise InvalidInputError("The upload is empty.")
