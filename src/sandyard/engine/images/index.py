"""`python -m sandyard.engine.images.index`: find the position of each file in an archive (descriptor 0), using a
confined worker."""

from __future__ import annotations

import os
import posixpath
import tarfile
from typing import Any, cast

from sandyard.engine.drivers.namespace import seccomp
from sandyard.engine.images import confinement
from sandyard.engine.images.stream import LayerError, forget_members
from sandyard.engine.images.worker import check_outcome, collect_outcome, report_outcome, start_worker

_MEMORY = 1 << 30
_MOST_MEMBERS = 10_000
_LONGEST_HEADER = 4 << 20


def index(archive: int) -> dict[str, Any]:
    """Return the positions. Blocks; raises LayerError, ConfinementError."""
    rules = confinement.Rules(seccomp.make_files_program(), _MEMORY)
    worker = confinement.Confinement().start(lambda: collect_outcome(lambda: _members(archive)), rules, keep=(archive,))
    (outcome,) = confinement.outcomes([worker], {}, lambda: None)
    check_outcome(outcome)
    return {"members": outcome.get("members")}


# In the worker ----------------------------------------------------------------------------------------------------------------


class _Seekable:
    """A file for `tarfile` that never seeks backwards, whatever a header says."""

    def __init__(self, fd: int) -> None:
        self._fd, self._at, self._ends = fd, 0, 0

    def tell(self) -> int:
        return self._at

    def seek(self, place: int) -> None:
        if place < self._at:
            raise LayerError("has a header that points backwards")
        self._at = place

    def read(self, size: int) -> bytes:
        if size > _LONGEST_HEADER:
            raise LayerError("has a header larger than 4 MiB")
        data = os.pread(self._fd, size, self._at)
        self._at += len(data)
        self._ends += not data
        if self._ends > 8:
            raise LayerError("is truncated")
        return data


def _members(fd: int) -> dict[str, Any]:
    """Return offset and size of each file. Links, which older `docker save` versions write for equal layers, are
    followed."""
    found: dict[str, tuple[int, int]] = {}
    links: dict[str, str] = {}
    end = os.fstat(fd).st_size
    try:
        tar = tarfile.TarFile(fileobj=cast("Any", _Seekable(fd)), mode="r", errors="surrogateescape")
        while (member := tar.next()) is not None and len(found) + len(links) < _MOST_MEMBERS:
            name = posixpath.normpath(member.name)
            if member.isreg() and member.sparse is None and 0 <= member.size <= end - member.offset_data:
                found[name] = (member.offset_data, member.size)
            elif member.issym():
                links[name] = posixpath.normpath(f"{posixpath.dirname(name)}/{member.linkname}")
            forget_members(tar)
    except (tarfile.TarError, LayerError, ValueError, OSError, RecursionError, MemoryError, OverflowError) as error:
        raise LayerError(f"cannot be read: {error}") from None
    return {"members": found | {name: found[target] for name, target in links.items() if target in found}}


def main() -> None:
    start_worker(_MEMORY)
    report_outcome(lambda: index(0))


if __name__ == "__main__":
    main()
