"""A sandbox that lies about what it received, or never reads, takes little of the platform's memory, and only while it is connected."""

from __future__ import annotations

import asyncio
import gc
import json
import weakref
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from connectrpc.code import Code
from connectrpc.errors import ConnectError

from sandyard.kit.clock import SystemClock
from sandyard.kit.destinations import Destinations
from sandyard.kit.errors import SandyardError
from sandyard.platform.db.models import Sandbox as SandboxRow
from sandyard.platform.db.models import Session, Turn
from sandyard.platform.domain.models import tunnel_keeper
from sandyard.platform.domain.models.faults import Fault
from sandyard.platform.domain.models.service import Models
from sandyard.platform.domain.models.tunnel import (
    MAX_REQUESTS,
    WINDOW,
    RequestMemory,
    ResponseWriter,
    Tunnel,
    TunnelProtocolError,
    TunnelRequest,
)
from sandyard.platform.domain.models.tunnel_keeper import MAX_VIOLATIONS, TunnelKeeper
from sandyard.platform.domain.sandboxes.e2b import EngineConfig, EngineError, streams
from sandyard.platform.domain.sandboxes.e2b.transport import CircuitBreaker, EngineTransport
from sandyard.platform.domain.sandboxes.model import Status
from tests.unit.platform.world import World


async def serve_much(asking: TunnelRequest, answer: ResponseWriter) -> None:
    """Send a response that never ends."""
    await answer.send_head(200, [])
    while True:
        await answer.send_data(b"x" * 65536)
        await asyncio.sleep(0)


def request(number: int) -> str:
    return json.dumps({"t": "req", "id": number, "method": "GET", "target": "/", "headers": [], "size": 0})


def ack(number: int, size: int) -> str:
    return json.dumps({"t": "ack", "id": number, "n": size})


class Command:
    """A process in a sandbox whose input is never read. Its cancelled requests fail as the SDK's do."""

    pid = 1

    def __init__(self) -> None:
        self.sending = asyncio.Event()

    async def send_stdin(self, data: str, request_timeout: float) -> None:
        self.sending.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as error:
            raise ConnectError(Code.CANCELED, "Request was cancelled") from error

    async def wait(self) -> None:
        await asyncio.Event().wait()

    async def disconnect(self) -> None:
        pass

    async def kill(self) -> None:
        pass


class Commands:
    def __init__(self) -> None:
        self.started = Command()

    async def run(self, *_: object, **__: object) -> Command:
        return self.started


async def open_stream() -> tuple[streams.LineStream, Command]:
    stream, commands = (
        streams.LineStream(EngineTransport(EngineConfig(None), CircuitBreaker(), SystemClock())),
        Commands(),
    )
    handle: Any = SimpleNamespace(sandbox=SimpleNamespace(commands=commands))
    await stream.start(handle, streams.GuestProgram("none", b""), "")
    await stream.process.receive(f":: {stream.mark}\n")
    return stream, commands.started


async def settle() -> None:
    for _ in range(300):
        await asyncio.sleep(0)


@pytest.fixture
def no_gc() -> Iterator[None]:
    """Let objects be freed only by their reference counts."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def test_rejects_acknowledgement_of_more_than_was_sent() -> None:
    stream, _ = await open_stream()
    running = asyncio.ensure_future(Tunnel(stream, serve_much, RequestMemory(1 << 20), lambda port: None).run())
    await stream.process.receive(request(1) + "\n")
    await settle()
    await stream.process.receive(ack(1, WINDOW) + "\n")
    await settle()
    assert not running.done()
    await stream.process.receive(ack(1, 1 << 40) + "\n")
    with pytest.raises(TunnelProtocolError):
        await running
    await stream.close()


async def test_queue_stays_small_whatever_is_acknowledged() -> None:
    stream, command = await open_stream()
    tunnel = Tunnel(stream, serve_much, RequestMemory(1 << 20), lambda port: None)
    running = asyncio.ensure_future(tunnel.run())
    for number in range(MAX_REQUESTS):
        await stream.process.receive(request(number) + "\n")
    await command.sending.wait()
    for _ in range(20):
        await settle()
        under_way = {number: exchange.in_flight for number, exchange in tunnel.exchanges.items()}
        await stream.process.receive("".join(ack(number, size) + "\n" for number, size in under_way.items()))
    await settle()
    assert streams.QUEUED <= stream.unsent_size <= streams.QUEUED + 2 * 65536
    assert not running.done()
    running.cancel()
    await asyncio.wait([running])
    await stream.close()
    assert not stream.unsent


async def test_drain_is_first_come_first_served() -> None:
    stream, command = await open_stream()
    order: list[int] = []
    stream.send_line("x")
    await command.sending.wait()  # from here on only this test takes lines
    stream.send_line("x" * streams.QUEUED)

    async def send(number: int) -> None:
        for _ in range(2):
            await stream.drain()
            stream.send_line("y" * streams.QUEUED)
            order.append(number)

    sending = [asyncio.ensure_future(send(number)) for number in range(3)]
    while not all(task.done() for task in sending):
        await asyncio.sleep(0)
        stream.take_batch()
    assert order == [0, 1, 2, 0, 1, 2]
    await stream.close()


@pytest.mark.usefixtures("no_gc")
@pytest.mark.parametrize("ends", ["violation", "sdk error", "engine error", "cancelled"])
async def test_broken_stream_is_freed(ends: str) -> None:
    stream, command = await open_stream()
    alive = weakref.ref(stream)

    async def run(stream: streams.LineStream) -> None:
        try:
            await Tunnel(stream, serve_much, RequestMemory(1 << 20), lambda port: None).run()
        finally:
            await stream.close()

    running = asyncio.ensure_future(run(stream))
    await stream.process.receive(request(1) + "\n")
    await command.sending.wait()
    if ends == "violation":
        await stream.process.receive(ack(1, 1 << 40) + "\n")
    elif ends == "sdk error":
        await stream.process.fail(ConnectError(Code.UNAVAILABLE, "gone"))
    elif ends == "engine error":
        await stream.process.fail(EngineError("gone"))
    else:
        running.cancel()
    await asyncio.wait([running])
    if not running.cancelled():
        assert isinstance(running.exception(), SandyardError)
    del running, stream, command
    await asyncio.sleep(0)
    assert alive() is None


@pytest.mark.usefixtures("no_gc")
async def test_idle_stream_is_freed() -> None:
    stream, _ = await open_stream()
    await asyncio.sleep(0)
    await stream.close()
    alive = weakref.ref(stream)
    del stream
    await asyncio.sleep(0)
    assert alive() is None


class FakeStream:
    """A program that says hello and then something invalid, or loses its connection."""

    def __init__(self, line: str) -> None:
        self._line = line

    async def read_lines(self) -> AsyncIterator[str]:
        yield json.dumps({"t": "hello", "port": 4100})
        if not self._line:
            raise EngineError("The connection broke.")
        yield self._line

    def send_line(self, line: str) -> None:
        pass

    async def drain(self) -> None:
        pass

    async def close(self) -> None:
        pass


class Sandbox:
    """Counts attempts to open a tunnel. `line` is what the program says."""

    def __init__(self, line: str) -> None:
        self.line = line
        self.opened = 0
        self.streams: list[weakref.ref[FakeStream]] = []
        self.repository = self.tasks = self
        self.engine = SimpleNamespace(streams=self)

    async def get(self, sandbox_id: str) -> object:
        return SimpleNamespace(id=sandbox_id, status=Status.RUNNING, engine_id="e", destroy_requested_at=None)

    async def open(self, *_: object) -> FakeStream:
        self.opened += 1
        stream = FakeStream(self.line)
        self.streams.append(weakref.ref(stream))
        return stream

    def spawn(self, work: Any) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(work)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tunnel_keeper, "RETRY_PAUSES_S", (0,))


@pytest.mark.usefixtures("hasty", "no_gc")
async def test_tunnel_that_violates_protocol_is_given_up_until_next_turn(world: World) -> None:
    sandbox: Any = Sandbox("nonsense")
    frame: Any = {"settings": world.settings, "clock": SystemClock(), "destinations": Destinations()}
    models = Models(world.database, sandbox, world.projects, world.vault, **frame)
    failed: list[tuple[str, Fault]] = []

    async def record_refusal(turn_id: str, fault: Fault) -> None:
        failed.append((turn_id, fault))

    models.refusal_hooks.append(record_refusal)
    with models.count_for_turn("sbx_1", Turn(id="trn_1")):
        await models.attach(Session(id="ses_1"), SandboxRow(id="sbx_1", owner_id="usr_1"))
        keeper = models.keepers["sbx_1"]
        while not failed:
            await asyncio.sleep(0)
        await settle()
    assert sandbox.opened == MAX_VIOLATIONS
    ((turn_id, fault),) = failed
    assert (turn_id, fault.code) == ("trn_1", "tunnel_failed")
    assert "invalid line" in fault.message
    with pytest.raises(TunnelProtocolError):
        await keeper.wait_until_up()
    assert not any(stream() for stream in sandbox.streams)
    with models.count_for_turn("sbx_1", Turn(id="trn_2")):
        while len(failed) < 2:
            await asyncio.sleep(0)
        await settle()
    assert sandbox.opened == 2 * MAX_VIOLATIONS
    await models.close()


@pytest.mark.usefixtures("hasty")
async def test_tunnel_that_lost_its_connection_is_not_given_up() -> None:
    sandbox: Any = Sandbox("")

    async def on_give_up(error: SandyardError) -> None:
        raise AssertionError

    keeper = TunnelKeeper(sandbox, "sbx_1", "usr_1", serve_much, RequestMemory(1), on_give_up=on_give_up)
    keeper.start()
    while sandbox.opened < 4 * MAX_VIOLATIONS:
        await asyncio.sleep(0)
    assert not keeper.is_over
    await keeper.stop()
