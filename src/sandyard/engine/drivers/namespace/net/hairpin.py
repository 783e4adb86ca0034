"""The way from sandboxes back to the engine by its public names, as a router's hairpin NAT is.

The name server resolves these names to the gateway. Connections to the port of HTTPS there are redirected to a socket that the
engine serves as it serves its public port, with the same tokens. No other port of the gateway and no other address of the host
is opened, and a sandbox whose policy is closed needs the name in `allow_out`: the firewall asks for it before a connection
is made, and the engine asks again for the name in every request.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from ipaddress import IPv4Address

from sandyard.engine.contract import PublicNames
from sandyard.engine.drivers.namespace.net.proxy.sockets import keep_alive

TTL = 60
_BACKLOG = 512


@dataclass(frozen=True, slots=True)
class GatewayNames:
    """The names that mean the gateway."""

    names: PublicNames
    address: IPv4Address


def listen(address: IPv4Address) -> socket.socket:
    """A listening socket on a free port. Connections of sandboxes that are gone are noticed. Raises OSError."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        keep_alive(listener)  # what is accepted has it too
        listener.bind((str(address), 0))
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener
