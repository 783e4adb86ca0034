"""`sandyard volume`: manage the volumes of a running engine, which is found like E2B's clients find it."""

from __future__ import annotations

import click

from sandyard.cli.engine_api import EngineAddress, engine_options, open_client, request
from sandyard.cli.output import echo
from sandyard.kit.errors import NotFoundError


@click.group()
@engine_options
@click.pass_context
def volume(context: click.Context, url: str | None, api_key: str) -> None:
    """List and delete volumes: files that outlive sandboxes and are shared between them."""
    context.obj = EngineAddress.find(url, api_key)


@volume.command("ls")
@click.pass_obj
def list_volumes(engine: EngineAddress) -> None:
    """List volumes, oldest first."""
    with open_client(engine) as client:
        for volume_info in request(client, "GET", "/volumes"):
            echo(f"{volume_info['volumeID']}  {volume_info['name']}")


@volume.command("rm")
@click.argument("names", metavar="VOLUME…", nargs=-1, required=True)
@click.pass_obj
def remove(engine: EngineAddress, names: tuple[str, ...]) -> None:
    """Delete volumes with everything in them, given by name or id. A volume that a sandbox has mounted is not deleted."""
    with open_client(engine) as client:
        known = {volume_info["name"]: volume_info["volumeID"] for volume_info in request(client, "GET", "/volumes")}
        missing = [name for name in names if name not in known and name not in known.values()]
        if missing:
            raise NotFoundError(f"There is no volume {missing[0]!r}. Nothing was deleted.")
        for name in names:
            request(client, "DELETE", f"/volumes/{known.get(name, name)}")
            echo(f"Deleted {name}.")
