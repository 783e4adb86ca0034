"""Uploads and downloads over plain HTTP."""

from __future__ import annotations

import gzip
import os
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.integration.engine.guest.client import Client, GuestAgent, Response

RAW = {"Content-Type": "application/octet-stream"}
BOUNDARY = "boundary-1234567890"


def upload(client: Client, path: str, data: bytes, headers: dict[str, str] | None = None) -> Response:
    return client.request("POST", f"/files?path={quote(path)}", data, {**RAW, **(headers or {})})


def form(*parts: tuple[str, str | None, bytes]) -> tuple[bytes, dict[str, str]]:
    """Return a multipart body of (field, filename, content) and its headers."""
    body = b""
    for field, filename, content in parts:
        name = "" if filename is None else f'; filename="{filename}"'
        body += (
            f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{field}"{name}\r\n\r\n'.encode() + content + b"\r\n"
        )
    return body + f"--{BOUNDARY}--\r\n".encode(), {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}


def encode_chunks(data: bytes, size: int) -> bytes:
    parts = [data[start : start + size] for start in range(0, len(data), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


@pytest.fixture
def payload() -> bytes:
    return os.urandom(3_000_001)


# uploads -------------------------------------------------------------------------------------------------------------


def test_a_raw_upload_creates_directories(client: Client, home: Path, payload: bytes) -> None:
    response = upload(client, "a/b/file.bin", payload)
    assert response.status == 200
    assert response.json == [{"path": "/home/user/a/b/file.bin", "name": "file.bin", "type": "file"}]
    target = home / "a/b/file.bin"
    assert target.read_bytes() == payload
    assert stat.S_IMODE(target.stat().st_mode) == 0o644
    assert stat.S_IMODE((home / "a").stat().st_mode) == 0o755


@pytest.mark.parametrize("size", [1, 100, 65536, 1_000_000])
def test_a_chunked_upload_is_complete(client: Client, home: Path, payload: bytes, size: int) -> None:
    data = payload[: 20_000 if size == 1 else None]
    headers = {"Transfer-Encoding": "chunked"}
    assert upload(client, "~/chunked", encode_chunks(data, size), headers).status == 200
    assert (home / "chunked").read_bytes() == data
    assert client.request("GET", "/health").status == 204


@pytest.mark.parametrize("garbage", [b"zz\r\nabc\r\n", b"\r\n\r\n", b"5" * 5000, b"3\r\nabcdef\r\n0\r\n\r\n"])
def test_malformed_chunks_are_rejected_and_leave_no_file(client: Client, home: Path, garbage: bytes) -> None:
    response = upload(client, "garbage", garbage, {"Transfer-Encoding": "chunked"})
    assert response.status == 400
    assert not (home / "garbage").exists()


def test_a_multipart_upload_can_have_its_path_in_the_query(client: Client, home: Path, payload: bytes) -> None:
    body, headers = form(("note", None, b"ignored"), ("file", "ignored.bin", payload))
    response = client.request("POST", "/files?path=/home/user/named.bin", body, headers)
    assert response.json == [{"path": "/home/user/named.bin", "name": "named.bin", "type": "file"}]
    assert (home / "named.bin").read_bytes() == payload


def test_a_multipart_upload_can_have_several_files(client: Client, home: Path) -> None:
    tricky = b"\r\n--boundary-123456789\r\n--\r\n" * 1000 + b"\r\n"
    files = {"one.txt": b"1", "/home/user/deep/two.txt": b"", "~/three.txt": tricky, "vier-\u00fc.txt": b"4"}
    body, headers = form(*(("file", name, content) for name, content in files.items()))
    response = client.request("POST", "/files?username=user", body, headers)
    assert [info["path"] for info in response.json] == [
        "/home/user/one.txt", "/home/user/deep/two.txt", "/home/user/three.txt", "/home/user/vier-\u00fc.txt",
    ]  # fmt: skip
    assert (home / "deep/two.txt").read_bytes() == b""
    assert (home / "three.txt").read_bytes() == tricky
    assert (home / "vier-\u00fc.txt").read_bytes() == b"4"


@pytest.mark.parametrize("size", range(1, 70, 3))
def test_a_boundary_may_be_split_anywhere(client: Client, home: Path, size: int) -> None:
    content = b"x" * 100 + b"\r\n--boundary-123456789" + b"y" * 50
    body, headers = form(("file", "cut", content), ("file", "cut2", b"\r\n"))
    response = client.request("POST", "/files", encode_chunks(body, size), {**headers, "Transfer-Encoding": "chunked"})
    assert response.status == 200
    assert (home / "cut").read_bytes() == content
    assert (home / "cut2").read_bytes() == b"\r\n"


def test_two_files_cannot_have_the_same_path(client: Client, home: Path) -> None:
    body, headers = form(("file", "same", b"first"), ("file", "./same", b"second"))
    response = client.request("POST", "/files", body, headers)
    assert response.status == 400
    assert "multiple files to the same path '/home/user/same'" in response.json["message"]
    assert (home / "same").read_bytes() == b"first"


@pytest.mark.parametrize("length", [10, 60, 150, 200])
def test_a_truncated_form_is_rejected(client: Client, home: Path, length: int) -> None:
    body, headers = form(("file", "trunc", b"z" * 100))
    response = client.request("POST", "/files", body[:length], headers)
    assert response.status == 400
    assert not (home / "trunc").exists()
    assert client.request("GET", "/health").status == 204


def test_many_gzip_members_are_one_file(client: Client, home: Path) -> None:
    packed = gzip.compress(b"x" * 20_000) * 60
    assert upload(client, "members", packed, {"Content-Encoding": "gzip"}).status == 200
    assert (home / "members").read_bytes() == b"x" * 20_000 * 60


def test_gzip_uploads_are_decompressed(client: Client, home: Path, payload: bytes) -> None:
    packed = gzip.compress(payload, 1) + gzip.compress(b"second member")
    assert upload(client, "unpacked", packed, {"Content-Encoding": "gzip"}).status == 200
    assert (home / "unpacked").read_bytes() == payload + b"second member"
    body, headers = form(("file", "in-form", payload))
    response = client.request("POST", "/files", gzip.compress(body, 1), {**headers, "Content-Encoding": "gzip"})
    assert response.status == 200
    assert (home / "in-form").read_bytes() == payload
    zeros = gzip.compress(bytes(50 << 20))
    assert upload(client, "zeros", zeros, {"Content-Encoding": "gzip"}).status == 200
    assert (home / "zeros").stat().st_size == 50 << 20


@pytest.mark.parametrize(
    "body",
    [b"not gzip at all", gzip.compress(b"x" * 1000)[:-9], gzip.compress(b"y") + b"trailing"],
    ids=["not gzip", "cut", "trailing"],
)
def test_a_broken_gzip_upload_leaves_no_file(client: Client, home: Path, body: bytes) -> None:
    assert upload(client, "broken", body, {"Content-Encoding": "gzip"}).status == 400
    assert not (home / "broken").exists()


def test_invalid_uploads_are_rejected(client: Client, home: Path) -> None:
    (home / "folder").mkdir()
    (home / "plain").write_text("x")
    os.mkfifo(home / "fifo")
    (home / "tty").symlink_to("/dev/tty")
    (home / "null").symlink_to("/dev/null")
    assert client.request("POST", "/files", b"x", RAW).status == 400
    assert client.request("POST", "/files?path=x", b"{}", {"Content-Type": "application/json"}).status == 400
    assert client.request("POST", "/files?path=x", b"{}", {"Content-Type": "multipart/form-data"}).status == 400
    assert client.request("POST", "/files?path=x&username=nobody-here", b"", RAW).status == 401
    assert upload(client, "x", b"", {"Content-Encoding": "br"}).status == 400
    for path in ("folder", "plain/below", "fifo", "tty", "null", "n" * 300, "~other/x"):
        response = upload(client, path, b"data")
        assert response.status == 400, (path, response)
        assert response.json["code"] == 400
    assert (home / "plain").read_text() == "x"


def test_overwriting_keeps_the_file_and_its_mode(client: Client, home: Path) -> None:
    target = home / "kept"
    target.write_text("old and long")
    target.chmod(0o700)
    (home / "link").symlink_to("kept")
    inode = target.stat().st_ino
    assert upload(client, "link", b"new").status == 200
    assert target.read_bytes() == b"new"
    assert (target.stat().st_ino, stat.S_IMODE(target.stat().st_mode)) == (inode, 0o700)
    assert (home / "link").is_symlink()


@pytest.mark.parametrize("size", [1000, 2 << 20])
def test_an_existing_file_is_replaced_only_when_the_upload_is_complete(
    agent: GuestAgent, dial: Callable[[], Client], home: Path, size: int
) -> None:
    target = home / "work"
    target.write_text("precious")
    inode = target.stat().st_ino
    head = b"POST /files?path=work HTTP/1.1\r\nContent-Type: application/octet-stream\r\nContent-Length: %d\r\n\r\n"
    sock = agent.connect()
    sock.sendall(head % size + bytes(size - 1))
    assert dial().request("GET", "/health").status == 204
    assert target.read_text() == "precious"
    sock.shutdown(socket.SHUT_WR)
    while sock.recv(1000):  # until the agent has ended the request
        pass
    sock.close()
    assert target.read_text() == "precious"
    content = os.urandom(size)
    assert upload(dial(), "work", content).status == 200
    assert (target.read_bytes(), target.stat().st_ino) == (content, inode)
    assert [path.name for path in home.iterdir()] == ["work"]


def test_metadata_is_stored_with_the_file(client: Client, home: Path) -> None:
    response = upload(
        client, "tagged", b"x", {"X-Metadata-Author": "me", "x-metadata-PURPOSE": "a test", "X-Metadata-": "no"}
    )
    assert response.json[0]["metadata"] == {"author": "me", "purpose": "a test"}
    assert os.getxattr(home / "tagged", "user.e2b.author") == b"me"
    os.setxattr(home / "tagged", "user.foreign", b"stays")
    entry = client.call("filesystem.Filesystem/Stat", {"path": "tagged"})["entry"]
    assert entry["metadata"] == {"author": "me", "purpose": "a test"}
    assert "metadata" not in upload(client, "tagged", b"y").json[0]
    assert "metadata" not in client.call("filesystem.Filesystem/Stat", {"path": "tagged"})["entry"]
    assert os.getxattr(home / "tagged", "user.foreign") == b"stays"
    for headers in ({"X-Metadata-K" * 30: "v"}, {"X-Metadata-K": "v\x01"}, {"X-Metadata-K": "v" * 5000}):
        assert upload(client, "tagged", b"z", headers).status == 400


@pytest.fixture
def small_disk(home: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    disk = home / "disk"
    disk.mkdir()
    assert os.system(f"mount -t tmpfs -o size=1m,nr_inodes=6 guest-test {disk}") == 0
    yield disk
    assert os.system(f"umount {disk}") == 0


@pytest.mark.parametrize("kind", ["raw", "form"])
def test_an_upload_to_a_full_disk_fails_and_leaves_no_file(client: Client, small_disk: Path, kind: str) -> None:
    (small_disk / "there").write_text("before")
    for name in ("new", "there"):
        if kind == "raw":
            response = upload(client, f"disk/{name}", bytes(3 << 20))
        else:
            body, headers = form(("file", f"disk/{name}", bytes(3 << 20)))
            response = client.request("POST", "/files", body, headers)
        assert response.status == 507
        assert response.json["code"] == 507
        assert "not enough disk space available" in response.json["message"]
    assert not (small_disk / "new").exists(), "a partial file must be removed"
    assert (small_disk / "there").read_text() == "before", "an existing file must be kept"
    assert upload(client, "disk/small", b"fits").status == 200
    filler = small_disk / "filler"
    with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
        while True:
            file.write(bytes(4096))
    size = filler.stat().st_size
    assert upload(client, "disk/filler", bytes(size - 10_000)).status == 200
    assert filler.stat().st_size == size - 10_000
    assert upload(client, "disk/filler", b"less than before").status == 200
    for number in range(10):
        response = upload(client, f"disk/inode-{number}", b"")
    assert response.status == 507
    assert "not enough inodes" in response.json["message"]
    assert client.request("GET", "/health").status == 204


# compose -------------------------------------------------------------------------------------------------------------


def test_compose_joins_files(client: Client, home: Path, payload: bytes) -> None:
    (home / "p1").write_bytes(payload)
    (home / "p2").write_bytes(b"")
    (home / "p3").write_bytes(b"tail")
    (home / "whole").write_text("old")
    body = b'{"source_paths": ["p1", "~/p2", "/home/user/p3"], "destination": "whole"}'
    response = client.request("POST", "/files/compose", body, {"Content-Type": "application/json"})
    assert (response.status, response.json) == (200, {"path": "/home/user/whole", "name": "whole", "type": "file"})
    assert (home / "whole").read_bytes() == payload + b"tail"
    assert sorted(path.name for path in home.iterdir()) == ["whole"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b'{"destination": "x"}', 400),
        (b'{"source_paths": ["p"]}', 400),
        (b'{"source_paths": ["p", "missing"], "destination": "x"}', 404),
        (b'{"source_paths": ["p", "folder"], "destination": "x"}', 400),
        (b'{"source_paths": ["p"], "destination": "p"}', 400),
        (b'{"source_paths": ["p"], "destination": "folder"}', 500),
        (b'{"source_paths": ["p"], "destination": "x", "username": "nobody-here"}', 401),
    ],
)
def test_an_invalid_compose_is_rejected_and_changes_nothing(
    client: Client, home: Path, body: bytes, status: int
) -> None:
    (home / "p").write_text("part")
    (home / "folder").mkdir()
    assert client.request("POST", "/files/compose", body).status == status
    assert sorted(path.name for path in home.iterdir()) == ["folder", "p"]


# downloads -----------------------------------------------------------------------------------------------------------


def test_a_download_returns_the_content_and_its_headers(client: Client, home: Path, payload: bytes) -> None:
    (home / "data.bin").write_bytes(payload)
    response = client.request("GET", "/files?path=data.bin")
    assert (response.status, response.body) == (200, payload)
    assert response.headers["content-type"] == "application/octet-stream"
    assert response.headers["content-disposition"] == "inline; filename=data.bin"
    assert response.headers["accept-ranges"] == "bytes"
    assert client.request("HEAD", "/files?path=data.bin").headers["content-length"] == str(len(payload))
    (home / "empty").touch()
    assert client.request("GET", "/files?path=/home/user/empty&username=root").body == b""


@pytest.mark.parametrize(
    ("header", "status", "start", "end"),
    [
        ("bytes=0-4", 206, 0, 5), ("bytes=5-", 206, 5, 1000), ("bytes=-10", 206, 990, 1000),
        ("bytes=990-5000", 206, 990, 1000),
        ("bytes=0-0", 206, 0, 1), ("bytes=1000-", 416, 0, 0), ("bytes=5-2", 416, 0, 0), ("lines=1-2", 200, 0, 1000),
        ("bytes=0-1,5-6", 200, 0, 1000), ("bytes=-", 200, 0, 1000), ("bytes=x", 200, 0, 1000),
    ],
)  # fmt: skip
def test_ranges_of_a_file_can_be_downloaded(
    client: Client, home: Path, header: str, status: int, start: int, end: int
) -> None:
    content = os.urandom(1000)
    (home / "ranged").write_bytes(content)
    response = client.request("GET", "/files?path=ranged", headers={"Range": header})
    assert response.status == status
    if status == 416:
        assert response.headers["content-range"] == "bytes */1000"
    else:
        assert response.body == content[start:end]
    if status == 206:
        assert response.headers["content-range"] == f"bytes {start}-{end - 1}/1000"


def test_conditional_downloads_are_supported(client: Client, home: Path) -> None:
    (home / "dated").write_text("x")
    os.utime(home / "dated", (1_700_000_000, 1_700_000_000))
    modified = client.request("GET", "/files?path=dated").headers["last-modified"]
    assert modified == "Tue, 14 Nov 2023 22:13:20 GMT"
    assert client.request("GET", "/files?path=dated", headers={"If-Modified-Since": modified}).status == 304
    assert client.request("GET", "/files?path=dated", headers={"If-Modified-Since": "garbage"}).status == 200
    older = {"If-Unmodified-Since": "Tue, 14 Nov 2022 22:13:20 GMT"}
    assert client.request("GET", "/files?path=dated", headers=older).status == 412
    both = {"Range": "bytes=0-0", "If-Range": older["If-Unmodified-Since"]}
    assert client.request("GET", "/files?path=dated", headers=both).status == 200


def test_downloads_are_compressed_on_request(client: Client, home: Path, payload: bytes) -> None:
    (home / "text.txt").write_bytes(payload)
    response = client.request("GET", "/files?path=text.txt", headers={"Accept-Encoding": "gzip"})
    assert response.headers["content-encoding"] == "gzip"
    assert response.headers["content-type"] == "text/plain; charset=utf-8"
    assert gzip.decompress(response.body) == payload
    plain = client.request("GET", "/files?path=text.txt", headers={"Accept-Encoding": "gzip, deflate, br, zstd"})
    assert "content-encoding" not in plain.headers
    assert plain.body == payload
    assert client.request("GET", "/files?path=text.txt", headers={"Accept-Encoding": "br, identity;q=0"}).status == 406
    both = {"Accept-Encoding": "gzip; q=1,*; q=0", "Range": "bytes=0-4"}
    assert client.request("GET", "/files?path=text.txt", headers=both).status == 406
    assert client.request("HEAD", "/files?path=text.txt", headers={"Accept-Encoding": "gzip"}).status == 200


@pytest.mark.parametrize(
    ("name", "header"),
    [
        ("a.tar.gz", "inline; filename=a.tar.gz"),
        ("my document.pdf", 'inline; filename="my document.pdf"'),
        ('quo"te\\.txt', 'inline; filename="quo\\"te\\\\.txt"'),
        ("\u6587.pdf", "inline; filename*=utf-8''%E6%96%87.pdf"),
    ],
)
def test_names_of_downloads_are_encoded(client: Client, home: Path, name: str, header: str) -> None:
    (home / name).touch()
    assert client.request("GET", f"/files?path={quote(name)}").headers["content-disposition"] == header


def test_invalid_downloads_are_rejected(client: Client, home: Path) -> None:
    (home / "folder").mkdir()
    os.mkfifo(home / "fifo")
    (home / "zero").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(home / "sock"))
        expected = {
            "missing": 404,
            "folder": 400,
            "fifo": 400,
            "zero": 400,
            "sock": 500,
            "fifo/x": 404,
            "~other/x": 400,
        }
        for path, status in expected.items():
            response = client.request("GET", f"/files?path={path}")
            assert response.status == status, (path, response)
            assert response.json["code"] == status
    assert client.request("GET", "/files?path=x&username=nobody-here").status == 401
    assert client.request("GET", "/files?path=a%00b").status == 400


