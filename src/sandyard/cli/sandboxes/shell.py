"""`sandyard sandbox shell`: open a shell in a sandbox."""

from __future__ import annotations

import sys

import click

from sandyard.cli.completion import complete_sandboxes
from sandyard.cli.connection import connect, get_sandbox_id, quote_segment


@click.command()
@click.argument("sandbox_id", metavar="SANDBOX", shell_complete=complete_sandboxes)
@click.option("--terminal", help="Reconnect to this shell instead of starting one.")
def shell(sandbox_id: str, terminal: str | None) -> None:
    """Open a shell in a sandbox. Returns when the shell ends.

    If the connection drops, it reconnects to the same shell and shows what was written meanwhile; Ctrl-C gives up.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError("A shell needs a terminal. To run a command without one, use `sandyard sandbox exec`.")
    with connect() as client:
        real_id = get_sandbox_id(client, sandbox_id)
        client.get(f"/sandboxes/{quote_segment(real_id)}")  # report errors before the terminal is in raw mode
        login = client.login
    from sandyard.cli.sandboxes.keyboard import attach  # noqa: PLC0415 - slow to load
    from sandyard.cli.sandboxes.terminal import Terminal  # noqa: PLC0415

    sys.exit(attach(lambda write, size: Terminal(login, real_id, terminal, write=write, size=size)))
