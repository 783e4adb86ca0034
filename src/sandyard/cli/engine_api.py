"""The API of a running engine, for commands that need no SDK."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import click
import httpx

from sandyard.cli.up.data_directory import get_default_data_dir
from sandyard.kit.errors import ForbiddenError, SandyardError, UnreachableError
from sandyard.kit.listen import is_loopback, list_listener_owners

F = TypeVar("F", bound=Callable[..., Any])
TIMEOUT_SECONDS = 30.0
DEFAULT_URL = "http://127.0.0.1:3000"
"""Where `sandyard engine` listens unless it is told otherwise."""


class EngineRefusedError(SandyardError):
    """The engine refused the request."""


@dataclass(frozen=True, slots=True)
class EngineAddress:
    """The URL and the API key of an engine. `owner` is the user who stored the key, if the key was found on this machine."""

    url: str
    key: str
    owner: int | None = field(default=None, compare=False)

    @classmethod
    def find(cls, url: str | None, key: str) -> EngineAddress:
        """Return what was given, and the rest from the engine that `sandyard up` last started on this machine, if its files can be
        read, or else DEFAULT_URL. The key of that engine is never used for another URL."""
        local = read_local_engine(get_default_data_dir())
        if local is not None and url in (None, local.url):
            return cls(local.url, key) if key else local
        return cls(url or DEFAULT_URL, key)


def read_local_engine(data: Path) -> EngineAddress | None:
    """Return the engine that `sandyard up` last started with this data directory. None if its files are missing or cannot be read."""
    try:
        url, key = ((data / name).read_text().strip() for name in ("engine.url", "engine.key"))
        owner = (data / "engine.key").stat().st_uid
    except (OSError, UnicodeDecodeError):
        return None
    return EngineAddress(url, key, owner) if url and key else None


def check_listener(engine: EngineAddress) -> None:
    """Raise an error if the key was found on this machine, and the server at the address does not belong to the user who stored the
    key, or to root. While the engine is not running, any user of this machine can listen on its port, and would get the key."""
    if engine.owner is None:
        return
    owners = list_listener_owners(urlsplit(engine.url).port or 0)
    if not owners:
        raise UnreachableError(f"The engine at {engine.url} is not running. Start it with `sandyard up`.")
    if not owners <= {0, engine.owner}:
        raise ForbiddenError(
            f"Another user of this machine listens at {engine.url}, so the engine's key was not sent there. Start `sandyard up`, or set "
            "E2B_API_URL and E2B_API_KEY."
        )


def engine_options(command: F) -> F:
    """Add the options `--url` and `--api-key`, for the arguments `url` and `api_key`."""
    for option in (
        click.option(
            "--api-key",
            envvar="E2B_API_KEY",
            default="",
            help="API key of the engine.  [default: E2B_API_KEY, or that of `sandyard up` on this machine]",
        ),
        click.option(
            "--url",
            envvar="E2B_API_URL",
            help=f"URL of the engine.  [default: E2B_API_URL, or `sandyard up` on this machine, or {DEFAULT_URL}]",
        ),
    ):
        command = option(command)
    return command


@contextlib.contextmanager
def open_client(engine: EngineAddress) -> Iterator[httpx.Client]:
    """Raises UnreachableError and ForbiddenError, see `check_listener`. No proxy gets a key for an engine on this machine."""
    check_listener(engine)
    with httpx.Client(
        base_url=engine.url,
        headers={"X-API-Key": engine.key},
        timeout=TIMEOUT_SECONDS,
        trust_env=not is_loopback(urlsplit(engine.url).hostname or ""),
    ) as client:
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
        raise UnreachableError(
            f"The engine at {client.base_url} is not responding: {error}. Set E2B_API_URL and E2B_API_KEY as `sandyard up` prints them."
        ) from error
    if response.is_success:
        return response
    try:
        message = str(response.json()["message"])
    except (ValueError, KeyError, TypeError):
        message = f"{client.base_url} returned {response.status_code}. Check that it is an engine."
    raise EngineRefusedError(message)
