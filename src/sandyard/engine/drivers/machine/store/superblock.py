"""The superblocks of an unmounted btrfs, which contain its UUID.

`btrfstune -m` does the same, but rejects a file system with a feature newer than itself, such as simple quotas in many
distributions. The format of the superblock: https://btrfs.readthedocs.io/en/latest/dev/On-disk-format.html
"""

from __future__ import annotations

import contextlib
import os
import struct
import uuid
from pathlib import Path

_OFFSETS = (1 << 16, 1 << 26, 1 << 38)  # the second and third exist if the file system is that large
_SIZE = 4096
_CHECKSUM = slice(0, 4)
_CHECKSUMMED = slice(32, _SIZE)
_FSID = slice(0x20, 0x30)
_MAGIC_AT, _MAGIC = 0x40, b"_BHRfS_M"
_INCOMPAT = struct.Struct("<Q"), 0xBC
_CHECKSUM_KIND = struct.Struct("<H"), 0xC4
_METADATA_UUID = slice(0x23B, 0x24B)
_HAS_METADATA_UUID = 1 << 10
_CRC32C = 0


def renew_uuid(image: Path) -> None:
    """Give the file system a new UUID. The old one stays as that of its metadata, because every block contains it.

    Raises ValueError if it is not a btrfs, or has unusual checksums.
    """
    new = uuid.uuid4().bytes
    fd = os.open(image, os.O_RDWR | os.O_CLOEXEC)
    try:
        blocks = [(offset, block) for offset in _OFFSETS if _is_superblock(block := os.pread(fd, _SIZE, offset))]
        if not blocks or blocks[0][0] != _OFFSETS[0]:
            raise ValueError("it has no superblock of btrfs")
        # the first one last: it is the one that counts, and nothing has changed until it is written
        first = _update_block(blocks[0][1], new)
        for offset, block in reversed(blocks[1:]):
            with contextlib.suppress(ValueError):  # a damaged copy stays as it is
                os.pwrite(fd, _update_block(block, new), offset)
        os.pwrite(fd, first, _OFFSETS[0])
        os.fsync(fd)
    finally:
        os.close(fd)


def read_uuid(image: Path) -> bytes:
    """Return the UUID of the file system, not of its metadata."""
    with image.open("rb") as stream:
        stream.seek(_OFFSETS[0])
        return stream.read(_SIZE)[_FSID]


def _is_superblock(block: bytes) -> bool:
    return len(block) == _SIZE and block[_MAGIC_AT : _MAGIC_AT + 8] == _MAGIC


def _update_block(block: bytes, new: bytes) -> bytes:
    changed = bytearray(block)
    form, at = _CHECKSUM_KIND
    if form.unpack_from(changed, at)[0] != _CRC32C:
        raise ValueError("its checksums are not CRC-32C")
    if _compute_checksum(changed) != changed[_CHECKSUM]:
        raise ValueError("its superblock is damaged")
    form, at = _INCOMPAT
    features = form.unpack_from(changed, at)[0]
    if not features & _HAS_METADATA_UUID:
        changed[_METADATA_UUID] = changed[_FSID]
        form.pack_into(changed, at, features | _HAS_METADATA_UUID)
    changed[_FSID] = new
    changed[_CHECKSUM] = _compute_checksum(changed)
    return bytes(changed)


def _compute_checksum(block: bytes | bytearray) -> bytes:
    return crc32c(block[_CHECKSUMMED]).to_bytes(4, "little")


def crc32c(data: bytes | bytearray) -> int:
    """Return the CRC-32 with Castagnoli's polynomial, which `zlib` does not have."""
    value = 0xFFFF_FFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = (value >> 1) ^ (0x82F6_3B78 if value & 1 else 0)
    return value ^ 0xFFFF_FFFF
