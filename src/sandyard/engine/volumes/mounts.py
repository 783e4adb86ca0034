"""Where volumes may be mounted in a sandbox."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sandyard.engine.volumes.model import Volume
from sandyard.kit.errors import InvalidInputError

MOST_MOUNTS, LONGEST_PATH = 16, 255
_SYSTEM = ("/proc", "/sys", "/dev")
_UNFIT = re.compile(r"[\x00-\x1f\x7f:\[\]\\]")  # CRIU's names for mounts are made of them


def resolve(wanted: Sequence[tuple[str, str]], find: Callable[[str], Volume | None]) -> tuple[Mapping[str, Any], ...]:
    """`(name of a volume, path)` as a sandbox's record has them: `name`, `path` and the volume's `id`. InvalidInputError
    tells all that is wrong, in E2B's words where it has some."""
    if len(wanted) > MOST_MOUNTS:
        raise InvalidInputError(f"volumeMounts: a sandbox can have at most {MOST_MOUNTS}.")
    faults: list[str] = []
    mounts: list[Mapping[str, Any]] = []
    taken: list[str] = []
    for number, (name, path) in enumerate(wanted):
        volume = find(name)
        fault = f"volume '{name[:200]}' not found" if volume is None else fault_of(path, taken)
        if fault is not None or volume is None:
            faults.append(f"volume mount #{number}: {fault}")
            continue
        taken.append(path)
        mounts.append({"name": volume.name, "path": path, "id": volume.id})
    if faults:
        raise InvalidInputError("invalid mounts:\n" + "\n".join(f"\t- {fault}" for fault in faults))
    return tuple(mounts)


def fault_of(path: str, taken: Sequence[str] = ()) -> str | None:
    """What is wrong with a place, besides those that are taken."""
    said = repr(path[:200])
    around = next((other for other in taken if _within(path, (other,)) or _within(other, (path,))), None)
    faults = (
        (not path.startswith("/"), f"path {said} must be absolute"),
        (
            posixpath.normpath(path) != path or path[:2] == "//",
            f"path {said} must be plain: no '..', '.', '//' or last '/'",
        ),
        (len(path.encode(errors="replace")) > LONGEST_PATH, f"path {said} is longer than {LONGEST_PATH} bytes"),
        (bool(_UNFIT.search(path)), f"path {said} has a control character, ':', '[', ']' or '\\' in it"),
        (path == "/" or _within(path, _SYSTEM), f"path {said} is the sandbox's own: choose another"),
        (path in taken, f"path {said} is used twice"),
        (around is not None, f"path {said} and {around!r} lie in each other: one volume would hide the other"),
    )
    return next((sentence for is_so, sentence in faults if is_so), None)


def _within(path: str, places: Sequence[str]) -> bool:
    return any(path == place or path.startswith(f"{place}/") for place in places)
