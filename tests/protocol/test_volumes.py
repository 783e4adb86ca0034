"""Test volumes through the SDKs: creation, content and deletion. Mounts are in test_volume_mounts.py."""

from __future__ import annotations

import asyncio
import datetime
import io
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from e2b import AsyncVolume, Volume
from e2b.exceptions import (
    AuthenticationException,
    NotFoundException,
    VolumeException,
    VolumeNotFoundException,
    VolumePathNotFoundException,
)

from tests.harness.engine import Engine

from .waiting import until

BIG = 48 << 20


@pytest.fixture
def volume(unique: str) -> Iterator[Volume]:
    created = Volume.create(f"test-{unique}")
    yield created
    Volume.destroy(created.volume_id)


@pytest.fixture
async def async_volume(unique: str) -> AsyncIterator[AsyncVolume]:
    created = await AsyncVolume.create(f"async-{unique}")
    yield created
    await AsyncVolume.destroy(created.volume_id)


# Volumes ---------------------------------------------------------------------------------------------------


def test_create_connect_and_destroy(unique: str, api: httpx.Client) -> None:
    created = Volume.create(unique)
    assert created.name == unique
    assert created.token
    info = Volume.get_info(created.volume_id)
    assert (info.volume_id, info.name, info.token) == (created.volume_id, unique, created.token)
    assert unique in [item.name for item in Volume.list()]
    connected = Volume.connect(created.volume_id)
    created.write_file("/file", "it")
    assert connected.read_file("/file") == "it"
    with pytest.raises(VolumeException, match="already exists"):
        Volume.create(unique)
    assert api.post("/volumes", json={"name": unique}).status_code == 400
    assert Volume.destroy(created.volume_id) is True
    assert Volume.destroy(created.volume_id) is False
    assert unique not in [item.name for item in Volume.list()]
    with pytest.raises(VolumeNotFoundException):
        Volume.get_info(created.volume_id)
    with pytest.raises(VolumePathNotFoundException):
        created.read_file("/file")
    recreated = Volume.create(unique)
    assert recreated.exists("/file") is False
    Volume.destroy(recreated.volume_id)


@pytest.mark.parametrize("body", [{}, {"name": ""}, {"name": "a b"}, {"name": "a/b"}, {"name": 3}, {"name": "x" * 200}])
def test_invalid_names_are_refused(api: httpx.Client, body: dict[str, Any]) -> None:
    response = api.post("/volumes", json=body)
    assert response.status_code == 400
    assert response.json()["message"]


def test_content_is_refused_without_the_token_of_the_volume(volume: Volume, engine: Engine, unique: str) -> None:
    other = Volume.create(f"other-{unique}")
    try:
        for token in (None, "wrong", other.token, engine.key):
            headers = {} if token is None else {"Authorization": f"Bearer {token}"}
            path = f"{engine.url}/volumecontent/{volume.volume_id}/dir"
            assert httpx.get(path, params={"path": "/"}, headers=headers).status_code == 401
        with pytest.raises(AuthenticationException):
            volume.list("/", token="wrong")
        assert httpx.get(f"{engine.url}/volumes", headers={"X-API-KEY": str(volume.token)}).status_code == 401
    finally:
        Volume.destroy(other.volume_id)


def test_the_client_uses_the_domain_of_the_engine(volume: Volume, engine: Engine) -> None:
    """Without a domain in the response, the SDK would send the token to E2B's servers."""
    assert volume._domain == f"localhost:{engine.port}"


# Content ------------------------------------------------------------------------------------------------------------------


def test_files_are_written_and_read_in_all_formats(volume: Volume) -> None:
    volume.write_file("/text", "Grüße\n")
    volume.write_file("bytes", bytes(range(256)))
    volume.write_file("/io", io.BytesIO(b"from a file"))
    volume.write_file("/text-io", io.StringIO("ünï"))
    volume.write_file("/empty", "")
    assert volume.read_file("/text") == "Grüße\n"
    assert volume.read_file("/bytes", format="bytes") == bytes(range(256))
    assert b"".join(volume.read_file("/io", format="stream")) == b"from a file"
    assert volume.read_file("/text-io") == "ünï"
    assert volume.read_file("/empty") == ""
    assert b"".join(volume.read_file("/empty", format="stream")) == b""


def test_large_files_are_streamed(volume: Volume) -> None:
    block = bytes(range(256)) * 4096

    class Source(io.RawIOBase):
        left = BIG

        def read(self, size: int = -1) -> bytes:
            piece = block[: min(self.left, len(block))]
            self.left -= len(piece)
            return piece

    assert volume.write_file("/big", Source()).size == BIG  # type: ignore[arg-type]
    received = 0
    for piece in volume.read_file("/big", format="stream"):
        assert piece == (block * 2)[received % len(block) :][: len(piece)]
        received += len(piece)
    assert received == BIG


def test_overwriting_needs_force(volume: Volume) -> None:
    volume.write_file("/file", "first")
    for force in (None, False):
        with pytest.raises(VolumeException, match="409"):
            volume.write_file("/file", "x" * (8 << 20), force=force)
    assert volume.read_file("/file") == "first"
    volume.write_file("/file", "second", force=True)
    assert volume.read_file("/file") == "second"
    with pytest.raises(VolumePathNotFoundException):
        volume.write_file("/no/such/folder", "x")
    volume.write_file("/some/new/folder/file", "x", force=True)
    assert volume.exists("/some/new/folder/file")
    with pytest.raises(VolumeException, match="directory"):
        volume.write_file("/some", "x", force=True)


