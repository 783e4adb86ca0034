"""Translate OSErrors about a path in a volume into errors for the client."""

from __future__ import annotations

import errno

from sandyard.kit.errors import (
    BusyError,
    ConflictError,
    ForbiddenError,
    InvalidInputError,
    NoSpaceError,
    NotFoundError,
    SandyardError,
)

_ERRORS: tuple[tuple[frozenset[int], type[SandyardError], str], ...] = (
    (frozenset({errno.ENOENT, errno.ENOTDIR, errno.ESTALE}), NotFoundError, "Path {path} not found"),
    (frozenset({errno.ENOSPC, errno.EDQUOT}), NoSpaceError, "No space left in the volume for {path}."),
    (frozenset({errno.EEXIST, errno.EISDIR}), ConflictError, "Path {path} already exists"),
    (
        frozenset({errno.ENOTEMPTY}),
        ConflictError,
        "{path} was not removed completely, because a sandbox keeps writing to it. Try again.",
    ),
    (
        frozenset({errno.ELOOP, errno.EXDEV}),
        InvalidInputError,
        "{path} contains symbolic links that do not resolve inside the volume.",
    ),
    (
        frozenset({errno.ENAMETOOLONG}),
        InvalidInputError,
        "path is not valid: it, or a name in it, is too long.",
    ),
    (
        frozenset({errno.EACCES, errno.EPERM, errno.EROFS}),
        ForbiddenError,
        "Permission denied for {path}: {reason}. An engine that does not run as root cannot change owners or open other users' files.",
    ),
    (
        frozenset({errno.EAGAIN}),
        BusyError,
        "{path} is being changed, or is locked by a lease, in a sandbox. Try again.",
    ),
    (
        frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM}),
        BusyError,
        "The engine has too many open files to open {path}. Try again.",
    ),
)


def translate_error(error: OSError, path: str) -> SandyardError:
    for codes, error_type, message in _ERRORS:
        if error.errno in codes:
            return error_type(message.format(path=path, reason=error.strerror))
    return SandyardError(f"Could not access {path}: {error.strerror}.")
