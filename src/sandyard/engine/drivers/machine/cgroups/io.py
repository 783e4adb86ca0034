"""Disk I/O limits of sandboxes: a weight for all of them together, and bytes per second for each.

Everything depends on the kernel: weights have an effect with the BFQ scheduler or iocost on the disk, limits
everywhere. With cgroup 1 neither covers writes through the page cache. What cannot be set is skipped.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_WEIGHT_FILES = ("io.weight", "io.bfq.weight", "blkio.weight", "blkio.bfq.weight")


@dataclass(frozen=True, slots=True)
class IoLimits:
    """`weight` relative to 100 for everything else on the machine; bytes per second of one sandbox, 0 for no limit."""

    weight: int = 50
    read_bps: int = 0
    write_bps: int = 0


def set_weight(group: Path, weight: int) -> None:
    """Set a group's weight in every file for it that its hierarchy has."""
    for name in _WEIGHT_FILES:
        with contextlib.suppress(OSError):
            fd = os.open(group / name, os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(fd, str(weight).encode())
            finally:
                os.close(fd)


def list_limit_files(version: int, limits: IoLimits, disk: str | None) -> Iterator[tuple[str, str]]:
    """Yield the files of a sandbox's group and the values to write."""
    if disk is None:
        return
    if version == 2:
        wanted = {"rbps": limits.read_bps, "wbps": limits.write_bps}
        if values := " ".join(f"{name}={limit}" for name, limit in wanted.items() if limit):
            yield "io.max", f"{disk} {values}"
    else:
        for name, limit in (("read", limits.read_bps), ("write", limits.write_bps)):
            if limit:
                yield f"blkio.throttle.{name}_bps_device", f"{disk} {limit}"


def find_disk(path: Path, mountinfo: str | None = None, devices: Path = Path("/sys/dev/block")) -> str | None:
    """Return the disk (`major:minor`) that contains a directory, or None if it is not on a disk."""
    mountinfo = Path("/proc/self/mountinfo").read_text() if mountinfo is None else mountinfo
    depth, disk = -1, None
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        point, source = Path(left.split()[4].replace("\\040", " ")), right.split()[1]
        if path.is_relative_to(point) and len(point.parts) >= depth:  # a later mount hides an earlier one
            depth, disk = len(point.parts), _find_device_number(source, left.split()[2])
    if disk is None or not (devices / disk).exists():
        return None
    if (devices / disk / "partition").exists():  # limits apply to whole disks
        return (devices / disk).resolve().parent.joinpath("dev").read_text().strip()
    return disk


def _find_device_number(source: str, mount_device: str) -> str | None:
    """Return the device number. btrfs reports its own number, so use the device it was mounted from."""
    if not mount_device.startswith("0:"):
        return mount_device
    with contextlib.suppress(OSError):
        device = os.stat(source).st_rdev  # noqa: PTH116
        return f"{os.major(device)}:{os.minor(device)}" if device else None
    return None
