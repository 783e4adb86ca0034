"""Test uploads and downloads: multipart, raw, compressed, in parts; with metadata, and by signed URL."""

from __future__ import annotations

import gzip
import os
import time

import httpx
import pytest
from e2b import InvalidArgumentException, Sandbox

from tests.harness.engine import Engine

from .conftest import DataPlane

WRITTEN = [{"name": "hello.txt", "path": "/home/user/hello.txt", "type": "file"}]


def test_multipart_with_a_path(sandbox: Sandbox, data_plane: DataPlane) -> None:
    response = data_plane(sandbox).post("/files", params={"path": "hello.txt"}, files={"file": ("ignored", b"content")})
    assert response.status_code == 200, response.text
    assert response.json() == WRITTEN
    assert sandbox.files.read("hello.txt") == "content"


def test_multipart_with_a_part_that_has_no_file_name(sandbox: Sandbox, data_plane: DataPlane) -> None:
    response = data_plane(sandbox).post("/files", params={"path": "hello.txt"}, files={"file": (None, b"from a form")})
    assert response.json() == WRITTEN
    assert sandbox.files.read("hello.txt") == "from a form"


def test_multipart_with_many_files(sandbox: Sandbox, data_plane: DataPlane) -> None:
    parts = [("file", (name, name.encode())) for name in ("/tmp/one.txt", "two.txt", "deep/three.txt")]
    paths = [item["path"] for item in data_plane(sandbox).post("/files", files=parts).json()]
    assert paths == ["/tmp/one.txt", "/home/user/two.txt", "/home/user/deep/three.txt"]
    assert sandbox.files.read("/tmp/one.txt") == "/tmp/one.txt"
    assert sandbox.files.read("deep/three.txt") == "deep/three.txt"


def test_multipart_with_content_that_looks_like_a_boundary(sandbox: Sandbox, data_plane: DataPlane) -> None:
    data = b"\r\n--x\r\n--\r\nContent-Disposition: form-data\r\n\r\n" * 5000 + os.urandom(100_000)
    response = data_plane(sandbox).post("/files", params={"path": "tricky.bin"}, files={"file": ("tricky.bin", data)})
    assert response.status_code == 200, response.text
    assert sandbox.files.read("tricky.bin", format="bytes") == data


@pytest.mark.parametrize(
    ("content", "content_type"),
    [
        (b"no border here", "multipart/form-data; boundary=x"),
        (b'--x\r\nContent-Disposition: form-data; name="file"\r\n\r\ncut off', "multipart/form-data; boundary=x"),
        (b"anything", "multipart/form-data"),
        (b"{}", "application/json"),
    ],
)
def test_malformed_uploads_are_refused(
    sandbox: Sandbox, data_plane: DataPlane, content: bytes, content_type: str
) -> None:
    response = data_plane(sandbox).post(
        "/files", params={"path": "x"}, content=content, headers={"Content-Type": content_type}
    )
    assert response.status_code in (400, 415), response.text
    assert response.json()["message"]


def test_raw_upload(sandbox: Sandbox, data_plane: DataPlane) -> None:
    raw = {"Content-Type": "application/octet-stream"}
    response = data_plane(sandbox).post("/files", params={"path": "hello.txt"}, content=b"raw\0bytes", headers=raw)
    assert response.json() == WRITTEN
    assert sandbox.files.read("hello.txt", format="bytes") == b"raw\0bytes"
    assert data_plane(sandbox).post("/files", content=b"where to?", headers=raw).status_code == 400


def test_the_sdk_uploads_chunks_and_octet_streams(sandbox: Sandbox) -> None:
    sandbox.files.write("chunks.bin", (bytes([number]) * 100_000 for number in range(20)))
    assert sandbox.files.get_info("chunks.bin").size == 2_000_000
    sandbox.files.write("octet.txt", "octets", use_octet_stream=True)
    assert sandbox.files.read("octet.txt") == "octets"


def test_compressed_upload_and_download(sandbox: Sandbox, data_plane: DataPlane) -> None:
    text = "compress me, " * 10_000
    assert sandbox.files.write("text.txt", text, gzip=True).path == "/home/user/text.txt"
    assert sandbox.files.read("text.txt") == text
    assert sandbox.files.read("text.txt", gzip=True) == text
    assert b"".join(sandbox.files.read("text.txt", format="stream", gzip=True)).decode() == text
    params = {"path": "text.txt"}
    with data_plane(sandbox).stream("GET", "/files", params=params, headers={"Accept-Encoding": "gzip"}) as response:
        assert response.headers["content-encoding"] == "gzip"
        assert gzip.decompress(b"".join(response.iter_raw())).decode() == text
    with data_plane(sandbox).stream(
        "GET", "/files", params=params, headers={"Accept-Encoding": "identity"}
    ) as response:
        assert "content-encoding" not in response.headers
        assert b"".join(response.iter_raw()).decode() == text


