"""The ways a file comes in and out: multipart, raw, compressed, in parts; with metadata, by signed address."""

from __future__ import annotations

import gzip
import os
import time

import httpx
import pytest
from e2b import InvalidArgumentException, Sandbox

from .conftest import Plane
from .engine import Engine

WRITTEN = [{"name": "hello.txt", "path": "/home/user/hello.txt", "type": "file"}]


def test_multipart_with_a_path(sandbox: Sandbox, plane: Plane) -> None:
    answer = plane(sandbox).post("/files", params={"path": "hello.txt"}, files={"file": ("ignored", b"content")})
    assert answer.status_code == 200, answer.text
    assert answer.json() == WRITTEN
    assert sandbox.files.read("hello.txt") == "content"


def test_multipart_with_a_part_that_has_no_file_name(sandbox: Sandbox, plane: Plane) -> None:
    answer = plane(sandbox).post("/files", params={"path": "hello.txt"}, files={"file": (None, b"from a form")})
    assert answer.json() == WRITTEN
    assert sandbox.files.read("hello.txt") == "from a form"


def test_multipart_with_many_files(sandbox: Sandbox, plane: Plane) -> None:
    parts = [("file", (name, name.encode())) for name in ("/tmp/one.txt", "two.txt", "deep/three.txt")]
    paths = [item["path"] for item in plane(sandbox).post("/files", files=parts).json()]
    assert paths == ["/tmp/one.txt", "/home/user/two.txt", "/home/user/deep/three.txt"]
    assert sandbox.files.read("/tmp/one.txt") == "/tmp/one.txt"
    assert sandbox.files.read("deep/three.txt") == "deep/three.txt"


def test_multipart_that_looks_like_its_own_border(sandbox: Sandbox, plane: Plane) -> None:
    data = b"\r\n--x\r\n--\r\nContent-Disposition: form-data\r\n\r\n" * 5000 + os.urandom(100_000)
    answer = plane(sandbox).post("/files", params={"path": "tricky.bin"}, files={"file": ("tricky.bin", data)})
    assert answer.status_code == 200, answer.text
    assert sandbox.files.read("tricky.bin", format="bytes") == data


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"no border here", "multipart/form-data; boundary=x"),
        (b'--x\r\nContent-Disposition: form-data; name="file"\r\n\r\ncut off', "multipart/form-data; boundary=x"),
        (b"anything", "multipart/form-data"),
        (b"{}", "application/json"),
    ],
)
def test_broken_uploads(sandbox: Sandbox, plane: Plane, content: bytes, kind: str) -> None:
    answer = plane(sandbox).post("/files", params={"path": "x"}, content=content, headers={"Content-Type": kind})
    assert answer.status_code in (400, 415), answer.text
    assert answer.json()["message"]


def test_raw(sandbox: Sandbox, plane: Plane) -> None:
    raw = {"Content-Type": "application/octet-stream"}
    answer = plane(sandbox).post("/files", params={"path": "hello.txt"}, content=b"raw\0bytes", headers=raw)
    assert answer.json() == WRITTEN
    assert sandbox.files.read("hello.txt", format="bytes") == b"raw\0bytes"
    assert plane(sandbox).post("/files", content=b"where to?", headers=raw).status_code == 400


def test_sdk_streams_what_it_is_given(sandbox: Sandbox) -> None:
    sandbox.files.write("chunks.bin", (bytes([number]) * 100_000 for number in range(20)))
    assert sandbox.files.get_info("chunks.bin").size == 2_000_000
    sandbox.files.write("octet.txt", "octets", use_octet_stream=True)
    assert sandbox.files.read("octet.txt") == "octets"


def test_compressed_up_and_down(sandbox: Sandbox, plane: Plane) -> None:
    text = "compress me, " * 10_000
    assert sandbox.files.write("text.txt", text, gzip=True).path == "/home/user/text.txt"
    assert sandbox.files.read("text.txt") == text
    assert sandbox.files.read("text.txt", gzip=True) == text
    assert b"".join(sandbox.files.read("text.txt", format="stream", gzip=True)).decode() == text
    where = {"path": "text.txt"}
    with plane(sandbox).stream("GET", "/files", params=where, headers={"Accept-Encoding": "gzip"}) as answer:
        assert answer.headers["content-encoding"] == "gzip"
        assert gzip.decompress(b"".join(answer.iter_raw())).decode() == text
    with plane(sandbox).stream("GET", "/files", params=where, headers={"Accept-Encoding": "identity"}) as answer:
        assert "content-encoding" not in answer.headers
        assert b"".join(answer.iter_raw()).decode() == text


