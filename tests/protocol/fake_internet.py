"""A fake internet for an engine on this machine: a network namespace behind a veth pair, with a name server and web
servers.

The settings tell the engine under test about it: `RESOLV_CONF` names its name server, `EGRESS_CA_FILE` the certificate
authority of its web servers. For sandboxes it is a neighbour of the host: they reach it if their policy allows its
address.
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
from http.server import BaseHTTPRequestHandler
from ipaddress import IPv4Address
from pathlib import Path

import dns.message
import dns.rdatatype
import dns.rrset

from sandyard.engine.certificates.authority import Authority
from sandyard.engine.drivers.machine.net import links
from sandyard.engine.drivers.machine.net.netlink import Netlink
from sandyard.engine.drivers.machine.net.syscalls import create_network_namespace, enter_network_namespace
from tests.harness.http_server import HttpServer

API, OTHER = "api.outside.test", "other.outside.test"


class FakeInternet:
    """`seen` lists the requests that reached the web servers: (host, path, headers); `queried` the names in queries."""

    def __init__(self, folder: Path) -> None:
        network = IPv4Address("198.19.0.0") + 4 * secrets.randbelow(1 << 13)
        self._host, self.address = str(network + 1), str(network + 2)
        self.seen: list[tuple[str, str, dict[str, str]]] = []
        self.queried: list[str] = []
        self._link_name = f"sdt{secrets.token_hex(4)}"
        self._servers: list[HttpServer] = []
        self._dns_socket: socket.socket | None = None
        self._run_in_namespace(self._create_namespace)
        authority = Authority.load(folder / "outside-ca")
        self.certificate = authority.certificate
        self.resolv_conf = folder / "resolv.conf"
        self.resolv_conf.write_text(f"nameserver {self.address}\n")
        self._run_in_namespace(lambda: self._serve(443, authority.make_server_context([API, OTHER])))
        self._run_in_namespace(lambda: self._serve(80, None))
        assert self._dns_socket is not None
        threading.Thread(target=self._answer_queries, args=(self._dns_socket,), daemon=True).start()

    @property
    def settings(self) -> dict[str, str]:
        return {"RESOLV_CONF": str(self.resolv_conf), "EGRESS_CA_FILE": str(self.certificate)}

    def close(self) -> None:
        for server in self._servers:
            server.stop()
        if self._dns_socket is not None:
            self._dns_socket.close()
        os.close(self._namespace)  # the last reference: the kernel removes the namespace and the veth pair

    def _run_in_namespace(self, action: Callable[[], None]) -> None:
        """Run `action` in its own thread, because it changes the network namespace of the thread."""
        errors: list[BaseException] = []

        def run() -> None:
            try:
                if hasattr(self, "_namespace"):
                    enter_network_namespace(self._namespace)
                action()
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        if errors:
            raise errors[0]

    def _create_namespace(self) -> None:
        host_namespace = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        create_network_namespace()
        self._namespace = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        inner = links.Peer("out0", bytes.fromhex("020000000102"), index=10)
        outer = links.Peer(self._link_name, bytes.fromhex("020000000101"), namespace=host_namespace)
        with Netlink() as netlink:
            netlink.request(
                links.bring_up(links.LOOPBACK),
                links.create_veth(inner, outer, 1500),
                links.bring_up(10),
                links.add_address(10, IPv4Address(self.address), 30),
                links.add_default_route(IPv4Address(self._host), 10),
            )
        self._dns_socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._dns_socket.bind((self.address, 53))
        enter_network_namespace(host_namespace)
        os.close(host_namespace)
        with Netlink() as netlink:
            index = next(link.index for link in links.list_links(netlink) if link.name == self._link_name)
            netlink.request(links.bring_up(index), links.add_address(index, IPv4Address(self._host), 30))

    def _serve(self, port: int, tls: ssl.SSLContext | None) -> None:
        internet = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                """Answer with the names of the received headers and the size of the body, never with values of
                headers."""
                headers = {name.lower(): value for name, value in self.headers.items()}
                internet.seen.append((headers.get("host", ""), self.path, headers))
                body = json.dumps({"names": sorted(headers), "size": int(headers.get("content-length", 0))}).encode()
                self.rfile.read(int(headers.get("content-length", 0)))
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_POST = do_GET  # noqa: N815 - names of the base class

            def log_message(self, format: str, *args: object) -> None:
                pass

        server = HttpServer((self.address, port), Handler)
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        self._servers.append(server)
        server.start()

    def _answer_queries(self, dns_socket: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                data, peer = dns_socket.recvfrom(4096)
                query = dns.message.from_wire(data)
                response = dns.message.make_response(query, recursion_available=True)
                question = query.question[0]
                self.queried.append(question.name.to_text(omit_final_dot=True))
                if question.rdtype == dns.rdatatype.A and question.name.to_text().endswith("outside.test."):
                    response.answer.append(dns.rrset.from_text(question.name, 60, "IN", "A", self.address))
                dns_socket.sendto(response.to_wire(), peer)
