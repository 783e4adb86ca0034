"""Watch a directory with inotify, alone or recursively."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable
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
        # Entries found by scanning. If they were created after the watch, their record is still to be read and must not
        # be reported again.
        self._told: set[str] = set()
        self._told_before: set[str] = set()
        self._fd = kernel.inotify_init()
        try:
            self._add("", tell=False)
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

    def _add(self, below: str, *, tell: bool) -> None:
        """Watch a directory. With `tell`, report its existing entries as created, because they were created before the
        watch."""
        folder = f"{self._path}/{below}" if below else self._path or "/"
        self._folders[kernel.inotify_add_watch(self._fd, self._sandbox.host(folder), _MASK)] = below
        if not self._recursive:
            return
        try:
            found = sorted(os.scandir(self._sandbox.host(folder)), key=lambda entry: entry.name)
        except OSError:
            return
        for entry in found:
            child = f"{below}/{entry.name}" if below else entry.name
            if tell:
                self._told.add(child)
                self._tell(child, "EVENT_TYPE_CREATE")
            if entry.is_dir(follow_symlinks=False):
                self._add_quietly(child, tell=tell)
            elif tell and _has_content(entry):
                self._tell(child, "EVENT_TYPE_WRITE")

    def _add_quietly(self, below: str, *, tell: bool) -> None:
        """Watch a directory that may already be gone again."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            self._add(below, tell=tell)

    def read_events(self) -> None:
        try:
            records = os.read(self._fd, _READ_SIZE)
        except BlockingIOError:
            return
        position = 0
        self._told_before, self._told = self._told, set()
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
            self._told |= self._told_before  # there may be more entries with the same timestamp
        self._told_before = set()

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
            return  # a subdirectory reports its own end and attributes; its parent has already reported them
        path = f"{folder}/{name}" if folder and name else folder or name
        if mask & kernel.IN_CREATE and path in self._told_before:
            mask &= ~kernel.IN_CREATE
        self._told_before.discard(path)
        for bits, kind in _TYPES:
            if mask & bits:
                self._tell(path or ".", kind)
        if self._recursive and mask & kernel.IN_ISDIR:
            if mask & (kernel.IN_CREATE | kernel.IN_MOVED_TO):
                self._add_quietly(path, tell=True)
            elif mask & kernel.IN_MOVED_FROM:
                self._forget(path)

    def _forget(self, path: str) -> None:
        """Stop watching a directory that was moved away, and everything below it."""
        for watch, folder in list(self._folders.items()):
            if folder == path or folder.startswith(path + "/"):
                del self._folders[watch]
                with contextlib.suppress(OSError):
                    kernel.inotify_rm_watch(self._fd, watch)

    def _tell(self, path: str, kind: str) -> None:
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
    """Return whether a directory has contents. False if it is gone again, which a separate record reports."""
    with contextlib.suppress(FileNotFoundError):
        return entry.is_file(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_size > 0
    return False


def is_directory(path: str) -> bool:
    """Return whether the path is a directory. Raises OSError if it does not exist."""
    return stat.S_ISDIR(os.stat(path).st_mode)
