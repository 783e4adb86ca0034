"""`sandyard sandbox ports` and `preview`: list open ports of a sandbox and show them in a browser."""

from __future__ import annotations

import click

from sandyard.cli.completion import complete_sandboxes
from sandyard.cli.connection import connect, get_sandbox_id, quote_segment
from sandyard.cli.output import echo, output_option, print_json, show_list, text_option

COLUMNS = {"PORT": "port", "ADDRESS": "address", "PROCESS": "process", "URL": "url"}
_NO_PORTS = "No open ports."
_PAUSED = "The sandbox is paused, so its ports are unknown. To resume it: sandyard sandbox resume SANDBOX"
sandbox_argument = click.argument("sandbox_id", metavar="SANDBOX", shell_complete=complete_sandboxes)


@click.command()
@sandbox_argument
@output_option
def ports(sandbox_id: str, output: str | None) -> None:
    """List open TCP ports and their URLs. Does not resume the sandbox.

    To open one in a browser, use `sandyard sandbox preview`.
    """
    with connect() as client:
        found = client.get(f"/sandboxes/{quote_segment(get_sandbox_id(client, sandbox_id))}/ports")
    show_list(found, COLUMNS, output, empty_message=_PAUSED if found["sleeping"] else _NO_PORTS)


@click.command()
@sandbox_argument
@click.argument("port", type=click.IntRange(1, 65535))
@click.option("--path", default="/", show_default=True, help="Path to open.")
@text_option
def preview(sandbox_id: str, port: int, path: str, output: str) -> None:
    """Print a URL that shows a port of the sandbox in a browser.

    The URL works once, in the first browser that opens it within 30 seconds.
    """
    with connect() as client:
        created = client.post(
            f"/sandboxes/{quote_segment(get_sandbox_id(client, sandbox_id))}/previews", {"port": port, "path": path}
        )
    if output == "json":
        print_json(created)
    else:
        echo(created["url"])
