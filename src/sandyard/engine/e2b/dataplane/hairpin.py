"""Requests from sandboxes to the engine's public names: forwarded to the gateway if the sandbox's own network policy
allows it.

All public names share one address. The firewall accepts connections to it if the policy allows at least one of the
names, but only the request says which name it is for. Therefore the policy is checked again here: a policy that allows
one preview must not open all of them, or the API.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from time import monotonic as now

from sandyard.engine.contract import Hairpin, PublicNames
from sandyard.engine.e2b.dataplane import pages
from sandyard.engine.e2b.dataplane.asgi import Receive, Scope, Send, discard_body
from sandyard.engine.e2b.dataplane.gateway import Gateway
from sandyard.engine.e2b.dataplane.pages import Page
from sandyard.engine.e2b.dataplane.target import Target, find_target
from sandyard.engine.e2b.dataplane.tunnel import Tunnel, TunnelConnection
from sandyard.kit.errors import SandyardError

RATE, BURST = 200, 1000
"""Requests per second of one sandbox, and how many may be sent at once. Further ones wait."""
MAX_WAIT_SECONDS = 5.0
MAX_CLIENTS = 4096


class HairpinGateway:
    """An ASGI application in front of the gateway, for requests and tunnels."""

    def __init__(self, gateway: Gateway, hairpin: Hairpin, names: PublicNames) -> None:
        self._gateway = gateway
        self._hairpin = hairpin
        self._names = names
        self._rate_limiter = ClientRateLimiter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = await self._check(scope)
        if refusal is None:
            await self._gateway(scope, receive, send)
        else:
            await discard_body(receive)
            await pages.send_page(refusal, scope, send)

    async def open_tunnel(self, scope: Scope, tunnel: Tunnel) -> TunnelConnection | Page:
        return await self._check(scope) or await self._gateway.open_tunnel(scope, tunnel)

    def end_tunnel(self, target: Target, tunnel: Tunnel) -> None:
        self._gateway.end_tunnel(target, tunnel)

    async def _check(self, scope: Scope) -> Page | None:
        """Return the response to a request that is not allowed, or None if it is."""
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        if len(hosts) != 1:  # otherwise the policy could check one of them and the gateway use another
            return pages.plain(400, "Send exactly one Host header.")
        client = scope["client"][0] if scope.get("client") else ""
        for name in self._list_requested_names(hosts[0], scope):
            if not self._names.include(name) or not self._hairpin.is_allowed(client, name):
                return pages.plain(403, f"The network policy of this sandbox does not allow {name or 'this request'}.")
        if not await self._rate_limiter.wait(client):
            return pages.plain(429, "This sandbox sends too many requests. Try again later.")
        return None

    def _list_requested_names(self, host: bytes, scope: Scope) -> list[str]:
        """Return the name in the Host header, and the name that the gateway routes the request to: headers of SDKs may
        select another one."""
        name, domain = host.decode("latin-1").partition(":")[0].lower().removesuffix("."), self._names.domain
        try:
            target = find_target(scope)
        except SandyardError:
            return [name]  # the gateway returns the error
        if target is not None:
            return [name, f"{target.port}-{target.sandbox_id}.{domain}".lower()]
        return [name] if name == domain else [name, f"api.{domain}"]  # the gateway sends it to the API


class ClientRateLimiter:
    """A rate limit per client: requests beyond RATE are delayed."""

    def __init__(self) -> None:
        self._due: OrderedDict[str, float] = OrderedDict()  # when the next request of each client may be sent

    async def wait(self, client: str) -> bool:
        """Wait until the client may send a request. Return False if that would take longer than MAX_WAIT_SECONDS."""
        at = now()
        due = max(self._due.pop(client, 0.0), at - BURST / RATE)
        if due > at + MAX_WAIT_SECONDS:
            self._due[client] = due
            return False
        self._due[client] = due + 1 / RATE
        if len(self._due) > MAX_CLIENTS:
            self._due.popitem(last=False)
        if due > at:
            await asyncio.sleep(due - at)
        return True
