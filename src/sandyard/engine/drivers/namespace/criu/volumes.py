"""Volumes of a sandbox that is to be moved to disk. The mounts themselves are restored, but not files that were open on
them: others keep writing there, and memory that depends on a file's old contents would be inconsistent."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from sandyard.engine.drivers.machine import processes
from sandyard.engine.drivers.namespace.criu.scan import NotDumpableError, describe_process, get_mount_id, list_handles


def check_volumes(pids: Sequence[int], root: int, volumes: Sequence[str]) -> None:
    """Raise NotDumpableError if a process uses a file of one of these volumes: has it open, mapped or watched, or has
    its working directory there."""
    if not volumes:
        return
    mounts, devices = _find_volume_mounts(root, volumes)
    for pid in pids:
        for handle in _list_used_paths(pid):
            if get_mount_id(handle) in mounts:
                path = os.fsencode(handle.readlink()).decode(errors="replace")
                raise NotDumpableError(f"process {describe_process(pid)} uses a file of a volume ({path})")
        if devices & set(_list_watched_devices(pid)):
            raise NotDumpableError(f"process {describe_process(pid)} watches a file of a volume")


def _find_volume_mounts(root: int, volumes: Sequence[str]) -> tuple[set[int], set[int]]:
    """Return the ids of their mounts in the sandbox, and the devices they are on."""
    mounts, devices = set(), set()
    for number, _, device, part, *_ in processes.read_mountinfo(root):
        if part.rpartition("/")[2] in volumes:
            mounts.add(int(number))
            major, minor = (int(text) for text in device.split(":"))
            devices.add(major << 20 | minor)
    return mounts, devices


def _list_used_paths(pid: int) -> Iterator[Path]:
    yield from list_handles(pid)
    for name in ("cwd", "root", "exe"):
        if os.path.lexists(f"/proc/{pid}/{name}"):
            yield Path(f"/proc/{pid}/{name}")


def _list_watched_devices(pid: int) -> Iterator[int]:
    """Yield the devices on which a process watches something."""
    for handle in Path(f"/proc/{pid}/fd").iterdir():
        if str(handle.readlink()) == "anon_inode:inotify":
            text = Path(f"/proc/{pid}/fdinfo/{handle.name}").read_text()
            yield from (
                int(number, 16) for number in re.findall(r"^inotify wd:\S+ ino:\S+ sdev:(\S+)", text, re.MULTILINE)
            )
