"""HTTP client for registries, token servers and clouds: bounded responses, redirects without credentials, and retries."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

import httpx

from sandyard.engine.images.registry_access import CONNECT_S, READ_S, RegistryPolicy, RegistryTransport
from sandyard.kit.errors import BusyError, InvalidInputError, UnreachableError
from sandyard.kit.http_clients import open_shared_client
from sandyard.kit.pacing import take_turn

_REDIRECTS = 5
ATTEMPTS = 4
LONGEST_PAUSE = 20.0
_AGAIN = frozenset({408, 429, 500, 502, 503, 504})
_ELSEWHERE = frozenset({301, 302, 303, 307, 308})
_AGENT = "sandyard"


@dataclass(frozen=True, slots=True)
class WebResponse:
    status: int
    headers: Mapping[str, str]  # lower-case names
    body: bytes


class TransientError(Exception):
    """Retryable failure. `pause` is the delay that the server requested."""

    def __init__(self, message: str, pause: float = 0.0, *, busy: bool = False) -> None:
        super().__init__(message)
        self.pause, self.busy = pause, busy


class Web:
    """Open it with `async with`. Stores no credentials: the caller passes them with each request."""

    def __init__(self, policy: RegistryPolicy, *, pause: float = 0.5) -> None:
        self.policy = policy
        self._pause = pause
        timeout = httpx.Timeout(READ_S, connect=CONNECT_S)
        self._client = open_shared_client(transport=RegistryTransport(policy), timeout=timeout, trust_env=False)

    async def __aenter__(self) -> Web:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def ask(
        self, url: str, headers: Mapping[str, str], most: int, *, method: str = "GET", content: bytes | None = None
    ) -> WebResponse:
        """Return the whole response. Raises UnreachableError, BusyError, ForbiddenError, and InvalidInputError if it is
        longer than `most`."""
        for attempt in range(ATTEMPTS):
            try:
                async with self.open(url, headers, method=method, content=content) as response:
                    return WebResponse(response.status_code, dict(response.headers), await _read(response, most, url))
            except TransientError as error:
                await self.wait_before_retry(error, attempt)
        raise AssertionError

    async def wait_before_retry(self, error: TransientError, attempt: int) -> None:
        """Wait until the next attempt, or raise if there were too many."""
        if attempt + 1 >= ATTEMPTS:
            raise (BusyError if error.busy else UnreachableError)(str(error)) from None
        await asyncio.sleep(min(max(self._pause * 2**attempt, error.pause), LONGEST_PAUSE))

    @contextlib.asynccontextmanager
    async def open(
        self, url: str, headers: Mapping[str, str], *, method: str = "GET", content: bytes | None = None
    ) -> AsyncIterator[httpx.Response]:
        """Make one attempt and yield a response whose body is not read yet. Raises TransientError."""
        place, sent = self._parse_url(url), dict(headers)
        host = place.host
        try:
            for _ in range(_REDIRECTS + 1):
                asked = {
                    "User-Agent": _AGENT,
                    "Accept-Encoding": "identity",
                    **sent,
                }  # the hash requires the bytes as they were sent
                request = self._client.build_request(method, place, headers=asked, content=content)
                response = await self._client.send(request, stream=True)
                try:
                    if response.status_code in _AGAIN:
                        busy = response.status_code == 429
                        said = "is rate-limiting requests (429)" if busy else f"returned status {response.status_code}"
                        raise TransientError(
                            f"The server {place.host} {said}. Try again later.", _pause(response), busy=busy
                        )
                    target = response.headers.get("location")
                    if response.status_code not in _ELSEWHERE or not target or method != "GET":
                        yield response
                        return
                finally:
                    await response.aclose()
                new = self._parse_url(str(place.join(target)))
                if (new.scheme, new.host, new.port) != (place.scheme, place.host, place.port):
                    sent.pop("Authorization", None)  # for good, even if a later redirect leads back
                place = new
        except httpx.TransportError as error:
            raise TransientError(
                f"Could not reach the server {place.host}: {str(error)[:200] or type(error).__name__}."
            ) from None
        raise InvalidInputError(f"Too many redirects from {host}.")

    def _parse_url(self, url: str) -> httpx.URL:
        try:
            place = httpx.URL(url)
        except httpx.InvalidURL:
            raise InvalidInputError("A registry redirected to an invalid address.") from None
        if place.userinfo or not place.host or place.scheme not in ("http", "https"):
            raise InvalidInputError("A registry redirected to an unsupported address.")
        if place.scheme == "http" and not self.policy.allows_plain_http(place.host, place.port):
            named = f"{place.host}:{place.port}" if place.port else place.host
            raise InvalidInputError(
                f"The host {named} would be contacted without encryption, which is allowed only on this machine and for hosts that the "
                f"engine's operator configured: SANDYARD_IMAGES_INSECURE={named}"
            )
        return place


async def _read(response: httpx.Response, most: int, url: str) -> bytes:
    parts, size = [], 0
    async for chunk in response.aiter_bytes():
        await take_turn("images")
        size += len(chunk)
        if size > most:
            raise InvalidInputError(f"The response of {httpx.URL(url).host} exceeds the limit of {most >> 20} MiB.")
        parts.append(chunk)
    return b"".join(parts)


def _pause(response: httpx.Response) -> float:
    said = response.headers.get("retry-after", "")
    return float(said) if said.isascii() and said.isdigit() else 0.0
