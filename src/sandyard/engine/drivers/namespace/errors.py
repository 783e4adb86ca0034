"""Translate errors of the kernel or of a child process into errors for users."""

from __future__ import annotations

import errno
from typing import Any

from sandyard.kit.errors import FullError, InvalidInputError, NoSpaceError, SandyardError

_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
_NO_PLACE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EXDEV})
_EXHAUSTED = {
    errno.ENOMEM: "memory",
    errno.EAGAIN: "processes",
    errno.EMFILE: "open files",
    errno.ENFILE: "open files",
    errno.EUSERS: "namespaces",
}


def from_errno(code: int | None, sentence: str) -> SandyardError:
    if code in _NO_SPACE:
        return NoSpaceError(f"No space left: {sentence}.")
    if code in _EXHAUSTED:
        return FullError(f"The machine is full ({_EXHAUSTED[code]}): {sentence}.")
    return SandyardError(f"{sentence}.")


def from_child(answer: dict[str, Any]) -> SandyardError:
    """Translate an `error` response of the zygote or of a process it created."""
    if "mount a volume on" in answer["error"] and answer.get("errno") in _NO_PLACE:
        return InvalidInputError(f"The sandbox {answer['error']}. Choose a path that is a directory or does not exist.")
    return from_errno(
        answer.get("errno"), f"The sandbox {answer['error']}" if "could not" in answer["error"] else answer["error"]
    )


def from_os(error: OSError, doing: str) -> SandyardError:
    return from_errno(error.errno, f"{doing}: {error.strerror or error}")
