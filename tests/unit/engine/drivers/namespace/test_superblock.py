"""The UUID of a btrfs, in superblocks made by hand: what the kernel makes of a real one is tested with a copied data directory."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from sandyard.engine.drivers.namespace.store import superblock

FSID = bytes(range(16))
FIRST, SECOND = 1 << 16, 1 << 26
SIMPLE_QUOTA, METADATA_UUID = 1 << 16, 1 << 10


def block(*, kind: int = 0) -> bytes:
    made = bytearray(4096)
    made[0x20:0x30] = FSID
    made[0x40:0x48] = b"_BHRfS_M"
    struct.pack_into("<QH", made, 0xBC, SIMPLE_QUOTA, kind)
    made[:4] = superblock.crc32c(made[32:]).to_bytes(4, "little")
    return bytes(made)


def image(path: Path, content: bytes, size: int = 1 << 27) -> Path:
    file = path / "store.img"
    with file.open("wb") as stream:
        stream.truncate(size)
        for place in (FIRST, SECOND):
            if place < size:
                stream.seek(place)
                stream.write(content)
    return file


def read(file: Path, place: int) -> bytes:
    with file.open("rb") as stream:
        stream.seek(place)
        return stream.read(4096)


def test_the_checksum() -> None:
    assert superblock.crc32c(b"123456789") == 0xE3069283, "the check value of CRC-32C"


@pytest.mark.parametrize("size", [1 << 25, 1 << 27])
def test_a_new_uuid(tmp_path: Path, size: int) -> None:
    file = image(tmp_path, block(), size)
    superblock.renew_uuid(file)
    new = superblock.read_uuid(file)
    assert new != FSID
    for place in (FIRST, SECOND):
        if place < size:
            found = read(file, place)
            assert (found[0x20:0x30], found[0x23B:0x24B]) == (new, FSID), "the metadata's stays"
            assert struct.unpack_from("<Q", found, 0xBC)[0] == SIMPLE_QUOTA | METADATA_UUID
            assert found[:4] == superblock.crc32c(found[32:]).to_bytes(4, "little")
    superblock.renew_uuid(file)
    again = read(file, FIRST)
    assert again[0x20:0x30] not in {new, FSID} and again[0x23B:0x24B] == FSID, "as often as one likes"


@pytest.mark.parametrize(
    ("content", "said"),
    [(bytes(4096), "no superblock"), (block(kind=1), "CRC-32C"), (block()[:-1] + b"x", "damaged")],
    ids=["nothing", "another checksum", "damaged"],
)
def test_what_is_not_understood_is_left_alone(tmp_path: Path, content: bytes, said: str) -> None:
    file = image(tmp_path, content)
    with pytest.raises(ValueError, match=said):
        superblock.renew_uuid(file)
    assert read(file, FIRST) == read(file, SECOND) == content
