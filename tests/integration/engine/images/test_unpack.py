"""Layers made by an attacker: whatever a layer contains, nothing outside its directory is touched, and the result is correct."""

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
from sandyard.engine.images.unpack import UnpackRequest
from sandyard.kit.errors import InvalidInputError, NoSpaceError
from tests.images.image_files import MTIME, entry, folder, hard_link, link, sha256, tar

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="owners and whiteouts need root")

CAPABILITY = struct.pack("<IIIII", 0x0200_0001, 1 << 13, 0, 0, 0)


class Unpacker:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.fs = path / "fs"
        self.fs.mkdir()
        (path / "secret").write_text("outside")

    def unpack(self, layer: bytes, blob: bytes | None = None, **changes: Any) -> dict[str, Any]:
        file = self.path / "blob"
        file.write_bytes(layer if blob is None else blob)
        request = {
            "target": str(self.fs),
            "offset": 0,
            "size": file.stat().st_size,
            "digest": sha256(file.read_bytes()),
            "diff_id": sha256(layer),
            "max_bytes": 64 << 20,
            "max_entries": 1000,
            "reserve_bytes": 0,
        }
        arguments = asdict(UnpackRequest(**{**request, **changes}))
        with file.open("rb") as source:
            return asyncio.run(child.run_process("unpack", arguments, "The layer", source.fileno()))

    def assert_rejected(self, layer: bytes, match: str, **changes: Any) -> None:
        with pytest.raises((InvalidInputError, NoSpaceError), match=match):
            self.unpack(layer, **changes)
        assert (self.path / "secret").read_text() == "outside"
        assert sorted(path.name for path in self.path.iterdir()) == ["blob", "fs", "secret"]


@pytest.fixture
def unpacker(tmp_path: Path) -> Unpacker:
    return Unpacker(tmp_path)


def test_files_get_owner_mode_and_attributes_from_the_layer(unpacker: Unpacker) -> None:
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
    result = unpacker.unpack(layer, gzip.compress(layer))
    fs = unpacker.fs
    assert result["entries"] == 9 and result["bytes"] == 6 and result["implied"] == []
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
def test_names_that_lead_outside_are_rejected(unpacker: Unpacker, name: str) -> None:
    unpacker.assert_rejected(tar(entry(name, "evil")), "leads out of it")
    unpacker.assert_rejected(tar(entry("f"), hard_link("g", name)), "leads out of it")


def test_links_do_not_lead_outside(unpacker: Unpacker) -> None:
    outside = str(unpacker.path)
    unpacker.unpack(
        tar(
            folder("in"),
            link("out", "../../.."),
            link("abs", outside),
            entry("in/f", "1"),
            link("in2", "/in"),
            entry("in2/g", "2"),
        )
    )
    assert (unpacker.fs / "in/g").read_text() == "2"
    unpacker.unpack(tar(link("out", "../.."), entry("out/secret", "inside")))
    assert (unpacker.fs / "secret").read_text() == "inside"
    (unpacker.fs / "secret").unlink()
    unpacker.assert_rejected(tar(link("abs", outside), entry("abs/secret", "evil")), "not a directory in it")


def test_a_file_is_not_written_through_a_link(unpacker: Unpacker) -> None:
    unpacker.unpack(tar(link("f", "../secret"), entry("f", "mine")))
    assert not (unpacker.fs / "f").is_symlink() and (unpacker.fs / "f").read_text() == "mine"
    assert (unpacker.path / "secret").read_text() == "outside"


def test_hard_links_to_files_outside_are_rejected(unpacker: Unpacker) -> None:
    unpacker.assert_rejected(
        tar(link("out", str(unpacker.path)), hard_link("stolen", "out/secret")), "does not contain|not a file"
    )
    unpacker.assert_rejected(tar(hard_link("x", "/etc/passwd")), "does not contain|not a file")
    unpacker.assert_rejected(tar(folder("d"), hard_link("x", "d")), "not a file in it")


def test_a_hard_link_to_a_symbolic_link_does_not_follow_it(unpacker: Unpacker) -> None:
    unpacker.unpack(tar(link("l", "../secret"), hard_link("m", "l"), hard_link("m", "m")))
    assert (unpacker.fs / "m").is_symlink()


