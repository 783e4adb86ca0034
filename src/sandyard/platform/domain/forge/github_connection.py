"""A connection to a GitHub API with one credential: waits for rate limits, retries safely, and sends conditional requests."""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import httpx

from sandyard.kit import bounded_json
from sandyard.kit.clock import Clock
from sandyard.kit.destinations import Destinations, PrivateAddressError
from sandyard.kit.http_clients import GuardedTransport, discard_cookies
from sandyard.kit.logging import get_logger
from sandyard.kit.paced_http import limit_responses
from sandyard.kit.pacing import take_turn
from sandyard.kit.secret import Secret
from sandyard.platform.domain.forge.errors import ForgeForbiddenError, ForgeRefusedError, ForgeUnreachableError
from sandyard.platform.domain.forge.github_errors import extract_message, translate_error
from sandyard.platform.domain.forge.rate_limit import CORE, RateLimit, parse_retry_after

_ENTRY_OVERHEAD_BYTES = 1000  # key, ETag and Python objects of a cached response
log = get_logger(__name__)
MAX_ATTEMPTS = 3
_GITHUB_HEADER = "x-github-request-id"
"""Present in every response of GitHub. Messages of other servers are not shown, because they are not meant for the project's owner."""
_MAX_LINK_LENGTH = 4096
_MAX_REDIRECTS = 3
"""GitHub needs one: from any earlier name of a repository to its id."""
_MAX_RESPONSE_BYTES, _MAX_RESPONSE_VALUES = 16 << 20, 200_000
"""A page of a hundred pull requests, the largest response, has a fifth of these values."""
_TIMEOUT = httpx.Timeout(30, connect=10)
REQUEST_SECONDS = 60.0
"""How long a request may take in total, with its redirects. `_TIMEOUT` alone would let a server send its response byte by byte."""
_IDEMPOTENT_METHODS = ("GET", "PUT", "PATCH", "DELETE")
_MAX_CONCURRENT_REQUESTS = 100
"""Maximum number of requests at once that GitHub allows."""


@dataclass(frozen=True, slots=True)
class CachedResponse:
    etag: str
    content: bytes
    link: str


class ResponseCache:
    """The most recently used responses of all credentials, limited in bytes. A credential finds only its own."""

    def __init__(self, limit: int = 32 << 20) -> None:
        self._limit = limit
        self._size = 0
        self._responses: OrderedDict[tuple[str, str], CachedResponse] = OrderedDict()

    def get(self, credential: str, url: str) -> CachedResponse | None:
        cached = self._responses.get((credential, url))
        if cached is not None:
            self._responses.move_to_end((credential, url))
        return cached

    def put(self, credential: str, url: str, cached: CachedResponse) -> None:
        """Store a response, unless it takes more than an eighth of the space."""
        self._remove((credential, url))
        if len(cached.content) > self._limit // 8:
            return
        self._responses[credential, url] = cached
        self._size += len(cached.content) + _ENTRY_OVERHEAD_BYTES
        while self._size > self._limit:
            self._remove(next(iter(self._responses)))

    def _remove(self, key: tuple[str, str]) -> None:
        if (cached := self._responses.pop(key, None)) is not None:
            self._size -= len(cached.content) + _ENTRY_OVERHEAD_BYTES


class TokenSource(Protocol):
    """The source of a connection's token."""

    async def get_token(self) -> Secret | None: ...

    def discard(self, token: Secret) -> bool:
        """Report that the forge rejected this token. Returns True if `get_token` will return another one."""
        ...

    async def get_permissions(self) -> Mapping[str, str] | None:
        """Return the token's permissions by name ("read", "write"); None if unknown."""
        ...


@dataclass(frozen=True, slots=True)
class ApiResponse:
    json: Any
    next: int | None = None
    """The next page."""
    last: int | None = None
    size: int = 0
    """Bytes of its JSON."""


