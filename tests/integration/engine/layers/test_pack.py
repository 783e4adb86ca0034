"""Layers are packed and unpacked exactly, and what an attacker has packed can't do anything."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import stat
import subprocess
import tarfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import zstandard

from sandyard.engine.images import child
from sandyard.engine.images.unpack import UnpackRequest
from sandyard.engine.layers.pack import PackRequest
from sandyard.kit.errors import InvalidInputError, NoSpaceError
from tests.images.image_files import entry, folder, hard_link, link, sha256, tar
from tests.integration.engine.layers import trees

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="owners and whiteouts need root")

LIMITS: dict[str, int] = {"max_bytes": 256 << 20, "max_entries": 10_000, "reserve_bytes": 0}


def pack(source: Path, target: Path, *, rootless: bool = False, **limits: int) -> dict[str, Any]:
    request = PackRequest(str(source), rootless, **(LIMITS | limits))
    with target.open("wb") as file:
        return asyncio.run(
            child.run_process("pack", asdict(request), "The layer", file.fileno(), package="sandyard.engine.layers")
        )


def unpack(blob: Path, target: Path, digest: str, diff_id: str, **limits: int) -> dict[str, Any]:
    target.mkdir()
    request = UnpackRequest(
        str(target),
        0,
        blob.stat().st_size,
        digest,
        diff_id,
        **(LIMITS | limits),
        exact=True,  # type: ignore[arg-type]
    )
    with blob.open("rb") as file:
        return asyncio.run(child.run_process("unpack", asdict(request), "The layer", file.fileno()))


def unpack_tar(path: Path, content: bytes, **limits: int) -> dict[str, Any]:
    blob = path / "blob"
    blob.write_bytes(zstandard.compress(content))
    return unpack(blob, path / "fs", sha256(blob.read_bytes()), sha256(content), **limits)


def test_a_layer_is_the_same_after_packing_and_unpacking(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    trees.fill(source)
    report = pack(source, tmp_path / "blob")
    blob = (tmp_path / "blob").read_bytes()
    assert report["digest"] == sha256(blob) and report["size"] == len(blob)
    assert report["diff_id"] == sha256(zstandard.ZstdDecompressor().decompressobj().decompress(blob))
    unpacked = unpack(tmp_path / "blob", tmp_path / "target", report["digest"], report["diff_id"])
    expected, actual = trees.describe(source), trees.describe(tmp_path / "target")
    assert {name: actual.get(name) for name in expected} == expected
    assert actual.keys() == expected.keys()
    assert unpacked["entries"] == report["entries"]
    assert (tmp_path / "target/sparse").stat().st_blocks < 1000
    assert stat.S_ISCHR((tmp_path / "target/etc/removed").lstat().st_mode)
    assert "trusted.overlay.origin" not in os.listxattr(tmp_path / "target/copied")
    assert pack(tmp_path / "target", tmp_path / "again") == report, "the same layer gives the same file"


def test_gnu_tar_reads_a_packed_layer(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    trees.fill(source)
    pack(source, tmp_path / "blob")
    (tmp_path / "target").mkdir()
    command = ["tar", "--zstd", "--xattrs", "--xattrs-include=*", "--numeric-owner", "-xpf", tmp_path / "blob"]
    subprocess.run([*command, "-C", tmp_path / "target"], check=True, stderr=subprocess.PIPE)
    expected, actual = trees.describe(source), trees.describe(tmp_path / "target")
    for name in ("program", "etc/shadow", "opaque", "renamed", "sparse", "sparse-start", "hard links", "etc/removed"):
        assert actual[name] == expected[name], name


def test_a_layer_made_without_root_works_with_root(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "opaque").mkdir(parents=True)
    for name in ("opaque", "origin"):
        os.setxattr(source / "opaque", f"user.overlay.{name}", b"y")
    report = pack(source, tmp_path / "blob", rootless=True)
    unpack(tmp_path / "blob", tmp_path / "target", report["digest"], report["diff_id"])
    assert os.listxattr(tmp_path / "target/opaque") == ["trusted.overlay.opaque"]


def test_what_cannot_be_kept_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "metacopy").touch()
    os.setxattr(source / "metacopy", "trusted.overlay.metacopy", b"")
    with pytest.raises(InvalidInputError, match=r"metacopy.*cannot be packed"):
        pack(source, tmp_path / "blob")
    (source / "metacopy").unlink()
    os.mknod(source / "null", stat.S_IFCHR, os.makedev(1, 3))
    with pytest.raises(InvalidInputError, match="device node"):
        pack(source, tmp_path / "blob")
    (source / "null").unlink()
    (source / "large").write_bytes(bytes(3 << 20))
    with pytest.raises(InvalidInputError, match=r"larger than the 2 MiB .*layer_max_mb"):
        pack(source, tmp_path / "blob", max_bytes=2 << 20)
    with pytest.raises(InvalidInputError, match=r"more files than the 1 .*layer_max_files"):
        pack(source, tmp_path / "blob", max_entries=1)
    with pytest.raises(NoSpaceError, match="disk_reserve_mb"):
        pack(source, tmp_path / "blob", reserve_bytes=1 << 60)


def test_packing_does_not_follow_links(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("outside")
    source = tmp_path / "source"
    source.mkdir()
    (source / "file").symlink_to(tmp_path / "secret")
    (source / "folder").symlink_to(tmp_path)
    pack(source, tmp_path / "blob")
    content = zstandard.ZstdDecompressor().decompressobj().decompress((tmp_path / "blob").read_bytes())
    with tarfile.open(fileobj=io.BytesIO(content)) as found:
        assert [member.issym() for member in found] == [False, True, True]
    assert b"outside" not in content


@pytest.mark.parametrize(
    ("layer", "match"),
    [
        (tar(entry("../outside", "x")), "leads out"),
        (tar(entry("a/../../outside", "x")), "leads out"),
        (tar(hard_link("passwd", "/../../../etc/passwd")), "leads out"),
        (tar(hard_link("passwd", "/etc/passwd")), "does not contain"),
        (tar(entry("null", kind=tarfile.CHRTYPE, devmajor=1, devminor=3)), "device node"),
        (tar(entry("disk", kind=tarfile.BLKTYPE)), "device node"),
        (tar(entry("f", "x", pax_headers={"SCHILY.xattr.trusted.overlay.metacopy": ""})), "not a directory"),
        (tar(folder("d/", pax_headers={"SCHILY.xattr.trusted.overlay.metacopy": ""})), "does not know"),
        (tar(folder("d/", pax_headers={"SCHILY.xattr.trusted.overlay.redirect": "/a/../b"})), "does not know"),
        (tar(folder("d/", pax_headers={"SCHILY.xattr.trusted.overlay.redirect": "a/b"})), "does not know"),
        (tar(entry("f", "x", pax_headers={"mtime": "nan"})), "not a number|not a valid tar"),
        (tar(folder("/".join("d" * 2100))), "deeper"),
        (b"\1" * 2048, "not a valid tar"),
    ],
)
def test_a_hostile_layer_is_refused(tmp_path: Path, layer: bytes, match: str) -> None:
    with pytest.raises(InvalidInputError, match=match):
        unpack_tar(tmp_path, layer)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["blob", "fs"]


def test_absolute_names_and_links_stay_inside(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("outside")
    layer = tar(
        *(entry("/etc/evil", "x"), link("up", "../.."), entry("up/secret", "y")),
        *(link("away", str(tmp_path)), folder("away/"), entry("away/secret", "z")),
    )
    unpack_tar(tmp_path, layer)
    assert (tmp_path / "fs/etc/evil").read_text() == "x"
    assert (tmp_path / "fs/secret").read_text() == "y"
    assert (tmp_path / "fs/away/secret").read_text() == "z"
    assert (tmp_path / "secret").read_text() == "outside"
    assert not Path("/etc/evil").exists()


def test_limits_end_an_archive_that_grows(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"MiB that are left for snapshots \(setting layer_max_mb\)"):
        unpack_tar(tmp_path, tar(entry("zeros", bytes(8 << 20))), max_bytes=1 << 20)
    (tmp_path / "many").mkdir()
    with pytest.raises(InvalidInputError, match="layer_max_files"):
        unpack_tar(tmp_path / "many", tar(*(entry(f"f{number}") for number in range(20))), max_entries=10)
    (tmp_path / "full").mkdir()
    with pytest.raises(NoSpaceError):
        unpack_tar(tmp_path / "full", tar(entry("f", "x")), reserve_bytes=1 << 60)


def test_a_sparse_file_with_wrong_parts_is_refused(tmp_path: Path) -> None:
    for number, places in enumerate(("2\n10\n5\n3\n5\n", "1\n0\n600\n", "1\n-1\n5\n", "9\n")):
        path = tmp_path / str(number)
        path.mkdir()
        sparse = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "f", "GNU.sparse.realsize": "20"}
        with pytest.raises(InvalidInputError):
            unpack_tar(path, tar(entry("f", places.encode().ljust(512, b"\0") + bytes(512), pax_headers=sparse)))


def test_a_changed_blob_is_noticed(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "file").write_bytes(os.urandom(100_000))
    report = pack(source, tmp_path / "blob")
    content = bytearray((tmp_path / "blob").read_bytes())
    content[50_000] ^= 1
    (tmp_path / "blob").write_bytes(content)
    with pytest.raises(InvalidInputError, match=r"does not match the digest|not valid Zstandard data|digest differs"):
        unpack(tmp_path / "blob", tmp_path / "one", report["digest"], report["diff_id"])
    actual = f"sha256:{hashlib.sha256(content).hexdigest()}"
    with pytest.raises(InvalidInputError):
        unpack(tmp_path / "blob", tmp_path / "two", actual, report["diff_id"])
