"""`sandyard sandbox ports` and `preview`: what listens in a sandbox, and how a browser sees it."""

from __future__ import annotations

import click

from sandyard.cli.completion import sandbox_ids
from sandyard.cli.connection import connect, sandbox_of, segment
from sandyard.cli.output import echo, output_option, print_json, show_list, text_option

COLUMNS = {"PORT": "port", "ADDRESS": "address", "PROCESS": "process", "URL": "url"}
_NOTHING = "Nothing listens in this sandbox."
_ASLEEP = "The sandbox is asleep, and was not woken to look. `sandyard sandbox resume` wakes it."
sandbox_argument = click.argument("sandbox_id", metavar="SANDBOX", shell_complete=sandbox_ids)


@click.command()
@sandbox_argument
@output_option
def ports(sandbox_id: str, output: str | None) -> None:
    """TCP ports that something listens on, and their addresses for a browser. Looking does not wake the sandbox.

    `sandyard sandbox preview` lets a browser in.
    """
    with connect() as client:
        found = client.get(f"/sandboxes/{segment(sandbox_of(client, sandbox_id))}/ports")
    show_list(found, COLUMNS, output, nothing=_ASLEEP if found["sleeping"] else _NOTHING)


@click.command()
@sandbox_argument
@click.argument("port", type=click.IntRange(1, 65535))
@click.option("--path", default="/", show_default=True, help="Where in it to begin.")
@text_option
def preview(sandbox_id: str, port: int, path: str, output: str) -> None:
    """Print an address that shows a port of the sandbox in a browser.

    It lets in the first browser that opens it, within 30 seconds.
    """
    with connect() as client:
        made = client.post(
            f"/sandboxes/{segment(sandbox_of(client, sandbox_id))}/previews", {"port": port, "path": path}
        )
    if output == "json":
        print_json(made)
    else:
        echo(made["url"])
