"""A layer store in S3: moto's server, over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from sandyard.engine.layers.store import AccessDeniedError, LayerStore
from sandyard.kit.errors import InvalidInputError, NotFoundError, UnreachableError
from sandyard.kit.listen import free_port
from tests.integration.engine.layers.harness import SnapshotsHarness, lose, wait_for
from tests.later import Later

if TYPE_CHECKING:
    from sandyard.engine.layers import s3
else:
    s3 = Later("sandyard.engine.layers.s3")

KEY = f"blobs/{'a' * 64}"


class S3Server:
    """moto's server, in this process: what it stores outlives a stop."""

    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._server: Any = None

    def start(self) -> None:
        from moto.server import ThreadedMotoServer  # noqa: PLC0415 - takes a second

        self._server = ThreadedMotoServer("127.0.0.1", self.port, verbose=False)
        self._server.start()

    def stop(self) -> None:
        self._server.stop()

    @contextlib.contextmanager
    def checking_credentials(self) -> Iterator[None]:
        """Refuse unknown credentials meanwhile."""
        httpx.post(f"{self.url}/moto-api/reset-auth", content=b"0")
        try:
            yield
        finally:
            httpx.post(f"{self.url}/moto-api/reset-auth", content=b"inf")


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    server = S3Server()
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module", autouse=True)
def no_configuration() -> Iterator[None]:
    """Hide the machine's own configuration of AWS."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        patch.setenv("AWS_CONFIG_FILE", os.devnull)
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        yield


@pytest.fixture
def bucket(server: S3Server) -> str:
    name = f"bucket-{time.monotonic_ns()}"
    assert httpx.put(f"{server.url}/{name}").status_code == 200
    return name


def make_settings(server: S3Server) -> dict[str, str]:
    return {
        "layer_store_endpoint": server.url,
        "layer_store_region": "us-east-1",
        "layer_store_access_key": "test",
        "layer_store_secret_key": "test",
    }


@pytest.fixture
def store(server: S3Server, bucket: str) -> LayerStore:
    options = s3.S3Options(server.url, "us-east-1", "test", "test")
    return s3.S3Store.from_location(f"s3://{bucket}/some/prefix", options)


async def test_objects(store: LayerStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandyard.engine.layers.s3._PART_BYTES", 5 << 20)
    content = os.urandom(12 << 20)  # three parts
    (tmp_path / "file").write_bytes(content)
    assert await store.find(KEY) is None
    await store.put_file(KEY, tmp_path / "file")
    found = await store.find(KEY)
    assert found is not None and found.size == len(content) and abs(found.modified - time.time()) < 60
    async with store.open_file(KEY, tmp_path, len(content)) as fd:
        assert os.pread(fd, len(content) + 1, 0) == content
    with pytest.raises(InvalidInputError, match=f"{len(content)} bytes, not 5"):
        async with store.open_file(KEY, tmp_path, 5):
            pass
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    await store.put_document("snapshots/one.json", b"{}")
    await store.put_document("snapshots/one.json", b"{1}")
    assert await store.get_document("snapshots/one.json") == b"{1}"
    assert [item.key async for item in store.list("snapshots/")] == ["snapshots/one.json"]
    assert [(item.key, item.size) async for item in store.list("blobs/")] == [(KEY, len(content))]
    await store.refresh(KEY)
    async with store.open_file(KEY, tmp_path, len(content)) as fd:
        assert os.pread(fd, 100, 0) == content[:100]
    await store.delete(KEY)
    await store.delete(KEY)
    with pytest.raises(NotFoundError):
        async with store.open_file(KEY, tmp_path, len(content)):
            pass
    with pytest.raises(NotFoundError):
        await store.get_document("snapshots/two.json")
    await store.close()


async def test_a_long_list_has_pages(store: LayerStore) -> None:
    client = store._get_client()  # type: ignore[attr-defined]
    for number in range(12):
        await store.put_document(f"snapshots/s{number}.json", b"{}")
    list_page = client.list_objects_v2
    client.list_objects_v2 = lambda **arguments: list_page(**arguments, MaxKeys=5)
    assert len([item async for item in store.list("snapshots/")]) == 12


async def test_a_cancelled_upload_leaves_nothing(
    store: LayerStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandyard.engine.layers.s3._PART_BYTES", 5 << 20)
    (tmp_path / "file").write_bytes(bytes(20 << 20))
    client = store._get_client()  # type: ignore[attr-defined]
    started, send = asyncio.Event(), client.upload_part
    loop = asyncio.get_running_loop()

    def upload_part(**arguments: Any) -> Any:
        loop.call_soon_threadsafe(started.set)
        return send(**arguments)

    client.upload_part = upload_part
    upload = asyncio.create_task(store.put_file(KEY, tmp_path / "file"))
    await started.wait()
    upload.cancel()
    with pytest.raises(asyncio.CancelledError):
        await upload
    assert await store.find(KEY) is None
    bucket = store._bucket  # type: ignore[attr-defined]
    assert not client.list_multipart_uploads(Bucket=bucket).get("Uploads")


async def test_errors_say_what_to_do(server: S3Server, bucket: str, store: LayerStore) -> None:
    with server.checking_credentials(), pytest.raises(AccessDeniedError, match="Check the credentials"):
        await store.get_document("store.json")
    options = s3.S3Options(server.url, "us-east-1", "test", "test")
    with pytest.raises(UnreachableError, match="Create the bucket no-such-bucket"):
        await s3.S3Store.from_location("s3://no-such-bucket", options).get_document("store.json")
    with pytest.raises(AccessDeniedError, match="SANDYARD_LAYER_STORE_ACCESS_KEY"):
        anonymous = s3.S3Options(server.url, "us-east-1")
        await s3.S3Store.from_location(f"s3://{bucket}", anonymous).get_document("store.json")
    with pytest.raises(UnreachableError, match="does not answer"):
        nowhere = s3.S3Options(f"http://127.0.0.1:{free_port()}", "us-east-1", "test", "test")
        await s3.S3Store.from_location(f"s3://{bucket}", nowhere).get_document("store.json")
    with pytest.raises(InvalidInputError, match="s3://bucket"):
        s3.S3Store.from_location("s3://", options)


async def test_snapshots_survive_a_machine_and_an_outage(
    server: S3Server, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandyard.engine.layers.service._FIRST_RETRY_S", 0.05)
    monkeypatch.setattr("sandyard.engine.layers.service._MAX_RETRY_S", 0.2)
    settings = make_settings(server)
    first = SnapshotsHarness(tmp_path / "first", f"s3://{bucket}/layers", **settings)
    async with first.running():
        one = first.make("one")
        await first.wait_until_durable(one)
        await asyncio.to_thread(server.stop)
        two = first.make("two")
        await wait_for(lambda: first.layers.status.problem is not None)
        assert "does not answer" in (first.layers.find_problem() or "")
        await asyncio.sleep(1)
        assert not first.layers.is_durable(two.id) and first.layers.is_durable(one.id)
        server.start()
        await first.wait_until_durable(two)
        await wait_for(lambda: first.layers.find_problem() is None)
    lose(first.path)
    second = SnapshotsHarness(tmp_path / "second", f"s3://{bucket}/layers", **settings)
    async with second.running():
        assert [found.id for found in await second.layers.list_published()] == [one.id, two.id]
        assert [await second.pull(snapshot) for snapshot in (one, two)] == ["one", "two"]
        second.snapshots.delete(one.id)
        await wait_for(lambda: second.layers.status.published == 1)
        await second.layers.sweep()


async def test_wrong_credentials_are_reported(server: S3Server, bucket: str, tmp_path: Path) -> None:
    engine = SnapshotsHarness(tmp_path / "engine", f"s3://{bucket}", **make_settings(server))
    with server.checking_credentials():
        async with engine.running():
            engine.make()
            await wait_for(lambda: "refuses access" in (engine.layers.find_problem() or ""))


def test_without_boto3_the_error_says_what_to_install() -> None:
    program = """
import sys
sys.modules["boto3"] = None
from sandyard.engine.layers.service import open_store
from sandyard.engine.settings import EngineSettings
from sandyard.kit.errors import UnsupportedError
try:
    open_store(EngineSettings(layer_store="s3://bucket/prefix"))
except UnsupportedError as error:
    print(error.message)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "pip install 'sandyard[s3]'" in done.stdout
