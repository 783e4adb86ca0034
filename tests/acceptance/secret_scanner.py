"""Search for planted secrets in bytes, files, the process list and memory.

Everything is searched from the host, so that the search itself never puts a secret into a sandbox.
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

from tests.harness.platform import until

CHUNK_BYTES = 8 << 20
CHECKED_LINES = 3
"""Number of lines of a key that are searched for."""


class SecretScanner:
    """Searches for secrets in every form in which they could appear: plain, base64 at each offset, percent-encoded."""

    def __init__(self) -> None:
        self.forms: dict[bytes, str] = {}

    def add_secret(self, name: str, text: str) -> None:
        """Add a secret. For a key with several lines, only some lines are searched for."""
        forms = {**self.forms}  # copied, because a watcher may be reading the current forms
        lines = [line for line in text.splitlines() if len(line) > 30 and not line.startswith("-----")] or [text]
        for line in lines[:: max(1, len(lines) // CHECKED_LINES)]:
            raw = line.encode()
            forms[raw] = name
            forms.setdefault(quote(line, safe="").encode(), f"{name}, percent-encoded")
            for form in _base64(raw):
                forms[form] = f"{name}, base64"
        self.forms = forms

    def find_in_bytes(self, data: bytes) -> set[str]:
        return {name for form, name in self.forms.items() if form in data}

    def find_in_text(self, text: str) -> set[str]:
        return self.find_in_bytes(text.encode())

    def find_in_stream(self, chunks: Iterable[bytes]) -> set[str]:
        longest = max(map(len, self.forms))
        names, before = set[str](), b""
        for chunk in chunks:
            names |= self.find_in_bytes(before + chunk)
            before = chunk[-longest:]
        return names

    def find_in_files(self, top: Path, *, since: float = 0.0) -> dict[str, set[str]]:
        """Return matches by path in all files changed since then, except in /proc and /sys."""
        hits: dict[str, set[str]] = {}
        virtual = {top / "proc", top / "sys"}
        for folder, names, files in os.walk(top):
            names[:] = [name for name in names if Path(folder) / name not in virtual]
            for name in [*files, *names]:
                path = Path(folder) / name
                if matches := self._find_in_file(path, since) | self.find_in_bytes(os.fsencode(name)):
                    hits[str(path)] = matches
        return hits

    def _find_in_file(self, path: Path, since: float) -> set[str]:
        with contextlib.suppress(OSError):
            status = path.lstat()
            if stat.S_ISLNK(status.st_mode):
                return self.find_in_bytes(os.fsencode(path.readlink()))
            if stat.S_ISREG(status.st_mode) and status.st_ctime >= since:
                with path.open("rb") as file:
                    return self.find_in_stream(iter(lambda: file.read(CHUNK_BYTES), b""))
        return set()

    def find_in_memory(self, pid: int) -> set[str]:
        """Search the memory of a process. Return nothing if it has ended."""
        names = set[str]()
        with contextlib.suppress(OSError), Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
            for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
                match = re.match(r"([0-9a-f]+)-([0-9a-f]+) r", line)
                if match and "[v" not in line:
                    with contextlib.suppress(OSError, ValueError):
                        names |= self.find_in_stream(
                            _read_chunks(memory.fileno(), int(match[1], 16), int(match[2], 16))
                        )
        return names


def _read_chunks(descriptor: int, start: int, end: int) -> Iterator[bytes]:
    while start < end:
        chunk = os.pread(descriptor, min(CHUNK_BYTES, end - start), start)
        if not chunk:
            return
        yield chunk
        start += len(chunk)


def _base64(raw: bytes) -> Iterator[bytes]:
    """Yield the base64 text that is the same at every position in a longer text, without characters that depend on adjacent bytes."""
    for offset in range(3):
        whole = base64.b64encode(b"\0" * offset + raw)
        yield whole[4 if offset else 0 : len(whole) - 4]


class ProcessWatcher(threading.Thread):
    """Scans the command lines and environments of all processes repeatedly until it is stopped."""

    def __init__(self, scanner: SecretScanner) -> None:
        super().__init__(daemon=True)
        self._scanner = scanner
        self._stop_requested = threading.Event()
        self.rounds = 0
        self.names: set[str] = set()
        """Names of programs that were seen, to check that the right moments were scanned."""
        self.hits: set[str] = set()
        self._seen: dict[tuple[str, str], bytes] = {}

    def __enter__(self) -> ProcessWatcher:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_requested.set()
        self.join()

    def wait_for_scan(self) -> None:
        """Wait until all processes that run now have been scanned."""
        first_round = self.rounds
        until(lambda: self.rounds > first_round + 1)

    def run(self) -> None:
        own = os.getpid()
        while not self._stop_requested.wait(0.1):
            for process in os.listdir("/proc"):  # noqa: PTH208 - runs thousands of times, and creating a Path takes longer than reading
                if process.isdigit() and int(process) != own:
                    self._scan_process(process)
            self.rounds += 1

    def _scan_process(self, process: str) -> None:
        for part in ("cmdline", "environ"):
            with contextlib.suppress(OSError), open(f"/proc/{process}/{part}", "rb", buffering=0) as file:  # noqa: PTH123 - creating a Path takes longer than reading
                data = file.read()
                if self._seen.get((process, part)) == data:
                    continue
                self._seen[process, part] = data
                if part == "cmdline":
                    self.names.update(Path(os.fsdecode(word)).name for word in data.split(b"\0")[:2])
                for name in self._scanner.find_in_bytes(data):
                    self.hits.add(f"{name} in {part} of {data[:60]!r}")
