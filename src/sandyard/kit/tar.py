"""Read tar archives that are not trusted, with the standard library's `tarfile`."""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterator
from typing import Any, cast

MAX_HEADER_BYTES = 1 << 20
"""Size limit of the extra header of one entry, which holds its name if that is long."""


class BoundedTarInfo(tarfile.TarInfo):
    """An entry that is rejected if its header is too large, because tarfile reads headers into memory, or if it is sparse, because its
    claimed size could then be anything."""

    def _proc_member(self, tarfile_: tarfile.TarFile) -> tarfile.TarInfo:
        is_small = self.size <= MAX_HEADER_BYTES or self.type in (tarfile.REGTYPE, tarfile.AREGTYPE)
        if not is_small or self.type == tarfile.GNUTYPE_SPARSE:
            raise tarfile.ReadError("an entry has a header that is too large, or is a sparse file")
        process: Callable[[tarfile.TarFile], tarfile.TarInfo] = super()._proc_member  # type: ignore[misc]
        return process(tarfile_)

    def _proc_gnusparse_10(self, *_: object) -> None:
        raise tarfile.ReadError("an entry is a sparse file")

    _proc_gnusparse_00 = _proc_gnusparse_01 = _proc_gnusparse_10


def read_entries(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yield the entries of a stream. tarfile itself keeps all of them in memory."""
    while (entry := tar.next()) is not None:
        cast("Any", tar).members.clear()
        yield entry