def test_device_nodes_are_left_out(unpacker: Unpacker) -> None:
    result = unpacker.unpack(
        tar(
            entry("sda", kind=tarfile.BLKTYPE, devmajor=8),
            entry("zero", kind=tarfile.CHRTYPE, devmajor=1, devminor=5),
            entry("kept"),
        )
    )
    assert result["devices"] == 2 and [path.name for path in unpacker.fs.iterdir()] == ["kept"]


def test_whiteouts_become_overlay_whiteouts(unpacker: Unpacker) -> None:
    result = unpacker.unpack(
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
    gone = (unpacker.fs / "a/gone").lstat()
    assert stat.S_ISCHR(gone.st_mode) and gone.st_rdev == 0
    for name in ("b", "c", "d"):  # created again in the same layer: nothing below is visible
        assert os.getxattr(unpacker.fs / name, "trusted.overlay.opaque") == b"y"
    assert result["implied"] == ["d"] and not list(unpacker.fs.glob("**/.wh.*"))
    assert not result["opaque_root"]


def test_an_opaque_root_is_reported(unpacker: Unpacker) -> None:
    assert unpacker.unpack(tar(entry(".wh..wh..opq"), entry("f")))["opaque_root"] is True


@pytest.mark.parametrize("name", [".wh.", ".wh..", ".wh...", "a/.wh..."])
def test_whiteouts_without_a_name_are_rejected(unpacker: Unpacker, name: str) -> None:
    unpacker.assert_rejected(tar(entry(name)), "without a name")


def test_overlay_and_security_attributes_of_a_layer_are_ignored(unpacker: Unpacker) -> None:
    names = (
        "trusted.overlay.redirect",
        "trusted.overlay.metacopy",
        "user.overlay.opaque",
        "security.selinux",
        "system.posix_acl_access",
    )
    unpacker.unpack(tar(folder("d", pax_headers={f"SCHILY.xattr.{name}": "/etc" for name in names})))
    assert os.listxattr(unpacker.fs / "d") == []


def test_capabilities_of_another_user_namespace_are_converted(unpacker: Unpacker) -> None:
    raw = struct.pack("<IIIIII", 0x0300_0001, 1 << 13, 0, 0, 0, 77)
    unpacker.unpack(
        tar(entry("f", pax_headers={"SCHILY.xattr.security.capability": raw.decode("utf-8", "surrogateescape")}))
    )
    assert os.getxattr(unpacker.fs / "f", "security.capability") == CAPABILITY


def test_owners_out_of_range_become_nobody(unpacker: Unpacker) -> None:
    result = unpacker.unpack(tar(entry("f", uid=65536, gid=2**31), folder("d", uid=4_000_000)))
    assert result["strangers"] == 2
    assert {
        (unpacker.fs / "f").stat().st_uid,
        (unpacker.fs / "f").stat().st_gid,
        (unpacker.fs / "d").stat().st_uid,
    } == {65534}


def test_a_later_entry_replaces_an_earlier_one(unpacker: Unpacker) -> None:
    unpacker.unpack(
        tar(
            folder("a"),
            folder("a/b"),
            entry("a/b/c", "x"),
            entry("a", "now a file"),
            folder("e", 0o700),
            folder("e", 0o711),
        )
    )
    assert (unpacker.fs / "a").read_text() == "now a file"
    assert stat.S_IMODE((unpacker.fs / "e").stat().st_mode) == 0o711


def test_implied_directories_are_reported(unpacker: Unpacker) -> None:
    assert unpacker.unpack(tar(entry("a/b/c"), folder("a")))["implied"] == ["a/b"]


def test_size_limits_are_enforced(unpacker: Unpacker) -> None:
    zeros = tar(entry("f", bytes(2 << 20)))
    unpacker.assert_rejected(zeros, "images_max_mb", max_bytes=1 << 20)
    with pytest.raises(InvalidInputError, match="images_max_mb"):
        unpacker.unpack(zeros, gzip.compress(zeros), max_bytes=1 << 20)
    unpacker.assert_rejected(tar(*(entry(str(number)) for number in range(20))), "images_max_files", max_entries=10)
    unpacker.assert_rejected(tar(entry("f", "x")), "disk_reserve_mb", reserve_bytes=1 << 60)


def test_sparse_files_count_with_their_full_size(unpacker: Unpacker, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    for name, size in (("small", 3 << 20), ("huge", 1 << 40)):
        with (work / name).open("wb") as file:
            file.write(b"start")
            file.truncate(size)
    for style in ("gnu", "pax"):
        archive = subprocess.run(
            ["tar", "-C", str(work), "-S", f"--format={style}", "-cf-", "small"], capture_output=True, check=True
        ).stdout
        unpacker.unpack(archive)
        small = (unpacker.fs / "small").stat()
        assert small.st_size == 3 << 20 and small.st_blocks * 512 < 2 << 20
        bomb = subprocess.run(
            ["tar", "-C", str(work), "-S", f"--format={style}", "-cf-", "huge"], capture_output=True, check=True
        ).stdout
        with pytest.raises(InvalidInputError, match="images_max_mb"):
            unpacker.unpack(bomb)


def test_oversized_headers_and_names_are_rejected(unpacker: Unpacker) -> None:
    long = entry("x")
    long[0].pax_headers = {"comment": "y" * (5 << 20)}
    unpacker.assert_rejected(tar(long), "larger than 4 MiB")
    unpacker.assert_rejected(tar(entry("/".join("d" * 200))), "nested deeper")
    unpacker.assert_rejected(tar(entry("n" * 300)), "cannot be created here")


def test_a_negative_size_in_a_header_is_rejected(unpacker: Unpacker) -> None:
    head = bytearray(tar(entry("f", "x" * 600)))
    head[124:136] = b"\xff" * 12  # a size of minus one
    head[148:156] = b"        "
    head[148:156] = b"%06o\0 " % sum(head[:512])
    unpacker.assert_rejected(bytes(head), "backwards|images_max_mb|not a valid tar")


@pytest.mark.parametrize("length", [700, 1100])
def test_truncated_layers_are_rejected(unpacker: Unpacker, length: int) -> None:
    unpacker.assert_rejected(tar(entry("f", "x" * 2000))[:length], "truncated|not a valid tar")


def test_content_must_match_its_digests(unpacker: Unpacker) -> None:
    layer = tar(entry("f"))
    unpacker.assert_rejected(layer, "its digest differs", diff_id=sha256(b""))
    unpacker.assert_rejected(layer, "requested by", digest=sha256(b""))
    unpacker.unpack(layer, digest=None)


@pytest.mark.parametrize(
    "start",
    [b"BZh91AY", b"\xfd7zXZ\x00", b"\x1f\x8bnonsense and more of it", b"\x28\xb5\x2f\xfdnonsense", b"neither" * 200],
)
def test_data_that_is_not_a_tar_archive_is_rejected(unpacker: Unpacker, start: bytes) -> None:
    unpacker.assert_rejected(start, "is compressed with|not valid|not a valid tar|truncated")


def test_an_empty_layer_is_valid(unpacker: Unpacker) -> None:
    assert unpacker.unpack(bytes(1024))["entries"] == 0
    assert unpacker.unpack(b"")["entries"] == 0


def test_layers_compressed_with_zstandard_are_unpacked(unpacker: Unpacker) -> None:
    layer = tar(entry("big", os.urandom(1 << 20) + bytes(3 << 20)), entry("f", "x"))
    packed = subprocess.run(["zstd", "-q", "-c"], input=layer, capture_output=True, check=True).stdout
    assert unpacker.unpack(layer, packed)["entries"] == 2
    half = len(layer) // 2
    frames = b"".join(
        subprocess.run(["zstd", "-q", "-c"], input=part, capture_output=True, check=True).stdout
        for part in (layer[:half], layer[half:])
    )
    unpacker.unpack(layer, frames)
    with pytest.raises(InvalidInputError, match="truncated"):
        unpacker.unpack(layer, packed[: len(packed) // 2])
