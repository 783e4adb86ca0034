"""Images on the engine's own machine: an OCI layout, the same in a tar file, and the output of `docker save`.

Clients specify paths here, so only files below a folder that the operator configured (`images_dirs`) are opened, and no
link may lead out of it. Archives are read in place: a layer is a part of the file. A confined process finds the
positions of its parts (`index.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import posixpath
import stat
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, cast

from sandyard.engine.images import child, documents
from sandyard.engine.images.reference import DIGEST, Local, parse
from sandyard.engine.images.source import Blob, Content, SourceImage
from sandyard.kit import bounded_json
from sandyard.kit.errors import ForbiddenError, InvalidInputError, NotFoundError, UnsupportedError
from sandyard.kit.openat2 import open_beneath, open_without_links

_GZIP_MAGIC = b"\x1f\x8b"


def open_allowed(reference: Local, folders: Sequence[Path]) -> int:
    """Return a descriptor of the layout or archive. Raises ForbiddenError, NotFoundError or InvalidInputError."""
    if not folders:
        raise ForbiddenError(
            "Images on the engine's machine are read only from folders that its operator configured, and there are none: "
            "SANDYARD_IMAGES_DIRS=/path/to/images"
        )
    path = os.path.normpath(reference.path)
    for folder in folders:
        base = os.path.normpath(folder)
        if path == base or path.startswith(f"{base.rstrip('/')}/"):
            return _open(base, os.path.relpath(path, base), reference)
    folder_names = ", ".join(str(folder) for folder in folders)
    raise ForbiddenError(
        f"{reference.path} is not below a folder that the engine's operator configured for images: {folder_names}."
    )


def _open(base: str, relative_path: str, reference: Local) -> int:
    try:
        root = os.open(base, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fd = open_beneath(root, relative_path, os.O_RDONLY | os.O_NONBLOCK)
        finally:
            os.close(root)
    except OSError as error:
        if error.errno == errno.EXDEV:
            raise ForbiddenError(
                f"{reference.path} leads out of the folder that the engine's operator configured."
            ) from None
        raise NotFoundError(f"Could not open {reference.path} on the engine's machine: {error.strerror}.") from None
    mode = os.fstat(fd).st_mode
    is_expected = stat.S_ISDIR(mode) if reference.kind == "oci" else stat.S_ISREG(mode)
    if not is_expected:
        os.close(fd)
        expected = "a directory with an OCI layout" if reference.kind == "oci" else "a tar file"
        raise InvalidInputError(f"{reference.path} is not {expected}.")
    return fd


class Layout:
    """An OCI layout directory, accessed by its open descriptor."""

    def __init__(self, fd: int, reference: Local) -> None:
        self._fd, self._reference = fd, reference

    async def find(self) -> SourceImage:
        return await asyncio.to_thread(_find_in_layout, self._read, self._reference)

    def _read(self, path: str) -> bytes:
        fd = self._open(path)
        try:
            if os.fstat(fd).st_size > documents.MAX_BYTES:
                raise InvalidInputError(
                    f"{path} in {self._reference.path} is larger than {documents.MAX_BYTES >> 20} MiB."
                )
            return os.pread(fd, documents.MAX_BYTES, 0)
        finally:
            os.close(fd)

    def _open(self, path: str) -> int:
        try:
            fd = open_without_links(self._fd, path, os.O_RDONLY | os.O_NONBLOCK)
        except OSError as error:
            raise NotFoundError(f"The layout {self._reference.path} has no file {path}: {error.strerror}.") from None
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise InvalidInputError(f"{path} in {self._reference.path} is not a regular file.")
        return fd

    @contextlib.asynccontextmanager
    async def fetch(self, blob: Blob) -> AsyncIterator[Content]:
        fd = self._open(blob.name)
        try:
            yield Content(fd, 0, os.fstat(fd).st_size)
        finally:
            os.close(fd)


class Archive:
    """A tar file with an OCI layout or the output of `docker save`, accessed by its open descriptor."""

    def __init__(self, fd: int, reference: Local) -> None:
        self._fd, self._reference = fd, reference
        self._members: dict[str, tuple[int, int]] = {}

    async def find(self) -> SourceImage:
        path = self._reference.path
        if _is_compressed(self._fd):
            raise UnsupportedError(f"The archive {path} is compressed. Decompress it first: gunzip {path}")
        report = await child.run_process("index", {}, f"The archive {path}", self._fd)
        end = os.fstat(self._fd).st_size
        members = report["members"] if isinstance(report["members"], dict) else {}
        positions = {name: _parse_position(value, end) for name, value in members.items()}
        self._members = {name: position for name, position in positions.items() if position is not None}
        finder = _find_in_layout if self._reference.kind == "oci-archive" else self._find_in_docker_archive
        return finder(self._read, self._reference)

    def _find_member(self, path: str) -> tuple[int, int]:
        try:
            return self._members[posixpath.normpath(path)]
        except KeyError:
            raise NotFoundError(f"The archive {self._reference.path} has no file {path[:200]}.") from None

    def _read(self, path: str) -> bytes:
        offset, size = self._find_member(path)
        if size > documents.MAX_BYTES:
            raise InvalidInputError(f"{path} in {self._reference.path} is larger than {documents.MAX_BYTES >> 20} MiB.")
        return os.pread(self._fd, size, offset)

    @contextlib.asynccontextmanager
    async def fetch(self, blob: Blob) -> AsyncIterator[Content]:
        yield Content(self._fd, *self._find_member(blob.name))

    def _find_in_docker_archive(self, read: Any, reference: Local) -> SourceImage:
        try:
            entries = bounded_json.parse(
                read("manifest.json"), largest=documents.MAX_BYTES, values=documents.MAX_VALUES
            )
            images = [(list(entry.get("RepoTags") or ()), entry["Config"], list(entry["Layers"])) for entry in entries]
        except (ValueError, LookupError, TypeError, AttributeError):
            raise InvalidInputError(
                f"{reference.path} is not an archive of `docker save`: its manifest.json is not valid."
            ) from None
        name = reference.name
        matches = [image for image in images if name is None or _normalize_name(name) in map(_normalize_name, image[0])]
        if len(matches) != 1:
            known = ", ".join(str(tag) for image in images for tag in image[0])[:300] or "none"
            raise NotFoundError(
                f"{reference} contains {len(matches)} images; specify one. Names in the archive: {known}."
            )
        _, config, layers = matches[0]
        if not isinstance(config, str) or not all(isinstance(layer, str) for layer in layers):
            raise InvalidInputError(
                f"{reference.path} is not an archive of `docker save`: its manifest.json is not valid."
            )
        content = read(config)
        blobs = tuple(Blob(layer, self._find_member(layer)[1], None) for layer in layers)
        return SourceImage(documents.compute_digest(content), content, blobs)


def _normalize_name(name: Any) -> str:
    """Return the full form of a name, which is the same for all its spellings."""
    with contextlib.suppress(InvalidInputError):
        return str(parse(str(name)))
    return str(name)


def _find_in_layout(read: Any, reference: Local) -> SourceImage:
    what = str(reference)
    chosen = documents.select_manifest(
        documents.parse_json(read("index.json"), f"The index of {what}"), reference.name, what
    )
    content = _read_verified(read, chosen.digest, what)
    document = documents.parse_json(content, f"The manifest of {what}")
    if documents.is_index(document):
        content = _read_verified(read, documents.choose_manifest(document, what).digest, what)
    manifest = documents.parse_manifest(content, what)
    config = _read_verified(read, manifest.config.digest, what)
    layers = tuple(Blob(_get_blob_path(layer.digest), layer.size, layer.digest) for layer in manifest.layers)
    return SourceImage(manifest.digest, config, layers)


def _get_blob_path(digest: str) -> str:
    assert DIGEST.fullmatch(digest)
    return f"blobs/sha256/{digest.removeprefix('sha256:')}"


def _read_verified(read: Any, digest: str, what: str) -> bytes:
    content = cast("bytes", read(_get_blob_path(digest)))
    if documents.compute_digest(content) != digest:
        raise InvalidInputError(f"{what} is damaged: {digest} does not match its content.")
    return content


def _is_compressed(fd: int) -> bool:
    return os.pread(fd, 2, 0) == _GZIP_MAGIC


def _parse_position(value: Any, end: int) -> tuple[int, int] | None:
    """Return where a file is in an archive of that size, as reported by `index.py`, or None if that is invalid."""
    if isinstance(value, list) and len(value) == 2 and all(type(number) is int and number >= 0 for number in value):
        offset, size = value
        if offset + size <= end:
            return offset, size
    return None
