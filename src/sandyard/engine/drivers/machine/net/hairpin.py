"""Access from sandboxes to the engine by its public names, like hairpin NAT in a router.

The name server resolves these names to the gateway. Connections to its HTTPS port are redirected to a socket that the
engine serves like its public port, with the same tokens. No other port of the gateway and no other address of the host
is opened. A sandbox with a closed policy needs the name in `allow_out`: the firewall checks it before a connection is
made, and the engine checks the name again in every request.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from ipaddress import IPv4Address

from sandyard.engine.contract import PublicNames
from sandyard.engine.drivers.machine.net.proxy.sockets import enable_keepalive

TTL = 60
_BACKLOG = 512


@dataclass(frozen=True, slots=True)
class GatewayNames:
    """The names that resolve to the gateway."""

    names: PublicNames
    address: IPv4Address


def listen(address: IPv4Address) -> socket.socket:
    """Return a listening socket on a free port. Detects connections of sandboxes that are gone. Raises OSError."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        enable_keepalive(listener)  # accepted connections inherit it
        listener.bind((str(address), 0))
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener
