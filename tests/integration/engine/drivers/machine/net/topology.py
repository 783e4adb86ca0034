"""A topology of network namespaces: a host, an internet with servers, and helpers that run code inside a sandbox.

It does not touch the machine's own network. The calling thread is moved into the topology's "host", and threads it
starts afterwards are there too; `close` moves it back, and the kernel removes the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import selectors
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, TypeVar

import dns.exception
import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdata
import dns.rdataclass
import dns.rdatatype
import dns.rrset

from sandyard.engine.drivers.machine.net import links
from sandyard.engine.drivers.machine.net.netlink import Netlink
from sandyard.engine.drivers.machine.net.syscalls import (
    create_network_namespace,
    enter_network_namespace,
    unmount_lazily,
)

T = TypeVar("T")

HOST = "198.18.0.1"  # the host's own address; its connected network is 198.18.0.0/30
NEIGHBOUR = "198.18.0.2"  # the host's neighbour on that network, which is also its router
WEB, MIRROR, RESOLVER = "198.51.100.10", "198.51.100.20", "198.51.100.53"
LAN = "10.1.2.3"  # a private address behind the router
METADATA = "169.254.169.254"
CLOUD = "100.100.100.200"
SERVED = (WEB, MIRROR, RESOLVER, LAN, METADATA, CLOUD, NEIGHBOUR)
TCP, UDP, STREAM = 80, 7, 19

ZONE: dict[str, list[tuple[str, str]]] = {
    "web.test": [("A", WEB)],
    "api.web.test": [("A", MIRROR)],
    "alias.test": [("CNAME", "www.cdn.test"), ("A", WEB)],
    "rebind.test": [("A", LAN)],
    "meta.test": [("A", METADATA)],
    "mirror.test": [("A", MIRROR)],
    "big.test": [("A", f"198.51.100.{n}") for n in range(60, 160)],
}


def open_current_namespace() -> int:
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


@contextlib.contextmanager
def within(namespace: int) -> Iterator[None]:
    home = open_current_namespace()
    try:
        enter_network_namespace(namespace)
        yield
    finally:
        enter_network_namespace(home)
        os.close(home)


async def inside(path: Path, work: Callable[[], T]) -> T:
    """Run the blocking function `work` in a thread of its own, in the network namespace at `path`."""
    result: Future[T] = Future()

    def run() -> None:
        try:
            namespace = os.open(path, os.O_RDONLY)
            try:
                enter_network_namespace(namespace)
            finally:
                os.close(namespace)
            result.set_result(work())
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return await asyncio.wrap_future(result)


def dial(address: str, port: int = TCP, data: bytes = b"hello", timeout: float = 15.0) -> str:
    """Connect by TCP. Return "ok" when the server echoes, else the name of the error."""
    try:
        with socket.create_connection((address, port), timeout=timeout) as connection:
            connection.sendall(data)
            return "ok" if connection.recv(100) == data else "wrong"
    except OSError as error:
        return "timeout" if isinstance(error, TimeoutError) else errno.errorcode[error.errno or 0]


def dial_udp(address: str, port: int = UDP, timeout: float = 15.0) -> str:
    """Send a UDP datagram. Return "ok" when the server echoes, else the name of the error."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(timeout)
        try:
            sock.connect((address, port))
            sock.send(b"knock")
            return "ok" if sock.recv(100) == b"knock" else "wrong"
        except OSError as error:
            return "timeout" if isinstance(error, TimeoutError) else errno.errorcode[error.errno or 0]


def ping(address: str, timeout: float = 15.0) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP) as sock:
        sock.settimeout(timeout)
        try:
            sock.connect((address, 0))
            sock.send(struct.pack("!BBHHH", 8, 0, 0, 0, 1))
            return "ok" if sock.recv(100)[0] == 0 else "wrong"
        except OSError as error:
            return "timeout" if isinstance(error, TimeoutError) else errno.errorcode[error.errno or 0]


def resolve(server: str, name: str, kind: str = "A", stream: bool = False, timeout: float = 6.0) -> dns.message.Message:
    """Send one DNS query to one server and return the response."""
    query = dns.message.make_query(name, kind)
    wire = query.to_wire()
    if stream:
        with socket.create_connection((server, 53), timeout=timeout) as connection:
            connection.sendall(len(wire).to_bytes(2, "big") + wire)
            file = connection.makefile("rb")
            answer = file.read(int.from_bytes(file.read(2), "big"))
    else:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.settimeout(timeout)
            sock.connect((server, 53))
            sock.send(wire)
            answer = sock.recv(65535)
    message = dns.message.from_wire(answer)
    assert message.id == query.id
    return message


