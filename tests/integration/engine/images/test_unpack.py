"""Layers as an attacker would make them: whatever one holds, nothing outside its directory is touched and nothing in it is wrong."""

from __future__ import annotations

import asyncio
import gzip
import os
import stat
import struct
import subprocess
import tarfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from sandyard.engine.images import child
from sandyard.engine.images.unpack import Order
from sandyard.kit.errors import InvalidInputError, NoSpaceError
from tests.images.made import MTIME, entry, folder, hard_link, link, sha256, tar

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="owners and whiteouts need root")

CAPABILITY = struct.pack("<IIIII", 0x0200_0001, 1 << 13, 0, 0, 0)


class Place:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.fs = path / "fs"
        self.fs.mkdir()
        (path / "secret").write_text("outside")

    def unpack(self, layer: bytes, blob: bytes | None = None, **changes: Any) -> dict[str, Any]:
        file = self.path / "blob"
        file.write_bytes(layer if blob is None else blob)
        order = {
            "target": str(self.fs),
            "offset": 0,
            "size": file.stat().st_size,
            "digest": sha256(file.read_bytes()),
            "diff_id": sha256(layer),
            "most_bytes": 64 << 20,
            "most_entries": 1000,
            "reserve_bytes": 0,
        }
        whole = asdict(Order(**{**order, **changes}))
        with file.open("rb") as source:
            return asyncio.run(child.run_process("unpack", whole, "The layer", source.fileno()))

    def refuses(self, layer: bytes, match: str, **changes: Any) -> None:
        with pytest.raises((InvalidInputError, NoSpaceError), match=match):
            self.unpack(layer, **changes)
        assert (self.path / "secret").read_text() == "outside"
        assert sorted(path.name for path in self.path.iterdir()) == ["blob", "fs", "secret"]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_files_have_what_the_layer_gives_them(place: Place) -> None:
    layer = tar(
        folder("./"),
        folder("bin/", 0o751, uid=3, gid=4),
        entry("bin/su", "x", mode=0o4755),
        entry(
            "/bin/ping",
            "y",
            mode=0o755,
            pax_headers={"SCHILY.xattr.security.capability": CAPABILITY.decode("utf-8", "surrogateescape")},
        ),
        link("bin/sh", "/bin/su"),
        hard_link("bin/also", "bin/su"),
        entry("bin/pipe", kind=tarfile.FIFOTYPE, mode=0o600),
        entry("bin/\udcff", "odd"),
        entry("user", "u", uid=1000, gid=1001, pax_headers={"SCHILY.xattr.user.note": "n"}),
    )
    found = place.unpack(layer, gzip.compress(layer))
    fs = place.fs
    assert found["entries"] == 9 and found["bytes"] == 6 and found["implied"] == []
    assert stat.S_IMODE((fs / "bin").stat().st_mode) == 0o751
    assert ((fs / "bin").stat().st_uid, (fs / "bin").stat().st_gid) == (3, 4)
    assert (fs / "bin").stat().st_mtime == (fs / "bin/su").stat().st_mtime == MTIME
    assert stat.S_IMODE((fs / "bin/su").stat().st_mode) == 0o4755
    assert (fs / "bin/su").samefile(fs / "bin/also")
    assert (fs / "bin/sh").readlink() == Path("/bin/su")
    assert stat.S_ISFIFO((fs / "bin/pipe").lstat().st_mode)
    assert os.getxattr(fs / "bin/ping", "security.capability") == CAPABILITY
    assert os.getxattr(fs / "user", "user.note") == b"n"
    assert ((fs / "user").stat().st_uid, (fs / "user").stat().st_gid) == (1000, 1001)
    assert (fs / "bin/\udcff").read_text() == "odd"


@pytest.mark.parametrize(
    "name",
    ["../secret", "a/../../secret", "/../secret", "..", "a/.."],
    ids=["up", "through", "root", "itself", "below"],
)
def test_a_name_does_not_lead_out(place: Place, name: str) -> None:
    place.refuses(tar(entry(name, "evil")), "leads out of it")
    place.refuses(tar(entry("f"), hard_link("g", name)), "leads out of it")


def test_a_link_does_not_lead_out(place: Place) -> None:
    outside = str(place.path)
    place.unpack(
        tar(
            folder("in"),
            link("out", "../../.."),
            link("abs", outside),
            entry("in/f", "1"),
            link("in2", "/in"),
            entry("in2/g", "2"),
        )
    )
    assert (place.fs / "in/g").read_text() == "2"
    place.unpack(tar(link("out", "../.."), entry("out/secret", "inside")))
    assert (place.fs / "secret").read_text() == "inside"
    (place.fs / "secret").unlink()
    place.refuses(tar(link("abs", outside), entry("abs/secret", "evil")), "not a directory in it")


def test_a_file_is_not_written_through_a_link(place: Place) -> None:
    place.unpack(tar(link("f", "../secret"), entry("f", "mine")))
    assert not (place.fs / "f").is_symlink() and (place.fs / "f").read_text() == "mine"
    assert (place.path / "secret").read_text() == "outside"


def test_a_hard_link_stays_within(place: Place) -> None:
    place.refuses(tar(link("out", str(place.path)), hard_link("stolen", "out/secret")), "does not contain|not a file")
    place.refuses(tar(hard_link("x", "/etc/passwd")), "does not contain|not a file")
    place.refuses(tar(folder("d"), hard_link("x", "d")), "not a file in it")


def test_a_hard_link_to_a_link_is_the_link(place: Place) -> None:
    place.unpack(tar(link("l", "../secret"), hard_link("m", "l"), hard_link("m", "m")))
    assert (place.fs / "m").is_symlink()


def test_device_nodes_are_left_out(place: Place) -> None:
    found = place.unpack(
        tar(
            entry("sda", kind=tarfile.BLKTYPE, devmajor=8),
            entry("zero", kind=tarfile.CHRTYPE, devmajor=1, devminor=5),
            entry("kept"),
        )
    )
    assert found["devices"] == 2 and [path.name for path in place.fs.iterdir()] == ["kept"]


def test_whiteouts_become_the_overlays_own(place: Place) -> None:
    found = place.unpack(
        tar(
            folder("a"),
            entry("a/.wh.gone"),
            folder("b"),
            entry("b/.wh..wh..opq"),
            entry("b/new", "n"),
            entry(".wh.c"),
            folder("c"),
            entry("c/again", "x"),
            entry("d/new"),
            entry(".wh.d"),
            entry(".wh..wh.plnk"),
        )
    )
    gone = (place.fs / "a/gone").lstat()
    assert stat.S_ISCHR(gone.st_mode) and gone.st_rdev == 0
    for name in ("b", "c", "d"):  # made anew in the same layer: nothing below shines through
        assert os.getxattr(place.fs / name, "trusted.overlay.opaque") == b"y"
    assert found["implied"] == ["d"] and not list(place.fs.glob("**/.wh.*"))
    assert not found["opaque_root"]


def test_an_opaque_root_is_told(place: Place) -> None:
    assert place.unpack(tar(entry(".wh..wh..opq"), entry("f")))["opaque_root"] is True


@pytest.mark.parametrize("name", [".wh.", ".wh..", ".wh...", "a/.wh..."])
def test_a_whiteout_has_a_name(place: Place, name: str) -> None:
    place.refuses(tar(entry(name)), "without a name")


def test_overlays_own_attributes_are_nobodys_to_set(place: Place) -> None:
    names = (
        "trusted.overlay.redirect",
        "trusted.overlay.metacopy",
        "user.overlay.opaque",
        "security.selinux",
        "system.posix_acl_access",
    )
    place.unpack(tar(folder("d", pax_headers={f"SCHILY.xattr.{name}": "/etc" for name in names})))
    assert os.listxattr(place.fs / "d") == []


def test_capabilities_of_another_user_namespace_become_ours(place: Place) -> None:
    raw = struct.pack("<IIIIII", 0x0300_0001, 1 << 13, 0, 0, 0, 77)
    place.unpack(
        tar(entry("f", pax_headers={"SCHILY.xattr.security.capability": raw.decode("utf-8", "surrogateescape")}))
    )
    assert os.getxattr(place.fs / "f", "security.capability") == CAPABILITY


def test_owners_out_of_range_become_nobody(place: Place) -> None:
    found = place.unpack(tar(entry("f", uid=65536, gid=2**31), folder("d", uid=4_000_000)))
    assert found["strangers"] == 2
    assert {(place.fs / "f").stat().st_uid, (place.fs / "f").stat().st_gid, (place.fs / "d").stat().st_uid} == {65534}


