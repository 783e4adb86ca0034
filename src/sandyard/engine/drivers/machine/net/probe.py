"""Checks of what the network needs from this host, without changing anything. For `sandyard doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sandyard.engine.drivers.machine.net import host_firewall
from sandyard.engine.drivers.machine.net.nft import Nft, NftError, NftUnavailableError, check_library
from sandyard.engine.drivers.machine.net.settings import NetworkSettings
from sandyard.engine.drivers.machine.net.upstream import Upstream

_FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")


@dataclass(frozen=True, slots=True)
class Finding:
    """One check; `detail` is a sentence, with the remedy if it is not `ok`."""

    name: str
    ok: bool
    detail: str


def probe(settings: NetworkSettings | None = None) -> tuple[Finding, ...]:
    """Run the checks. Blocks for some milliseconds. Without root it finds less, and says so."""
    settings = settings or NetworkSettings()
    return (*_check_rules(), _check_forwarding(), _check_resolver(settings))


def _check_rules() -> list[Finding]:
    try:
        check_library()
        nft = Nft()
    except NftUnavailableError as error:
        return [Finding("nftables", False, str(error))]
    try:
        problems = host_firewall.list_problems(nft)
    except NftError as error:
        return [Finding("nftables", False, f"nftables cannot be used by this user ({error}). Run the engine as root")]
    finally:
        nft.close()
    found = [Finding("nftables", True, "the firewall of the sandboxes can be loaded")]
    if not problems:
        return [*found, Finding("host firewall", True, "no other firewall is in the way")]
    return found + [Finding(f"host firewall ({what})", False, why) for what, why in problems.items()]


def _check_forwarding() -> Finding:
    try:
        on = _FORWARDING.read_text().strip() == "1"
        if not on:
            _FORWARDING.open("r+").close()
    except OSError as error:
        return Finding(
            "forwarding",
            False,
            f"IPv4 forwarding is off and cannot be turned on ({error.strerror}): sysctl -w net.ipv4.ip_forward=1",
        )
    return Finding("forwarding", True, "IPv4 forwarding is on" if on else "the engine will turn IPv4 forwarding on")


def _check_resolver(settings: NetworkSettings) -> Finding:
    servers = ", ".join(str(address[0]) for _, address in Upstream(settings.resolv_conf).list_servers())
    return Finding("resolver", True, f"DNS queries of sandboxes are forwarded to {servers}")
