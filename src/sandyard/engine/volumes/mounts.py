"""Validation of volume mounts of a sandbox."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sandyard.engine.volumes.model import Volume
from sandyard.kit.errors import InvalidInputError

MOST_MOUNTS, LONGEST_PATH = 16, 255
_SYSTEM = ("/proc", "/sys", "/dev")
_UNFIT = re.compile(r"[\x00-\x1f\x7f:\[\]\\]")  # CRIU uses these characters in its mount names


def resolve(wanted: Sequence[tuple[str, str]], find: Callable[[str], Volume | None]) -> tuple[Mapping[str, Any], ...]:
    """Resolve `(name of a volume, path)` pairs to the form in a sandbox's record: `name`, `path` and the volume's `id`.
    Raises InvalidInputError with all problems, in E2B's words where they exist."""
    if len(wanted) > MOST_MOUNTS:
        raise InvalidInputError(f"volumeMounts: a sandbox can have at most {MOST_MOUNTS}.")
    faults: list[str] = []
    mounts: list[Mapping[str, Any]] = []
    taken: list[str] = []
    for number, (name, path) in enumerate(wanted):
        volume = find(name)
        fault = f"volume '{name[:200]}' not found" if volume is None else find_fault(path, taken)
        if fault is not None or volume is None:
            faults.append(f"volume mount #{number}: {fault}")
            continue
        taken.append(path)
        mounts.append({"name": volume.name, "path": path, "id": volume.id})
    if faults:
        raise InvalidInputError("invalid mounts:\n" + "\n".join(f"\t- {fault}" for fault in faults))
    return tuple(mounts)


def find_fault(path: str, taken: Sequence[str] = ()) -> str | None:
    """Return what is wrong with a mount path, given the paths that are already used, or None."""
    said = repr(path[:200])
    around = next((other for other in taken if _is_within(path, (other,)) or _is_within(other, (path,))), None)
    faults = (
        (not path.startswith("/"), f"path {said} must be absolute"),
        (
            posixpath.normpath(path) != path or path[:2] == "//",
            f"path {said} must not contain '..', '.' or '//', or end with '/'",
        ),
        (len(path.encode(errors="replace")) > LONGEST_PATH, f"path {said} is longer than {LONGEST_PATH} bytes"),
        (bool(_UNFIT.search(path)), f"path {said} must not contain a control character, ':', '[', ']' or '\\'"),
        (path == "/" or _is_within(path, _SYSTEM), f"path {said} is reserved for the system: choose another"),
        (path in taken, f"path {said} is used twice"),
        (around is not None, f"path {said} and {around!r} are nested: one volume would hide the other"),
    )
    return next((sentence for is_so, sentence in faults if is_so), None)


def _is_within(path: str, places: Sequence[str]) -> bool:
    return any(path == place or path.startswith(f"{place}/") for place in places)
