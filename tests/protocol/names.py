"""A domain whose every name leads to one address, as a wildcard record makes it, for programs that ask the system.

A name server of our own answers, and programs see it in a mount namespace where `/etc/resolv.conf` names it.
"""

from __future__ import annotations

import socket
import tempfile
import threading
from pathlib import Path

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset

_SCRIPT = """
mount --bind "$0/resolv.conf" /etc/resolv.conf
mount --bind "$0/nsswitch.conf" /etc/nsswitch.conf
exec "$@"
"""


class Names:
    """`*.{domain}` and `{domain}` are at `address`; there is no other name. It is asked at `server`, an address of this
    machine's loopback."""

    def __init__(self, domain: str, address: str, server: str) -> None:
        self._domain, self._address = domain, address
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((server, 53))
        self._folder = tempfile.TemporaryDirectory(prefix="sandyard-names-")
        folder = Path(self._folder.name)
        (folder / "resolv.conf").write_text(f"nameserver {server}\n")
        (folder / "nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files dns\n")
        threading.Thread(target=self._serve, daemon=True).start()

    def seen_by(self, *command: str) -> list[str]:
        """The same command, as a program that asks this name server."""
        enter = ["unshare", "--mount", "--propagation", "private", "sh", "-euc", _SCRIPT, self._folder.name]
        return [*enter, *command]

    def close(self) -> None:
        self._socket.close()
        self._folder.cleanup()

    def _serve(self) -> None:
        while True:
            try:
                data, client = self._socket.recvfrom(4096)
            except OSError:
                return
            self._socket.sendto(self._answer(dns.message.from_wire(data)).to_wire(), client)

    def _answer(self, query: dns.message.Message) -> dns.message.Message:
        answer = dns.message.make_response(query)
        answer.flags |= dns.flags.AA | dns.flags.RA
        question = query.question[0]
        name = question.name.to_text(omit_final_dot=True).lower()
        if name != self._domain and not name.endswith(f".{self._domain}"):
            answer.set_rcode(dns.rcode.NXDOMAIN)
        elif question.rdtype == dns.rdatatype.A:
            answer.answer.append(dns.rrset.from_text(question.name, 60, "IN", "A", self._address))
        return answer