def test_unsupported_encodings_are_refused(sandbox: Sandbox, data_plane: DataPlane) -> None:
    sandbox.files.write("text.txt", "x")
    refused = data_plane(sandbox).get(
        "/files", params={"path": "text.txt"}, headers={"Accept-Encoding": "identity;q=0"}
    )
    assert refused.status_code == 406
    broken = {"Content-Type": "application/octet-stream", "Content-Encoding": "gzip"}
    response = data_plane(sandbox).post("/files", params={"path": "text.txt"}, content=b"not gzip", headers=broken)
    assert response.status_code == 400
    assert data_plane(sandbox).post(
        "/files", params={"path": "y"}, content=b"x", headers={**broken, "Content-Encoding": "lzma"}
    ).status_code in (400, 415)


@pytest.mark.not_in_gvisor("gVisor has no extended attributes")
def test_metadata_of_files(sandbox: Sandbox) -> None:
    metadata = {"author": "mish", "purpose": "upload"}
    assert sandbox.files.write("a.txt", "x", metadata=metadata).metadata == metadata
    assert sandbox.files.write("b.txt", "x", metadata=metadata, use_octet_stream=True).metadata == metadata
    assert sandbox.files.get_info("a.txt").metadata == metadata
    assert sandbox.files.rename("b.txt", "c.txt").metadata == metadata
    assert {entry.name: entry.metadata for entry in sandbox.files.list(".")}["c.txt"] == metadata
    assert sandbox.files.write("a.txt", "again").metadata is None
    assert sandbox.files.get_info("a.txt").metadata is None
    two = [{"path": "d", "data": "1"}, {"path": "e", "data": "2"}]
    for info in sandbox.files.write_files(two, metadata={"Tag": "x"}):  # type: ignore[arg-type]
        assert sandbox.files.get_info(info.path).metadata == {"tag": "x"}
    sandbox.commands.run("python3 -c \"import os; os.setxattr('a.txt', 'user.e2b.by', b'hand')\"")
    assert sandbox.files.get_info("a.txt").metadata == {"by": "hand"}
    with pytest.raises(InvalidArgumentException):
        sandbox.files.write("bad", "x", metadata={"bad key": "x"})


def test_compose_joins_parts(sandbox: Sandbox, data_plane: DataPlane) -> None:
    for number in range(3):
        sandbox.files.write(f"part{number}", f"<{number}>")
    body = {"source_paths": ["part0", "part1", "part2"], "destination": "hello.txt"}
    response = data_plane(sandbox).post("/files/compose", json=body)
    assert response.status_code == 200, response.text
    assert response.json()["path"] == "/home/user/hello.txt"
    assert sandbox.files.read("hello.txt") == "<0><1><2>"
    assert not sandbox.files.exists("part0"), "the parts must be removed"


def test_invalid_compose_requests_are_refused(sandbox: Sandbox, data_plane: DataPlane) -> None:
    agent = data_plane(sandbox)
    assert agent.post("/files/compose", json={"source_paths": [], "destination": "x"}).status_code == 400
    assert agent.post("/files/compose", json={"source_paths": ["gone"], "destination": "x"}).status_code == 404
    assert agent.post("/files/compose", content=b"{").status_code == 400
    assert not sandbox.files.exists("x")


def test_signed_urls_for_download_and_upload(sandbox: Sandbox) -> None:
    sandbox.files.write("note.txt", "signed")
    for address in (
        sandbox.download_url("note.txt"),
        sandbox.download_url("note.txt", user="user"),
        sandbox.download_url("/home/user/note.txt", use_signature_expiration=60),
    ):
        response = httpx.get(address)
        assert (response.status_code, response.text) == (200, "signed"), address
    upload = httpx.post(
        sandbox.upload_url("hello.txt", use_signature_expiration=60), files={"file": (None, b"uploaded")}
    )
    assert upload.json() == WRITTEN
    assert sandbox.files.read("hello.txt") == "uploaded"
    root = httpx.post(sandbox.upload_url("hello.txt", user="root"), files={"file": (None, b"x")})
    assert root.json()[0]["path"] == "/root/hello.txt"


def test_invalid_signatures_are_refused(sandbox: Sandbox, data_plane: DataPlane, engine: Engine) -> None:
    sandbox.files.write("note.txt", "signed")
    expired = httpx.get(sandbox.download_url("note.txt", use_signature_expiration=-120))
    assert expired.status_code == 401
    assert expired.json() == {"code": 401, "message": "signature is already expired"}
    anonymous = data_plane(sandbox, token=None)
    valid = dict(httpx.URL(sandbox.download_url("note.txt")).params)
    assert anonymous.get("/files", params=valid).text == "signed"
    other_expiration = {**valid, "signature_expiration": str(int(time.time()) + 60)}
    other_path = {**valid, "path": "other.txt"}
    forged_signature = {**valid, "signature": valid["signature"][:-2] + "AA"}
    for parameters in (other_expiration, other_path, forged_signature):
        response = anonymous.get("/files", params=parameters)
        assert response.status_code == 401, parameters
        assert response.json() == {"code": 401, "message": "invalid signature"}
        assert httpx.get(f"{engine.url}/files", params=parameters).status_code == 401
    read_only = httpx.post(sandbox.download_url("note.txt"), files={"file": (None, b"overwritten")})
    assert read_only.status_code == 401
    assert sandbox.files.read("note.txt") == "signed"


def test_upload_and_download_a_large_file(sandbox: Sandbox) -> None:
    data = os.urandom(30_000_000)
    sandbox.files.write("large.bin", data)
    assert sandbox.files.read("large.bin", format="bytes") == data
