"""A file's user-defined metadata: `X-Metadata-*` headers of an upload, stored as extended attributes `user.e2b.*`."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping

from sandyard.engine.guest.wire.http1 import HttpError

_PREFIX = "user.e2b."
_HEADER = "x-metadata-"
_KEY_LIMIT = 255 - len(_PREFIX)  # the kernel's limit for an attribute's name
_TOTAL_LIMIT = 4096
_UNSUPPORTED = frozenset({errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})
_UNSUPPORTED_MESSAGE = "the file system does not store metadata"


def parse_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the metadata in a request's headers. Raises HttpError 400 if it is not printable ASCII or too long."""
    metadata: dict[str, str] = {}
    total = 0
    for name, value in headers.items():
        key = name[len(_HEADER) :] if name.startswith(_HEADER) else ""
        if not key:
            continue
        if len(key) > _KEY_LIMIT:
            raise HttpError(400, f"metadata key {key[:32]!r}... has more than {_KEY_LIMIT} bytes")
        if not (value.isascii() and value.isprintable()):
            raise HttpError(400, f"metadata value of {key!r} is not printable US-ASCII")
        total += len(_PREFIX) + len(key) + len(value)
        metadata[key] = value
    if total > _TOTAL_LIMIT:
        raise HttpError(400, f"metadata has {total} bytes, {_TOTAL_LIMIT} are allowed")
    return metadata


def read(path: str | int) -> dict[str, str]:
    """Return the metadata of a file; empty if the file system does not support it."""
    try:
        names = os.listxattr(path)
    except OSError:
        return {}
    metadata: dict[str, str] = {}
    for name in names:
        if not name.startswith(_PREFIX):
            continue
        try:
            metadata[name[len(_PREFIX) :]] = os.getxattr(path, name).decode("utf-8", "replace")
        except OSError:
            continue  # just removed
    return metadata


def check_support(fd: int) -> None:
    """Raise HttpError 500 if the file system of an open file cannot store metadata."""
    try:
        os.getxattr(fd, f"{_PREFIX}any")
    except OSError as error:
        if error.errno in _UNSUPPORTED:
            raise HttpError(500, _UNSUPPORTED_MESSAGE) from None


def replace(fd: int, metadata: Mapping[str, str], *, is_new: bool) -> None:
    """Set a file's metadata, and remove any other; a new file (`is_new`) has none to remove."""
    if not is_new:
        for key in read(fd):
            if key not in metadata:
                os.removexattr(fd, _PREFIX + key)
    for key, value in metadata.items():
        try:
            os.setxattr(fd, _PREFIX + key, value.encode())
        except OSError as error:
            if error.errno in _UNSUPPORTED:
                raise HttpError(500, _UNSUPPORTED_MESSAGE) from None
            raise
