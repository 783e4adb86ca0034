"""Watch a directory with inotify, alone or recursively."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator
from typing import Any

from sandyard.engine.guest import kernel
from sandyard.engine.guest.files import entries
from sandyard.engine.guest.loop import Loop
from sandyard.engine.guest.sandbox import Sandbox
from sandyard.engine.guest.wire import protojson

_MASK = (
    kernel.IN_CREATE | kernel.IN_MODIFY | kernel.IN_ATTRIB | kernel.IN_DELETE | kernel.IN_DELETE_SELF
    | kernel.IN_MOVED_FROM | kernel.IN_MOVED_TO | kernel.IN_MOVE_SELF | kernel.IN_ONLYDIR
)  # fmt: skip

# One inotify record may mean several events; the order is envd's.
_TYPES = (
    (kernel.IN_CREATE | kernel.IN_MOVED_TO, "EVENT_TYPE_CREATE"),
    (kernel.IN_MOVED_FROM | kernel.IN_MOVE_SELF, "EVENT_TYPE_RENAME"),
    (kernel.IN_ATTRIB, "EVENT_TYPE_CHMOD"),
    (kernel.IN_MODIFY, "EVENT_TYPE_WRITE"),
    (kernel.IN_DELETE | kernel.IN_DELETE_SELF, "EVENT_TYPE_REMOVE"),
)
_WITH_ENTRY = frozenset({"EVENT_TYPE_CREATE", "EVENT_TYPE_CHMOD", "EVENT_TYPE_WRITE"})

_READ_SIZE = 64 << 10
_GONE = (FileNotFoundError, NotADirectoryError, PermissionError)  # a directory that was just reported may be gone again

Event = dict[str, Any]


class Watch:
    """Events of one directory, as FilesystemEvent messages with paths relative to it, passed to `on_event` in order.

    `on_error` is called once, if events were lost or the kernel cannot add more watches; then the watch ends.
    """

    def __init__(
        self,
        loop: Loop,
        sandbox: Sandbox,
        path: str,
        *,
        recursive: bool,
        include_entry: bool,
        on_event: Callable[[Event], None],
        on_error: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._sandbox = sandbox
        self._path = path.rstrip("/")
        self._recursive = recursive
        self._include_entry = include_entry
        self._on_event = on_event
        self._on_error = on_error
        self._folders: dict[int, str] = {}  # watch descriptor to path below the watched directory, "" for itself
        # Entries that a scan has found and reported. If they were created after the watch began, the kernel has a record of
        # it that is still to be read and must not be reported again.
        self._reported: set[str] = set()
        self._reported_before: set[str] = set()
        self._fd = kernel.inotify_init()
        try:
            self._add("", report_existing=False)
        except OSError:
            os.close(self._fd)
            raise
        loop.add_reader(self._fd, self.read_events)

    def close(self) -> None:
        """Stop watching. Idempotent."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _add(self, below: str, *, report_existing: bool) -> None:
        """Watch a directory. With `report_existing`, report its entries as created: for a new directory, in which they were
        created before it was watched."""
        levels = [self._add_folder(below)]  # without recursion, because a tree may be deeper than Python's stack
        while levels:
            child, entry = next(levels[-1], (None, None))
            if child is None or entry is None:
                levels.pop()
                continue
            if report_existing:
                self._reported.add(child)
                self._report(child, "EVENT_TYPE_CREATE")
            if entry.is_dir(follow_symlinks=False):
                with contextlib.suppress(*_GONE):
                    levels.append(self._add_folder(child))
            elif report_existing and _has_content(entry):
                self._report(child, "EVENT_TYPE_WRITE")

    def _add_folder(self, below: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
        """Watch one directory. Return the paths and entries in it if the watch is recursive, otherwise nothing."""
        folder = f"{self._path}/{below}" if below else self._path or "/"
        self._folders[kernel.inotify_add_watch(self._fd, self._sandbox.to_host_path(folder), _MASK)] = below
        if not self._recursive:
            return iter(())
        try:
            found = sorted(os.scandir(self._sandbox.to_host_path(folder)), key=lambda entry: entry.name)
        except OSError:
            return iter(())
        return ((f"{below}/{entry.name}" if below else entry.name, entry) for entry in found)

    def read_events(self) -> None:
        """Report the events that the kernel has."""
        try:
            records = os.read(self._fd, _READ_SIZE)
        except BlockingIOError:
            return
        position = 0
        self._reported_before, self._reported = self._reported, set()
        try:
            while position < len(records):
                watch, mask, _cookie, size = kernel.INOTIFY_EVENT.unpack_from(records, position)
                position += kernel.INOTIFY_EVENT.size
                name = os.fsdecode(records[position : position + size].rstrip(b"\0"))
                position += size
                self._handle(watch, mask, name)
                if self._fd < 0:
                    return
        except OSError as error:
            self._fail(f"watcher error: {error.strerror}")
            return
        if len(records) > _READ_SIZE // 2:
            self._reported |= self._reported_before  # more of their records may be waiting
        self._reported_before = set()

    def _handle(self, watch: int, mask: int, name: str) -> None:
        if mask & kernel.IN_Q_OVERFLOW:
            self._fail("watcher error: fsnotify: queue or buffer overflow")
            return
        if mask & kernel.IN_IGNORED:
            self._folders.pop(watch, None)
            return
        folder = self._folders.get(watch)
        if folder is None:
            return
        if not name and folder:
            return  # a record of a subdirectory about itself; its parent has the same one
        path = f"{folder}/{name}" if folder and name else folder or name
        if mask & kernel.IN_CREATE and path in self._reported_before:
            mask &= ~kernel.IN_CREATE
        self._reported_before.discard(path)
        for bits, kind in _TYPES:
            if mask & bits:
                self._report(path or ".", kind)
        if self._recursive and mask & kernel.IN_ISDIR:
            if mask & (kernel.IN_CREATE | kernel.IN_MOVED_TO):
                with contextlib.suppress(*_GONE):
                    self._add(path, report_existing=True)
            elif mask & kernel.IN_MOVED_FROM:
                self._forget(path)

    def _forget(self, path: str) -> None:
        """Stop watching a directory that was moved away, and everything below it."""
        for watch, folder in list(self._folders.items()):
            if folder == path or folder.startswith(path + "/"):
                del self._folders[watch]
                with contextlib.suppress(OSError):
                    kernel.inotify_rm_watch(self._fd, watch)

    def _report(self, path: str, kind: str) -> None:
        event: Event = {"name": protojson.make_printable(path), "type": kind}
        if self._include_entry and kind in _WITH_ENTRY:
            full = self._path if path == "." else f"{self._path}/{path}"
            with contextlib.suppress(OSError):
                event["entry"] = entries.describe(self._sandbox, full or "/")
        self._on_event(event)

    def _fail(self, reason: str) -> None:
        self.close()
        self._on_error(reason)


def _has_content(entry: os.DirEntry[str]) -> bool:
    """Return whether this is a file that is not empty. False if it is already gone, which the kernel reports as well."""
    with contextlib.suppress(FileNotFoundError):
        return entry.is_file(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_size > 0
    return False


def is_directory(path: str) -> bool:
    """Return whether the path is a directory. Raises OSError if it does not exist."""
    return stat.S_ISDIR(os.stat(path).st_mode)
