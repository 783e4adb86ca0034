"""The connection of the namespaces to the outside: subnet, forwarding, firewall and name server of one instance.

If a part is missing on this host there is no connection at all (`subnet` is None) and `missing` contains the reason: a
network that cannot be filtered must not be connected.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Address
from pathlib import Path
from typing import TypeVar

from sandyard.engine.contract import DeniedAttempt, Hairpin, Outbound
from sandyard.engine.drivers.machine.inside_sockets import open_socket_inside
from sandyard.engine.drivers.machine.net import hairpin, host_firewall, links, ranges
from sandyard.engine.drivers.machine.net import subnet as subnets
from sandyard.engine.drivers.machine.net.conntrack import Conntrack, is_crowded
from sandyard.engine.drivers.machine.net.denied_reader import DeniedConnection, DeniedReader
from sandyard.engine.drivers.machine.net.firewall import Firewall
from sandyard.engine.drivers.machine.net.forwarder import Forwarder
from sandyard.engine.drivers.machine.net.hairpin import GatewayNames
from sandyard.engine.drivers.machine.net.names import Names
from sandyard.engine.drivers.machine.net.netlink import Netlink
from sandyard.engine.drivers.machine.net.nft import Nft, NftError, NftUnavailableError, check_library
from sandyard.engine.drivers.machine.net.policy import PRIVATE, Egress
from sandyard.engine.drivers.machine.net.proxy.dialler import Dialler
from sandyard.engine.drivers.machine.net.proxy.listener import Proxy
from sandyard.engine.drivers.machine.net.proxy.thread import ProxyThread
from sandyard.engine.drivers.machine.net.ranges import Ranges
from sandyard.engine.drivers.machine.net.ruleset import HairpinPorts, Layout
from sandyard.engine.drivers.machine.net.settings import NetworkSettings
from sandyard.engine.drivers.machine.net.subnet import NoSubnetError, Subnet
from sandyard.engine.drivers.machine.net.upstream import Upstream
from sandyard.engine.drivers.machine.net.watch import ADDRESS_CHANGED, RULES_CHANGED, Watch

log = logging.getLogger(__name__)

_T = TypeVar("_T")
_FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")
FORWARD_TABLE = "ip sandyard_forward"
_FORWARD_GUARD = """
table {table}
delete table {table}
table {table} {{
  chain forward {{
    type filter hook forward priority filter; policy accept;
    iifname {{ {present} }} oifname {{ {present} }} counter drop
  }}
}}
"""
_DNS_TEST_TIMEOUT_S = 0.25
_DNS_QUERY = bytes.fromhex("53590100000100000000000004746573740000010001")  # the A record of `test`
CROWDING_INTERVAL_S = 1.0
_MAX_DENIED = 256  # blocked connections returned at once


class Uplink:
    """Connects network namespaces, identified by their index. `get_pin_path` returns the path of a namespace's bind
    mount. Without `outbound` no policy may have rules. All methods belong to one event loop and none blocks it."""

    def __init__(
        self,
        names: Names,
        state: Path,
        settings: NetworkSettings,
        get_pin_path: Callable[[int], Path],
        outbound: Outbound | None = None,
    ) -> None:
        self._names = names
        self._state = state
        self._settings = settings
        self._get_pin_path = get_pin_path
        self._outbound = outbound
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="sandyard-nft")
        self._nft: Nft | None = None
        self._netlink: Netlink | None = None
        self._conntrack: Conntrack | None = None
        self._firewall: Firewall | None = None
        self._denied: DeniedReader | None = None
        self._forwarder: Forwarder | None = None
        self._proxy: ProxyThread | None = None
        self._watches: list[Watch] = []
        self._crowding_task: asyncio.Task[None] | None = None
        self.hairpin: Hairpin | None = None
        self.subnet: Subnet | None = None
        self.mtu = 1500
        self.missing: dict[str, str] = {}

    async def open(self, keep: Collection[int], swept: Collection[int]) -> None:
        """Open the uplink. `keep` are the indexes of the namespaces that stay, `swept` of those just removed; there are
        no others."""
        try:
            await self._open(keep)
            await self._run_in_worker(self._delete_connections, swept)
        except (NftUnavailableError, NoSubnetError, _NoForwardingError, NftError, OSError) as error:
            self.missing["egress"] = f"sandboxes have only a loopback and no network: {error}"
            if self._netlink is not None and not keep:
                await self._run_in_worker(subnets.release, self._netlink, self._names)
            await self._close_services()

    async def _open(self, keep: Collection[int]) -> None:
        await self._run_in_worker(check_library)
        self._nft, self._netlink, self._conntrack = (
            await self._run_in_worker(Nft),
            await self._run_in_worker(Netlink),
            await self._run_in_worker(Conntrack),
        )
        await self._run_in_worker(_enable_forwarding, self._nft, self._netlink)
        subnet = await self._run_in_worker(
            subnets.reserve, self._netlink, self._names, self._state / "subnet", self._settings.subnet, bool(keep)
        )
        self.mtu = await self._run_in_worker(_get_uplink_mtu, self._netlink)
        public = self._settings.public_names
        own = GatewayNames(public, subnet.gateway) if public is not None else None
        self._forwarder = Forwarder(Upstream(self._settings.resolv_conf), self._admit, own)
        await self._forwarder.open(subnet.gateway)
        layout = Layout(
            self._names,
            subnet.network,
            subnet.gateway,
            self._forwarder.port,
            self._settings.connections,
            await self._open_proxy(subnet.gateway),
            self._open_hairpin(subnet.gateway, self._forwarder),
        )
        self._firewall = Firewall(self._nft, layout)
        self._denied = DeniedReader(self._names.table)
        kept = [subnet.get_address(index) for index in keep]
        await self._run_in_worker(self._firewall.open, kept, await self._run_in_worker(self._list_private_ranges))
        await self._run_in_worker(host_firewall.allow_in_docker_chain, self._nft, self._names)
        self.missing.update(await self._run_in_worker(host_firewall.list_problems, self._nft))
        self._watches = [Watch(ADDRESS_CHANGED, self._update_private_ranges), Watch(RULES_CHANGED, self.restore_rules)]
        self._crowding_task = asyncio.get_running_loop().create_task(self._watch_crowding(self._firewall))
        self.subnet = subnet

    @property
    def proxy_port(self) -> int | None:
        """The port of the egress proxy, or None if there is none."""
        return None if self._proxy is None else self._proxy.port

    async def _open_proxy(self, gateway: IPv4Address) -> int:
        """Return the proxy's port, or 0 if there is none."""
        outbound, settings = self._outbound, self._settings
        if outbound is None:
            return 0

        async def open_socket(index: int) -> socket.socket:
            return await self._run_in_worker(open_socket_inside, self._get_pin_path(index), socket.AF_INET)

        def make_proxy() -> Proxy:
            dialler = Dialler(open_socket, Upstream(settings.resolv_conf), self._admit, settings.egress_ca_file)
            return Proxy(outbound, dialler)

        self._proxy = ProxyThread(make_proxy)
        await self._proxy.open(gateway)
        return self._proxy.port

    def _open_hairpin(self, gateway: IPv4Address, forwarder: Forwarder) -> HairpinPorts | None:
        public = self._settings.public_names
        if public is None:
            return None
        listener = hairpin.listen(gateway)
        self.hairpin = Hairpin(listener, forwarder.is_allowed)
        return HairpinPorts(public.port, listener.getsockname()[1])

    async def close(self, remove: bool) -> None:
        """Stop serving. With `remove`, also remove everything of this instance from the host."""
        if remove and self.subnet is not None:
            assert self._firewall is not None
            await self._end_watches()
            await self._run_in_worker(self._firewall.remove)
            await self._run_in_worker(host_firewall.remove_docker_rules, self._nft, self._names)
            await self._run_in_worker(subnets.release, self._netlink, self._names)
        if remove:
            (self._state / "subnet").unlink(missing_ok=True)
        await self._close_services()
        self._worker.shutdown()

    def answer_dns(self, index: int, egress: Egress) -> None:
        """Answer the DNS queries of this namespace from now on, as its policy allows."""
        if self._forwarder is not None and self.subnet is not None:
            self._forwarder.set_policy(self.subnet.get_address(index), egress)

    async def apply(self, index: int, egress: Egress) -> None:
        """Replace the policy of this namespace, also for existing connections. Raises NftError."""
        if self._firewall is None or self.subnet is None:
            return  # without an uplink there is nothing to filter
        address = self.subnet.get_address(index)
        if self._proxy is not None:  # before the first connection is redirected to it
            await self._proxy.set_rules(index, address, egress)
        await self._run_in_worker(self._firewall.apply, address, egress)
        self.answer_dns(index, egress)

    async def take_denied(self, index: int) -> list[DeniedAttempt]:
        """Return the connections that were blocked for this namespace since the last call."""
        if self._firewall is None or self._forwarder is None or self.subnet is None:
            return []
        address = self.subnet.get_address(index)
        blocked = await self._discard_denied(address, _MAX_DENIED)
        names = [DeniedAttempt(name, "dns") for name in self._forwarder.take_refused(address)]
        return names + [DeniedAttempt(item.to, item.protocol, item.port) for item in blocked]

    async def remove_namespace(self, index: int) -> None:
        """Remove everything that belongs to a namespace that is about to end, except the namespace. Raises NftError."""
        if self._firewall is None or self._forwarder is None or self.subnet is None:
            return
        address = self.subnet.get_address(index)
        self._forwarder.remove_client(address)
        if self._proxy is not None:
            await self._proxy.remove_client(address)
        await self._run_in_worker(self._firewall.clear, address)
        await self._run_in_worker(self._delete_connections, [index])
        await self._discard_denied(address)

    async def _discard_denied(self, address: IPv4Address, limit: int | None = None) -> list[DeniedConnection]:
        """Remove the blocked connections of a namespace from the kernel and return them, at most `limit`."""
        assert self._denied is not None and self._firewall is not None
        found = (await self._denied.read()).pop(address, [])[:limit]
        if found:
            await self._run_in_worker(self._firewall.discard_denied, address, found)
        return found

    async def test_dns(self, index: int, pin: Path) -> None:
        """Record in `missing` if a DNS query from that namespace is not answered."""
        if self._forwarder is None or self.subnet is None:
            return
        self.answer_dns(index, Egress(closed=True))
        client = await self._run_in_worker(open_socket_inside, pin, socket.AF_INET, socket.SOCK_DGRAM)
        loop = asyncio.get_running_loop()
        try:
            client.connect((str(self.subnet.gateway), 53))
            await _query_until_answered(loop, client)
            self.missing.pop("dns", None)
        except OSError:
            self.missing.setdefault(
                "dns",
                "names do not resolve in sandboxes, because a firewall on this host drops their DNS queries. "
                f"Allow them: {host_firewall.ALLOW_DNS_COMMANDS}",
            )
        finally:
            client.close()
            self._forwarder.remove_client(self.subnet.get_address(index))

    async def _admit(self, address: IPv4Address, name: str, answers: Mapping[IPv4Address, int]) -> None:
        if self._firewall is not None:
            await self._run_in_worker(self._firewall.admit, address, name, answers)

    async def _update_private_ranges(self) -> None:
        if self._firewall is not None:
            await self._run_in_worker(self._firewall.set_private, await self._run_in_worker(self._list_private_ranges))

    async def restore_rules(self) -> None:
        """Handle a change of the rules by other programs: a deleted table may be ours, a new chain may be Docker's."""
        if self._firewall is not None:
            if await self._run_in_worker(self._firewall.restore):
                log.warning("network_table_restored table=%s", self._names.table)
            await self._run_in_worker(host_firewall.allow_in_docker_chain, self._nft, self._names)

    async def _watch_crowding(self, firewall: Firewall) -> None:
        crowded = False
        while True:
            await asyncio.sleep(CROWDING_INTERVAL_S)
            try:
                if (now := is_crowded(crowded)) != crowded:
                    await self._run_in_worker(firewall.set_crowded, now)
                    crowded = now
                    log.warning("network_connection_table_crowded" if now else "network_connection_table_has_room")
            except (OSError, NftError):
                log.exception("network_crowding_unknown")

    def _delete_connections(self, indexes: Collection[int]) -> None:
        for index in indexes:
            if self._conntrack is None or self.subnet is None or index >= self.subnet.capacity:
                continue
            try:
                self._conntrack.delete_connections(self.subnet.get_address(index))
            except OSError as error:  # they will time out
                log.warning("network_connections_kept error=%s", error)

    def _list_private_ranges(self) -> Ranges:
        if self._settings.lan == "allow":
            return ()
        assert self._netlink is not None
        connected = [
            item.network
            for item in links.list_addresses(self._netlink)
            if item.index != links.LOOPBACK and item.network.prefixlen > 0
        ]
        return ranges.merge([*PRIVATE, *ranges.make_ranges(connected)])

    async def _run_in_worker(self, work: Callable[..., _T], *arguments: object) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._worker, work, *arguments)

    async def _end_watches(self) -> None:
        if self._crowding_task is not None:
            self._crowding_task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._crowding_task
            self._crowding_task = None
        while self._watches:
            await self._watches.pop().close()

    async def _close_services(self) -> None:
        await self._end_watches()
        if self._forwarder is not None:
            await self._forwarder.close()
        if self._proxy is not None:
            await self._proxy.close()
        if self._denied is not None:
            await self._denied.close()
        if self.hairpin is not None:
            self.hairpin.listener.close()
            self.hairpin = None
        for part in (self._nft, self._netlink, self._conntrack):
            if part is not None:
                part.close()
        self._nft = self._netlink = self._conntrack = self._firewall = self._forwarder = self._proxy = None
        self._denied = None


