"""The network of a host gets data from its engine: values of headers, and certificates for a key that never leaves the host."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from sandyard.engine.certificates.authority import Authority
from sandyard.engine.hosting.outbound import RemoteOutbound
from sandyard.engine.secrets.outbound import SecretsOutbound
from sandyard.engine.secrets.service import Secrets
from sandyard.engine.store.database import Database
from sandyard.kit.errors import InvalidInputError, NotFoundError
from sandyard.kit.secret import Secret


class Engine:
    """The engine's side, which counts what it is asked."""

    def __init__(self, folder: Path) -> None:
        database = Database(folder / "engine.db")
        database.open()
        self.secrets = Secrets(database, folder / "secrets.key")
        self.authority = Authority.load(folder / "ca")
        self.outbound = SecretsOutbound(self.secrets, self.authority)
        self.verbs: list[str] = []

    async def ask(self, verb: str, arguments: Mapping[str, Any]) -> Any:
        self.verbs.append(verb)
        if verb == "fill":
            return await self.outbound.fill(arguments["value"])
        return await self.outbound.certify(arguments["host"], arguments["key"])


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> None:
    """Shake hands in memory. Raises SSLError if the client does not accept the server."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=name),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    while ends:
        for end in list(ends):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            ends.remove(end)


async def test_values_are_filled_by_the_engine(tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    await engine.secrets.create("key", Secret("one"), {})
    outbound = RemoteOutbound(engine.ask)
    assert await outbound.fill("no secret") == "no secret"
    assert engine.verbs == []
    assert outbound.holds_secret("Bearer ${e2b.secrets.key}")
    assert await outbound.fill("Bearer ${e2b.secrets.key}") == "Bearer one"
    with pytest.raises(NotFoundError):
        await outbound.fill("${e2b.secrets.other}")


async def test_certificates_are_accepted_by_sandboxes_and_kept(tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    outbound = RemoteOutbound(engine.ask)
    client = ssl.create_default_context(cadata=engine.authority.pem.decode())
    context = await outbound.make_context("api.example.com")
    handshake(context, client, "api.example.com")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(context, client, "other.example.com")
    assert await outbound.make_context("api.example.com") is context
    assert engine.verbs == ["certify"]
    with pytest.raises(InvalidInputError):
        await engine.outbound.certify("api.example.com", "no key")


async def test_it_can_be_used_from_another_event_loop(tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    await engine.secrets.create("key", Secret("one"), {})
    outbound = RemoteOutbound(engine.ask)
    filled: list[str] = []

    async def fill() -> None:
        filled.append(await outbound.fill("${e2b.secrets.key}"))

    thread = threading.Thread(target=lambda: asyncio.run(fill()))
    thread.start()
    await asyncio.to_thread(thread.join)
    assert filled == ["one"]


async def test_few_questions_are_asked_at_once(tmp_path: Path) -> None:
    """The programs of sandboxes decide how many there are, and the engine refuses hosts that ask too much."""
    most, waiting = 0, 0

    async def ask(verb: str, arguments: Mapping[str, Any]) -> Any:
        nonlocal most, waiting
        waiting += 1
        most = max(most, waiting)
        await asyncio.sleep(0)
        waiting -= 1
        return "filled"

    outbound = RemoteOutbound(ask)
    answers = await asyncio.gather(*(outbound.fill("${e2b.secrets.key}") for _ in range(1000)))
    assert set(answers) == {"filled"}
    assert most <= 200
