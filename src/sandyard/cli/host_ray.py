"""`sandyard host ray`: create the credentials of a Ray cluster, and run a node of one."""

from __future__ import annotations

import os
from pathlib import Path

import click

from sandyard.cli.options import OrderedGroup
from sandyard.cli.output import echo
from sandyard.kit.errors import SandyardError


@click.group(cls=OrderedGroup)
def ray() -> None:
    """Use the nodes of a Ray cluster as hosts.

    Teams that have no Ray cluster do not need one: machines can join with `sandyard host join`.
    """


@ray.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.argument("addresses", nargs=-1, required=True, metavar="ADDRESS…")
def credentials(folder: Path, addresses: tuple[str, ...]) -> None:
    """Create the token and the certificates of a Ray cluster, for machines with these IP addresses.

    FOLDER gets a folder for each address; copy it to that machine. The authority and the token of the cluster stay in FOLDER: keep
    it to add machines later. Anyone who has the token and a certificate can run programs on all machines of the cluster.
    """
    from sandyard.engine.hosts.ray_cluster.credentials import create  # noqa: PLC0415 - slow to load

    for machine in create(folder, addresses):
        echo(str(machine))


@ray.command(context_settings={"ignore_unknown_options": True})
@click.option("--address", required=True, help="IP address of this machine in the network of the cluster.")
@click.option(
    "--credentials",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("/etc/sandyard/ray"),
    show_default=True,
    help="Folder with the credentials of this machine.",
)
@click.option("--head", metavar="ADDRESS:PORT", help="The head of the cluster.  [default: this machine is the head]")
@click.option(
    "--no-sandboxes", is_flag=True, help="Run no sandboxes on this machine, for example because it is the head."
)
@click.argument("options", nargs=-1, type=click.UNPROCESSED, metavar="[-- RAY_OPTION…]")
def node(*, address: str, folder: Path, head: str | None, no_sandboxes: bool, options: tuple[str, ...]) -> None:
    """Run a node of a Ray cluster in the foreground, with token, TLS and fixed ports (6379 to 6499).

    Ray ends the node when the head is away for a minute: run it as a service that is restarted, for example with systemd. Sandboxes
    are not affected. Options after `--` are passed to `ray start`.
    """
    from sandyard.engine.hosts.ray_cluster.credentials import HEALTH_CHECKS, make_environment  # noqa: PLC0415
    from sandyard.engine.hosts.ray_cluster.nodes import make_start_command  # noqa: PLC0415
    from sandyard.engine.hosts.ray_cluster.source import require_ray  # noqa: PLC0415
    from sandyard.kit.python import make_python_environment  # noqa: PLC0415

    require_ray()
    command = make_start_command(address, head=head, runs_sandboxes=not no_sandboxes, extra=options)
    environment = {**HEALTH_CHECKS, **os.environ, **make_environment(folder)}
    try:
        os.execve(command[0], command, make_python_environment(environment))  # noqa: S606 - no shell
    except OSError as error:
        raise SandyardError(f"Could not start {command[0]}: {error.strerror}.") from error
