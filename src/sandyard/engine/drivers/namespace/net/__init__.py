"""The network of the namespace driver: one network namespace for each sandbox, and what may pass in and out of it.

What a sandbox has: `lo` (with `::1`), and `eth0` with one IPv4 address, a default route and a name server. Ping and
ports below 1024 work without capabilities. There is no IPv6 and no way in: ports are reached from inside, by the
agent.

What it can reach, packet by packet, in both directions and also on connections that exist when a policy changes:
- the internet, as its policy says (see `policy`), through NAT;
- its name server, on port 53 of the gateway, as its policy says (see `forwarder`);
- the engine's API and the ports of sandboxes by the engine's public names, over HTTPS, as its policy says (see `hairpin`);
- with rules for its requests: web servers through the engine's proxy, which adds headers and opens nothing (see `proxy`);
- private ranges and the networks the host is connected to, only if the operator says `lan = "allow"` or the policy's
  `allow_out` names addresses inside one of them;
- nothing else of the host, on any address; never a sandbox, of this engine or another; never link-local, metadata, loopback,
  multicast or broadcast addresses; never with a foreign source address, and nothing with IP options.

What is done to the host: IPv4 forwarding is turned on and stays on, so that a host with several interfaces routes
between them unless its own firewall says otherwise; one nftables table `sandyard_<tag>`; one address on `lo` and one
blackhole route; an interface `sdy<tag>-<n>` for each sandbox; two rules in Docker's chain DOCKER-USER, if it exists.
A tag is derived from the instance's name, so that engines do not meet. `Network.close(remove=True)` takes all but the
forwarding away.

What it does not protect from:
- A name is allowed by the addresses it resolves to. Other names at the same address (a CDN's) are reachable as well.
  E2B looks into TLS and HTTP instead. `mask_request_host` and `allow_public_traffic` are not here.
- Who flushes all rules of the host (`nft flush ruleset`, a restart of nftables.service) removes the table. A running
  engine puts it back at once; without one, sandboxes reach the host until the next start.
- While no engine runs, names do not resolve, and web connections of sandboxes with rules are refused. Addresses resolved
  before stay open for their time.
"""

from sandyard.engine.drivers.namespace.net.network import NetSlot, Network
from sandyard.engine.drivers.namespace.net.policy import read_policy
from sandyard.engine.drivers.namespace.net.probe import Finding, probe
from sandyard.engine.drivers.namespace.net.settings import NetworkSettings

__all__ = ["Finding", "NetSlot", "Network", "NetworkSettings", "probe", "read_policy"]
