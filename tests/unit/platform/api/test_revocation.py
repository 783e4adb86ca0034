"""Long-lived requests and connections end when their user loses access."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.types import Message

from sandyard.kit.errors import NotFoundError
from sandyard.kit.websockets import ABORT
from sandyard.platform.api import audit, commands, files, remote, revocation, terminal
from sandyard.platform.api.revocation import end_when_revoked
from sandyard.platform.domain.audit.service import AuditQuery
from sandyard.platform.domain.sandboxes.model import OwnerWithoutAccessError
from sandyard.platform.domain.sandboxes.terminals import Viewer
from tests.unit.platform.api.sockets import make_scope
from tests.unit.platform.world import ROOT, Person, World, client

SANDBOX = "sbx_00mwhnkzb5gfh26ygacc"
REASONS = {"disabled": 401, "token revoked": 401, "removed": 404}


class Access:
    """Access of a user to a sandbox, and ways to lose it."""

    def __init__(self, world: World, person: Person) -> None:
        self._world = world
        self._person = person
        self._is_visible = True

    async def check(self, *_: Any) -> None:
        if not self._is_visible:
            raise NotFoundError("There is no such sandbox.")

    async def revoke(self, reason: str) -> None:
        if reason == "disabled":
            await self._world.users.update(ROOT, self._person.principal.user_id, disabled=True)
        elif reason == "token revoked":
            token_id = self._person.principal.means.partition(":")[2]
            await self._world.users.revoke_token(self._person.principal, token_id)
        else:
            self._is_visible = False


def make_connection(world: World) -> Any:
    services = SimpleNamespace(database=world.database, clock=world.clock)
    return SimpleNamespace(app=SimpleNamespace(state=SimpleNamespace(services=services)))


@pytest.mark.parametrize("reason", ["disabled", "no longer visible", "owner without access"])
async def test_download_ends_when_access_is_lost(world: World, monkeypatch: pytest.MonkeyPatch, reason: str) -> None:
    monkeypatch.setattr(revocation, "RECHECK_SECONDS", 0.001)
    maria = (await world.create_person("maria")).principal
    connection = make_connection(world)
    visible = True

    async def check_access() -> None:
        if not visible:
            raise OwnerWithoutAccessError if reason == "owner without access" else NotFoundError("gone")

    async def endless() -> AsyncIterator[bytes]:
        nonlocal visible
        number = 0
        while True:
            number += 1
            if number == 100 and reason == "disabled":
                await world.users.update(ROOT, maria.user_id, disabled=True)
            elif number == 100:
                visible = False
            await asyncio.sleep(0)
            yield b"x"

    async with asyncio.timeout(10):
        received = [chunk async for chunk in end_when_revoked(connection, maria, check_access, endless())]
    assert len(received) >= 99


async def test_audit_export_ends_when_its_reader_is_no_longer_an_administrator(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(revocation, "RECHECK_SECONDS", 0.001)
    await world.create_person("other", "admin")
    maria = (await world.create_person("maria", "admin")).principal

    class Entries:
        async def export(self, *_: Any) -> AsyncIterator[bytes]:
            async def endless() -> AsyncIterator[bytes]:
                yield b"first"
                await world.users.update(ROOT, maria.user_id, role="member")
                while True:
                    await asyncio.sleep(0)
                    yield b"x"

            return endless()

    entries: Any = Entries()
    response = await audit.export_audit(make_connection(world), maria, AuditQuery(), entries)
    async with asyncio.timeout(10):
        received = [line async for line in response.body_iterator]
    assert received[0] == b"first"


# uploads ---------------------------------------------------------------------------------------------------------------


class Uploads:
    """Receives uploads, and keeps only complete ones."""

    def __init__(self, access: Access) -> None:
        self.get_status = access.check
        self.received = 0
        self.completed: list[bytes] = []

    async def upload_file(self, *arguments: Any) -> int:
        chunks, content = arguments[3], b""
        async for chunk in chunks:
            content += chunk
            self.received = len(content)
        self.completed.append(content)
        return len(content)


@pytest.mark.parametrize("reason", REASONS)
@pytest.mark.parametrize("moment", ["during the transfer", "before its end"])
async def test_upload_ends_when_access_is_lost(
    world: World, monkeypatch: pytest.MonkeyPatch, reason: str, moment: str
) -> None:
    is_endless = moment == "during the transfer"
    monkeypatch.setattr(revocation, "RECHECK_SECONDS", 0.001 if is_endless else 600)
    maria = await world.create_person("maria")
    access = Access(world, maria)
    uploads = Uploads(access)
    vars(world)["sandboxes"] = uploads

    async def body() -> AsyncIterator[bytes]:
        yield b"first"
        await access.revoke(reason)
        yield b"second"
        if is_endless:
            await asyncio.Event().wait()

    async with asyncio.timeout(10), client(world.app(files.router), maria) as web:
        response = await web.put(f"/api/v1/sandboxes/{SANDBOX}/files?path=/tmp/file", content=body())
    assert response.status_code == REASONS[reason], response.text
    assert (uploads.received > 0, uploads.completed) == (True, [])
    assert response.headers.get("connection") == ("close" if is_endless else None)


async def test_upload_is_completed_with_access(world: World) -> None:
    maria = await world.create_person("maria")
    uploads = Uploads(Access(world, maria))
    vars(world)["sandboxes"] = uploads
    async with client(world.app(files.router), maria) as web:
        response = await web.put(f"/api/v1/sandboxes/{SANDBOX}/files?path=/tmp/file", content=b"whole")
    assert (response.status_code, response.json()["size"], uploads.completed) == (200, 5, [b"whole"])


async def test_result_of_a_command_is_not_sent_after_access_is_lost(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(revocation, "RECHECK_SECONDS", 0.001)
    maria = await world.create_person("maria")
    access = Access(world, maria)

    class Commands:
        check_access = access.check

        async def execute(self, *_: Any) -> Any:
            return SimpleNamespace(id="cmd_1")

        async def wait_for(self, *_: Any) -> None:
            await access.revoke("token revoked")
            await asyncio.Event().wait()

    vars(world)["commands"] = Commands()
    async with asyncio.timeout(10), client(world.app(commands.router), maria) as web:
        response = await web.post(f"/api/v1/sandboxes/{SANDBOX}/execute", json={"command": "sleep 1000"})
    assert response.status_code == 401, response.text


# WebSockets ------------------------------------------------------------------------------------------------------------


class Typist:
    """A WebSocket client that sends input and stops reading when the first output arrives."""

    def __init__(self) -> None:
        self.incoming = asyncio.Queue[Message]()
        self.incoming.put_nowait({"type": "websocket.connect"})
        self.is_stuck = asyncio.Event()
        self.is_aborted = asyncio.Event()
        self.messages: list[dict[str, Any]] = []

    def type(self, data: bytes) -> None:
        self.incoming.put_nowait({"type": "websocket.receive", "bytes": data})

    async def send(self, message: Message) -> None:
        if "bytes" in message:
            self.is_stuck.set()
        if self.is_stuck.is_set():
            await asyncio.Event().wait()
        self.messages.append(dict(message))

    async def run(self, app: FastAPI, url: str, person: Person) -> None:
        scope = make_scope(url, person.headers)
        scope["extensions"][ABORT] = self.is_aborted.set
        await app(scope, self.incoming.get, self.send)


class Shell:
    """The other end of a terminal or an SSH connection. It has output, and records its input."""

    has_ended, reason, host_key = False, None, "ssh-ed25519 AAAA"
    handle = SimpleNamespace(exit_code=None)

    def __init__(self, access: Access) -> None:
        self.list = self.check = access.check
        self.typed: list[bytes] = []
        self.was_typed = asyncio.Event()
        self.ssh = SimpleNamespace(open=self.open_ssh)

    @contextlib.asynccontextmanager
    async def view(self, *_: Any) -> AsyncIterator[Any]:
        viewer = Viewer()
        viewer.send(b"output")
        yield self, viewer

    @contextlib.asynccontextmanager
    async def open_ssh(self, *_: Any) -> AsyncIterator[Any]:
        yield self

    async def resize(self, *_: Any) -> None:
        return

    async def write(self, _: Any, data: bytes) -> None:
        await self.send(data)

    async def send(self, data: bytes) -> None:
        self.typed.append(data)
        self.was_typed.set()

    async def receive(self) -> bytes:
        return b"output"


CONNECTIONS = {
    "terminal": (terminal.router, "terminals", f"/api/v1/sandboxes/{SANDBOX}/terminal?terminal=trm_1"),
    "ssh": (remote.router, "remotes", f"/api/v1/sandboxes/{SANDBOX}/ssh?key=x"),
}


@pytest.mark.parametrize("kind", CONNECTIONS)
async def test_input_of_a_client_that_does_not_read_ends_with_its_access(
    world: World, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    router, service, url = CONNECTIONS[kind]
    monkeypatch.setattr(revocation, "RECHECK_SECONDS", 0.001)
    monkeypatch.setattr(revocation, "CLOSE_SECONDS", 0.05)
    maria = await world.create_person("maria")
    access, typist = Access(world, maria), Typist()
    shell = Shell(access)
    vars(world)[service] = shell
    running = asyncio.create_task(typist.run(world.app(router), url, maria))
    async with asyncio.timeout(10):
        await typist.is_stuck.wait()
        typist.type(b"before")
        await shell.was_typed.wait()
        await access.revoke("removed")
        await typist.is_aborted.wait()
        typist.type(b"after")
        await running
    assert shell.typed == [b"before"]


@pytest.mark.parametrize("kind", CONNECTIONS)
async def test_client_that_reads_is_told_that_its_connection_was_closed(
    world: World, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    router, service, url = CONNECTIONS[kind]
    monkeypatch.setattr(revocation, "RECHECK_SECONDS", 0.001)
    maria = await world.create_person("maria")
    access, typist = Access(world, maria), Typist()
    shell = Shell(access)
    vars(world)[service] = shell

    async def read(message: Message) -> None:
        typist.messages.append(dict(message))
        if "bytes" in message:
            await access.revoke("removed")
            await asyncio.sleep(0)

    typist.send = read  # type: ignore[method-assign]
    async with asyncio.timeout(10):
        await typist.run(world.app(router), url, maria)
    assert json.loads(typist.messages[-2]["text"])["type"] == "closed"
    assert (typist.messages[-1]["type"], typist.is_aborted.is_set()) == ("websocket.close", False)


@pytest.mark.parametrize("message_type", ["websocket.accept", "websocket.send"])
@pytest.mark.parametrize("kind", CONNECTIONS)
async def test_client_that_disconnects_is_not_an_error(
    world: World, caplog: pytest.LogCaptureFixture, kind: str, message_type: str
) -> None:
    router, service, url = CONNECTIONS[kind]
    maria = await world.create_person("maria")
    typist = Typist()
    vars(world)[service] = Shell(Access(world, maria))

    async def fail(message: Message) -> None:
        if message["type"] == message_type:
            raise OSError("the client has disconnected")  # like uvicorn's ClientDisconnected

    typist.send = fail  # type: ignore[method-assign]
    async with asyncio.timeout(10):
        await typist.run(world.app(router), url, maria)
    assert "request_failed" not in [record.message for record in caplog.records]
