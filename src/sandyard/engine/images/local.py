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

_GZIP = b"\x1f\x8b"


def open_allowed(reference: Local, folders: Sequence[Path]) -> int:
    """Return a descriptor of the layout or archive. Raises ForbiddenError, NotFoundError or InvalidInputError."""
    if not folders:
        raise ForbiddenError(
            "Images on the engine's machine are read only from folders that its operator configured, and there are none: "
            "SANDYARD_IMAGES_DIRS=/path/to/images"
        )
    wanted = os.path.normpath(reference.path)
    for folder in folders:
        base = os.path.normpath(folder)
        if wanted == base or wanted.startswith(f"{base.rstrip('/')}/"):
            return _open(base, os.path.relpath(wanted, base), reference)
    named = ", ".join(str(folder) for folder in folders)
    raise ForbiddenError(
        f"{reference.path} is not below a folder that the engine's operator configured for images: {named}."
    )


def _open(base: str, below: str, reference: Local) -> int:
    try:
        root = os.open(base, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fd = open_beneath(root, below, os.O_RDONLY | os.O_NONBLOCK)
        finally:
            os.close(root)
    except OSError as error:
        if error.errno == errno.EXDEV:
            raise ForbiddenError(
                f"{reference.path} leads out of the folder that the engine's operator configured."
            ) from None
        raise NotFoundError(f"Could not open {reference.path} on the engine's machine: {error.strerror}.") from None
    mode = os.fstat(fd).st_mode
    fitting = stat.S_ISDIR(mode) if reference.kind == "oci" else stat.S_ISREG(mode)
    if not fitting:
        os.close(fd)
        wanted = "a directory with an OCI layout" if reference.kind == "oci" else "a tar file"
        raise InvalidInputError(f"{reference.path} is not {wanted}.")
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
            if os.fstat(fd).st_size > documents.LARGEST:
                raise InvalidInputError(
                    f"{path} in {self._reference.path} is larger than {documents.LARGEST >> 20} MiB."
                )
            return os.pread(fd, documents.LARGEST, 0)
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
        found = await child.run_process("index", {}, f"The archive {path}", self._fd)
        end = os.fstat(self._fd).st_size
        members = found["members"] if isinstance(found["members"], dict) else {}
        places = {name: _place_of(value, end) for name, value in members.items()}
        self._members = {name: place for name, place in places.items() if place is not None}
        finder = _find_in_layout if self._reference.kind == "oci-archive" else self._find_saved
        return finder(self._read, self._reference)

    def _place(self, path: str) -> tuple[int, int]:
        try:
            return self._members[posixpath.normpath(path)]
        except KeyError:
            raise NotFoundError(f"The archive {self._reference.path} has no file {path[:200]}.") from None

    def _read(self, path: str) -> bytes:
        offset, size = self._place(path)
        if size > documents.LARGEST:
            raise InvalidInputError(f"{path} in {self._reference.path} is larger than {documents.LARGEST >> 20} MiB.")
        return os.pread(self._fd, size, offset)

    @contextlib.asynccontextmanager
    async def fetch(self, blob: Blob) -> AsyncIterator[Content]:
        yield Content(self._fd, *self._place(blob.name))

    def _find_saved(self, read: Any, reference: Local) -> SourceImage:
        try:
            entries = bounded_json.parse(read("manifest.json"), largest=documents.LARGEST, values=documents.MOST_VALUES)
            images = [(list(one.get("RepoTags") or ()), one["Config"], list(one["Layers"])) for one in entries]
        except (ValueError, LookupError, TypeError, AttributeError):
            raise InvalidInputError(
                f"{reference.path} is not an archive of `docker save`: its manifest.json is not valid."
            ) from None
        name = reference.name
        fitting = [image for image in images if name is None or _full(name) in map(_full, image[0])]
        if len(fitting) != 1:
            known = ", ".join(str(tag) for image in images for tag in image[0])[:300] or "none"
            raise NotFoundError(
                f"{reference} contains {len(fitting)} images; specify one. Names in the archive: {known}."
            )
        _, config, layers = fitting[0]
        if not isinstance(config, str) or not all(isinstance(layer, str) for layer in layers):
            raise InvalidInputError(
                f"{reference.path} is not an archive of `docker save`: its manifest.json is not valid."
            )
        content = read(config)
        blobs = tuple(Blob(layer, self._place(layer)[1], None) for layer in layers)
        return SourceImage(documents.digest_of(content), content, blobs)


def _full(name: Any) -> str:
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
        content = _read_verified(read, documents.choose(document, what).digest, what)
    manifest = documents.read_manifest(content, what)
    config = _read_verified(read, manifest.config.digest, what)
    layers = tuple(Blob(_blob(layer.digest), layer.size, layer.digest) for layer in manifest.layers)
    return SourceImage(manifest.digest, config, layers)


def _blob(digest: str) -> str:
    assert DIGEST.fullmatch(digest)
    return f"blobs/sha256/{digest.removeprefix('sha256:')}"


def _read_verified(read: Any, digest: str, what: str) -> bytes:
    content = cast("bytes", read(_blob(digest)))
    if documents.digest_of(content) != digest:
        raise InvalidInputError(f"{what} is damaged: {digest} does not match its content.")
    return content


def _is_compressed(fd: int) -> bool:
    return os.pread(fd, 2, 0) == _GZIP


def _place_of(value: Any, end: int) -> tuple[int, int] | None:
    """Return where a file is in an archive of that size, as reported by `index.py`, or None if that is invalid."""
    if isinstance(value, list) and len(value) == 2 and all(type(number) is int and number >= 0 for number in value):
        offset, size = value
        if offset + size <= end:
            return offset, size
    return None
