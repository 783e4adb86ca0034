"""JSON with too many values is rejected wherever external JSON comes in, without parsing it, because parsing would
block everybody."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable

import pytest

from sandyard.kit.bounded_json import TooManyValuesError
from sandyard.kit.errors import InvalidInputError
from sandyard.platform.api import remote, terminal
from sandyard.platform.domain.agents.acp import wire
from sandyard.platform.domain.forge import github_connection
from sandyard.platform.domain.forge.deliveries import parse_payload
from sandyard.platform.domain.forge.errors import ForgeUnreachableError
from sandyard.platform.domain.forge.github_connection import CachedResponse
from sandyard.platform.domain.forge.github_errors import extract_message
from sandyard.platform.domain.mcp_servers import probe
from sandyard.platform.domain.models import faults, provider_check, request_body
from sandyard.platform.domain.models.apis import ModelRequest
from sandyard.platform.domain.models.model import ModelApi, Tokens
from sandyard.platform.domain.models.redaction import Redactor
from sandyard.platform.domain.models.token_counter import TokenCounter
from sandyard.platform.domain.models.tunnel import RequestMemory, Tunnel, TunnelError
from sandyard.platform.domain.preparations import jsonc
from sandyard.platform.domain.remote.ssh_channel import SshChannel, SshError
from sandyard.platform.domain.sandboxes.e2b.relay import CommandEnded, EndReason

CHAT = ModelRequest("/v1/chat/completions", "", counted=True)


def flood(**fields: object) -> bytes:
    """Return an object with these fields, and one with 300,000 empty lists."""
    return json.dumps(fields).encode()[:-1] + b', "flood": [' + b"[]," * 300_000 + b"[]]}"


def _count(event: str) -> Tokens:
    counter = TokenCounter(ModelApi.OPENAI, "text/event-stream" if event else "application/json")
    asyncio.run(counter.feed(event.encode() + flood(usage={"input_tokens": 1})))
    return counter.get_result()


ENTRY_POINTS: dict[str, Callable[[], object]] = {
    "terminal": lambda: terminal.parse_size(flood(type="resize", cols=1, rows=1).decode()),
    "ssh": lambda: remote.is_end(flood(type="eof").decode()),
    "command": lambda: CommandEnded.parse(flood(reason="exited").decode()),
    "agent": lambda: wire.parse_line(flood(method="session/update")),
    "forge error": lambda: extract_message(flood(message="no")),
    "provider error": lambda: faults.extract_message(flood(error="no").decode(), Redactor())[:10],
    "models": lambda: provider_check.parse_models(flood(data=[{"id": "m"}])),
    "mcp server": lambda: probe.parse_message(flood(id=1), 1),
    "stream": lambda: _count("data: "),
    "answer": lambda: _count(""),
}
EXPECTED: dict[str, object] = {
    "terminal": None,
    "ssh": False,
    "command": CommandEnded(EndReason.LOST),
    "agent": None,
    "forge error": "",
    "provider error": '{"error": ',
    "models": [],
    "mcp server": None,
    "stream": Tokens(),
    "answer": Tokens(),
}


@pytest.fixture(autouse=True)
def _unparsed(monkeypatch: pytest.MonkeyPatch) -> None:
    def loads(*_: object, **__: object) -> None:
        raise AssertionError("The JSON was parsed.")

    monkeypatch.setattr(json, "loads", loads)


@pytest.mark.parametrize("entry_point", ENTRY_POINTS)
def test_ignores_flood(entry_point: str) -> None:
    assert ENTRY_POINTS[entry_point]() == EXPECTED[entry_point]


def test_rejects_webhook() -> None:
    with pytest.raises(InvalidInputError, match=r"more than 200,000 values\.$"):
        parse_payload("application/json", flood(action="labeled"))


def test_rejects_answer_of_forge() -> None:
    with pytest.raises(ForgeUnreachableError, match=r"forge\.apiUrl"):
        github_connection.parse_response(CachedResponse("", flood(number=1), ""))


def test_rejects_model_request() -> None:
    with pytest.raises(TooManyValuesError):
        request_body.parse_body(flood(model="m"), CHAT, ModelApi.OPENAI_CHAT)


def test_rejects_devcontainer() -> None:
    with pytest.raises(ValueError, match="more than 20,000 values"):
        jsonc.parse(flood(image="x")[: 1 << 19].decode())


class Script:
    """A program in a sandbox that prints one line."""

    def __init__(self, line: str) -> None:
        self._line = line

    async def read_lines(self) -> AsyncIterator[str]:
        yield self._line

    def send_line(self, line: str) -> None:
        pass

    async def drain(self) -> None:
        pass


async def test_ends_tunnel() -> None:
    async def serve(*_: object) -> None: ...

    with pytest.raises(TunnelError, match="invalid line"):
        await Tunnel(Script(flood(t="ping").decode()), serve, RequestMemory(1), lambda _: None).run()


async def test_ends_ssh_connection() -> None:
    line = SshChannel(Script(flood(t="ack", n=1).decode()), "ssh-ed25519 AAAA")
    await line.run()
    with pytest.raises(SshError, match="invalid line"):
        await line.receive()
