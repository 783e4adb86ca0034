"""Files and commands of the demo agent, within one folder."""

# This code runs on old versions of Python and uses plain os calls.
# ruff: noqa: PTH103, PTH107, PTH111, PTH113, PTH118, PTH119, PTH120, PTH123, PTH202, PTH206

import contextlib
import os
import selectors
import signal
import subprocess
import time
from threading import Event
from typing import Any, Callable  # noqa: UP035

LARGEST = 8 << 20
KEPT = 32 << 10
"""Bytes kept of the beginning of a command's output, and as many of its end."""
LINGER = 0.3
"""How long to read output of child processes after the command has ended."""
GRACE = 2.0
_running: "set[int]" = set()


class WorkError(Exception):
    """An error message for the reader of the transcript."""


def inside(folder: str, path: str) -> str:
    """Return the absolute path. Raises WorkError for a path outside of the folder or inside of `.git`."""
    root = os.path.realpath(folder)
    whole = os.path.join(root, os.path.expanduser(path) if path.startswith("~") else path)
    if path.endswith("/") or "\0" in path:
        raise WorkError(repr(path) + " is not the name of a file.")
    parent = os.path.realpath(os.path.dirname(whole))
    final = os.path.join(parent, os.path.basename(whole))
    real = os.path.realpath(final)
    if os.path.basename(whole) in ("", ".", "..") or not all(_is_below(root, candidate) for candidate in (final, real)):
        raise WorkError(repr(path) + " is outside of the working folder.")
    if ".git" in os.path.relpath(real, root).split(os.sep):
        raise WorkError(repr(path) + " is inside of .git and cannot be changed.")
    return final


def _is_below(root: str, path: str) -> bool:
    return path.startswith(root.rstrip(os.sep) + os.sep)


def content(path: str) -> "str | None":
    """Return the text of a file, or None if it does not exist. Bytes that are not UTF-8 survive being written back."""
    try:
        if not os.path.isfile(path):
            if os.path.lexists(path):
                raise WorkError(repr(path) + " is not a file.")
            return None
        if os.path.getsize(path) > LARGEST:
            raise WorkError(repr(path) + " is larger than the limit of 8 MiB.")
        with open(path, encoding="utf-8", errors="surrogateescape", newline="") as file:
            return file.read()
    except OSError as error:
        raise _make_work_error(path, error) from None


def write(path: str, text: str) -> None:
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
            file.write(text)
    except OSError as error:
        raise _make_work_error(path, error) from None


def remove(path: str) -> None:
    try:
        os.remove(path)
    except OSError as error:
        raise _make_work_error(path, error) from None


def _make_work_error(path: str, error: OSError) -> WorkError:
    return WorkError(repr(path) + ": " + (error.strerror or str(error)) + ".")


class TruncatedOutput:
    """Keep the beginning and the end of a command's output."""

    def __init__(self) -> None:
        self._head = b""
        self._tail = b""
        self._lost = 0

    def add(self, data: bytes) -> None:
        room = KEPT - len(self._head)
        self._head += data[:room] if room > 0 else b""
        self._tail += data[room:] if room > 0 else data
        if len(self._tail) > KEPT:
            self._lost += len(self._tail) - KEPT
            self._tail = self._tail[-KEPT:]

    @property
    def text(self) -> str:
        gap = ("\n… " + str(self._lost) + " bytes left out …\n").encode("utf-8") if self._lost else b""
        return (self._head + gap + self._tail).decode("utf-8", "replace")


def run(
    argv: "list[str]", folder: str, cancelled: Event, progress: "Callable[[str], None]", envs: "dict[str, str]"
) -> "tuple[int, str]":
    """Run a command without input and return its exit code and output. If cancelled, end it with its children."""
    environment = dict(os.environ, **envs)
    try:
        child: Any = subprocess.Popen(
            argv,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise _make_work_error(argv[0], error) from None
    _running.add(child.pid)
    try:
        return _follow_child(child, cancelled, progress)
    finally:
        _running.discard(child.pid)
        child.stdout.close()


def _follow_child(child: Any, cancelled: Event, progress: "Callable[[str], None]") -> "tuple[int, str]":
    output, has_news, reported_at, ended_at, asked_at = TruncatedOutput(), False, time.monotonic(), 0.0, 0.0
    with selectors.DefaultSelector() as selector:
        selector.register(child.stdout, selectors.EVENT_READ)
        while True:
            now = time.monotonic()
            if selector.select(0.05):
                data = os.read(child.stdout.fileno(), 65536)
                if not data:
                    break
                output.add(data)
                has_news = True
            if has_news and now - reported_at > 0.5:
                progress(output.text)
                has_news, reported_at = False, now
            if cancelled.is_set() and (not asked_at or now - asked_at > GRACE):
                _signal(child.pid, signal.SIGKILL if asked_at else signal.SIGTERM)
                asked_at = asked_at or now
            if child.poll() is not None:
                ended_at = ended_at or now
                if now - ended_at > LINGER:
                    break
    while child.poll() is None:  # it has closed its output but still runs
        if cancelled.wait(0.05):
            _signal(child.pid, signal.SIGKILL)
    return child.returncode, output.text


def end_all() -> None:
    for pid in list(_running):
        _signal(pid, signal.SIGKILL)


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(OSError):
        os.killpg(pid, number)
