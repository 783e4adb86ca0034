"""A layer store that others write to, or that hangs: errors and limits, no full memory or disk, and nothing outside of it is touched."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sandyard.engine.layers import store as stores
from sandyard.engine.layers import threads
from sandyard.engine.layers.manifest import Manifest
from sandyard.engine.layers.puller import Unreadable
from sandyard.engine.layers.store import DirectoryStore, StoredObject
from sandyard.engine.sandboxes.snapshots import make_snapshot_id
from sandyard.kit.errors import InvalidInputError, NotFoundError, SandyardError, UnreachableError
from tests.integration.engine.layers.harness import SnapshotsHarness, wait_for
from tests.later import Later

if TYPE_CHECKING:
    from sandyard.engine.layers import s3
else:
    s3 = Later("sandyard.engine.layers.s3")

BLOB, MANIFEST = f"blobs/{'a' * 64}", "snapshots/one.json"
DEADLINE = 20


@pytest.fixture
def engine(tmp_path: Path, directory: Path) -> SnapshotsHarness:
    return SnapshotsHarness(tmp_path / "engine", directory)


# a directory -------------------------------------------------------------------------------------------------------------


async def test_links_and_pipes_are_not_opened(tmp_path: Path, directory: Path) -> None:
    store = DirectoryStore(directory)
    (tmp_path / "secret").write_text("secret")
    for folder in ("blobs", "snapshots"):
        (directory / folder).mkdir()
    for make in (lambda path: path.symlink_to(tmp_path / "secret"), os.mkfifo, Path.mkdir):
        for key in (BLOB, MANIFEST):
            make(directory / key)
            async with asyncio.timeout(DEADLINE):
                for call in (store.get_document(key), store.find(key), store.refresh(key)):
                    with pytest.raises(InvalidInputError):
                        await call
                with pytest.raises(InvalidInputError):
                    async with store.open_file(key, tmp_path, 6):
                        pass
                assert [item async for item in store.list(key.partition("/")[0] + "/")] == []
            path = directory / key
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()


async def test_nothing_outside_of_the_directory_is_written_or_deleted(tmp_path: Path, directory: Path) -> None:
    store, outside = DirectoryStore(directory), tmp_path / "outside"
    outside.mkdir()
    (outside / Path(BLOB).name).write_text("kept")
    (outside / ".partial-old").write_text("kept")
    os.utime(outside / ".partial-old", (0, 0))
    for folder in ("blobs", "snapshots"):
        (directory / folder).symlink_to(outside)
    source = tmp_path / "source"
    source.write_text("new")
    for call in (store.put_document(MANIFEST, b"{}"), store.put_file(BLOB, source), store.delete(BLOB)):
        with pytest.raises(InvalidInputError, match="link"):
            await call
    with pytest.raises(InvalidInputError, match="link"):
        _ = [item async for item in store.list("blobs/")]
    assert sorted(path.name for path in outside.iterdir()) == [".partial-old", Path(BLOB).name]


async def test_large_documents_are_refused(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = DirectoryStore(directory)
    (directory / "store.json").write_bytes(bytes(5000))
    (directory / "snapshots").mkdir()
    with (directory / MANIFEST).open("wb") as file:
        file.truncate(1 << 40)
    for key in ("store.json", MANIFEST):
        with pytest.raises(InvalidInputError, match="larger than any engine stores"):
            await store.get_document(key)
    monkeypatch.setattr(stores, "MAX_OBJECTS", 10)
    for number in range(11):
        (directory / "snapshots" / f"s{number}.json").touch()
    with pytest.raises(InvalidInputError, match="too many to list"):
        _ = [item async for item in store.list("snapshots/")]


class HangingStore(DirectoryStore):
    """A network file system whose server does not answer."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.answers = threading.Event()

    def _open_object(self, key: str) -> int:
        self.answers.wait()
        return super()._open_object(key)


async def test_a_file_system_that_hangs_stops_nothing_else(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "CALL_SECONDS", 0.2)
    monkeypatch.setattr(threads, "MAX_CALLS", 20)
    store = HangingStore(directory)
    before = threading.active_count()
    async with asyncio.timeout(DEADLINE):
        for _ in range(2):
            results = await asyncio.gather(*(store.find(BLOB) for _ in range(100)), return_exceptions=True)
            assert {type(result) for result in results} == {UnreachableError}
        assert threading.active_count() <= before + 20
        assert await asyncio.to_thread(lambda: "still works") == "still works"
        store.answers.set()
        while (await asyncio.gather(store.find(BLOB), return_exceptions=True))[0] is not None:
            await asyncio.sleep(0.01)