def addresses_in(message: dns.message.Message) -> set[str]:
    """Return the addresses in the A records of a DNS response."""
    return {item.address for rrset in message.answer if rrset.rdtype == dns.rdatatype.A for item in rrset}


class Internet:
    """Servers on many addresses, in one thread. Everything that arrives is recorded in `seen` as (kind, to, from)."""

    def __init__(self, namespace: int, addresses: tuple[str, ...], names: bool = True) -> None:
        self.seen: list[tuple[str, str, str]] = []
        self.queries: list[str] = []
        self.streamed = 0
        self.fixed_response = b""  # if set, sent in response to every DNS query
        self._selector = selectors.DefaultSelector()
        self._wake, self._waker = socket.socketpair()
        self._sockets: list[socket.socket] = [self._wake, self._waker]
        self._readers: set[tuple[socket.socket, Any]] = set()
        self._selector.register(self._wake, selectors.EVENT_READ, None)
        with within(namespace):
            for address in addresses:
                self.listen(address, TCP, self._echo)
                self.bind(address, UDP, self._datagram)
                self.bind(address, STREAM, self._start_stream)
            if names:
                self.serve_names(RESOLVER)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._waker.send(b"end")
        self._thread.join(5)
        for item in self._sockets:
            item.close()

    def listen(self, address: str, port: int, serve: Callable[[socket.socket, bytes], None]) -> None:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(64)
        self._add(listener, lambda: self._accept(listener, serve))

    def bind(self, address: str, port: int, serve: Callable[[socket.socket], None]) -> None:
        receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        receiver.bind((address, port))
        self._add(receiver, lambda: serve(receiver))

    def serve_names(self, address: str) -> None:
        self.listen(address, 53, self._resolve_stream)
        self.bind(address, 53, self._resolve_datagram)

    def _add(self, item: socket.socket, ready: Callable[[], None]) -> None:
        self._sockets.append(item)
        self._selector.register(item, selectors.EVENT_READ, ready)
        self._waker.send(b"again")

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select(0.005 if self._readers else None):
                if key.data is None:
                    if b"end" in self._wake.recv(4096):
                        return
                    continue
                with contextlib.suppress(OSError, dns.exception.DNSException):
                    key.data()
            for receiver, peer in self._readers:
                with contextlib.suppress(OSError):
                    receiver.sendto(b"stream", peer)
                    self.streamed += 1

    def _accept(self, listener: socket.socket, serve: Callable[[socket.socket, bytes], None]) -> None:
        connection, peer = listener.accept()
        self.seen.append(("tcp", listener.getsockname()[0], peer[0]))

        def ready() -> None:
            try:
                data = connection.recv(65536)
            except OSError:
                data = b""
            if data:
                serve(connection, data)
            else:
                self._selector.unregister(connection)
                connection.close()

        self._add(connection, ready)

    @staticmethod
    def _echo(connection: socket.socket, data: bytes) -> None:
        connection.sendall(data)

    def _datagram(self, receiver: socket.socket) -> None:
        data, peer = receiver.recvfrom(65535)
        self.seen.append(("udp", receiver.getsockname()[0], peer[0]))
        receiver.sendto(data, peer)

    def _start_stream(self, receiver: socket.socket) -> None:
        _, peer = receiver.recvfrom(65535)
        self._readers.add((receiver, peer))

    def _resolve_datagram(self, receiver: socket.socket) -> None:
        data, peer = receiver.recvfrom(65535)
        answer = self._resolve(data, 512)
        if answer is not None:
            receiver.sendto(answer, peer)

    def _resolve_stream(self, connection: socket.socket, data: bytes) -> None:
        answer = self._resolve(data[2:], 65535)
        if answer is not None:
            connection.sendall(len(answer).to_bytes(2, "big") + answer)

    def _resolve(self, data: bytes, limit: int) -> bytes | None:
        if self.fixed_response:
            return data[:2] + self.fixed_response[2:]
        query = dns.message.from_wire(data)
        name = query.question[0].name.to_text(omit_final_dot=True).lower()
        self.queries.append(name)
        if name.endswith("silent.test"):
            return None
        response = dns.message.make_response(query, recursion_available=True)
        if name not in ZONE:
            response.set_rcode(dns.rcode.NXDOMAIN)
            return response.to_wire()
        owner = f"{name}."
        for kind, value in ZONE[name]:
            if kind == "CNAME":
                response.answer.append(dns.rrset.from_text(owner, 60, "IN", "CNAME", f"{value}."))
                owner = f"{value}."
            elif query.question[0].rdtype == dns.rdatatype.A:
                response.find_rrset(
                    response.answer, dns.name.from_text(owner), dns.rdataclass.IN, dns.rdatatype.A, create=True
                ).add(dns.rdata.from_text("IN", "A", value), 60)
        try:
            return response.to_wire(max_size=limit)
        except dns.exception.TooBig:
            short = dns.message.make_response(query, recursion_available=True)
            short.flags |= dns.flags.TC
            return short.to_wire()