def test_a_slow_download_does_not_block_other_clients(client: Client, agent: GuestAgent, home: Path) -> None:
    (home / "big").write_bytes(bytes(50 << 20))
    slow = agent.client()
    slow.send("GET", "/files?path=big")
    started = time.monotonic()
    for _ in range(50):
        assert client.request("GET", "/health").status == 204
    assert time.monotonic() - started < 30
    assert len(slow.read_response().body) == 50 << 20
    slow.close()


def test_an_aborted_download_closes_the_file(client: Client, agent: GuestAgent, home: Path) -> None:
    (home / "big").write_bytes(bytes(20 << 20))
    for _ in range(20):
        leaving = agent.client()
        leaving.send("GET", "/files?path=big")
        leaving.file.read(1000)
        leaving.close()
    pid = client.shell("echo $PPID").stdout.strip()
    deadline = time.monotonic() + 10
    while any(str(link.readlink()).endswith("/big") for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()):
        assert time.monotonic() < deadline, "the file must be closed"
        time.sleep(0.02)


def test_concurrent_transfers_do_not_interfere(agent: GuestAgent, home: Path, payload: bytes) -> None:
    failures: list[object] = []

    def work(number: int) -> None:
        client = agent.client()
        for repetition in range(5):
            name = f"parallel-{number}-{repetition}"
            status = upload(client, name, payload).status
            body = client.request("GET", f"/files?path={name}").body
            if (status, body) != (200, payload):
                failures.append((name, status, len(body)))
        client.close()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