# manifests -----------------------------------------------------------------------------------------------------------------


async def change_manifest(engine: SnapshotsHarness, directory: Path, change: Callable[[dict[str, Any]], None]) -> str:
    """Publish a snapshot, change its manifest in the store, and forget it here. Return its id."""
    snapshot = engine.make()
    await engine.wait_until_durable(snapshot)
    path = directory / "snapshots" / f"{snapshot.id}.json"
    raw = json.loads(path.read_text())
    change(raw)
    changed = make_snapshot_id()
    raw["id"] = changed
    (directory / "snapshots" / f"{changed}.json").write_text(json.dumps(raw))
    return changed


@pytest.mark.parametrize(
    "change",
    [
        lambda raw: raw.update(created_at=math.inf),
        lambda raw: raw.update(created_at=1e300),
        lambda raw: raw["layers"][0].update(size=10**30),
        lambda raw: raw["limits"].update(cpu_count=10**9),
        lambda raw: raw.update(env={str(number): "" for number in range(60_000)}),
    ],
    ids=["infinite time", "late", "size", "processors", "many values"],
)
async def test_absurd_manifests_are_damaged(
    engine: SnapshotsHarness, directory: Path, change: Callable[[dict[str, Any]], None]
) -> None:
    async with engine.running():
        changed = await change_manifest(engine, directory, change)
        with pytest.raises(InvalidInputError, match="damaged"):
            await engine.layers.pull(changed)
        listed = await engine.layers.list_published()
        assert [type(candidate) for candidate in listed if candidate.id == changed] == [Unreadable]


async def test_a_manifest_cannot_raise_limits_that_clients_cannot_choose(
    engine: SnapshotsHarness, directory: Path
) -> None:
    async with engine.running():
        changed = await change_manifest(
            engine, directory, lambda raw: raw["limits"].update(pids=10**6, disk_mb=10**9, memory_mb=1024)
        )
        limits, most = (await engine.layers.pull(changed)).limits, engine.settings.default_limits
        assert (limits.pids, limits.disk_mb, limits.memory_mb) == (most.pids, most.disk_mb, 1024)


async def test_a_manifest_cannot_take_the_name_of_a_template(engine: SnapshotsHarness, directory: Path) -> None:
    """Templates such as `desktop` give way to a snapshot with their name: of this engine's clients, not of others."""
    engine.templates.add("desktop")
    async with engine.running():
        changed = await change_manifest(engine, directory, lambda raw: raw.update(name="desktop"))
        assert (await engine.layers.pull(changed)).name is None
        assert engine.snapshots.resolve("desktop") is None


async def test_a_manifest_cannot_shadow_a_name_with_its_id(engine: SnapshotsHarness, directory: Path) -> None:
    async with engine.running():
        own = engine.make(name="tools")
        await engine.wait_until_durable(own)
        raw = json.loads((directory / "snapshots" / f"{own.id}.json").read_text())
        shadow = json.dumps(raw | {"id": "tools", "name": None, "tag": "v2"})
        (directory / "snapshots/tools.json").write_text(shadow)
        with pytest.raises(NotFoundError):
            await engine.layers.pull("tools:v2")
        found = engine.snapshots.resolve("tools")
        assert found is not None and found.id == own.id


