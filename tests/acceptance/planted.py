"""Secrets that were planted, and where they might have come to lie: bytes, files, the process list, memory.

Everything is searched from outside. Nothing of a secret ever enters a sandbox by the search itself.
"""

from __future__ import annotations

import base64
import contextlib
import os
import re
import stat
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import quote

from tests.acceptance.platform import until

PIECE = 8 << 20
CHECKED_LINES = 3
"""So many lines of a key are searched for."""


class Planted:
    """Each secret by a name, in the forms in which it could show: as it is, base64 at each offset, percent-encoded."""

    def __init__(self) -> None:
        self._forms: dict[bytes, str] = {}

    def plant(self, name: str, text: str) -> None:
        """A key of several lines is known by some of its lines."""
        forms = {**self._forms}  # a watch may be searching for those there are
        lines = [line for line in text.splitlines() if len(line) > 30 and not line.startswith("-----")] or [text]
        for line in lines[:: max(1, len(lines) // CHECKED_LINES)]:
            raw = line.encode()
            forms[raw] = name
            forms.setdefault(quote(line, safe="").encode(), f"{name}, percent-encoded")
            for form in _base64(raw):
                forms[form] = f"{name}, base64"
        self._forms = forms

    def found(self, data: bytes) -> set[str]:
        return {name for form, name in self._forms.items() if form in data}

    def in_text(self, text: str) -> set[str]:
        return self.found(text.encode())

    def in_stream(self, pieces: Iterable[bytes]) -> set[str]:
        longest = max(map(len, self._forms))
        names, before = set[str](), b""
        for piece in pieces:
            names |= self.found(before + piece)
            before = piece[-longest:]
        return names

    def in_files(self, top: Path, *, since: float = 0.0) -> dict[str, set[str]]:
        """By path; of all files that were changed since, but for what the kernel makes up in /proc and /sys."""
        hits: dict[str, set[str]] = {}
        made_up = {top / "proc", top / "sys"}
        for folder, names, files in os.walk(top):
            names[:] = [name for name in names if Path(folder) / name not in made_up]
            for name in [*files, *names]:
                path = Path(folder) / name
                if found := self._in_file(path, since) | self.found(os.fsencode(name)):
                    hits[str(path)] = found
        return hits

    def _in_file(self, path: Path, since: float) -> set[str]:
        with contextlib.suppress(OSError):
            status = path.lstat()
            if stat.S_ISLNK(status.st_mode):
                return self.found(os.fsencode(path.readlink()))
            if stat.S_ISREG(status.st_mode) and status.st_ctime >= since:
                with path.open("rb") as file:
                    return self.in_stream(iter(lambda: file.read(PIECE), b""))
        return set()

    def in_memory(self, pid: int) -> set[str]:
        """Of all that the process has in memory; nothing when it is gone."""
        names = set[str]()
        with contextlib.suppress(OSError), Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
            for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
                found = re.match(r"([0-9a-f]+)-([0-9a-f]+) r", line)
                if found and "[v" not in line:
                    with contextlib.suppress(OSError, ValueError):
                        names |= self.in_stream(_pieces(memory.fileno(), int(found[1], 16), int(found[2], 16)))
        return names


def _pieces(descriptor: int, start: int, end: int) -> Iterator[bytes]:
    while start < end:
        piece = os.pread(descriptor, min(PIECE, end - start), start)
        if not piece:
            return
        yield piece
        start += len(piece)


def _base64(raw: bytes) -> Iterator[bytes]:
    """What of it is the same wherever it stands in a longer text: without the characters its neighbours have a part in."""
    for offset in range(3):
        whole = base64.b64encode(b"\0" * offset + raw)
        yield whole[4 if offset else 0 : len(whole) - 4]


class Watch(threading.Thread):
    """Looks at every process's command line and environment, again and again, until it is stopped."""

    def __init__(self, planted: Planted) -> None:
        super().__init__(daemon=True)
        self._planted = planted
        self._over = threading.Event()
        self.rounds = 0
        self.names: set[str] = set()
        """What was seen running, to know that the right moment was watched."""
        self.hits: set[str] = set()
        self._seen: dict[tuple[str, str], bytes] = {}

    def __enter__(self) -> Watch:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()

    def looks(self) -> None:
        """Returns when it has looked at all that runs now."""
        begun = self.rounds
        until(lambda: self.rounds > begun + 1)

    def run(self) -> None:
        own = os.getpid()
        while not self._over.wait(0.1):
            for process in os.listdir("/proc"):  # noqa: PTH208 - thousands of times, and a Path takes longer than the reading
                if process.isdigit() and int(process) != own:
                    self._look(process)
            self.rounds += 1

    def _look(self, process: str) -> None:
        for part in ("cmdline", "environ"):
            with contextlib.suppress(OSError), open(f"/proc/{process}/{part}", "rb", buffering=0) as file:  # noqa: PTH123 - a Path takes longer than the reading
                data = file.read()
                if self._seen.get((process, part)) == data:
                    continue
                self._seen[process, part] = data
                if part == "cmdline":
                    self.names.update(Path(os.fsdecode(word)).name for word in data.split(b"\0")[:2])
                for name in self._planted.found(data):
                    self.hits.add(f"{name} in {part} of {data[:60]!r}")
