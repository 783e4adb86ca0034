"""Directories as tar streams. Archives from a sandbox are not trusted."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandyard.cli.errors import CommandError
from sandyard.cli.sandboxes import archive


def pieces(data: bytes, size: int = 777) -> Iterator[bytes]:
    return iter([data[at : at + size] for at in range(0, len(data), size)])


def test_a_directory_is_packed_and_unpacked(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "a" / "empty").mkdir(parents=True)
    (source / "a" / "file").write_bytes(os.urandom(300_000))
    (source / "link").symlink_to("a/file")
    os.mkfifo(source / "pipe")
    data = b"".join(archive.pack(source))
    assert abs(len(data) - archive.estimate_size(source)) <= archive.CHUNK
    archive.unpack(pieces(data), tmp_path / "target")
    assert (tmp_path / "target" / "link").read_bytes() == (source / "a" / "file").read_bytes()
    assert (tmp_path / "target" / "a" / "empty").is_dir()
    assert not (tmp_path / "target" / "pipe").exists()


def test_closing_the_stream_ends_the_writer(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(3_000_000))
    stream = archive.pack(tmp_path)
    next(stream)
    stream.close()  # type: ignore[attr-defined]


def test_a_missing_directory_raises(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        list(archive.pack(tmp_path / "nothing"))


@pytest.mark.parametrize("name", ["../outside", "/etc/outside", "a/../../outside"])
def test_nothing_is_unpacked_outside_the_target(name: str, tmp_path: Path) -> None:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        entry = tarfile.TarInfo(name)
        entry.size = 2
        tar.addfile(entry, io.BytesIO(b"no"))
    target = tmp_path / "target"
    try:
        archive.unpack(pieces(made.getvalue()), target)
    except CommandError as error:
        assert "outside" in error.message
    assert not (tmp_path / "outside").exists()
    assert not Path("/etc/outside").exists()


def test_invalid_data_is_reported(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="did not send a valid tar archive"):
        archive.unpack(pieces(b"hello" * 1000), tmp_path / "target")