class Topology:
    """See the module docstring. Namespaces may be mounted below `state`; `close` unmounts what tests left there."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self._machine = open_current_namespace()
        create_network_namespace()
        self.host = open_current_namespace()
        create_network_namespace()
        self.outside = open_current_namespace()
        try:
            with Netlink() as netlink:
                netlink.request(
                    links.bring_up(links.LOOPBACK),
                    links.create_veth(
                        links.Peer("up0", bytes.fromhex("020000000002"), index=10),
                        links.Peer("wan0", bytes.fromhex("020000000001"), index=10, namespace=self.host),
                        1500,
                    ),
                    links.bring_up(10),
                    links.add_address(10, IPv4Address(NEIGHBOUR), 30),
                    *(links.add_address(links.LOOPBACK, IPv4Address(item)) for item in SERVED if item != NEIGHBOUR),
                )
            enter_network_namespace(self.host)
            Path("/proc/sys/net/ipv4/ip_forward").write_text("0")  # new namespaces inherit the setting of the machine
            with Netlink() as netlink:
                netlink.request(
                    links.bring_up(links.LOOPBACK),
                    links.bring_up(10),
                    links.add_address(10, IPv4Address(HOST), 30),
                    links.add_default_route(IPv4Address(NEIGHBOUR), 10),
                )
            self.internet = Internet(self.outside, SERVED)
        except BaseException:
            enter_network_namespace(self._machine)
            raise
        self.resolv_conf = state / "resolv.conf"
        self.resolv_conf.write_text(f"# the topology's\nnameserver {RESOLVER}\n")

    def close(self) -> None:
        self.internet.close()
        enter_network_namespace(self._machine)
        for namespace in (self.host, self.outside, self._machine):
            os.close(namespace)
        for mount in reversed(self.mounts()):
            with contextlib.suppress(OSError):
                unmount_lazily(mount)

    def mounts(self) -> list[Path]:
        """Return the mount points below `state`."""
        points = [Path(line.split()[4]) for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        return [point for point in points if self.state in point.parents]

    def serve_names(self, namespace: int, address: str) -> None:
        """Serve the zone on another address of that namespace too."""
        with within(namespace):
            self.internet.serve_names(address)

    def route_back(self, address: str) -> None:
        """Make the outside send packets for this address to the host."""
        with within(self.outside), Netlink() as netlink:
            netlink.request(links.add_route(IPv4Address(address), 10))

    @staticmethod
    def interfaces() -> set[str]:
        """Return the host's interfaces that belong to sandboxes."""
        with Netlink() as netlink:
            return {link.name for link in links.list_links(netlink) if link.name.startswith("sdy")}

    @staticmethod
    def connections(address: str) -> int:
        """Return how many connections from that address the host tracks."""
        table = Path("/proc/thread-self/net/nf_conntrack").read_text()
        return sum(line.split(" src=")[1].split()[0] == address for line in table.splitlines())

    @staticmethod
    def interface_indexes() -> set[int]:
        """Return the kernel indexes of these interfaces, which are never reused."""
        with Netlink() as netlink:
            return {link.index for link in links.list_links(netlink) if link.name.startswith("sdy")}

    @staticmethod
    def own_addresses() -> set[str]:
        with Netlink() as netlink:
            local = {route.network[0] for route in links.list_routes(netlink) if route.local and route.priority}
            return {str(address) for address in {item.address for item in links.list_addresses(netlink)} | local}
