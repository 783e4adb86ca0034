"""`sandyard snapshot`: the snapshots of a running engine and of its layer store."""

from __future__ import annotations

from typing import Any

import click
import httpx

from sandyard.cli.engine_api import EngineAddress, EngineRefusedError, engine_options, open_client, request, send
from sandyard.cli.output import echo

_PAGE = 100


@click.group()
@engine_options
@click.pass_context
def snapshot(context: click.Context, url: str | None, api_key: str) -> None:
    """List snapshots, and fetch them from the layer store."""
    context.obj = EngineAddress.find(url, api_key)


@snapshot.command("list")
@click.pass_obj
def list_snapshots(engine: EngineAddress) -> None:
    """List the snapshots of the engine and of its layer store.

    A snapshot is "durable" if it is also in the layer store, "local" if it is only on the engine's machine, and "published"
    if it is only in the store: it is fetched when a sandbox is created from it.
    """
    with open_client(engine) as client:
        local = list(_list_local(client))
        published = _list_published(client)
        status = _get_status(client)
    for snapshot in local:
        state = "durable" if snapshot.get("durable") else "local"
        echo(f"{state:10} {snapshot['snapshotID']}")
        reason = (status or {}).get("failures", {}).get(snapshot["snapshotID"].partition(":")[0])
        if reason:
            echo(f"           not published: {reason}")
    for snapshot in published:
        if "problem" in snapshot:
            echo(f"{'damaged':10} {snapshot['snapshotID']}  {snapshot['problem']}")
        elif not snapshot["local"]:
            echo(
                f"{'published':10} {snapshot['snapshotID']}  {snapshot['id']}  {snapshot['createdAt']}  {snapshot['size'] >> 20} MiB"
            )
    if status is not None and status["problem"]:
        echo(f"The layer store cannot be used: {status['problem']}", err=True)


@snapshot.command("pull")
@click.argument("names", metavar="SNAPSHOT…", nargs=-1, required=True)
@click.pass_obj
def pull(engine: EngineAddress, names: tuple[str, ...]) -> None:
    """Fetch snapshots from the layer store, given by id or name, so that sandboxes start from them without delay."""
    with open_client(engine) as client:
        for name in names:
            found = request(client, "POST", "/layer-store/pull", json={"snapshot": name}, timeout=None)
            echo(f"Fetched {found['snapshotID']}.")


def _list_local(client: httpx.Client) -> Any:
    parameters: dict[str, str | int] = {"limit": _PAGE}
    while True:
        response = send(client, "GET", "/snapshots", params=parameters)
        yield from response.json()
        token = response.headers.get("X-Next-Token")
        if not token:
            return
        parameters["nextToken"] = token


def _get_status(client: httpx.Client) -> Any:
    try:
        return request(client, "GET", "/layer-store")
    except EngineRefusedError:  # it has none
        return None


def _list_published(client: httpx.Client) -> Any:
    if _get_status(client) is None:
        return []
    try:
        return request(client, "GET", "/layer-store/snapshots", timeout=None)
    except EngineRefusedError as error:
        echo(f"The layer store could not be read: {error.message}", err=True)
        return []