class GitHubConnection:
    """A connection. Its methods raise only ForgeError and its subclasses. Safe for concurrent use; `close` it at the end."""

    def __init__(  # noqa: PLR0917 - its dependencies
        self,
        api_url: str,
        tokens: TokenSource,
        clock: Clock,
        cache: ResponseCache,
        key: str,
        destinations: Destinations | None = None,
    ) -> None:
        """`destinations`: the allowed hosts of the API. None means any."""
        self._client = _Client(api_url, destinations)
        self._tokens = tokens
        self._clock = clock
        self._cache = cache
        self._key = key
        self.host = httpx.URL(api_url).host
        self.web_url = _derive_web_url(httpx.URL(api_url))
        self.rate_limit = RateLimit(self.host, clock)
        self.token_expires: str | None = None
        self.active_requests = 0
        self._closed = False

    @property
    def tokens(self) -> TokenSource:
        return self._tokens

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        max_wait_s: float,
        repeat: bool | None = None,
    ) -> ApiResponse:
        """Send a request. Retries after a rate limit (waiting at most `max_wait_s`), and with a new token after a 401 if there is one.

        If `repeat`, also retries after a connection or server error. `repeat` None means every method except POST.
        """
        self.active_requests += 1
        try:
            url = str(httpx.URL(path, params=params)) if params else path
            repeat = method in _IDEMPOTENT_METHODS if repeat is None else repeat
            return await self._send_with_retries(
                method, url, body, wait_until=self._clock.now() + max_wait_s, repeat=repeat
            )
        finally:
            self.active_requests -= 1
            if self._closed and not self.active_requests:
                await self._client.close()

    async def query_graphql(self, query: str, variables: Mapping[str, Any], *, max_wait_s: float) -> ApiResponse:
        """Send a GraphQL request, for what the REST API does not support. A GHES has it next to /api/v3."""
        base = self._client.base_url
        path = re.sub(r"/api/v3/?$", "/api/", base.path) + "graphql"
        body = {"query": query, "variables": dict(variables)}
        return await self.request("POST", str(base.copy_with(path=path)), body=body, max_wait_s=max_wait_s, repeat=True)

    async def close(self) -> None:
        """Close the connection. Idempotent. It can still be used, but keeps nothing open between requests."""
        self._closed = True
        if not self.active_requests:
            await self._client.close()

    async def _send_with_retries(
        self, method: str, url: str, body: Mapping[str, Any] | None, *, wait_until: float, repeat: bool
    ) -> ApiResponse:
        resource = "graphql" if url.endswith("/graphql") else CORE
        failures, rate_limits, renewed = 0, 0, False
        while True:
            await self.rate_limit.wait(resource, wait_until)
            token = await self._tokens.get_token()
            cached = self._cache.get(self._key, url) if method == "GET" else None
            try:
                response = await self._send(method, url, body, token, cached)
            except ForgeUnreachableError:
                failures += 1
                if not repeat or failures >= MAX_ATTEMPTS:
                    raise
                await self._clock.sleep(2.0 ** (failures - 1))
                continue
            self._record_headers(response)
            if response.status_code == 304 and cached is not None:
                return await asyncio.to_thread(parse_response, cached)
            if response.is_success:
                found = CachedResponse(
                    response.headers.get("etag", ""), response.content, response.headers.get("link", "")
                )
                if method == "GET" and found.etag:
                    self._cache.put(self._key, url, found)
                return await asyncio.to_thread(parse_response, found)
            message = extract_message(response.content, token) if _GITHUB_HEADER in response.headers else ""
            if self.rate_limit.is_limited(response.status_code, response.headers, message, rate_limits):
                rate_limits += 1
                continue
            if response.status_code == 401 and token and not renewed and self._tokens.discard(token):
                renewed = True
                continue
            error = translate_error(response.status_code, response.headers, message)
            if not isinstance(error, ForgeUnreachableError):
                raise error
            failures += 1
            wait = parse_retry_after(response.headers, self._clock.now()) or 2.0 ** (failures - 1)
            if (
                not repeat
                or failures >= MAX_ATTEMPTS
                or self._clock.now() + wait > max(wait_until, self._clock.now() + 4)
            ):
                raise error
            await self._clock.sleep(wait)

    async def _send(
        self, method: str, url: str, body: Mapping[str, Any] | None, token: Secret | None, cached: CachedResponse | None
    ) -> httpx.Response:
        headers = {"Accept-Encoding": "identity", "X-GitHub-Api-Version": "2022-11-28"}
        if token:
            headers["Authorization"] = f"Bearer {token.reveal()}"
        if cached is not None:
            headers["If-None-Match"] = cached.etag
        try:
            return await self._client.send(method, url, body, headers)
        except (httpx.TimeoutException, TimeoutError):
            raise ForgeUnreachableError(f"{self.host} did not respond in time. Nothing was lost; try again.") from None
        except PrivateAddressError as error:
            raise ForgeForbiddenError(error.message) from None
        except httpx.TooManyRedirects:
            raise ForgeRefusedError(
                f"{self.host} redirects more than {_MAX_REDIRECTS} times. Check the repository's URL and the project's forge.apiUrl."
            ) from None
        except ForgeRefusedError:
            raise
        except Exception as error:  # of the transport, the TLS library or the parser
            raise self._make_unreachable_error(error) from None

    def _make_unreachable_error(self, cause: BaseException) -> ForgeUnreachableError:
        if isinstance(cause, ForgeUnreachableError):
            return cause
        log.info("forge_unreachable", forge=self.host, cause=type(cause).__name__)
        return ForgeUnreachableError(
            f"{self.host} could not be reached, or the connection broke ({type(cause).__name__}). Nothing was lost; try again."
        )

    def _record_headers(self, response: httpx.Response) -> None:
        self.rate_limit.update(response.headers)
        self.token_expires = response.headers.get("github-authentication-token-expiration", self.token_expires)


