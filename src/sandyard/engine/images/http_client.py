"""HTTP client for registries, token servers and clouds: bounded responses, redirects without credentials, and retries."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

import httpx

from sandyard.engine.images.registry_access import CONNECT_S, READ_S, RegistryPolicy, RegistryTransport
from sandyard.kit.errors import BusyError, ForbiddenError, InvalidInputError, UnreachableError
from sandyard.kit.http_clients import open_shared_client
from sandyard.kit.pacing import take_turn

_MAX_REDIRECTS = 5
ATTEMPTS = 4
MAX_PAUSE_S = 20.0
_RETRYABLE = frozenset({408, 429, 500, 502, 503, 504})
_REDIRECTED = frozenset({301, 302, 303, 307, 308})
_USER_AGENT = "sandyard"


@dataclass(frozen=True, slots=True)
class HttpResponse:
    status: int
    headers: Mapping[str, str]  # lower-case names
    body: bytes


class TransientError(Exception):
    """Retryable failure. `pause` is the delay that the server requested."""

    def __init__(self, message: str, pause: float = 0.0, *, busy: bool = False) -> None:
        super().__init__(message)
        self.pause, self.busy = pause, busy


class HttpClient:
    """Open it with `async with`. Stores no credentials: the caller passes them with each request."""

    def __init__(self, policy: RegistryPolicy, *, pause: float = 0.5) -> None:
        self.policy = policy
        self._pause = pause
        timeout = httpx.Timeout(READ_S, connect=CONNECT_S)
        self._client = open_shared_client(transport=RegistryTransport(policy), timeout=timeout, trust_env=False)

    async def __aenter__(self) -> HttpClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def request(
        self, url: str, headers: Mapping[str, str], max_bytes: int, *, method: str = "GET", content: bytes | None = None
    ) -> HttpResponse:
        """Return the whole response. Raises UnreachableError, BusyError, ForbiddenError, and InvalidInputError if it is
        longer than `max_bytes`."""
        for attempt in range(ATTEMPTS):
            try:
                async with self.open(url, headers, method=method, content=content) as response:
                    return HttpResponse(
                        response.status_code, dict(response.headers), await _read(response, max_bytes, url)
                    )
            except TransientError as error:
                await self.wait_before_retry(error, attempt)
        raise AssertionError

    async def wait_before_retry(self, error: TransientError, attempt: int) -> None:
        """Wait until the next attempt, or raise if there were too many."""
        if attempt + 1 >= ATTEMPTS:
            raise (BusyError if error.busy else UnreachableError)(str(error)) from None
        await asyncio.sleep(min(max(self._pause * 2**attempt, error.pause), MAX_PAUSE_S))

    @contextlib.asynccontextmanager
    async def open(
        self, url: str, headers: Mapping[str, str], *, method: str = "GET", content: bytes | None = None
    ) -> AsyncIterator[httpx.Response]:
        """Make one attempt and yield a response whose body is not read yet. Raises TransientError, and ForbiddenError if
        another server, to which the first one has redirected, requires credentials."""
        target, sent = self._parse_url(url), dict(headers)
        origin = _get_origin(target)
        host = target.host
        try:
            for _ in range(_MAX_REDIRECTS + 1):
                # without compression, because digests are those of the stored bytes
                defaults = {"User-Agent": _USER_AGENT, "Accept-Encoding": "identity"}
                request = self._client.build_request(method, target, headers={**defaults, **sent}, content=content)
                response = await self._client.send(request, stream=True)
                try:
                    if response.status_code in _RETRYABLE:
                        busy = response.status_code == 429
                        problem = (
                            "is rate-limiting requests (429)" if busy else f"returned status {response.status_code}"
                        )
                        raise TransientError(
                            f"The server {target.host} {problem}. Try again later.",
                            _parse_retry_after(response),
                            busy=busy,
                        )
                    if response.status_code == 401 and _get_origin(target) != origin:
                        # its challenge could name any server as the one that gets the credentials
                        raise ForbiddenError(
                            f"{host} redirected to {target.host}, which requires credentials. They are sent only to {host}."
                        )
                    location = response.headers.get("location")
                    if response.status_code not in _REDIRECTED or not location or method != "GET":
                        yield response
                        return
                finally:
                    await response.aclose()
                new = self._parse_url(str(target.join(location)))
                if _get_origin(new) != _get_origin(target):
                    sent.pop("Authorization", None)  # for good, even if a later redirect leads back
                target = new
        except httpx.TransportError as error:
            raise TransientError(
                f"Could not reach the server {target.host}: {str(error)[:200] or type(error).__name__}."
            ) from None
        raise InvalidInputError(f"Too many redirects from {host}.")

    def _parse_url(self, url: str) -> httpx.URL:
        try:
            parsed = httpx.URL(url)
        except httpx.InvalidURL:
            raise InvalidInputError("A registry redirected to an invalid address.") from None
        if parsed.userinfo or not parsed.host or parsed.scheme not in ("http", "https"):
            raise InvalidInputError("A registry redirected to an unsupported address.")
        if parsed.scheme == "http" and not self.policy.allows_plain_http(parsed.host, parsed.port):
            named = f"{parsed.host}:{parsed.port}" if parsed.port else parsed.host
            raise InvalidInputError(
                f"The host {named} would be contacted without encryption, which is allowed only on this machine and for hosts that the "
                f"engine's operator configured: SANDYARD_IMAGES_INSECURE={named}"
            )
        return parsed


def _get_origin(url: httpx.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


async def _read(response: httpx.Response, max_bytes: int, url: str) -> bytes:
    parts, size = [], 0
    async for chunk in response.aiter_bytes():
        await take_turn("images")
        size += len(chunk)
        if size > max_bytes:
            raise InvalidInputError(
                f"The response of {httpx.URL(url).host} exceeds the limit of {max_bytes >> 20} MiB."
            )
        parts.append(chunk)
    return b"".join(parts)


def _parse_retry_after(response: httpx.Response) -> float:
    seconds = response.headers.get("retry-after", "")
    return float(seconds) if seconds.isascii() and seconds.isdigit() else 0.0
