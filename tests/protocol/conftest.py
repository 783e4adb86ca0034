"""Fixtures: one engine for the whole run, and sandboxes that are deleted after their test."""

from __future__ import annotations

import os
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import httpx
import pytest
from e2b import AsyncSandbox, Sandbox

from sandyard.engine.drivers.gvisor.runsc import Runsc
from sandyard.kit.errors import UnsupportedError
from tests.harness.engine import Engine
from tests.harness.sdk import get_access_token

from .compatibility.recording import configure
from .name_server import NameServer
from .tls_engine import DOMAIN, TlsEngine, random_loopback_address

NewSandbox = Callable[..., Sandbox]
NewAsyncSandbox = Callable[..., Awaitable[AsyncSandbox]]
DataPlane = Callable[..., httpx.Client]

pytest_configure = configure
pytest.register_assert_rewrite("tests.protocol.docker_stack")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("min_isolation") == "gvisor":
        for item in items:
            if marker := item.get_closest_marker("not_in_gvisor"):
                item.add_marker(pytest.mark.skip(reason=marker.args[0]))


@pytest.fixture(scope="session")
def min_isolation(request: pytest.FixtureRequest) -> str:
    """The isolation level of sandboxes, if the test does not ask for another one. Skips the test if it is not available."""
    level = str(request.config.getoption("min_isolation"))
    if level == "gvisor":
        try:
            Runsc.find()
        except UnsupportedError as error:
            pytest.skip(error.message)
    return level


@pytest.fixture(scope="session", autouse=True)
def engine(min_isolation: str) -> Iterator[Engine]:
    """The engine that all tests use. The SDKs find it through environment variables, as for a user."""
    engine = Engine({"IMAGES_REGISTRIES": "127.0.0.1", "ALLOW_CONTAINERS": "true", "MIN_ISOLATION": min_isolation})
    engine.settings["IMAGES_DIRS"] = str(engine.layouts)
    engine.start()
    before = {name: os.environ.get(name) for name in ("E2B_DOMAIN", "E2B_DEBUG", *engine.environment)}
    os.environ.pop("E2B_DOMAIN", None)
    os.environ.pop("E2B_DEBUG", None)
    os.environ.update(engine.environment)
    yield engine
    for name, value in before.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    left = engine.stop()
    assert not left, f"the engine left behind: {left}"


@pytest.fixture
def api(engine: Engine) -> Iterator[httpx.Client]:
    """A client for the control API, for requests that no SDK sends."""
    with engine.client() as client:
        yield client


@pytest.fixture
def unique() -> str:
    return uuid.uuid4().hex


@pytest.fixture
def new_sandbox(api: httpx.Client) -> Iterator[NewSandbox]:
    created: list[Sandbox] = []

    def create(template: str | None = None, **options: Any) -> Sandbox:
        created.append(Sandbox.create(template, **options))
        return created[-1]

    yield create
    for sandbox in created:
        api.delete(f"/sandboxes/{sandbox.sandbox_id}")


@pytest.fixture
def sandbox(new_sandbox: NewSandbox) -> Sandbox:
    return new_sandbox()


@pytest.fixture
async def new_async_sandbox(api: httpx.Client) -> AsyncIterator[NewAsyncSandbox]:
    created: list[AsyncSandbox] = []

    async def create(template: str | None = None, **options: Any) -> AsyncSandbox:
        created.append(await AsyncSandbox.create(template, **options))
        return created[-1]

    yield create
    for sandbox in created:
        api.delete(f"/sandboxes/{sandbox.sandbox_id}")


@pytest.fixture
async def async_sandbox(new_async_sandbox: NewAsyncSandbox) -> AsyncSandbox:
    return await new_async_sandbox()


@pytest.fixture
def data_plane(engine: Engine) -> Iterator[DataPlane]:
    """HTTP clients for a sandbox without an SDK: `data_plane(sandbox)` reaches its guest agent, `data_plane(sandbox, port=8000)` a port."""
    clients: list[httpx.Client] = []

    def connect(sandbox: Sandbox, port: int = 49983, token: str | None = "", **headers: str) -> httpx.Client:
        access_token = get_access_token(sandbox) if token == "" else token
        routing_headers = {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": str(port)}
        if access_token:
            routing_headers["X-Access-Token"] = access_token
        clients.append(httpx.Client(base_url=engine.url, headers={**routing_headers, **headers}, timeout=30))
        return clients[-1]

    yield connect
    for client in clients:
        client.close()


@pytest.fixture(scope="module")
def tls_engine() -> Iterator[TlsEngine]:
    address = random_loopback_address()
    engine = Engine({"TLS_HOST": address, "TLS_PORT": "443", "DOMAIN": DOMAIN, "POOL_SIZE": "2"})
    name_server = NameServer(DOMAIN, address, address)
    engine.start()
    yield TlsEngine(engine, address, name_server)
    name_server.close()
    left = engine.stop()
    assert not left, f"the engine left behind: {left}"