class _Client:
    """An HTTP client of the API. Its connection pool is opened by the first request, and again by a request after `close`."""

    def __init__(self, api_url: str, destinations: Destinations | None) -> None:
        url = httpx.URL(api_url)
        path = url.raw_path if url.raw_path.endswith(b"/") else url.raw_path + b"/"
        self.base_url = url.copy_with(raw_path=path)
        self._transport = None if destinations is None else GuardedTransport(destinations)
        self._slots = asyncio.Semaphore(_MAX_CONCURRENT_REQUESTS)
        self._client: httpx.AsyncClient | None = None

    async def send(
        self, method: str, url: str, body: Mapping[str, Any] | None, headers: Mapping[str, str]
    ) -> httpx.Response:
        """Send a request and return the response, whatever its status."""
        self._client = client = self._client or self._create_client()
        async with self._slots, asyncio.timeout(REQUEST_SECONDS):
            return await client.request(method, url, json=body, headers=headers)

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    def _create_client(self) -> httpx.AsyncClient:
        client = httpx.AsyncClient(
            base_url=self.base_url,
            headers={
                "User-Agent": "sandyard",
                "Accept": "application/vnd.github+json",
                "Cache-Control": "no-cache",
            },
            timeout=_TIMEOUT,
            follow_redirects=True,
            max_redirects=_MAX_REDIRECTS,
            transport=self._transport,
            event_hooks={"request": [self._check_origin], "response": [_limit_size]},
        )
        return limit_responses(discard_cookies(client))

    async def _check_origin(self, request: httpx.Request) -> None:
        """Raise ForgeRefusedError for a redirect to another origin, which could be any host that the platform can reach.

        Redirects within the origin are followed: GitHub sends them for renamed repositories.
        """
        own, target = _get_origin(self.base_url), _get_origin(request.url)
        if target != own:
            raise ForgeRefusedError(
                f"{own} redirects to {target}, which is not followed because it is another server. If the forge has moved, change the "
                "project's forge.apiUrl."
            )


async def _limit_size(response: httpx.Response) -> None:
    """Limit the size of a response, so that no server can fill the platform's memory."""
    if response.headers.get("content-encoding", "identity") != "identity":
        raise ForgeUnreachableError("The forge responded with an encoding that was not requested.")
    if isinstance(response.stream, httpx.AsyncByteStream):
        response.stream = _LimitedStream(response.stream)


class _LimitedStream(httpx.AsyncByteStream):
    def __init__(self, stream: httpx.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for chunk in self._stream:
            await take_turn("forge")
            size += len(chunk)
            if size > _MAX_RESPONSE_BYTES:
                raise ForgeUnreachableError(
                    "The forge's response is larger than any response of GitHub. Check that the project's forge.apiUrl is correct."
                )
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


def _get_origin(url: httpx.URL) -> str:
    return f"{url.scheme}://{url.netloc.decode()}"


def _derive_web_url(api: httpx.URL) -> str:
    """Return the URL of the forge's web pages: a GHES has them on its API host, github.com next to api.github.com."""
    host = api.host.removeprefix("api.")
    return str(api.copy_with(host=host, raw_path=b"/")).rstrip("/")


def parse_response(cached: CachedResponse) -> ApiResponse:
    try:
        body = (
            bounded_json.parse(cached.content, largest=_MAX_RESPONSE_BYTES, values=_MAX_RESPONSE_VALUES)
            if cached.content
            else None
        )
    except ValueError:
        raise ForgeUnreachableError(
            "The forge did not respond like GitHub. Check that the project's forge.apiUrl is the URL of a GitHub API."
        ) from None
    pages = _parse_linked_pages(cached.link)
    return ApiResponse(body, pages.get("next"), pages.get("last"), len(cached.content))


def _parse_linked_pages(link: str) -> dict[str, int]:
    """Return the page numbers of a Link header by relation. Runs in linear time, because the header may be hostile."""
    pages: dict[str, int] = {}
    for part in link[:_MAX_LINK_LENGTH].split(","):
        url, _, parameters = part.strip().partition(">;")
        query = url.partition("?")[2]
        page = next((item.removeprefix("page=") for item in query.split("&") if item.startswith("page=")), "")
        name, _, relation = parameters.strip().partition("=")
        if name == "rel" and page.isascii() and page.isdigit() and len(page) <= 6:
            pages[relation.partition(";")[0].strip().strip('"')] = int(page)
    return pages
