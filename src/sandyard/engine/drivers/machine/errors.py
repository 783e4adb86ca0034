"""Translate errors of the kernel or of a child process into errors for users."""

from __future__ import annotations

import errno
from typing import Any

from sandyard.kit.errors import FullError, InvalidInputError, NoSpaceError, SandyardError

_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
_BAD_PATH = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EXDEV})
_EXHAUSTED = {
    errno.ENOMEM: "memory",
    errno.EAGAIN: "processes",
    errno.EMFILE: "open files",
    errno.ENFILE: "open files",
    errno.EUSERS: "namespaces",
}


def translate_errno(code: int | None, message: str) -> SandyardError:
    """Return the error for an errno. `message` is a sentence without its full stop."""
    if code in _NO_SPACE:
        return NoSpaceError(f"No space left: {message}.")
    if code in _EXHAUSTED:
        return FullError(f"The machine is full ({_EXHAUSTED[code]}): {message}.")
    return SandyardError(f"{message}.")


def translate_child_error(response: dict[str, Any]) -> SandyardError:
    """Translate an `error` response of the zygote or of a process it created."""
    if "mount a volume on" in response["error"] and response.get("errno") in _BAD_PATH:
        return InvalidInputError(
            f"The sandbox {response['error']}. Choose a path that is a directory or does not exist."
        )
    return translate_errno(
        response.get("errno"),
        f"The sandbox {response['error']}" if "could not" in response["error"] else response["error"],
    )


def translate_os_error(error: OSError, action: str) -> SandyardError:
    """Translate an error of the kernel. `action` says what failed, such as "Could not start the sandbox x"."""
    return translate_errno(error.errno, f"{action}: {error.strerror or error}")
