"""A btrfs in a file, for machines whose data directory is on another file system. Needs root, loop devices and
btrfs-progs.

All blocks of the file are reserved, so that the btrfs never encounters a full disk: it would treat that as a disk error
and become permanently read-only. The file starts small; `grow` and `shrink` change it together with the btrfs in it
(`guard` decides when). Freed blocks are not discarded, because that would release the file's reserved ones.

The loop device detaches the file by itself when the last mount is gone. Running sandboxes keep it attached, even if the
engine and its mount namespace were killed, so an image may already be attached, mounted here or not. It is never
attached twice: two devices with one btrfs would destroy it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

from sandyard.engine.drivers.machine import kernel
from sandyard.engine.drivers.machine.store import btrfs, superblock

_LOOP_CONFIGURE, _LOOP_GET_STATUS64, _LOOP_SET_CAPACITY, _LOOP_CTL_GET_FREE = 0x4C0A, 0x4C05, 0x4C07, 0x4C82
_AUTOCLEAR, _DIRECT_IO = 4, 16
_INFO_SIZE, _CONFIG_SIZE, _FLAGS_OFFSET = 232, 304, 8 + 52
_GET_FLAGS, _SET_FLAGS, _NO_COW = 0x8008_6601, 0x4008_6602, 0x0080_0000

MIN_SIZE = 2 << 30  # the size of a new image; without this much space none is created
_OPTIONS = "nodiscard,commit=15"
_FALLBACK_OPTIONS = ("rescue=usebackuproot",)  # tried in turn if a plain mount fails, such as after a power failure


class ImageError(Exception):
    """An image could not be created or used. The message is for users."""


def find_obstacle() -> str | None:
    """Return why no image can be created on this machine, or None."""
    if os.geteuid() != 0:
        return "creating one needs root"
    if shutil.which("mkfs.btrfs") is None:
        return "mkfs.btrfs is missing: install btrfs-progs"
    if "\tbtrfs\n" not in Path("/proc/filesystems").read_text() and not _load_module():
        return "this kernel has no btrfs"
    if not Path("/dev/loop-control").exists():
        return "there are no loop devices here (/dev/loop-control)"
    return None


def _load_module() -> bool:
    with contextlib.suppress(OSError):
        subprocess.run(["modprobe", "btrfs"], check=False, capture_output=True)
    return "\tbtrfs\n" in Path("/proc/filesystems").read_text()


def get_reserve(folder: Path) -> int:
    """Return the bytes of a file system that the store leaves to others: 5 %, but between 1 and 10 GiB."""
    stat = os.statvfs(folder)
    return min(max(stat.f_blocks * stat.f_frsize // 20, 1 << 30), 10 << 30)


def create(image: Path, label: str) -> None:
    """Create an image of the smallest size, or nothing. Blocks for about 0.1 s. Raises ImageError or OSError."""
    stat = os.statvfs(image.parent)
    if stat.f_bavail * stat.f_frsize - get_reserve(image.parent) < MIN_SIZE:
        raise ImageError(
            f"{image.parent} has no room for a store of at least {MIN_SIZE >> 30} GiB in addition to its reserve"
        )
    partial = image.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    try:
        _format(partial, label)
        partial.rename(image)
    except BaseException:
        partial.unlink(missing_ok=True)  # its blocks are reserved
        raise


def _format(file: Path, label: str) -> None:
    """Create a file of the smallest size, with all its blocks and a btrfs. A failure may leave the file."""
    fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with contextlib.suppress(OSError):  # on a copy-on-write file system: one such layer is enough
            flags = struct.unpack("=l", fcntl.ioctl(fd, _GET_FLAGS, struct.pack("=l", 0)))[0]
            fcntl.ioctl(fd, _SET_FLAGS, struct.pack("=l", flags | _NO_COW))
        os.ftruncate(fd, MIN_SIZE)
        _allocate_blocks(fd, 0, MIN_SIZE)
    finally:
        os.close(fd)
    command = ["mkfs.btrfs", "--quiet", "--nodiscard", "--metadata", "single", "--label", label, str(file)]
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    if result.returncode:
        raise ImageError(f"mkfs.btrfs failed: {result.stderr.strip()}")


def renew_uuid(image: Path) -> None:
    """Give a copied image a new UUID: the kernel treats two with the same UUID as one file system. Raises
    ImageError."""
    try:
        superblock.renew_uuid(image)
    except (OSError, ValueError) as error:
        raise ImageError(f"could not give the copied image a new UUID: {error}") from error


def mount(image: Path, target: Path) -> None:
    """Mount the image, already attached or not. Idempotent. Raises ImageError; never changes the image's contents."""
    if target.is_mount():
        if btrfs.is_btrfs(target):
            _disable_discards(find_loop_device(image))
            return
        raise ImageError(f"{target} is a mount point of something else")
    device, fd = _attach(image)
    _disable_discards(device)
    try:
        flags = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOATIME
        problem = None
        for extra in ("", *_FALLBACK_OPTIONS):
            try:
                kernel.mount(device, str(target), "btrfs", flags, ",".join(filter(None, (_OPTIONS, extra))))
            except OSError as error:
                problem = problem or error
            else:
                return
        raise ImageError(f"could not mount {image} ({problem}); run `btrfs check` on it for details")
    finally:
        os.close(fd)


