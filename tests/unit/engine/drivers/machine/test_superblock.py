"""The UUID in hand-made btrfs superblocks. The test with a copied data directory covers real file systems."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from sandyard.engine.drivers.machine.store import superblock

FSID = bytes(range(16))
FIRST, SECOND = 1 << 16, 1 << 26
SIMPLE_QUOTA, METADATA_UUID = 1 << 16, 1 << 10


def make_superblock(*, kind: int = 0) -> bytes:
    superblock_bytes = bytearray(4096)
    superblock_bytes[0x20:0x30] = FSID
    superblock_bytes[0x40:0x48] = b"_BHRfS_M"
    struct.pack_into("<QH", superblock_bytes, 0xBC, SIMPLE_QUOTA, kind)
    superblock_bytes[:4] = superblock.crc32c(superblock_bytes[32:]).to_bytes(4, "little")
    return bytes(superblock_bytes)


def write_image(path: Path, content: bytes, size: int = 1 << 27) -> Path:
    file = path / "store.img"
    with file.open("wb") as stream:
        stream.truncate(size)
        for offset in (FIRST, SECOND):
            if offset < size:
                stream.seek(offset)
                stream.write(content)
    return file


def read_superblock(file: Path, offset: int) -> bytes:
    with file.open("rb") as stream:
        stream.seek(offset)
        return stream.read(4096)


def test_crc32c_has_the_standard_check_value() -> None:
    assert superblock.crc32c(b"123456789") == 0xE3069283


@pytest.mark.parametrize("size", [1 << 25, 1 << 27])
def test_the_uuid_can_be_renewed_repeatedly(tmp_path: Path, size: int) -> None:
    file = write_image(tmp_path, make_superblock(), size)
    superblock.renew_uuid(file)
    new = superblock.read_uuid(file)
    assert new != FSID
    for offset in (FIRST, SECOND):
        if offset < size:
            sector = read_superblock(file, offset)
            assert (sector[0x20:0x30], sector[0x23B:0x24B]) == (new, FSID), "the metadata UUID must stay"
            assert struct.unpack_from("<Q", sector, 0xBC)[0] == SIMPLE_QUOTA | METADATA_UUID
            assert sector[:4] == superblock.crc32c(sector[32:]).to_bytes(4, "little")
    superblock.renew_uuid(file)
    again = read_superblock(file, FIRST)
    assert again[0x20:0x30] not in {new, FSID} and again[0x23B:0x24B] == FSID, "renewing again must work"


@pytest.mark.parametrize(
    ("content", "reason"),
    [(bytes(4096), "no superblock"), (make_superblock(kind=1), "CRC-32C"), (make_superblock()[:-1] + b"x", "damaged")],
    ids=["nothing", "another checksum", "damaged"],
)
def test_an_unsupported_superblock_is_left_unchanged(tmp_path: Path, content: bytes, reason: str) -> None:
    file = write_image(tmp_path, content)
    with pytest.raises(ValueError, match=reason):
        superblock.renew_uuid(file)
    assert read_superblock(file, FIRST) == read_superblock(file, SECOND) == content