async def test_the_manifests_in_memory_are_limited(
    engine: SnapshotsHarness, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandyard.engine.layers.puller.MAX_MANIFEST_BYTES", 10_000)
    async with engine.running():
        changed = await change_manifest(engine, directory, lambda _: None)
        (directory / "snapshots/large.json").write_bytes(bytes(10_000))
        with pytest.raises(InvalidInputError, match="too many to list"):
            await engine.layers.list_published()
        assert (await engine.layers.pull(changed)).id == changed, "by id"


async def test_a_damaged_identity_does_not_end_publishing(engine: SnapshotsHarness, directory: Path) -> None:
    async with engine.running():
        first = engine.make()
        await engine.wait_until_durable(first)
        (directory / "store.json").write_text("[" * 4000)
        second = engine.make("second")
        await engine.wait_until_durable(second)


async def test_other_engines_manifests_are_not_searched_for_blobs(
    engine: SnapshotsHarness, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[str]()

    class CountingStore(DirectoryStore):
        async def find(self, key: str) -> StoredObject | None:
            asked.append(key)
            return await super().find(key)

    def add_missing(raw: dict[str, Any]) -> None:
        raw["layers"] = [{**raw["layers"][0], "digest": f"sha256:{number:064x}"} for number in range(50)]

    async with engine.running(store=CountingStore(directory)):
        await change_manifest(engine, directory, add_missing)
        asked.clear()
        await engine.layers.sweep()
        assert not asked


# S3 ------------------------------------------------------------------------------------------------------------------------

CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nlast-modified: Wed, 01 Jan 2025 00:00:00 GMT\r\n"
DATE = b"last-modified: Wed, 01 Jan 2025 00:00:00 GMT\r\n"


class HostileServer:
    """Answers every request with `script(request, send)`."""

    def __init__(self, script: Callable[[bytes, Callable[[bytes], None]], None]) -> None:
        self.sent = 0
        self.requests = list[bytes]()
        self._script = script
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._connections = list[socket.socket]()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._connections.append(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        def send(data: bytes) -> None:
            connection.sendall(data)
            self.sent += len(data)

        with contextlib.suppress(OSError), connection:
            request = b""
            while b"\r\n\r\n" not in request:
                if not (data := connection.recv(65536)):
                    return
                request += data
            self.requests.append(request)
            self._script(request, send)

    def close(self) -> None:
        self._listener.close()
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()


@pytest.fixture
def serve() -> Iterator[Callable[[Callable[[bytes, Callable[[bytes], None]], None]], tuple[HostileServer, Any]]]:
    started = list[HostileServer]()

    def start(script: Callable[[bytes, Callable[[bytes], None]], None]) -> tuple[HostileServer, Any]:
        server = HostileServer(script)
        started.append(server)
        options = s3.S3Options(server.url, "us-east-1", "test", "test")
        return server, s3.S3Store.from_location("s3://bucket/prefix", options)

    yield start
    for server in started:
        server.close()


Serve = Callable[[Callable[[bytes, Callable[[bytes], None]], None]], tuple[HostileServer, Any]]
Send = Callable[[bytes], None]


def send_chunk(send: Send, data: bytes) -> None:
    send(b"%x\r\n%s\r\n" % (len(data), data))


async def list_all(store: Any) -> list[StoredObject]:
    async with asyncio.timeout(DEADLINE):
        return [item async for item in store.list("snapshots/")]


@pytest.mark.parametrize("method", ["list", "document", "error"])
async def test_bodies_that_never_end_do_not_fill_the_memory(serve: Serve, method: str) -> None:
    def script(_: bytes, send: Send) -> None:
        send(CHUNKED.replace(b"200 OK", b"403 no") if method == "error" else CHUNKED)
        send(b"content-length: 10\r\n\r\n" if method == "document" else b"\r\n")
        while True:
            send_chunk(send, b" " * (1 << 20))

    server, store = serve(script)
    with pytest.raises(SandyardError):
        async with asyncio.timeout(DEADLINE):
            if method == "list":
                await list_all(store)
            else:
                await store.get_document(MANIFEST)
    assert server.sent < 100 << 20


async def test_a_file_is_not_larger_than_announced(serve: Serve, tmp_path: Path) -> None:
    """A chunked response may announce any length."""

    def script(_: bytes, send: Send) -> None:
        send(CHUNKED + b"content-length: 10\r\n\r\n")
        while True:
            send_chunk(send, b" " * (1 << 20))

    server, store = serve(script)
    with pytest.raises(InvalidInputError, match="not 10"):
        async with asyncio.timeout(DEADLINE), store.open_file(BLOB, tmp_path, 10):
            pass
    assert server.sent < 50 << 20


async def test_lists_end(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "MAX_OBJECTS", 5000)
    entry = "<Contents><Key>prefix/{}</Key><Size>1</Size><LastModified>2025-01-01T00:00:00Z</LastModified></Contents>"
    pages = 0

    def script(request: bytes, send: Send) -> None:
        nonlocal pages
        pages += 1
        token = "same" if fixed else f"t{pages}"
        keys = ["../../etc/passwd", "snapshots/../../x.json", *(f"snapshots/s{pages}-{n}.json" for n in range(500))]
        body = "".join(entry.format(key) for key in keys)
        body += f"<NextContinuationToken>{token}</NextContinuationToken>"
        text = f"<ListBucketResult><IsTruncated>true</IsTruncated>{body}</ListBucketResult>"
        send(f"HTTP/1.1 200 OK\r\ncontent-length: {len(text)}\r\n\r\n{text}".encode())

    fixed = True
    _, store = serve(script)
    with pytest.raises(UnreachableError, match="does not end its list"):
        await list_all(store)
    fixed, pages = False, 0
    with pytest.raises(InvalidInputError, match="too many to list"):
        await list_all(store)
    assert pages < 20


async def test_keys_that_no_engine_has_stored_are_ignored(serve: Serve) -> None:
    def script(_: bytes, send: Send) -> None:
        keys = ("prefix/snapshots/../x.json", "prefix/snapshots/good.json", "/etc/passwd", "prefix/blobs/x", "")
        body = "".join(
            f"<Contents><Key>{key}</Key><Size>1</Size><LastModified>2025-01-01T00:00:00Z</LastModified></Contents>"
            for key in keys
        )
        text = f"<ListBucketResult><IsTruncated>false</IsTruncated>{body}</ListBucketResult>"
        send(f"HTTP/1.1 200 OK\r\ncontent-length: {len(text)}\r\n\r\n{text}".encode())

    _, store = serve(script)
    assert [item.key for item in await list_all(store)] == ["snapshots/good.json"]


@pytest.mark.parametrize(
    "response",
    [
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",  # neither size nor date
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n" + DATE + b"\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nlast-modified: never\r\n\r\n",
        b"HTTP/9 \r\n\r\n",
        b"",
    ],
)
async def test_invalid_responses_are_errors_of_the_store(serve: Serve, response: bytes) -> None:
    _, store = serve(lambda _, send: send(response))
    async with asyncio.timeout(DEADLINE):
        with pytest.raises(UnreachableError):
            await store.find(BLOB)


async def test_a_server_that_sends_byte_by_byte_is_too_slow(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (threads, s3):
        monkeypatch.setattr(module, "CALL_SECONDS", 0.5)

    def script(_: bytes, send: Send) -> None:
        send(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n" + DATE + b"\r\n")
        while True:
            send(b" ")
            time.sleep(0.02)

    _, store = serve(script)
    async with asyncio.timeout(DEADLINE):
        with pytest.raises(UnreachableError):
            await store.get_document(MANIFEST)
        with pytest.raises(UnreachableError):
            await list_all(store)
        monkeypatch.setattr(s3, "SLOWEST_BYTES_PER_SECOND", 10_000_000)
        with pytest.raises(UnreachableError, match=r"too slow|does not answer"):
            async with store.open_file(BLOB, tmp_path, 1000000):
                pass


async def test_an_engine_with_a_hostile_bucket_reports_it_and_stops(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandyard.engine.layers.service._FIRST_RETRY_S", 0.05)
    monkeypatch.setattr("sandyard.engine.layers.service._MAX_RETRY_S", 0.1)
    answers = [
        b"HTTP/1.1 200 OK\r\ncontent-length: 4000\r\n\r\n" + b"[" * 4000,
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n[1,2]",
    ]
    _, store = serve(lambda request, send: send(answers[len(request) % 2]))
    engine = SnapshotsHarness(tmp_path / "engine", "s3://bucket/prefix")
    async with asyncio.timeout(DEADLINE):
        async with engine.running(store=store):
            engine.make()
            await wait_for(lambda: engine.layers.find_problem() is not None)


async def test_an_honest_manifest_is_still_read(engine: SnapshotsHarness, directory: Path) -> None:
    async with engine.running():
        changed = await change_manifest(engine, directory, lambda _: None)
        assert [type(item) for item in await engine.layers.list_published()] == [Manifest, Manifest]
        assert (await engine.layers.pull(changed)).id == changed