def _disable_discards(device: str | None) -> None:
    """Disable discards on the device, so that `fstrim` and the like do not release reserved blocks."""
    if device is not None:
        with contextlib.suppress(OSError):  # if /sys is not writable, the mount option has to suffice
            Path("/sys/block", Path(device).name, "queue/discard_max_bytes").write_text("0")


def is_read_only(target: Path) -> bool:
    """Return whether the kernel has made it read-only, such as after a disk error. Only unmounting it everywhere
    helps."""
    return bool(os.statvfs(target).f_flag & os.ST_RDONLY)


def get_size(image: Path) -> int:
    return image.stat().st_size


def count_unreserved_bytes(image: Path) -> int:
    """Return the bytes of the image for which the disk has reserved no blocks."""
    status = image.stat()
    return max(status.st_size - status.st_blocks * 512, 0)


def allocate_all_blocks(image: Path) -> None:
    """Reserve missing blocks of an image from an earlier version. Raises OSError, and takes nothing, if the disk would
    not keep its reserve."""
    disk = os.statvfs(image.parent)
    if count_unreserved_bytes(image) > disk.f_bavail * disk.f_frsize - get_reserve(image.parent):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(image))
    with _open_image(image) as fd:
        _allocate_blocks(fd, 0, os.fstat(fd).st_size)


def grow(image: Path, target: Path, amount: int) -> None:
    """Enlarge the mounted image, or leave it unchanged. Raises OSError."""
    with _open_image(image) as fd:
        before = os.fstat(fd).st_size
        try:
            os.ftruncate(fd, before + amount)
            _allocate_blocks(fd, before, amount)
        except OSError:
            os.ftruncate(fd, before)
            raise
    resize_to_file(image, target)


def undo_growth(image: Path, target: Path) -> None:
    """Remove a last part of the mounted image that the btrfs does not use yet: a crash during `grow` leaves one without
    blocks. Raises OSError."""
    stat = os.statvfs(target)
    used = stat.f_blocks * stat.f_frsize
    if used < get_size(image):
        os.truncate(image, used)
        _update_device_size(image)


def shrink(image: Path, target: Path, size: int) -> None:
    """Shrink the mounted image to this size, or leave it unchanged. Moves the data in its last part. Raises OSError."""
    btrfs.resize(target, size)
    with _open_image(image) as fd:
        os.ftruncate(fd, size)
    _update_device_size(image)


def resize_to_file(image: Path, target: Path) -> None:
    """Let the btrfs use the whole file, also after a crash during a change. Idempotent."""
    _update_device_size(image)
    btrfs.resize(target, None)


def _update_device_size(image: Path) -> None:
    device = find_loop_device(image)
    if device is not None:
        fd = os.open(device, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.ioctl(fd, _LOOP_SET_CAPACITY)
        finally:
            os.close(fd)


def _allocate_blocks(fd: int, offset: int, length: int) -> None:
    try:
        kernel.fallocate(fd, offset, length)
    except OSError as error:
        # Without support for it the file has holes, and only the guard's reserve protects it.
        if error.errno not in {errno.EOPNOTSUPP, errno.ENOSYS}:
            raise


@contextlib.contextmanager
def _open_image(image: Path) -> Iterator[int]:
    fd = os.open(image, os.O_RDWR | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def find_loop_device(image: Path) -> str | None:
    """Return the loop device this file is attached to, or None."""
    status = image.stat()
    for entry in Path("/sys/block").glob("loop*/loop"):
        device = f"/dev/{entry.parent.name}"
        with contextlib.suppress(OSError):
            fd = os.open(device, os.O_RDONLY | os.O_CLOEXEC)
            try:
                info = fcntl.ioctl(fd, _LOOP_GET_STATUS64, bytes(_INFO_SIZE))
            finally:
                os.close(fd)
            if struct.unpack_from("=QQ", info) == (status.st_dev, status.st_ino):
                return device
    return None


def _attach(image: Path) -> tuple[str, int]:
    """Attach the image to a loop device, which the returned descriptor holds until something is mounted from it."""
    device = find_loop_device(image)
    if device is not None:
        return device, os.open(device, os.O_RDWR | os.O_CLOEXEC)
    image_fd = os.open(image, os.O_RDWR | os.O_CLOEXEC)
    control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
    try:
        for _ in range(64):  # other processes look for a free one too
            device = f"/dev/loop{fcntl.ioctl(control, _LOOP_CTL_GET_FREE)}"
            fd = os.open(device, os.O_RDWR | os.O_CLOEXEC)
            try:
                _configure_device(fd, image_fd)
            except OSError as error:
                os.close(fd)
                if error.errno != errno.EBUSY:
                    raise ImageError(f"{image} can't be attached to {device}: {error.strerror}") from error
            else:
                return device, fd
        raise ImageError("no loop device stayed free long enough")
    finally:
        os.close(control)
        os.close(image_fd)


def _configure_device(loop: int, image: int) -> None:
    """Attach the image to the loop device, with direct I/O if the file system supports it, which avoids a second copy of
    every page in memory."""
    for flags in (_AUTOCLEAR | _DIRECT_IO, _AUTOCLEAR):
        config = bytearray(_CONFIG_SIZE)
        struct.pack_into("=II", config, 0, image, 4096)
        struct.pack_into("=I", config, _FLAGS_OFFSET, flags)
        try:
            fcntl.ioctl(loop, _LOOP_CONFIGURE, config)
        except OSError as error:
            if error.errno != errno.EINVAL or not flags & _DIRECT_IO:
                raise
        else:
            return
