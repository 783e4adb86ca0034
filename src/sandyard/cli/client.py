"""HTTP client for the server's API: JSON in and out. Every failure becomes an error with a message and an exit code."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any

import httpx

from sandyard import __version__
from sandyard.cli.config import Login
from sandyard.cli.errors import ApiError, NoResponseError, NotLoggedInError, NotSandyardError
from sandyard.cli.output import escape

API = "/api/v1"
MAX_PAGE_SIZE = 200
CONNECT_SECONDS, RESPONSE_SECONDS = 10.0, 330.0
"""A command that the server waits for may itself take 300 s."""

Json = Any
Content = bytes | Iterable[bytes] | AsyncIterable[bytes]


class Client:
    """An API client for one login. Paths are relative to /api/v1. Raises ApiError and NoResponseError, never httpx's exceptions."""

    def __init__(self, login: Login, *, timeout: float = RESPONSE_SECONDS) -> None:
        self.login = login
        headers = {"User-Agent": f"sandyard-cli/{__version__}", "Accept": "application/json"}
        if login.token is not None:
            headers["Authorization"] = f"Bearer {login.token.reveal()}"
        self._http = httpx.Client(
            base_url=login.url,
            headers=headers,
            timeout=httpx.Timeout(timeout, connect=min(timeout, CONNECT_SECONDS)),
            trust_env=not login.is_local,  # do not use a proxy to reach this machine
            verify=not login.url.startswith("http:"),  # loading certificates is slow and not needed here
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def get(self, path: str, /, **params: object) -> Json:
        return self.request("GET", path, params=params)

    def post(self, path: str, body: Json = None, /, **params: object) -> Json:
        return self.request("POST", path, body=body, params=params)

    def patch(self, path: str, body: Json) -> Json:
        return self.request("PATCH", path, body=body)

    def delete(self, path: str, /, **params: object) -> Json:
        return self.request("DELETE", path, params=params)

    def put(self, path: str, content: Content, /, **params: object) -> Json:
        """Send bytes unchanged, as a stream."""
        return self.request("PUT", path, content=content, params=params)

    def list_items(self, path: str, limit: int, /, **params: object) -> dict[str, Json]:
        """Return up to `limit` items of a list, in as few requests as possible, in the format of a single page."""
        items: list[Json] = []
        cursor: str | None = None
        while True:
            page = self.get(path, limit=min(MAX_PAGE_SIZE, limit - len(items)), cursor=cursor, **params)
            items += page["items"]
            cursor = page.get("nextCursor")
            if cursor is None or len(items) >= limit or not page["items"]:
                return {**page, "items": items, "nextCursor": cursor}

    def request(
        self,
        method: str,
        path: str,
        *,
        body: Json = None,
        content: Content | None = None,
        params: Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Json:
        """Return the JSON of the response, or None if it is empty."""
        payload = {"json": body} if body is not None else {"content": content}
        if content is not None:
            headers = {"Content-Type": "application/octet-stream", **(headers or {})}
        with self._translate_errors():
            response = self._http.request(method, API + path, params=_make_query(params), headers=headers, **payload)
        self._raise_for_status(response)
        if not response.content:
            return None
        try:
            return response.json()
        except ValueError:
            raise NotSandyardError(
                f"The server at {self.login.url} is not a Sandyard server. Check the address and the port."
            ) from None

    @contextlib.contextmanager
    def stream(
        self,
        path: str,
        *,
        params: Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
        silence_seconds: float | None = None,
    ) -> Iterator[httpx.Response]:
        """GET a response whose body is read while it arrives. Also raises NoResponseError if the connection drops or is silent for
        `silence_seconds`."""
        timeout = httpx.Timeout(silence_seconds or RESPONSE_SECONDS, connect=CONNECT_SECONDS)
        with (
            self._translate_errors(),
            self._http.stream(
                "GET", API + path, params=_make_query(params), headers=headers, timeout=timeout
            ) as response,
        ):
            if response.is_error:
                response.read()
            self._raise_for_status(response)
            yield response

    @contextlib.contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except httpx.ConnectError as error:
            hint = (
                " Start one with `sandyard up`, or choose another with `sandyard login URL`."
                if self.login.is_local
                else ""
            )
            raise NoResponseError(f"Could not connect to {self.login.url}: {_describe_error(error)}.{hint}") from None
        except httpx.TransportError as error:
            raise NoResponseError(
                f"The server at {self.login.url} did not respond: {_describe_error(error)}."
            ) from None

    def _raise_for_status(self, response: httpx.Response) -> None:
        if not response.is_error and not response.is_redirect:
            return
        if _is_from_engine(response):
            raise NotSandyardError(
                f"{self.login.url} is the API of the engine. The platform usually listens on the next lower port."
            )
        is_login = response.request.url.path == f"{API}/login"  # then the name or the password is wrong
        if response.status_code == 401 and self.login.token is None and not is_login:
            raise NotLoggedInError(f"Not logged in to {self.login.url}. Run `sandyard login {self.login.url}`.")
        raise _to_api_error(response)


def _is_from_engine(response: httpx.Response) -> bool:
    """Return whether the engine sent this error, in the format of the E2B API: `{"code": 401, "message": …}`."""
    try:
        body = response.json()
    except ValueError:
        return False
    return isinstance(body, dict) and isinstance(body.get("code"), int) and "message" in body and "detail" not in body


def _to_api_error(response: httpx.Response) -> ApiError:
    """Convert an error response, including one from a proxy in front of the server."""
    try:
        problem = response.json()
        message = problem.get("detail") or problem.get("title")
        field_errors = [
            _format_field_error(error) for error in problem.get("errors") or [] if not _is_repeated(error, message)
        ]
        code = problem.get("code")
    except (ValueError, AttributeError):
        problem, message, field_errors, code = {}, None, [], None
    if not message:
        message = f"The server at {response.url.host} returned {response.status_code} {response.reason_phrase}"
    if field_errors:
        message = f"{message.rstrip('.')}: {'; '.join(field_errors)}"
    message = escape(message)  # it may quote untrusted text
    message = message if message.endswith((".", "!", "?")) else f"{message}."
    return ApiError(message, response.status_code, code, problem)


def _is_repeated(error: Json, message: str | None) -> bool:
    """Return whether the message already contains this item of the `errors` of problem+json."""
    text = error.get("message") if isinstance(error, dict) else error
    return bool(text and message and (str(text) in message or _format_field_error(error) in message))


def _format_field_error(error: Json) -> str:
    """Format one of the `errors` of problem+json."""
    if not isinstance(error, dict):
        return str(error)
    location = error.get("field") or error.get("pointer") or error.get("path") or error.get("loc") or ""
    name = ".".join(str(part) for part in location) if isinstance(location, list) else str(location)
    message = str(error.get("message") or error.get("detail") or error.get("msg") or "is not valid")
    return f"{name}: {message}" if name else message


def _make_query(params: Mapping[str, object] | None) -> dict[str, str | list[str]]:
    """Return query parameters. A tuple or list becomes a repeated parameter."""
    return {
        name: [_format_param(item) for item in value] if isinstance(value, (tuple, list)) else _format_param(value)
        for name, value in (params or {}).items()
        if value is not None
    }


def _format_param(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _describe_error(error: httpx.TransportError) -> str:
    if isinstance(error, httpx.TimeoutException):
        return "the request timed out"
    text = str(error).strip().rstrip(".")
    return text.partition("] ")[2] or text or type(error).__name__