def test_owner_and_mode_are_stored(volume: Volume, api: httpx.Client) -> None:
    written = volume.write_file("/file", "x", uid=12345, gid=54321, mode=0o600)
    assert (written.uid, written.gid, written.mode, written.type.value) == (12345, 54321, 0o600, "file")
    assert volume.write_file("/usual", "x").uid == 1000
    updated = volume.update_metadata("/file", uid=1001, gid=1001, mode=0o755)
    assert (updated.uid, updated.gid, updated.mode, updated.path) == (1001, 1001, 0o755, "/file")
    assert volume.update_metadata("/file", gid=7).uid == 1001
    created = volume.make_dir("/folder", uid=1000, gid=1000, mode=0o700)
    assert (created.type.value, created.mode) == ("directory", 0o700)
    with pytest.raises(VolumePathNotFoundException):
        volume.update_metadata("/none", mode=0o600)
    for options in ({"uid": 70000}, {"mode": 0o10000}, {"gid": -1}):
        with pytest.raises(VolumeException, match="400"):
            volume.update_metadata("/file", **options)
        with pytest.raises(VolumeException, match="400"):
            volume.write_file("/other", "x", **options)


def test_info_of_a_file(volume: Volume) -> None:
    before = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=5)
    volume.write_file("/info.txt", "four")
    info = volume.get_info("/info.txt")
    assert (info.name, info.type.value, info.path, info.size, info.target) == (
        "info.txt",
        "file",
        "/info.txt",
        4,
        None,
    )
    assert all(before < moment for moment in (info.atime, info.mtime, info.ctime))
    assert volume.exists("/info.txt") is True
    assert volume.exists("/none") is False
    assert volume.exists("/info.txt/below") is False
    with pytest.raises(NotFoundException):
        volume.get_info("/none")


def test_directories_are_created_listed_and_removed(volume: Volume) -> None:
    volume.make_dir("/folder")
    for force in (None, False):
        with pytest.raises(VolumeException, match="409"):
            volume.make_dir("/folder", force=force)
    assert volume.make_dir("/folder", force=True).path == "/folder"
    with pytest.raises(VolumePathNotFoundException):
        volume.make_dir("/a/b/c")
    volume.make_dir("/a/b/c", force=True)
    volume.write_file("/a/file", "x")
    assert [entry.path for entry in volume.list("/")] == ["/a", "/folder"]
    assert [entry.path for entry in volume.list("/a", depth=2)] == ["/a/b", "/a/b/c", "/a/file"]
    with pytest.raises(VolumePathNotFoundException):
        volume.list("/none")
    with pytest.raises(VolumeException, match="depth"):
        volume.list("/", depth=11)
    with pytest.raises(VolumeException, match="400"):
        volume.list("/a/file")
    with pytest.raises(VolumeException, match="400"):
        volume.read_file("/a")
    volume.remove("/a/file")
    volume.remove("/a")
    assert volume.exists("/a") is False
    with pytest.raises(VolumePathNotFoundException):
        volume.remove("/a")
    with pytest.raises(VolumeException, match="400"):
        volume.remove("/")


@pytest.mark.parametrize("name", ["new\nline", "ünï → code", "100%25 & more?#", "+ space +", "..."])
def test_file_names_with_special_characters(volume: Volume, name: str) -> None:
    volume.write_file(f"/{name}", name)
    assert volume.read_file(f"/{name}") == name
    assert [entry.name for entry in volume.list("/")] == [name]
    volume.remove(f"/{name}")


def test_invalid_paths_are_refused(volume: Volume) -> None:
    for path in ("", "nul\0byte"):
        with pytest.raises(VolumeException, match="400"):
            volume.get_info(path)
    assert volume.get_info("../../../..").path == "/"


def test_an_aborted_upload_leaves_no_file(volume: Volume, engine: Engine) -> None:
    def broken_upload() -> Iterator[bytes]:
        yield b"x" * 100_000
        raise RuntimeError("gone")

    with pytest.raises(RuntimeError, match="gone"):
        httpx.put(
            f"{engine.url}/volumecontent/{volume.volume_id}/file",
            params={"path": "/half"},
            headers={"Authorization": f"Bearer {volume.token}"},
            content=broken_upload(),
        )
    time.sleep(0.3)
    until(lambda: volume.list("/") == [])


async def test_async_client(async_volume: AsyncVolume) -> None:
    volume = async_volume
    await volume.make_dir("/a/b", force=True)
    await volume.write_file("/a/b/file", "hello", uid=1000, mode=0o640)
    await volume.write_file("/io", io.BytesIO(b"io"))
    assert await volume.read_file("/a/b/file") == "hello"
    assert await volume.read_file("/io", format="bytes") == b"io"
    assert b"".join([piece async for piece in await volume.read_file("/io", format="stream")]) == b"io"
    assert (await volume.get_info("/a/b/file")).mode == 0o640
    assert (await volume.update_metadata("/a", mode=0o711)).mode == 0o711
    assert [entry.path for entry in await volume.list("/", depth=3)] == ["/a", "/a/b", "/a/b/file", "/io"]
    with pytest.raises(VolumeException):
        await volume.write_file("/io", "x")
    with pytest.raises(NotFoundException):
        await volume.list("/none")
    assert await volume.exists("/none") is False
    await asyncio.gather(*(volume.write_file("/same", letter * 1000, force=True) for letter in "abcdefghijklmnopqrst"))
    assert len(set(await volume.read_file("/same"))) == 1
    await volume.remove("/a")
    assert sorted(entry.name for entry in await volume.list("/")) == ["io", "same"]
    assert (await AsyncVolume.connect(volume.volume_id)).name == volume.name
    assert volume.volume_id in [item.volume_id for item in await AsyncVolume.list()]
