from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import dns.asyncresolver
import dns.message
import dns.rdatatype
import dns.rrset
import pytest

from sandyard.kit import dns_lookup

RECORDS = {"both.example.": [("AAAA", "2001:db8::1"), ("A", "192.0.2.1")], "four.example.": [("A", "192.0.2.2")]}


class _NameServer(asyncio.DatagramProtocol):
    """Knows RECORDS, has no record for `gone.example`, and does not answer other queries."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        question = dns.message.from_wire(data)
        query = question.question[0]
        name = query.name.to_text()
        if name not in RECORDS and name != "gone.example.":
            return
        answer = dns.message.make_response(question)
        wanted = dns.rdatatype.to_text(query.rdtype)
        for kind, address in RECORDS.get(name, ()):
            if kind == wanted:
                answer.answer.append(dns.rrset.from_text(query.name, 60, "IN", kind, address))
        self._transport.sendto(answer.to_wire(), addr)


@pytest.fixture
async def name_server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(_NameServer, ("127.0.0.1", 0))
    resolver = dns.asyncresolver.Resolver(configure=False)
    resolver.nameservers, resolver.port = ["127.0.0.1"], transport.get_extra_info("sockname")[1]
    monkeypatch.setattr(dns.asyncresolver, "Resolver", lambda: resolver)
    yield
    transport.close()


async def look_up(host: str) -> list[str]:
    return [str(address) for address in await dns_lookup.look_up(host)]


async def test_a_name_is_resolved_to_its_addresses(name_server: None) -> None:
    assert await look_up("both.example") == ["192.0.2.1", "2001:db8::1"]
    assert await look_up("four.example.") == ["192.0.2.2"]
    with pytest.raises(OSError, match="could not be resolved"):
        await look_up("gone.example")


async def test_unanswered_lookups_do_not_delay_others(name_server: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dns_lookup, "LOOKUP_SECONDS", 60.0)
    silent = [asyncio.create_task(look_up(f"silent-{number}.example")) for number in range(100)]
    await asyncio.sleep(0)
    assert await look_up("four.example") == ["192.0.2.2"]
    assert not any(task.done() for task in silent)
    for task in silent:
        task.cancel()
    await asyncio.gather(*silent, return_exceptions=True)


async def test_an_unanswered_lookup_fails(name_server: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dns_lookup, "LOOKUP_SECONDS", 0.05)
    with pytest.raises(OSError, match="could not be resolved"):
        await look_up("silent.example")


async def test_the_hosts_file_localhost_and_addresses_need_no_name_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("# comment\n192.0.2.7 box box.lan # the box\n2001:db8::7 box\nnonsense\n")
    monkeypatch.setattr(dns_lookup, "HOSTS_FILE", hosts)
    assert await look_up("Box") == ["192.0.2.7", "2001:db8::7"]
    assert await look_up("box.lan") == ["192.0.2.7"]
    assert await look_up("api.localhost") == ["127.0.0.1", "::1"]
    assert await look_up("127.1") == ["127.0.0.1"]
    assert await look_up("fe80::1%eth0") == ["fe80::1"]


@pytest.mark.parametrize("host", ["", "a..b", "x" * 64 + ".example", "\ud800.example", "-" * 300])
async def test_invalid_names_are_errors(name_server: None, host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dns_lookup, "LOOKUP_SECONDS", 0.05)
    with pytest.raises(OSError, match="could not be resolved"):
        await look_up(host)
