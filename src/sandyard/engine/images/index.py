"""`python -m sandyard.engine.images.index`: find the position of each file in an archive (descriptor 0), using a
confined worker."""

from __future__ import annotations

import os
import posixpath
import tarfile
from typing import Any, cast

from sandyard.engine.drivers.namespace import seccomp
from sandyard.engine.images import confinement
from sandyard.engine.images.stream import MAX_EMPTY_READS, LayerError, forget_members
from sandyard.engine.images.worker import check_outcome, collect_outcome, initialize_process, report_outcome

_MEMORY_BYTES = 1 << 30
_MAX_MEMBERS = 10_000
_MAX_HEADER_BYTES = 4 << 20


def index_archive(archive: int) -> dict[str, Any]:
    """Return the positions. Blocks; raises LayerError, ConfinementError."""
    rules = confinement.Rules(seccomp.make_files_program(), _MEMORY_BYTES)
    worker = confinement.Confinement().start(
        lambda: collect_outcome(lambda: _list_members(archive)), rules, keep=(archive,)
    )
    (outcome,) = confinement.wait_for_outcomes([worker], {}, lambda: None)
    check_outcome(outcome)
    return {"members": outcome.get("members")}


# In the worker ----------------------------------------------------------------------------------------------------------------


class _ForwardFile:
    """A file for `tarfile` that never seeks backwards, even with a hostile header."""

    def __init__(self, fd: int) -> None:
        self._fd, self._at, self._empty_reads = fd, 0, 0

    def tell(self) -> int:
        return self._at

    def seek(self, position: int) -> None:
        if position < self._at:
            raise LayerError("has a header that points backwards")
        self._at = position

    def read(self, size: int) -> bytes:
        if size > _MAX_HEADER_BYTES:
            raise LayerError("has a header larger than 4 MiB")
        data = os.pread(self._fd, size, self._at)
        self._at += len(data)
        self._empty_reads += not data
        if self._empty_reads > MAX_EMPTY_READS:
            raise LayerError("is truncated")
        return data


def _list_members(fd: int) -> dict[str, Any]:
    """Return offset and size of each file. Links, which older `docker save` versions write for equal layers, are
    followed."""
    files: dict[str, tuple[int, int]] = {}
    links: dict[str, str] = {}
    end = os.fstat(fd).st_size
    try:
        tar = tarfile.TarFile(fileobj=cast("Any", _ForwardFile(fd)), mode="r", errors="surrogateescape")
        while (member := tar.next()) is not None and len(files) + len(links) < _MAX_MEMBERS:
            name = posixpath.normpath(member.name)
            if member.isreg() and member.sparse is None and 0 <= member.size <= end - member.offset_data:
                files[name] = (member.offset_data, member.size)
            elif member.issym():
                links[name] = posixpath.normpath(f"{posixpath.dirname(name)}/{member.linkname}")
            forget_members(tar)
    except (tarfile.TarError, LayerError, ValueError, OSError, RecursionError, MemoryError, OverflowError) as error:
        raise LayerError(f"cannot be read: {error}") from None
    return {"members": files | {name: files[target] for name, target in links.items() if target in files}}


def main() -> None:
    initialize_process(_MEMORY_BYTES)
    report_outcome(lambda: index_archive(0))


if __name__ == "__main__":
    main()
