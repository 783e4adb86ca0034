"""A name server with a wildcard record for one domain, for programs that use the system's resolver.

Programs use it by running in a mount namespace where `/etc/resolv.conf` names it.
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


class NameServer:
    """Resolves `*.{domain}` and `{domain}` to `address`, and no other name. It listens at `server`, a loopback address."""

    def __init__(self, domain: str, address: str, server: str) -> None:
        self._domain, self._address = domain, address
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((server, 53))
        self._folder = tempfile.TemporaryDirectory(prefix="sandyard-names-")
        folder = Path(self._folder.name)
        (folder / "resolv.conf").write_text(f"nameserver {server}\n")
        (folder / "nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files dns\n")
        threading.Thread(target=self._serve, daemon=True).start()

    def wrap_command(self, *command: str) -> list[str]:
        """Return a command that runs `command` with this name server."""
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
        response = dns.message.make_response(query)
        response.flags |= dns.flags.AA | dns.flags.RA
        question = query.question[0]
        name = question.name.to_text(omit_final_dot=True).lower()
        if name != self._domain and not name.endswith(f".{self._domain}"):
            response.set_rcode(dns.rcode.NXDOMAIN)
        elif question.rdtype == dns.rdatatype.A:
            response.answer.append(dns.rrset.from_text(question.name, 60, "IN", "A", self._address))
        return response
