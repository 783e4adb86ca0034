"""Validation of volume mounts of a sandbox."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sandyard.engine.volumes.model import Volume
from sandyard.kit.errors import InvalidInputError

MAX_MOUNTS, MAX_PATH_BYTES = 16, 255
_SYSTEM_FOLDERS = ("/proc", "/sys", "/dev")
_FORBIDDEN_CHARACTERS = re.compile(r"[\x00-\x1f\x7f:\[\]\\]")  # CRIU uses these characters in its mount names


def resolve(
    requested: Sequence[tuple[str, str]], find: Callable[[str], Volume | None]
) -> tuple[Mapping[str, Any], ...]:
    """Resolve `(name of a volume, path)` pairs to the form in a sandbox's record: `name`, `path` and the volume's `id`.
    Raises InvalidInputError with all problems, in E2B's words where they exist."""
    if len(requested) > MAX_MOUNTS:
        raise InvalidInputError(f"volumeMounts: a sandbox can have at most {MAX_MOUNTS}.")
    problems: list[str] = []
    mounts: list[Mapping[str, Any]] = []
    used_paths: list[str] = []
    for number, (name, path) in enumerate(requested):
        volume = find(name)
        problem = f"volume '{name[:200]}' not found" if volume is None else find_problem(path, used_paths)
        if problem is not None or volume is None:
            problems.append(f"volume mount #{number}: {problem}")
            continue
        used_paths.append(path)
        mounts.append({"name": volume.name, "path": path, "id": volume.id})
    if problems:
        raise InvalidInputError("invalid mounts:\n" + "\n".join(f"\t- {problem}" for problem in problems))
    return tuple(mounts)


def find_problem(path: str, used_paths: Sequence[str] = ()) -> str | None:
    """Return what is wrong with a mount path, given the paths that are already used, or None."""
    shown = repr(path[:200])
    nested = next((other for other in used_paths if _is_within(path, (other,)) or _is_within(other, (path,))), None)
    problems = (
        (not path.startswith("/"), f"path {shown} must be absolute"),
        (
            posixpath.normpath(path) != path or path[:2] == "//",
            f"path {shown} must not contain '..', '.' or '//', or end with '/'",
        ),
        (len(path.encode(errors="replace")) > MAX_PATH_BYTES, f"path {shown} is longer than {MAX_PATH_BYTES} bytes"),
        (
            bool(_FORBIDDEN_CHARACTERS.search(path)),
            f"path {shown} must not contain a control character, ':', '[', ']' or '\\'",
        ),
        (path == "/" or _is_within(path, _SYSTEM_FOLDERS), f"path {shown} is reserved for the system: choose another"),
        (path in used_paths, f"path {shown} is used twice"),
        (nested is not None, f"path {shown} and {nested!r} are nested: one volume would hide the other"),
    )
    return next((message for applies, message in problems if applies), None)


def _is_within(path: str, folders: Sequence[str]) -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)
