"""What the kernel says about a path of a volume, in a sentence for the client."""

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

_TOLD: tuple[tuple[frozenset[int], type[SandyardError], str], ...] = (
    (frozenset({errno.ENOENT, errno.ENOTDIR, errno.ESTALE}), NotFoundError, "Path {path} not found"),
    (frozenset({errno.ENOSPC, errno.EDQUOT}), NoSpaceError, "There is no space left in the volume for {path}."),
    (frozenset({errno.EEXIST, errno.EISDIR}), ConflictError, "Path {path} already exists"),
    (
        frozenset({errno.ENOTEMPTY}),
        ConflictError,
        "{path} was not removed completely: somebody goes on writing there. Try again.",
    ),
    (
        frozenset({errno.ELOOP, errno.EXDEV}),
        InvalidInputError,
        "{path} leads through symbolic links that lead nowhere in the volume.",
    ),
    (
        frozenset({errno.ENAMETOOLONG}),
        InvalidInputError,
        "path is not valid: a name in it, or all of it, is too long.",
    ),
    (
        frozenset({errno.EACCES, errno.EPERM, errno.EROFS}),
        ForbiddenError,
        "The engine may not do that to {path}: {reason}. Without root it can neither give files away nor open what others own.",
    ),
    (
        frozenset({errno.EAGAIN}),
        BusyError,
        "{path} is being changed, or held by a lease, in a sandbox; try again.",
    ),
    (
        frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM}),
        BusyError,
        "The engine is too busy to open {path}; try again.",
    ),
)


def told(error: OSError, path: str) -> SandyardError:
    for codes, kind, sentence in _TOLD:
        if error.errno in codes:
            return kind(sentence.format(path=path, reason=error.strerror))
    return SandyardError(f"{path} could not be used: {error.strerror}.")
