"""The API of a running engine, for commands that need no SDK."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import click
import httpx

from sandyard.kit.errors import SandyardError, UnreachableError

F = TypeVar("F", bound=Callable[..., Any])
TIMEOUT_SECONDS = 30.0


class EngineRefusedError(SandyardError):
    """The engine refused the request."""


@dataclass(frozen=True, slots=True)
class EngineAddress:
    """Where the engine is, found like E2B's clients find it."""

    url: str
    key: str


def engine_options(command: F) -> F:
    """Add the options `--url` and `--api-key`, for the arguments `url` and `api_key`."""
    for option in (
        click.option(
            "--api-key", envvar="E2B_API_KEY", default="", help="API key of the engine.  [default: E2B_API_KEY]"
        ),
        click.option(
            "--url", envvar="E2B_API_URL", default="http://127.0.0.1:3000", show_default=True, help="URL of the engine."
        ),
    ):
        command = option(command)
    return command


@contextlib.contextmanager
def open_client(engine: EngineAddress) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=engine.url, headers={"X-API-Key": engine.key}, timeout=TIMEOUT_SECONDS) as client:
        yield client


def request(client: httpx.Client, method: str, path: str, **options: Any) -> Any:
    """Return the parsed response. Raises UnreachableError or EngineRefusedError."""
    response = send(client, method, path, **options)
    return response.json() if response.content else None


def send(client: httpx.Client, method: str, path: str, **options: Any) -> httpx.Response:
    """Return the response if it is a success. Raises UnreachableError or EngineRefusedError."""
    try:
        response = client.request(method, path, **options)
    except (httpx.TransportError, httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        raise UnreachableError(f"The engine at {client.base_url} is not responding: {error}.") from error
    if response.is_success:
        return response
    try:
        sentence = str(response.json()["message"])
    except (ValueError, KeyError, TypeError):
        sentence = f"{client.base_url} returned {response.status_code}. Check that it is an engine."
    raise EngineRefusedError(sentence)
