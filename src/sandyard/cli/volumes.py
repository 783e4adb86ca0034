"""`sandyard volume`: manage the volumes of a running engine, which is found like E2B's clients find it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import click
import httpx

from sandyard.cli.output import echo
from sandyard.kit.errors import NotFoundError, SandyardError, UnreachableError

TIMEOUT_SECONDS = 30.0


class EngineRefusedError(SandyardError):
    """The engine refused the request."""


@dataclass(frozen=True, slots=True)
class _Engine:
    url: str
    key: str


@click.group()
@click.option(
    "--url", envvar="E2B_API_URL", default="http://127.0.0.1:3000", show_default=True, help="URL of the engine."
)
@click.option("--api-key", envvar="E2B_API_KEY", default="", help="API key of the engine.  [default: E2B_API_KEY]")
@click.pass_context
def volume(context: click.Context, url: str, api_key: str) -> None:
    """List and delete volumes: files that outlive sandboxes and are shared between them."""
    context.obj = _Engine(url, api_key)


@volume.command("ls")
@click.pass_obj
def list_volumes(engine: _Engine) -> None:
    """List volumes, oldest first."""
    with _open_client(engine) as client:
        for volume_info in _request(client, "GET", "/volumes"):
            echo(f"{volume_info['volumeID']}  {volume_info['name']}")


@volume.command("rm")
@click.argument("names", metavar="VOLUME…", nargs=-1, required=True)
@click.pass_obj
def remove(engine: _Engine, names: tuple[str, ...]) -> None:
    """Delete volumes with everything in them, given by name or id. A volume that a sandbox has mounted is not deleted."""
    with _open_client(engine) as client:
        known = {volume_info["name"]: volume_info["volumeID"] for volume_info in _request(client, "GET", "/volumes")}
        missing = [name for name in names if name not in known and name not in known.values()]
        if missing:
            raise NotFoundError(f"There is no volume {missing[0]!r}. Nothing was deleted.")
        for name in names:
            _request(client, "DELETE", f"/volumes/{known.get(name, name)}")
            echo(f"Deleted {name}.")


@contextlib.contextmanager
def _open_client(engine: _Engine) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=engine.url, headers={"X-API-Key": engine.key}, timeout=TIMEOUT_SECONDS) as client:
        yield client


def _request(client: httpx.Client, method: str, path: str) -> Any:
    try:
        response = client.request(method, path)
    except (httpx.TransportError, httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        raise UnreachableError(f"The engine at {client.base_url} is not responding: {error}.") from error
    if response.is_success:
        return response.json() if response.content else None
    try:
        sentence = str(response.json()["message"])
    except (ValueError, KeyError, TypeError):
        sentence = f"{client.base_url} returned {response.status_code}. Check that it is an engine."
    raise EngineRefusedError(sentence)
