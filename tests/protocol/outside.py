"""A piece of internet for an engine on this machine: a network namespace behind a cable, with a name server and web servers.

The engine under test is told of it by its settings: `RESOLV_CONF` names its name server, `EGRESS_CA_FILE` the authority of
its web servers. To sandboxes it is a neighbour of the host: they reach it when their policy names its address.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import ssl
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import IPv4Address
from pathlib import Path
from socketserver import TCPServer

import dns.message
import dns.rdatatype
import dns.rrset

from sandyard.engine.certificates.authority import Authority
from sandyard.engine.drivers.namespace.net import links
from sandyard.engine.drivers.namespace.net.netlink import Netlink
from sandyard.engine.drivers.namespace.net.syscalls import enter_network_namespace, new_network_namespace

API, OTHER = "api.outside.test", "other.outside.test"


class _Server(ThreadingHTTPServer):
    def server_bind(self) -> None:
        """Without asking for the name of its address: nobody answers, and waiting for that takes ten seconds."""
        TCPServer.server_bind(self)


class Outside:
    """`seen` are the requests that reached its servers: (host, path, headers)."""

    def __init__(self, folder: Path) -> None:
        network = IPv4Address("198.19.0.0") + 4 * secrets.randbelow(1 << 13)
        self._host, self.address = str(network + 1), str(network + 2)
        self.seen: list[tuple[str, str, dict[str, str]]] = []
        self._cable = f"sdt{secrets.token_hex(4)}"
        self._servers: list[ThreadingHTTPServer] = []
        self._names: socket.socket | None = None
        self._apart(self._build)
        authority = Authority.load(folder / "outside-ca")
        self.certificate = authority.certificate
        self.resolv_conf = folder / "resolv.conf"
        self.resolv_conf.write_text(f"nameserver {self.address}\n")
        self._apart(lambda: self._serve(443, authority.server_context([API, OTHER])))
        self._apart(lambda: self._serve(80, None))
        assert self._names is not None
        threading.Thread(target=self._answer, args=(self._names,), daemon=True).start()

    @property
    def settings(self) -> dict[str, str]:
        return {"RESOLV_CONF": str(self.resolv_conf), "EGRESS_CA_FILE": str(self.certificate)}

    def close(self) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()
        if self._names is not None:
            self._names.close()
        os.close(self._namespace)  # the last thing that holds it: the cable goes with it

    def _apart(self, work: Callable[[], None]) -> None:
        """In a thread of its own, which may change its namespace."""
        failed: list[BaseException] = []

        def run() -> None:
            try:
                if hasattr(self, "_namespace"):
                    enter_network_namespace(self._namespace)
                work()
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        if failed:
            raise failed[0]

    def _build(self) -> None:
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        new_network_namespace()
        self._namespace = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        here = links.Peer("out0", bytes.fromhex("020000000102"), index=10)
        there = links.Peer(self._cable, bytes.fromhex("020000000101"), namespace=home)
        with Netlink() as netlink:
            netlink.request(
                links.bring_up(links.LOOPBACK),
                links.veth(here, there, 1500),
                links.bring_up(10),
                links.add_address(10, IPv4Address(self.address), 30),
                links.default_route(IPv4Address(self._host), 10),
            )
        self._names = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._names.bind((self.address, 53))
        enter_network_namespace(home)
        os.close(home)
        with Netlink() as netlink:
            index = next(link.index for link in links.list_links(netlink) if link.name == self._cable)
            netlink.request(links.bring_up(index), links.add_address(index, IPv4Address(self._host), 30))

    def _serve(self, port: int, tls: ssl.SSLContext | None) -> None:
        outside = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                """Tells how many headers of which names came, and of their values only what was asked for."""
                headers = {name.lower(): value for name, value in self.headers.items()}
                outside.seen.append((headers.get("host", ""), self.path, headers))
                body = json.dumps({"names": sorted(headers), "size": int(headers.get("content-length", 0))}).encode()
                self.rfile.read(int(headers.get("content-length", 0)))
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_POST = do_GET  # noqa: N815 - the base class's own names

            def log_message(self, format: str, *args: object) -> None:
                pass

        server = _Server((self.address, port), Handler)
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        self._servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()

    def _answer(self, names: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                data, peer = names.recvfrom(4096)
                query = dns.message.from_wire(data)
                answer = dns.message.make_response(query, recursion_available=True)
                question = query.question[0]
                if question.rdtype == dns.rdatatype.A and question.name.to_text().endswith("outside.test."):
                    answer.answer.append(dns.rrset.from_text(question.name, 60, "IN", "A", self.address))
                names.sendto(answer.to_wire(), peer)