def test_a_later_entry_replaces_an_earlier_one(place: Place) -> None:
    place.unpack(
        tar(
            folder("a"),
            folder("a/b"),
            entry("a/b/c", "x"),
            entry("a", "now a file"),
            folder("e", 0o700),
            folder("e", 0o711),
        )
    )
    assert (place.fs / "a").read_text() == "now a file"
    assert stat.S_IMODE((place.fs / "e").stat().st_mode) == 0o711


def test_implied_directories_are_told(place: Place) -> None:
    assert place.unpack(tar(entry("a/b/c"), folder("a")))["implied"] == ["a/b"]


def test_sizes_are_bounded(place: Place) -> None:
    zeros = tar(entry("f", bytes(2 << 20)))
    place.refuses(zeros, "images_max_mb", most_bytes=1 << 20)
    with pytest.raises(InvalidInputError, match="images_max_mb"):
        place.unpack(zeros, gzip.compress(zeros), most_bytes=1 << 20)
    place.refuses(tar(*(entry(str(number)) for number in range(20))), "images_max_files", most_entries=10)
    place.refuses(tar(entry("f", "x")), "disk_reserve_mb", reserve_bytes=1 << 60)


def test_a_sparse_bomb_is_bounded(place: Place, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    for name, size in (("small", 3 << 20), ("huge", 1 << 40)):
        with (work / name).open("wb") as file:
            file.write(b"start")
            file.truncate(size)
    for style in ("gnu", "pax"):
        made = subprocess.run(
            ["tar", "-C", str(work), "-S", f"--format={style}", "-cf-", "small"], capture_output=True, check=True
        ).stdout
        place.unpack(made)
        small = (place.fs / "small").stat()
        assert small.st_size == 3 << 20 and small.st_blocks * 512 < 2 << 20
        bomb = subprocess.run(
            ["tar", "-C", str(work), "-S", f"--format={style}", "-cf-", "huge"], capture_output=True, check=True
        ).stdout
        with pytest.raises(InvalidInputError, match="images_max_mb"):
            place.unpack(bomb)


def test_headers_are_bounded(place: Place) -> None:
    long = entry("x")
    long[0].pax_headers = {"comment": "y" * (5 << 20)}
    place.refuses(tar(long), "larger than 4 MiB")
    place.refuses(tar(entry("/".join("d" * 200))), "nested deeper")
    place.refuses(tar(entry("n" * 300)), "cannot be created here")


def test_a_header_can_not_lead_backwards(place: Place) -> None:
    head = bytearray(tar(entry("f", "x" * 600)))
    head[124:136] = b"\xff" * 12  # a size of minus one
    head[148:156] = b"        "
    head[148:156] = b"%06o\0 " % sum(head[:512])
    place.refuses(bytes(head), "backwards|images_max_mb|not a valid tar")


@pytest.mark.parametrize("cut", [700, 1100])
def test_what_ends_early_is_no_layer(place: Place, cut: int) -> None:
    place.refuses(tar(entry("f", "x" * 2000))[:cut], "truncated|not a valid tar")


def test_content_must_be_what_was_announced(place: Place) -> None:
    layer = tar(entry("f"))
    place.refuses(layer, "its digest differs", diff_id=sha256(b""))
    place.refuses(layer, "requested by", digest=sha256(b""))
    place.unpack(layer, digest=None)


@pytest.mark.parametrize(
    "start",
    [b"BZh91AY", b"\xfd7zXZ\x00", b"\x1f\x8bnonsense and more of it", b"\x28\xb5\x2f\xfdnonsense", b"neither" * 200],
)
def test_what_is_no_tar(place: Place, start: bytes) -> None:
    place.refuses(start, "is compressed with|not valid|not a valid tar|truncated")


def test_an_empty_layer_is_one(place: Place) -> None:
    assert place.unpack(bytes(1024))["entries"] == 0
    assert place.unpack(b"")["entries"] == 0


def test_zstandard(place: Place) -> None:
    layer = tar(entry("big", os.urandom(1 << 20) + bytes(3 << 20)), entry("f", "x"))
    packed = subprocess.run(["zstd", "-q", "-c"], input=layer, capture_output=True, check=True).stdout
    assert place.unpack(layer, packed)["entries"] == 2
    half = len(layer) // 2
    frames = b"".join(
        subprocess.run(["zstd", "-q", "-c"], input=part, capture_output=True, check=True).stdout
        for part in (layer[:half], layer[half:])
    )
    place.unpack(layer, frames)
    with pytest.raises(InvalidInputError, match="truncated"):
        place.unpack(layer, packed[: len(packed) // 2])
