"""Ports of a running sandbox: those that something listens on, and the route to them."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from e2b import ConnectionConfig

from sandyard.platform.domain.sandboxes.e2b.guest_sources import read_script
from sandyard.platform.domain.sandboxes.e2b.programs import Programs, replace_control_characters
from sandyard.platform.domain.sandboxes.e2b.transport import EngineTransport

AGENT_PORT: int = ConnectionConfig.envd_port
"""Port of envd, which has its own access."""
LISTED = 200
"""Maximum number of ports to list."""
_TIMEOUT_S, _LIMIT = 10.0, 1 << 20
_NAME_LENGTH = 60
_PLATFORM_PATH = b"/tmp/.sandyard/"  # in the sandbox: folder of the platform's own programs
_FILES, _LINES = b"::files", b"::lines"

_LIST_PORTS = read_script("list_ports.sh")
_DIRECTORY = re.compile(rb"/proc/(\d{1,10})/fd:")
_SOCKET = re.compile(rb"socket:\[(\d{1,20})\]\s*$")
_HEADING = re.compile(rb"==> /proc/(\d{1,10})/cmdline <==\n")
_LISTENING = "0A"


@dataclass(frozen=True, slots=True)
class Listener:
    """A listening port. `process` is the program's name, if it could be determined."""

    port: int
    address: str
    process: str | None


@dataclass(frozen=True, slots=True)
class Route:
    """Route to a port of a sandbox.

    `headers` select the sandbox and its port. `keeps_host`: the client's Host header is passed on; otherwise it is that
    of `url`.
    """

    url: str
    headers: Mapping[str, str] = field(repr=False)
    keeps_host: bool


class Ports:
    def __init__(self, transport: EngineTransport, programs: Programs) -> None:
        self._transport = transport
        self._programs = programs

    async def list_listeners(self, engine_id: str) -> list[Listener]:
        """List one entry per port, by number, without those of the platform and envd. The sandbox's information may be
        false."""
        argv = ("/bin/sh", "-c", _LIST_PORTS)
        ran = await self._programs.run(engine_id, argv, timeout_s=_TIMEOUT_S, limit=_LIMIT, idempotent=True)
        return parse(ran.stdout)

    async def get_route(self, engine_id: str, port: int) -> Route:
        """Return the route without resuming the sandbox. Raises SandboxNotRunningError and SandboxNotFoundError."""
        sandbox = await self._transport.get_sandbox_with_token(engine_id)
        headers = {}
        if sandbox.traffic_access_token:
            headers["e2b-traffic-access-token"] = sandbox.traffic_access_token
        if self._transport.config.sandbox_url is None:
            return Route(f"https://{sandbox.get_host(port)}", headers, keeps_host=False)
        url = self._transport.config.sandbox_url.rstrip("/")
        headers |= {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": str(port)}
        # behind https there may be a proxy that finds the engine by its name
        return Route(url, headers, keeps_host=url.startswith("http:"))


def parse(output: bytes) -> list[Listener]:
    """Parse the output of `guest/list_ports.sh`. It may be malformed in any way."""
    table, _, rest = output.partition(_FILES + b"\n")
    files, _, lines = rest.partition(_LINES + b"\n")
    owners = dict(_parse_owners(files))
    commands = dict(_parse_commands(lines))
    found: dict[int, Listener] = {}
    for port, address, inode in _parse_listening(table):
        command = commands.get(owners.get(inode, -1), b"")
        if port == AGENT_PORT or _PLATFORM_PATH in command:
            continue
        known = found.get(port)
        if known is None or _rank(address) < _rank(known.address):
            found[port] = Listener(port, address, _get_program_name(command) or (known.process if known else None))
    return [found[port] for port in sorted(found)[:LISTED]]


def _parse_listening(table: bytes) -> Iterator[tuple[int, str, int]]:
    """Yield the port, address and inode of listening lines of /proc/net/tcp and tcp6."""
    for line in table.decode("ascii", "replace").splitlines():
        parts = line.split()
        if len(parts) < 10 or parts[3] != _LISTENING:
            continue
        address, _, port = parts[1].partition(":")
        try:
            number, inode = int(port, 16), int(parts[9])
            shown = _parse_address(address)
        except ValueError:
            continue
        if 0 < number < 65536:
            yield number, shown, inode


def _parse_address(written: str) -> str:
    """Parse an address of 32-bit words, each in the byte order of this kind of machine: little-endian."""
    raw = bytes.fromhex(written)
    if len(raw) not in (4, 16):
        raise ValueError(written)
    packed = b"".join(raw[start : start + 4][::-1] for start in range(0, len(raw), 4))
    address = ipaddress.ip_address(packed)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def _parse_owners(files: bytes) -> Iterator[tuple[int, int]]:
    """Yield which process owns which socket."""
    process = None
    for line in files.splitlines():
        if (directory := _DIRECTORY.match(line)) is not None:
            process = int(directory.group(1))
        elif process is not None and (link := _SOCKET.search(line)) is not None:
            yield int(link.group(1)), process


def _parse_commands(lines: bytes) -> Iterator[tuple[int, bytes]]:
    parts = _HEADING.split(lines)
    for number, command in zip(parts[1::2], parts[2::2], strict=False):
        yield int(number), command.rstrip(b"\n")


def _get_program_name(command: bytes) -> str | None:
    """Return the program's name without its path and arguments, which others may not see."""
    program = replace_control_characters(command.partition(b"\0")[0].decode(errors="replace")).strip()
    name = program.rpartition("/")[2] if program.startswith("/") else program
    return " ".join(name.split())[:_NAME_LENGTH] or None


def _rank(address: str) -> int:
    """Rank the addresses of one port by usefulness: all interfaces, then loopback, then any other."""
    parsed = ipaddress.ip_address(address)
    return 0 if parsed.is_unspecified else 1 if parsed.is_loopback else 2