class _NoForwardingError(Exception):
    """The host does not forward packets."""


def _enable_forwarding(nft: Nft, netlink: Netlink) -> None:
    """Let the host forward packets. If it did not before, it still forwards none between its current interfaces: only
    for sandboxes, and for what others (Docker, a VPN) set up later. Those rules stay as long as the setting does, until
    a reboot."""
    try:
        if _FORWARDING.read_text().strip() == "1":
            return
        present = ", ".join(f'"{link.name}"' for link in links.list_links(netlink) if link.index != links.LOOPBACK)
        if present:
            nft.run(_FORWARD_GUARD.format(table=FORWARD_TABLE, present=present))
        _FORWARDING.write_text("1")
        log.info("network_forwarding_enabled")
    except OSError as error:
        raise _NoForwardingError(
            f"IPv4 forwarding is off and cannot be turned on ({error.strerror}): sysctl -w net.ipv4.ip_forward=1"
        ) from error


def _get_uplink_mtu(netlink: Netlink) -> int:
    """Return the smallest MTU of the interfaces with a default route, so that no packet is too big for its next hop."""
    default_interfaces = {route.index for route in links.list_routes(netlink) if route.network.prefixlen == 0}
    sizes = [link.mtu for link in links.list_links(netlink) if link.index in default_interfaces and link.mtu >= 1280]
    return min(sizes, default=1500)


async def _query_until_answered(loop: asyncio.AbstractEventLoop, client: socket.socket) -> None:
    """Send a query several times, because a new veth pair may lose the first packets on older kernels. Raises
    TimeoutError."""
    for last in (False, False, False, True):
        try:
            async with asyncio.timeout(_DNS_TEST_TIMEOUT_S):
                await loop.sock_sendall(client, _DNS_QUERY)
                await loop.sock_recv(client, 512)
        except TimeoutError:
            if last:
                raise
        else:
            return
