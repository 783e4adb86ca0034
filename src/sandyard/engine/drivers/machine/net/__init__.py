"""The network of sandboxes on this machine: one network namespace for each, and what may pass in and out of it.

A sandbox has `lo` (with `::1`), and `eth0` with one IPv4 address, a default route and a name server. Ping and ports
below 1024 work without capabilities. There is no IPv6 and no incoming access: ports are reached from inside, by the
agent.

What it can reach, checked for each packet, in both directions and also on connections that exist when a policy changes:
- the internet, subject to its policy (see `policy`), through NAT;
- its name server, on port 53 of the gateway, subject to its policy (see `forwarder`);
- the engine's API and the ports of sandboxes by the engine's public names, over HTTPS, subject to its policy (see
  `hairpin`);
- with rules for its requests: web servers through the engine's proxy, which adds headers and allows nothing more (see
  `proxy`);
- private ranges and the networks the host is connected to, only if the operator sets `lan = "allow"` or the policy's
  `allow_out` contains addresses inside one of them;
- nothing else of the host, on any address; never a sandbox, of this engine or another; never link-local, metadata,
  loopback, multicast or broadcast addresses; never with a foreign source address, and nothing with IP options.

Changes on the host: IPv4 forwarding is turned on and stays on, so that a host with several interfaces routes between
them unless its own firewall prevents it; one nftables table `sandyard_<tag>`; one address on `lo` and one blackhole
route; an interface `sdy<tag>-<n>` for each sandbox; two rules in Docker's chain DOCKER-USER, if it exists. A tag is
derived from the instance's name, so that engines do not conflict. `Network.close(remove=True)` removes everything
except the forwarding.

Limitations:
- A name is allowed by the addresses it resolves to. Other names at the same address (a CDN's) are reachable as well.
  E2B inspects TLS and HTTP instead. `mask_request_host` and `allow_public_traffic` are not handled here.
- Flushing all rules of the host (`nft flush ruleset`, a restart of nftables.service) removes the table. A running
  engine restores it at once; without one, sandboxes can reach the host until the next start.
- While no engine is running, names do not resolve, and web connections of sandboxes with rules are refused. Addresses
  resolved before stay open until they expire.
"""

from sandyard.engine.drivers.machine.net.network import NetSlot, Network
from sandyard.engine.drivers.machine.net.policy import parse_policy
from sandyard.engine.drivers.machine.net.probe import Finding, probe
from sandyard.engine.drivers.machine.net.settings import NetworkSettings

__all__ = ["Finding", "NetSlot", "Network", "NetworkSettings", "parse_policy", "probe"]
