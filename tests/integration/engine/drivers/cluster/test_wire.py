"""Connections to a host service: who may connect, and what happens with anything that is not the protocol."""

from __future__ import annotations

import asyncio
import json
import ssl
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from sandyard.engine.contract import HostRule, NetworkPolicy
from sandyard.engine.drivers.cluster.connections import describe_protocol
from sandyard.engine.drivers.cluster.driver import ClusterDriver
from sandyard.engine.drivers.cluster.egress import EgressAnswers
from sandyard.engine.drivers.cluster.model import HostState
from sandyard.engine.drivers.cluster.peer import MAX_FRAME, Peer
from sandyard.engine.hosting.server import MAX_HANDSHAKES
from sandyard.kit.errors import ConflictError, ForbiddenError, SandyardError, UnreachableError, UnsupportedError
from tests.harness.cluster import TestAuthority, make_client_context
from tests.integration.engine.drivers.cluster.conftest import Cluster, Host


async def connect(
    host: Host, context: ssl.SSLContext | None = None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    settings = host.settings
    context = context or make_client_context(settings.authority, settings.engine_certificate)
    return await asyncio.open_connection(
        settings.record.address, settings.record.port, ssl=context, server_hostname=host.id
    )


async def send(host: Host, *lines: Mapping[str, Any] | bytes) -> dict[str, Any]:
    """Send lines, and return the answer of the host."""
    reader, writer = await connect(host)
    for line in lines:
        writer.write(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n")
    answer = json.loads(await reader.readline())
    writer.close()
    return dict(answer)


async def test_only_the_engine_can_connect(cluster: Cluster, tmp_path: Path) -> None:
    host = cluster.hosts[0]
    foreign = TestAuthority(tmp_path / "foreign")
    own_certificate = host.settings.folder.parent / "tls" / f"{cluster.hosts[1].id}.pem"
    for certificate in (foreign.issue("engine", client=True), own_certificate, None):
        context = ssl.create_default_context(cafile=host.settings.authority)
        if certificate is not None:
            context.load_cert_chain(certificate)
        with pytest.raises((OSError, asyncio.IncompleteReadError)):
            reader, writer = await connect(host, context)
            writer.write(json.dumps(describe_protocol()).encode() + b"\n")
            await reader.readuntil(b"\n")


async def test_the_engine_recognizes_another_host_at_the_address(cluster: Cluster) -> None:
    directory = cluster.make_directory()
    first, second = directory.hosts
    directory.hosts[0] = type(first)(first.id, first.name, second.address, second.port)
    driver = await cluster.open(directory)
    (status,) = [candidate for candidate in driver.list_statuses() if candidate.record.id == first.id]
    assert status.state is HostState.UNREACHABLE
    assert "certificate" in (status.reason or "") and "Hostname mismatch" in (status.reason or "")


async def test_strangers_cannot_take_all_connections(cluster: Cluster) -> None:
    """Those that never finish their handshake are dropped, oldest first."""
    host = cluster.hosts[0]
    here, more = MAX_HANDSHAKES * 3 // 4, 10  # this machine has three quarters
    address = (host.settings.record.address, host.settings.record.port)
    strangers = [await asyncio.open_connection(*address) for _ in range(here + more)]
    for reader, _ in strangers[:more]:
        async with asyncio.timeout(5):
            assert await reader.read() == b""
    assert (await send(host, {"control": True, **describe_protocol()}))["ok"]
    for _, writer in strangers:
        writer.close()


async def test_versions_that_do_not_fit_are_explained(cluster: Cluster) -> None:
    answer = await send(cluster.hosts[0], {"control": True, "protocol": 9, "oldest": 8})
    name, message = answer["error"]
    assert (
        name == "UnsupportedError"
        and "versions 8 to 9" in message
        and "Upgrade" in message.replace("upgrade", "Upgrade")
    )
    for line in (b"GET / HTTP/1.1\n", {"protocol": "x"}, b"[]\n"):
        assert (await send(cluster.hosts[0], line))["error"][0] == "UnreachableError"


async def test_streams_of_an_older_engine_are_refused(cluster: Cluster) -> None:
    old = await cluster.open()
    handle = await old.create(cluster.spec())
    new = cluster.make_driver()
    await new.open([handle], ())
    message = {
        "stream": "connect",
        **describe_protocol(),
        "epoch": 1,
        "engine": "old",
        "arguments": {"handle": {}, "port": 1},
    }
    answer = await send(cluster.get_host(handle), message)
    assert answer["error"][0] == "ConflictError" and "taken over" in answer["error"][1]


async def test_operations_before_the_host_was_opened_are_refused(cluster: Cluster) -> None:
    driver = await cluster.open()
    handle = await driver.create(cluster.spec())
    reader, writer = await connect(cluster.get_host(handle))
    writer.write(json.dumps({"control": True, **describe_protocol()}).encode() + b"\n")
    assert "ok" in json.loads(await reader.readline())
    for number, verb in enumerate(("kill", "poll", "nonsense")):
        frame = json.dumps({"i": number, "v": verb, "a": {"handle": handle.data}}).encode()
        writer.write(struct.pack("!I", len(frame)) + frame)
        (size,) = struct.unpack("!I", await reader.readexactly(4))
        assert json.loads(await reader.readexactly(size))["e"][0] == ConflictError.__name__
    writer.write(struct.pack("!I", MAX_FRAME + 1))
    assert await reader.read() == b""
    assert (await driver.get_condition(handle)).value == "running"


class Wire(asyncio.Transport):
    """Connects two peers in memory."""

    def __init__(self, other: Peer) -> None:
        super().__init__()
        self.other = other

    def write(self, data: Any) -> None:
        asyncio.get_running_loop().call_soon(self.other.data_received, bytes(data))

    def get_write_buffer_size(self) -> int:
        return 0

    def abort(self) -> None:
        asyncio.get_running_loop().call_soon(self.other.connection_lost, None)


def make_peers(handle: Any) -> tuple[Peer, Peer]:
    near, far = Peer("The host", handle), Peer("The engine", handle)
    near.connection_made(Wire(far))
    far.connection_made(Wire(near))
    return near, far


async def test_calls_are_answered_in_any_order_and_errors_keep_their_class() -> None:
    gates = {"first": asyncio.Event(), "second": asyncio.Event()}

    async def handle(verb: str, arguments: Mapping[str, Any]) -> Any:
        await gates[verb].wait()
        if arguments["fail"]:
            raise ForbiddenError("not this one")
        return verb

    near, _ = make_peers(handle)
    first = asyncio.ensure_future(near.call("first", {"fail": False}, timeout_s=10))
    second = asyncio.ensure_future(near.call("second", {"fail": True}, timeout_s=10))
    gates["second"].set()
    with pytest.raises(ForbiddenError, match="not this one"):
        await second
    assert not first.done()
    gates["first"].set()
    assert await first == "first"
    with pytest.raises(SandyardError, match="KeyError"):
        await near.call("third", {}, timeout_s=10)


async def test_a_cancelled_call_is_cancelled_at_the_other_end_and_undone() -> None:
    stubborn, ended, undone = asyncio.Event(), [], []

    async def handle(verb: str, arguments: Mapping[str, Any]) -> Any:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            ended.append(verb)
            if verb == "stubborn":
                await stubborn.wait()
                return "done anyway"
            raise

    async def undo(result: Any) -> None:
        undone.append(result)

    near, _ = make_peers(handle)
    for verb in ("obedient", "stubborn"):
        call = asyncio.ensure_future(near.call(verb, {}, timeout_s=10, undo=undo))
        await asyncio.sleep(0)
        call.cancel()
        stubborn.set()
        with pytest.raises(asyncio.CancelledError):
            await call
    await asyncio.sleep(0)
    assert ended[-1:] == ["stubborn"] and undone == ["done anyway"]


async def test_a_lost_connection_fails_all_calls() -> None:
    async def handle(verb: str, arguments: Mapping[str, Any]) -> Any:
        await asyncio.get_running_loop().create_future()

    near, far = make_peers(handle)
    calls = [asyncio.ensure_future(near.call("any", {}, timeout_s=10)) for _ in range(3)]
    await asyncio.sleep(0)
    far.close("it was killed")
    for call in calls:
        with pytest.raises(UnreachableError, match="The host cannot be reached"):
            await call
    with pytest.raises(UnreachableError):
        await near.call("any", {}, timeout_s=10)
    with pytest.raises(UnreachableError, match="within 0"):
        await make_peers(handle)[0].call("any", {}, timeout_s=0)


class Secrets:
    async def fill(self, value: str) -> str:
        return value.replace("${e2b.secrets.key}", "secret")

    async def certify(self, host: str, key: str) -> str:
        return f"certificate of {host}"


async def test_a_host_gets_only_what_the_rules_of_its_sandboxes_need() -> None:
    header = ("Authorization", "Bearer ${e2b.secrets.key}")
    rules = (HostRule("api.example.com", (header,)), HostRule("*.example.org", ()))
    policies = {"here": NetworkPolicy(rules=rules)}
    answers = EgressAnswers(Secrets())
    answers.find_policy = policies.get
    assert await answers.answer("fill", {"value": header[1]}, ["here"]) == "Bearer secret"
    for host in ("api.example.com", "API.example.com", "any.example.org"):
        assert await answers.answer("certify", {"host": host, "key": ""}, ["here"]) == f"certificate of {host}"
    for verb, arguments, sandboxes in (
        ("fill", {"value": header[1]}, ["elsewhere"]),
        ("fill", {"value": "${e2b.secrets.key}"}, ["here"]),
        ("certify", {"host": "api.example.com", "key": ""}, []),
        ("certify", {"host": "other.example.com", "key": ""}, ["here"]),
        ("certify", {"host": "example.org", "key": ""}, ["here"]),
    ):
        with pytest.raises(ForbiddenError):
            await answers.answer(verb, arguments, sandboxes)


async def test_rules_are_refused_without_secrets(cluster: Cluster) -> None:
    driver: ClusterDriver = await cluster.open()
    handle = await driver.create(cluster.spec())
    policy = NetworkPolicy(rules=(HostRule("api.example.com", (("X-Key", "1"),)),))
    with pytest.raises(UnsupportedError):
        await driver.set_network(handle, policy)
    with pytest.raises(UnsupportedError):
        await driver.create(cluster.spec(network=policy))
