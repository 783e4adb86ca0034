"""Restricts which hosts the engine contacts for an image. A client chooses the registry, but the engine connects to it
from the operator's machine and network.

Public addresses of other machines are always allowed. All others are allowed only for hosts that the operator listed in
`images_registries`: this machine, its networks, and the metadata service of a cloud. Private networks, but not this machine, are
also allowed if sandboxes may reach them anyway (`lan`). The connection uses exactly the address that was checked, so that a
name cannot resolve differently in between; this applies to redirects and token servers too.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ipaddress
import ssl
import urllib.request
from collections.abc import AsyncIterator, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import httpcore
import httpx

from sandyard.kit.destinations import is_own, is_public, list_equivalent_addresses
from sandyard.kit.dns_lookup import Address, look_up
from sandyard.kit.errors import ForbiddenError, UnreachableError
from sandyard.kit.paced_http import PacedBackend, pace_reads

CONNECT_S, READ_S = 15.0, 60.0


@dataclass(frozen=True, slots=True)
class RegistryPolicy:
    """The operator's settings. `registries` and `insecure` contain `host` or `host:port`; `private`: whether private
    networks may be contacted."""

    registries: frozenset[str] = frozenset()
    insecure: frozenset[str] = frozenset()
    private: bool = False

    def allows_plain_http(self, host: str, port: int | None) -> bool:
        """Return whether plain HTTP may be used: on this machine always, elsewhere only if the operator allowed it."""
        return _is_loopback_name(host) or _is_listed(self.insecure, host, port)

    def allows(self, host: str, port: int | None, address: Address) -> bool:
        """Return whether this host may be contacted at this address."""
        if _is_listed(self.registries, host, port):
            return True
        if is_public(address):
            return True
        never = any(target.is_link_local or target.is_multicast for target in list_equivalent_addresses(address))
        return self.private and not never and not is_own(address)

    def check(self, host: str, port: int | None, addresses: Iterable[Address]) -> list[Address]:
        """Return the addresses that may be connected to. Raises ForbiddenError, with a remedy, if there are none."""
        allowed = [address for address in addresses if self.allows(host, port, address)]
        if not allowed:
            named = f"{host}:{port}" if port else host
            raise ForbiddenError(
                f"The host {named} is on this machine or in its own network. Images are fetched from there only if the engine's operator "
                f"allows it: SANDYARD_IMAGES_REGISTRIES={named}"
            )
        return allowed


def _is_listed(names: Collection[str], host: str, port: int | None) -> bool:
    return host.lower() in names or (port is not None and f"{host.lower()}:{port}" in names)


def _is_loopback_name(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


class RegistryTransport(httpx.AsyncBaseTransport):
    """Connects through the machine's proxies if there are any, otherwise directly to an address that `policy` allows.
    Certificates are verified with the system's trust store."""

    def __init__(self, policy: RegistryPolicy) -> None:
        self._policy = policy
        self._plain = httpcore.AsyncConnectionPool(
            network_backend=PacedBackend(_CheckedBackend(policy)), max_connections=16
        )
        self._secure: httpcore.AsyncConnectionPool | None = None
        self._proxied: dict[str, httpx.AsyncHTTPTransport] = {}

    @functools.cached_property
    def _context(self) -> ssl.SSLContext:
        """Created on the first TLS connection, because the trust store takes a while to read and local images need no
        connection."""
        return ssl.create_default_context()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        host = request.url.host
        if proxy := self._find_proxy(request.url.scheme, host):
            # The proxy resolves names and is where an operator restricts access. Literal addresses need no lookup and
            # are checked here.
            with contextlib.suppress(ValueError):
                self._policy.check(host, request.url.port, [ipaddress.ip_address(host.strip("[]"))])
            if proxy not in self._proxied:
                self._proxied[proxy] = pace_reads(httpx.AsyncHTTPTransport(verify=self._context, proxy=proxy))
            return await self._proxied[proxy].handle_async_request(request)
        assert isinstance(request.stream, httpx.AsyncByteStream)
        url = httpcore.URL(
            scheme=request.url.raw_scheme, host=request.url.raw_host, port=request.url.port, target=request.url.raw_path
        )
        core_request = httpcore.Request(
            request.method, url, headers=request.headers.raw, content=request.stream, extensions=request.extensions
        )
        with _translate_errors():
            response = await self._get_pool(request.url.scheme).handle_async_request(core_request)
        return httpx.Response(
            response.status, headers=response.headers, stream=_Body(response.stream), extensions=response.extensions
        )

    def _get_pool(self, scheme: str) -> httpcore.AsyncConnectionPool:
        if scheme != "https":
            return self._plain
        if self._secure is None:
            self._secure = httpcore.AsyncConnectionPool(
                ssl_context=self._context,
                network_backend=PacedBackend(_CheckedBackend(self._policy)),
                max_connections=16,
            )
        return self._secure

    def _find_proxy(self, scheme: str, host: str) -> str | None:
        if _is_loopback_name(host):
            return None
        proxies = urllib.request.getproxies()
        proxy = proxies.get(scheme) or proxies.get("all")
        return proxy if proxy and not urllib.request.proxy_bypass(host) else None

    async def aclose(self) -> None:
        await self._plain.aclose()
        if self._secure is not None:
            await self._secure.aclose()
        for transport in self._proxied.values():
            await transport.aclose()


@contextlib.contextmanager
def _translate_errors() -> Iterator[None]:
    """Raise errors of httpcore as the error of httpx that callers of the transport expect."""
    try:
        yield
    except (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError) as error:
        raise httpx.TransportError(str(error) or type(error).__name__) from error


class _Body(httpx.AsyncByteStream):
    """The content of a response of httpcore, as httpx expects it."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _translate_errors():
            async for chunk in self._stream:
                yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


class _CheckedBackend(httpcore.AsyncNetworkBackend):
    """Resolves a name, checks the addresses, and connects to exactly those."""

    def __init__(self, policy: RegistryPolicy) -> None:
        self._policy = policy
        self._inner = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - the interface has it
        local_address: str | None = None,
        socket_options: Any = None,
    ) -> httpcore.AsyncNetworkStream:
        try:
            addresses = await look_up(host)
        except OSError:
            raise UnreachableError(
                f"Could not resolve the host {host[:200]}. Check whether the engine's machine can resolve names or needs a proxy; "
                "without a registry, an image can be read from a folder (setting images_dirs)."
            ) from None
        failure: Exception | None = None
        for address in self._policy.check(host, port, dict.fromkeys(addresses)):
            try:
                return await self._inner.connect_tcp(str(address), port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        assert failure is not None
        raise failure

    async def connect_unix_socket(self, path: str, timeout: float | None = None, socket_options: Any = None) -> Any:  # noqa: ASYNC109
        raise ForbiddenError("Registries cannot be accessed through a Unix socket of this machine.")

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
