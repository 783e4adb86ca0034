"""A host that has joined and is hostile: it may do as it likes with its own sandboxes, and nothing with anything else."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from sandyard.engine.contract import Condition, FileOwner, Handle, HostRule, NetworkPolicy, Spec
from sandyard.engine.drivers.cluster.connections import LineProtocol, describe_protocol, make_result
from sandyard.engine.drivers.cluster.driver import TRANSFER_WAIT_S, ClusterDriver
from sandyard.engine.drivers.cluster.link import MAX_ENDS, POLL_PAUSE_S
from sandyard.engine.drivers.cluster.model import HostRecord, HostState
from sandyard.engine.drivers.cluster.peer import MAX_HOST_CALLS, MAX_HOST_FRAME, MAX_HOST_VALUES, Peer
from sandyard.engine.drivers.cluster.reading_budget import HOST_BURST
from sandyard.kit.errors import BusyError, ForbiddenError, FullError, InvalidInputError, NotFoundError, UnreachableError
from tests.harness.cluster import (
    Directory,
    TestAuthority,
    make_client_context,
    make_cluster_driver,
    make_server_context,
)
from tests.integration.engine.drivers.cluster.conftest import wait_until

ROOM = {"memory_total": 1 << 40, "memory_available": 1 << 39, "disk_total": 1 << 40, "disk_free": 1 << 39}
REPORT: Mapping[str, Any] = {
    "room": {**ROOM, "cpu_count": 64, "load": 0.0},
    "capabilities": {
        "freeze": True,
        "suspend": [],
        "memory_fork": [],
        "live_copy": "copy",
        "limits": [],
        "egress": True,
        "isolation": ["namespace"],
        "containers": [],
        "missing": {},
    },
}
OPENED: Mapping[str, Any] = {
    **REPORT,
    "birth": "b",
    "version": "1",
    "conditions": {},
    "lives": {},
    "ends": 0,
    "layers": [],
    "volumes": [],
}


def accept_create(arguments: Mapping[str, Any]) -> Any:
    return {"handle": {"id": arguments["spec"]["id"], "driver": "fake", "data": {}}, "life": 1}


class Secrets:
    async def fill(self, value: str) -> str:
        return value.replace("${e2b.secrets.key}", "the-secret")

    async def certify(self, host: str, key: str) -> str:
        return f"certificate of {host}"


@dataclass
class HostileHost:
    """Answers the engine with what a test puts into `answers`: a value, or a function of the arguments."""

    record: HostRecord
    answers: dict[str, Any]
    calls: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    streams: list[tuple[Mapping[str, Any], bytearray]] = field(default_factory=list)
    peer: Peer | None = None
    stream_answer: bytes = make_result(None)

    async def handle(self, verb: str, arguments: Mapping[str, Any]) -> Any:
        self.calls.append((verb, arguments))
        if verb == "poll" and verb not in self.answers:
            await asyncio.sleep(0.05)
            return {"ends": [], **REPORT}
        answer = self.answers[verb]
        result = answer(arguments) if callable(answer) else answer
        return await result if asyncio.iscoroutine(result) else result

    async def serve(self, connection: LineProtocol) -> None:
        message = json.loads(await connection.first_line)
        if "stream" not in message:
            self.peer = Peer("The engine", self.handle)
            connection.transport.write(make_result({"version": "1", **describe_protocol()}))
            connection.hand_over(self.peer)
            return
        received = bytearray()
        self.streams.append((message, received))
        reader, writer = connection.make_streams()
        writer.write(self.stream_answer)
        while chunk := await reader.read(1 << 20):
            received += chunk


@dataclass
class Stage:
    """An engine with sandboxes on its own machine, and a hostile host that looks better to placement."""

    folder: Path
    host: HostileHost
    driver: ClusterDriver
    directory: Directory
    policies: dict[str, NetworkPolicy]

    @property
    def state(self) -> HostState:
        (status,) = [status for status in self.driver.list_statuses() if status.record.id == self.host.record.id]
        return status.state

    async def create_here(self, spec: Spec) -> Handle:
        """Create a sandbox on the engine's own machine."""
        self.directory.set([replace(self.host.record, draining=True)])
        handle = await self.driver.create(spec)
        self.directory.set([self.host.record])
        return handle

    async def create_there(self, spec: Spec) -> Handle:
        """Create a sandbox on the hostile host, and nowhere else."""
        self.fill_local()
        return await self.driver.create(spec)

    def fill_local(self) -> None:
        """Let the engine's own machine accept nothing new from now on."""
        room = replace(self.driver.local.get_room(), full="not here")
        self.driver.local.get_room = lambda: room  # type: ignore[method-assign]

    async def wait_until_away(self) -> None:
        await wait_until(lambda: self.state is not HostState.READY)

    async def wait_until_ready(self) -> None:
        await wait_until(lambda: self.state is HostState.READY)