def test_encodings_nobody_has(sandbox: Sandbox, plane: Plane) -> None:
    sandbox.files.write("text.txt", "x")
    refused = plane(sandbox).get("/files", params={"path": "text.txt"}, headers={"Accept-Encoding": "identity;q=0"})
    assert refused.status_code == 406
    broken = {"Content-Type": "application/octet-stream", "Content-Encoding": "gzip"}
    answer = plane(sandbox).post("/files", params={"path": "text.txt"}, content=b"not gzip", headers=broken)
    assert answer.status_code == 400
    assert plane(sandbox).post(
        "/files", params={"path": "y"}, content=b"x", headers={**broken, "Content-Encoding": "lzma"}
    ).status_code in (400, 415)


def test_metadata(sandbox: Sandbox) -> None:
    given = {"author": "mish", "purpose": "upload"}
    assert sandbox.files.write("a.txt", "x", metadata=given).metadata == given
    assert sandbox.files.write("b.txt", "x", metadata=given, use_octet_stream=True).metadata == given
    assert sandbox.files.get_info("a.txt").metadata == given
    assert sandbox.files.rename("b.txt", "c.txt").metadata == given
    assert {entry.name: entry.metadata for entry in sandbox.files.list(".")}["c.txt"] == given
    assert sandbox.files.write("a.txt", "again").metadata is None
    assert sandbox.files.get_info("a.txt").metadata is None
    two = [{"path": "d", "data": "1"}, {"path": "e", "data": "2"}]
    for info in sandbox.files.write_files(two, metadata={"Tag": "x"}):  # type: ignore[arg-type]
        assert sandbox.files.get_info(info.path).metadata == {"tag": "x"}
    sandbox.commands.run("python3 -c \"import os; os.setxattr('a.txt', 'user.e2b.by', b'hand')\"")
    assert sandbox.files.get_info("a.txt").metadata == {"by": "hand"}
    with pytest.raises(InvalidArgumentException):
        sandbox.files.write("bad", "x", metadata={"bad key": "x"})


def test_compose(sandbox: Sandbox, plane: Plane) -> None:
    for number in range(3):
        sandbox.files.write(f"part{number}", f"<{number}>")
    body = {"source_paths": ["part0", "part1", "part2"], "destination": "hello.txt"}
    answer = plane(sandbox).post("/files/compose", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["path"] == "/home/user/hello.txt"
    assert sandbox.files.read("hello.txt") == "<0><1><2>"
    assert not sandbox.files.exists("part0"), "the parts are used up"


def test_compose_of_nothing(sandbox: Sandbox, plane: Plane) -> None:
    agent = plane(sandbox)
    assert agent.post("/files/compose", json={"source_paths": [], "destination": "x"}).status_code == 400
    assert agent.post("/files/compose", json={"source_paths": ["gone"], "destination": "x"}).status_code == 404
    assert agent.post("/files/compose", content=b"{").status_code == 400
    assert not sandbox.files.exists("x")


def test_signed_addresses(sandbox: Sandbox) -> None:
    sandbox.files.write("note.txt", "signed")
    for address in (
        sandbox.download_url("note.txt"),
        sandbox.download_url("note.txt", user="user"),
        sandbox.download_url("/home/user/note.txt", use_signature_expiration=60),
    ):
        answer = httpx.get(address)
        assert (answer.status_code, answer.text) == (200, "signed"), address
    put = httpx.post(sandbox.upload_url("hello.txt", use_signature_expiration=60), files={"file": (None, b"uploaded")})
    assert put.json() == WRITTEN
    assert sandbox.files.read("hello.txt") == "uploaded"
    root = httpx.post(sandbox.upload_url("hello.txt", user="root"), files={"file": (None, b"x")})
    assert root.json()[0]["path"] == "/root/hello.txt"


def test_signatures_that_do_not_hold(sandbox: Sandbox, plane: Plane, engine: Engine) -> None:
    sandbox.files.write("note.txt", "signed")
    expired = httpx.get(sandbox.download_url("note.txt", use_signature_expiration=-120))
    assert expired.status_code == 401
    assert expired.json() == {"code": 401, "message": "signature is already expired"}
    anonymous = plane(sandbox, token=None)
    good = dict(httpx.URL(sandbox.download_url("note.txt")).params)
    assert anonymous.get("/files", params=good).text == "signed"
    later = {**good, "signature_expiration": str(int(time.time()) + 60)}
    other = {**good, "path": "other.txt"}
    forged = {**good, "signature": good["signature"][:-2] + "AA"}
    for parameters in (later, other, forged):
        answer = anonymous.get("/files", params=parameters)
        assert answer.status_code == 401, parameters
        assert answer.json() == {"code": 401, "message": "invalid signature"}
        assert httpx.get(f"{engine.url}/files", params=parameters).status_code == 401
    read_only = httpx.post(sandbox.download_url("note.txt"), files={"file": (None, b"overwritten")})
    assert read_only.status_code == 401
    assert sandbox.files.read("note.txt") == "signed"


def test_large_file_both_ways(sandbox: Sandbox) -> None:
    data = os.urandom(30_000_000)
    sandbox.files.write("large.bin", data)
    assert sandbox.files.read("large.bin", format="bytes") == data
