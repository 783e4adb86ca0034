"""HTTP clients for untrusted servers and for several users, and the description of their failures."""

from __future__ import annotations

import ssl
from http.cookiejar import DefaultCookiePolicy
from typing import Any

import httpx

from sandyard.kit.destinations import Destinations, is_proxied
from sandyard.kit.paced_http import limit_responses, pace_reads

_NO_SERVER = ("all connection attempts failed", "connection refused", "no route to host")
_NO_NAME = (
    "name or service not known",
    "name resolution",
    "no address associated with hostname",
    "nodename nor servname",
    "could not be resolved",
)


def open_shared_client(**options: Any) -> httpx.AsyncClient:
    """Return a client that stores no cookies, follows no redirects, refuses compressed responses and does not trust servers (see
    `limit_responses`). `options` are passed to httpx."""
    client = httpx.AsyncClient(follow_redirects=False, event_hooks={"response": [refuse_encodings]}, **options)
    return limit_responses(discard_cookies(client))


def discard_cookies(client: httpx.AsyncClient) -> httpx.AsyncClient:
    """Make the client ignore `Set-Cookie` and return it. A client shared by several users would otherwise send one user's cookie with
    another user's request."""
    client.cookies.jar.set_policy(DefaultCookiePolicy(allowed_domains=[]))
    return client


async def refuse_encodings(response: httpx.Response) -> None:
    """Raise DecodingError for a compressed response before it is decoded, because a few bytes can turn into gigabytes. A hook for clients
    that request uncompressed responses."""
    if response.headers.get("content-encoding", "identity").strip().lower() != "identity":
        # does not quote the header, which may repeat a secret
        raise httpx.DecodingError(
            "The response is compressed, although an uncompressed one was requested", request=response.request
        )


class GuardedTransport(httpx.AsyncBaseTransport):
    """Connects only to public addresses and those that an administrator has listed. A name is connected to at the addresses that were
    checked, so a later DNS change has no effect. Raises PrivateAddressError."""

    def __init__(
        self,
        destinations: Destinations,
        *,
        trust: ssl.SSLContext | None = None,
        reuse: bool = True,
    ) -> None:
        """Create the transport. With `reuse` False, every request gets its own connection. Connections are pooled by address, and
        several names at one address must not share a connection, because each connection was verified for its own name."""
        self._destinations = destinations
        self._trust = trust
        self._reuse = reuse
        self._direct: httpx.AsyncHTTPTransport | None = None
        self.proxied_client: httpx.AsyncClient | None = None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        url = request.url
        self._destinations.check_name(url.host)
        if is_proxied(url.scheme, url.host):
            self.proxied_client = self.proxied_client or self._open_proxied()
            return await self.proxied_client.send(request, stream=True)
        self._direct = direct = self._direct or self._open()
        try:
            addresses = await self._destinations.resolve(url.host)
        except OSError as error:
            raise httpx.ConnectError(f"{url.host} could not be resolved", request=request) from error
        request.extensions = {**request.extensions, "sni_hostname": url.host}
        for address in addresses:
            request.url = url.copy_with(host=address)
            try:
                return await direct.handle_async_request(request)
            except httpx.ConnectError:
                if address == addresses[-1]:
                    raise
            finally:
                request.url = url
        raise httpx.ConnectError(f"{url.host} has no address", request=request)

    async def aclose(self) -> None:
        """Close all connections. The transport can be used again."""
        for client in (self._direct, self.proxied_client):
            if client is not None:
                await client.aclose()
        self._direct = self.proxied_client = None

    def _open(self) -> httpx.AsyncHTTPTransport:
        max_idle = 20 if self._reuse else 0
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=max_idle)
        return pace_reads(httpx.AsyncHTTPTransport(verify=self._get_trust(), limits=limits))

    def _open_proxied(self) -> httpx.AsyncClient:
        return limit_responses(discard_cookies(httpx.AsyncClient(verify=self._get_trust())))

    def _get_trust(self) -> ssl.SSLContext | bool:
        return self._trust if self._trust is not None else True


def describe_unreachable(name: str, url: str, error: Exception) -> str:
    """Return why a server could not be reached. `name` is the server's display name. The library's message is kept only if it adds
    something, for example about a certificate."""
    reason = str(error).strip().rstrip(".")
    if isinstance(error, httpx.ConnectError) and any(phrase in reason.lower() for phrase in _NO_NAME):
        host = httpx.URL(url).host
        return (
            f"{name} could not be reached: the name {host} could not be resolved. "
            "Check DNS or the proxy of the platform's machine."
        )
    if isinstance(error, httpx.ConnectError) and (not reason or any(phrase in reason.lower() for phrase in _NO_SERVER)):
        return f"{name} could not be reached: no server is listening at {url}."
    return f"{name} could not be reached at {url}: {reason or type(error).__name__}."