@pytest_asyncio.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    authority = TestAuthority(tmp_path / "tls")
    context = make_server_context(authority.certificate, authority.issue("host-evil"))
    host = HostileHost(
        HostRecord("host-evil", "evil", "127.0.0.1", 0), {"open": OPENED, "create": accept_create, "kill": None}
    )
    tasks: set[asyncio.Task[None]] = set()

    class Connection(LineProtocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            tasks.add(asyncio.ensure_future(host.serve(self)))

    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", 0, ssl=context)
    host.record = replace(host.record, port=server.sockets[0].getsockname()[1])
    directory = Directory(make_client_context(authority.certificate, authority.engine_certificate), [host.record])
    driver = make_cluster_driver(tmp_path, directory, 1, use_local=True, egress=Secrets())
    policies: dict[str, NetworkPolicy] = {}
    driver.find_policy = policies.get
    stage = Stage(tmp_path, host, driver, directory, policies)
    yield stage
    await driver.local.open((), ())  # removes its sandboxes
    await driver.close()
    server.close()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_it_gets_only_the_layers_of_its_sandboxes(stage: Stage) -> None:
    secret = stage.folder / "private"
    secret.mkdir()
    (secret / "key").write_text("PRIVATE KEY")
    await stage.driver.open((), ())
    handle = await stage.create_here(Spec("here", ()))
    layers = await stage.driver.snapshot(handle, "of-another")
    for wanted in (str(secret), *layers):
        stage.host.answers["create"] = {"missing": [wanted]}
        with pytest.raises(UnreachableError, match="cannot be used"):
            await stage.create_there(Spec("there", ()))
    assert not stage.host.streams


async def test_it_gets_no_secrets_of_sandboxes_on_other_hosts(stage: Stage) -> None:
    header = ("Authorization", "Bearer ${e2b.secrets.key}")
    stage.policies["victim"] = NetworkPolicy(rules=(HostRule("api.example.com", (header,)),))
    await stage.driver.open((), ())
    await stage.create_here(Spec("victim", ()))
    posed = {"handle": {"id": "victim", "driver": "fake", "data": {}}, "life": 1}
    stage.host.answers["create"] = posed
    with pytest.raises(UnreachableError, match="another sandbox"):
        await stage.create_there(Spec("there", ()))
    stage.host.answers["create"] = accept_create
    handle = await stage.create_there(Spec("there", ()))
    stage.host.answers |= {"stop": posed, "restore": posed, "boot": posed, "fork": posed, "fork_with_memory": [posed]}
    child = Spec("child", ())
    for call in (
        stage.driver.stop(handle),
        stage.driver.restore(handle),
        stage.driver.boot(handle, child),
        stage.driver.fork(handle, child),
        stage.driver.fork_with_memory(handle, [child]),
    ):
        with pytest.raises(UnreachableError, match="another sandbox"):
            await call
    assert stage.host.peer is not None
    with pytest.raises(ForbiddenError):
        await stage.host.peer.call("fill", {"value": header[1]}, timeout_s=5)


async def test_it_cannot_declare_sandboxes_of_other_hosts_dead(stage: Stage) -> None:
    await stage.driver.open((), ())
    handle = await stage.create_here(Spec("victim", ()))
    stage.host.answers["open"] = {**OPENED, "conditions": {"victim": "absent", "other": "stopped"}}
    assert await stage.driver.open([handle], ()) == {"victim": Condition.RUNNING}


async def test_its_snapshots_contain_no_files_of_others(stage: Stage) -> None:
    await stage.driver.open((), ())
    await stage.driver.snapshot(await stage.create_here(Spec("victim", ())), "of-victim")
    handle = await stage.create_there(Spec("there", ("tpl:base/1",)))
    stage.host.answers["delete_snapshot"] = None
    for answer in (
        ["/root"],
        ["snap:of-victim"],
        ["snap:new", "tpl:../.."],
        ["tpl:other/1"],
        [],
        "snap:new",
        None,
        [{}],
    ):
        stage.host.answers["snapshot"] = answer
        with pytest.raises(UnreachableError, match="cannot be used"):
            await stage.driver.snapshot(handle, "new")
    stage.host.answers["snapshot"] = ["snap:new", "shared:0a", "tpl:base/1"]
    assert await stage.driver.snapshot(handle, "new") == ("snap:new", "shared:0a", "tpl:base/1")


async def test_it_cannot_replace_the_layers_of_other_hosts(stage: Stage) -> None:
    """It claims to have them; what is below a sandbox would then be its own choice."""
    stage.host.answers |= {"open": {**OPENED, "layers": ["snap:of-victim"]}, "has_layers": ["snap:of-victim"]}
    await stage.driver.open((), ())
    with pytest.raises(NotFoundError):
        await stage.driver.fetch_layers(["snap:of-victim"])
    assert not {"has_layers", "pack_layer"} & {verb for verb, _ in stage.host.calls}


async def test_its_layers_cannot_change_after_they_were_transferred(stage: Stage) -> None:
    await stage.driver.open((), ())
    handle = await stage.create_there(Spec("there", ()))
    package = {"digest": f"sha256:{1:064x}", "diff_id": f"sha256:{2:064x}", "size": 0, "bytes": 0, "entries": 0}
    stage.host.answers |= {"snapshot": ["snap:new"], "pack_layer": package}
    (layer,) = await stage.driver.snapshot(handle, "new")
    with pytest.raises(InvalidInputError, match="digest differs"):
        await stage.driver.fetch_layers([layer])
    stage.host.answers["pack_layer"] = {**package, "diff_id": f"sha256:{3:064x}"}
    with pytest.raises(UnreachableError, match="other files"):
        await stage.driver.fetch_layers([layer])


@pytest.mark.parametrize(
    "change",
    [{"size": -1}, {"size": 1 << 60}, {"bytes": "1"}, {"digest": "../../etc"}, {"diff_id": None}, {"entries": 1.5}],
)
async def test_invalid_packages_are_refused(stage: Stage, change: Mapping[str, Any]) -> None:
    """A negative size would be read without an end."""
    await stage.driver.open((), ())
    handle = await stage.create_there(Spec("there", ()))
    package = {"digest": f"sha256:{1:064x}", "diff_id": f"sha256:{2:064x}", "size": 0, "bytes": 0, "entries": 0}
    stage.host.answers |= {"snapshot": ["snap:new"], "pack_layer": {**package, **change}}
    (layer,) = await stage.driver.snapshot(handle, "new")
    with pytest.raises(UnreachableError, match="cannot be used"):
        await stage.driver.fetch_layers([layer])


async def test_it_cannot_take_over_volumes_of_other_hosts(stage: Stage) -> None:
    stage.host.answers["open"] = {**OPENED, "volumes": ["vol-1"]}
    await stage.driver.open((), ())
    await stage.driver.local.create_volume("vol-1", 10)
    files = stage.driver.get_volume_files("vol-1")
    await files.make_dir("private", FileOwner(), force=False)
    assert [entry.name for entry in await files.list("/")] == ["private"]
    assert "change_volume" not in {verb for verb, _ in stage.host.calls}


@pytest.mark.parametrize(
    "room",
    [
        {"memory_available": "much"},
        {"disk_free": [1]},
        {"load": float("nan")},
        {"load": float("inf")},
        {"memory_total": 10**400},
        {"full": {}},
        [],
        None,
    ],
)
async def test_an_invalid_report_affects_only_its_host(stage: Stage, room: Any) -> None:
    await stage.driver.open((), ())
    stage.host.answers["poll"] = {"ends": [], **REPORT, "room": {**REPORT["room"], **room} if room else room}
    await stage.wait_until_away()
    handle = await stage.driver.create(Spec("elsewhere", ()))
    assert handle.driver == "fake"
    json.dumps([asdict(status.room) for status in stage.driver.list_statuses() if status.room], allow_nan=False)


@pytest.mark.parametrize(
    "news",
    [
        {"ends": [["1"]]},
        {"ends": [[1, "there", "x", None]]},
        {"ends": 5},
        {"stats": {"there": {"cpu_seconds": "x"}}},
        {"stats": {"there": []}},
        {"capabilities": []},
    ],
)
async def test_invalid_news_end_the_connection(stage: Stage, news: Mapping[str, Any]) -> None:
    await stage.driver.open((), ())
    await stage.create_there(Spec("there", ()))
    stage.host.answers["poll"] = {"ends": [], **REPORT, **news}
    await stage.wait_until_away()
    del stage.host.answers["poll"]
    await stage.wait_until_ready()


async def test_news_without_a_pause_do_not_keep_the_engine_busy(stage: Stage) -> None:
    stage.host.answers["poll"] = {"ends": [], **REPORT}
    await stage.driver.open((), ())
    await asyncio.sleep(0.5)
    assert sum(verb == "poll" for verb, _ in stage.host.calls) <= 0.5 / POLL_PAUSE_S + 2


async def test_texts_of_hosts_are_bounded(stage: Stage) -> None:
    def fail(_: Any) -> None:
        raise FullError("x" * 1_000_000)

    stage.host.answers["create"] = fail
    await stage.driver.open((), ())
    with pytest.raises(FullError) as caught:
        await stage.create_there(Spec("there", ()))
    assert len(caught.value.message) < 10_000
    deep: Any = {}
    for _ in range(900):
        deep = {"x": deep}
    for data, reason in (({"x": "x" * 1_000_000}, "too large"), (deep, "cannot be used")):
        stage.host.answers["create"] = {"handle": {"id": "there", "driver": "fake", "data": data}, "life": 1}
        with pytest.raises(UnreachableError, match=reason):
            await stage.create_there(Spec("there", ()))


async def test_a_host_cannot_call_the_engine_without_limit(stage: Stage) -> None:
    never = asyncio.get_running_loop().create_future()
    stage.driver.find_policy = lambda sandbox_id: NetworkPolicy(rules=(HostRule("x", (("a", "b"),)),))

    class Stuck(Secrets):
        async def fill(self, value: str) -> str:
            await never
            return value

    stage.driver._egress._egress = Stuck()
    await stage.driver.open((), ())
    await stage.create_there(Spec("there", ()))
    peer = stage.host.peer
    assert peer is not None
    calls = [asyncio.ensure_future(peer.call("fill", {"value": "b"}, timeout_s=30)) for _ in range(MAX_HOST_CALLS + 1)]
    with pytest.raises(BusyError):
        await calls[-1]
    assert not any(call.done() for call in calls[:-1])
    never.set_result(None)
    assert await asyncio.gather(*calls[:-1]) == ["b"] * MAX_HOST_CALLS


@pytest.mark.parametrize("length", [0xFFFFFFFF, 11])
async def test_a_file_of_a_volume_is_no_larger_than_announced(stage: Stage, length: int) -> None:
    stage.host.answers["create_volume"] = None
    await stage.driver.open((), ())
    stage.fill_local()
    await stage.driver.create_volume("vol-2", 10)
    stage.host.stream_answer = make_result({"size": 10}) + struct.pack("!I", length) + b"x" * 100
    reader = await stage.driver.get_volume_files("vol-2").open("file")
    with pytest.raises(UnreachableError, match="more of the file"):
        await reader.read(100)
    await reader.close()
    stage.host.stream_answer = make_result({"size": -1})
    with pytest.raises(UnreachableError, match="cannot be used"):
        await stage.driver.get_volume_files("vol-2").open("file")


async def test_a_sandbox_that_was_removed_has_no_right_to_secrets(stage: Stage) -> None:
    """It may have been moved to another host because this one is no longer trusted."""
    header = ("Authorization", "Bearer ${e2b.secrets.key}")
    stage.policies["moved"] = NetworkPolicy(rules=(HostRule("api.example.com", (header,)),))
    await stage.driver.open((), ())
    handle = await stage.create_there(Spec("moved", ()))
    assert stage.host.peer is not None
    assert await stage.host.peer.call("fill", {"value": header[1]}, timeout_s=5) == "Bearer the-secret"

    def refuse(_: Any) -> None:
        raise UnreachableError("no")

    stage.host.answers["kill"] = refuse
    with pytest.raises(UnreachableError):
        await stage.driver.kill(handle)
    with pytest.raises(ForbiddenError):
        await stage.host.peer.call("fill", {"value": header[1]}, timeout_s=5)


async def test_what_a_host_sends_is_read_no_faster_than_others_can_bear(stage: Stage) -> None:
    await stage.driver.open((), ())
    assert stage.host.peer is not None
    transport = stage.host.peer._transport
    assert transport is not None
    frame = struct.pack("!I", 2) + b"{}"  # is not understood, and ends the connection when it is read
    block = struct.pack("!I", 1 << 20) + b'{"c":0}'.ljust(1 << 20)
    for _ in range((HOST_BURST >> 20) + 8):
        transport.write(block)
    transport.write(frame)
    before = asyncio.get_running_loop().time()
    await stage.wait_until_away()
    assert asyncio.get_running_loop().time() - before > 0.5


@pytest.mark.parametrize(
    ("ends", "reason"), [([[]] * (MAX_HOST_VALUES + 1), "more than 100,000 values"), ("x" * MAX_HOST_FRAME, "bytes")]
)
async def test_news_that_take_long_to_read_end_the_connection(stage: Stage, ends: Any, reason: str) -> None:
    await stage.driver.open((), ())
    stage.host.answers["poll"] = {**REPORT, "ends": ends}
    await stage.wait_until_away()
    (status,) = [status for status in stage.driver.list_statuses() if status.record.id == "host-evil"]
    assert reason in (status.reason or "")
    del stage.host.answers["poll"]
    await stage.wait_until_ready()


async def test_lists_that_were_asked_for_may_be_larger(stage: Stage) -> None:
    entry = {"kind": "file", "name": "n" * 50, "path": "p", "size": 1, "mode": 0o600}
    stage.host.answers |= {"create_volume": None, "change_volume": [entry] * (MAX_HOST_VALUES // 4)}
    await stage.driver.open((), ())
    stage.fill_local()
    await stage.driver.create_volume("vol-2", 10)
    with pytest.raises(UnreachableError, match="cannot be used"):  # it was read, and lacks fields
        await stage.driver.get_volume_files("vol-2").list("/")
    assert stage.state is HostState.READY


async def test_only_some_ends_of_a_poll_are_read_at_once(stage: Stage) -> None:
    known: list[int] = []

    async def poll(arguments: Mapping[str, Any]) -> Any:
        known.append(arguments["after"])
        await asyncio.sleep(POLL_PAUSE_S)
        after = range(arguments["after"] + 1, 2 * MAX_ENDS + 11)
        return {**REPORT, "ends": [[number, f"sandbox{number}", 1, "ended"] for number in after]}

    stage.host.answers["poll"] = poll
    await stage.driver.open((), ())
    await wait_until(lambda: 2 * MAX_ENDS + 10 in known)
    assert list(dict.fromkeys(known)) == [0, MAX_ENDS, 2 * MAX_ENDS, 2 * MAX_ENDS + 10]


async def test_a_host_that_does_not_take_its_layers_keeps_no_sandbox_from_others(stage: Stage) -> None:
    stage.host.answers["create"] = lambda arguments: {"missing": arguments["spec"]["layers"]}
    stage.host.stream_answer = make_result({})  # and nothing more: it never confirms
    await stage.driver.open((), ())
    layers = await stage.driver.snapshot(await stage.create_here(Spec("here", ())), "common")
    stage.host.answers["open"] = {**OPENED, "layers": layers}
    await stage.driver.open((), ["common"])
    stage.host.calls.clear()
    async with asyncio.timeout(TRANSFER_WAIT_S / 2):
        handles = [await stage.driver.create(Spec(f"new{number}", layers)) for number in range(2)]
    assert {handle.driver for handle in handles} == {"fake"}
    assert [verb for verb, _ in stage.host.calls].count("create") == 1, "the engine knows now that it has no layers"


async def test_a_host_that_claimed_layers_and_does_not_take_them_is_the_last_choice(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.host.answers["create"] = lambda arguments: {"missing": arguments["spec"]["layers"]}
    stage.host.stream_answer = make_result({})
    await stage.driver.open((), ())
    layers = await stage.driver.snapshot(await stage.create_here(Spec("here", ())), "common")
    stage.host.answers["open"] = {**OPENED, "layers": layers}
    await stage.driver.open((), ["common"])
    room = stage.driver.local.get_room()
    stage.fill_local()
    monkeypatch.setattr("sandyard.engine.drivers.cluster.driver.TRANSFER_WAIT_S", 0.1)
    with pytest.raises(BusyError, match="still being copied"):
        await stage.driver.create(Spec("one", layers))
    assert [link.is_stuck for link in stage.driver._links.values()] == [True]
    stage.driver.local.get_room = lambda: room  # type: ignore[method-assign]
    assert (await stage.driver.create(Spec("two", ()))).driver == "fake"


async def test_a_host_that_refuses_or_never_answers_keeps_no_sandbox_from_others(stage: Stage) -> None:
    def refuse(_: Any) -> None:
        raise InvalidInputError("no")

    stage.host.answers["create"] = refuse
    await stage.driver.open((), ())
    assert (await stage.driver.create(Spec("one", ()))).driver == "fake"
    stage.host.answers["create"] = lambda _: hang()
    stage.host.calls.clear()
    create = asyncio.ensure_future(stage.driver.create(Spec("two", ())))
    await wait_until(lambda: "create" in {verb for verb, _ in stage.host.calls})
    create.cancel()
    with pytest.raises(asyncio.CancelledError):
        await create
    assert (await stage.driver.create(Spec("three", ()))).driver == "fake"


async def test_snapshots_of_others_are_deleted_without_it(stage: Stage) -> None:
    def refuse(_: Any) -> None:
        raise FullError("no")

    await stage.driver.open((), ())
    handle = await stage.create_here(Spec("here", ()))
    for number, answer in enumerate((refuse, lambda _: hang())):
        stage.host.answers["delete_snapshot"] = answer
        (layer,) = await stage.driver.snapshot(handle, f"snapshot{number}")
        await stage.driver.delete_snapshot(f"snapshot{number}")
        with pytest.raises(NotFoundError):
            await stage.driver.fetch_layers([layer])


async def hang() -> None:
    await asyncio.get_running_loop().create_future()
