"""`sandyard sandbox shell`: a terminal in a sandbox, in this terminal."""

from __future__ import annotations

import sys

import click

from sandyard.cli.completion import sandbox_ids
from sandyard.cli.connection import connect, sandbox_of, segment


@click.command()
@click.argument("sandbox_id", metavar="SANDBOX", shell_complete=sandbox_ids)
@click.option("--terminal", help="Go back to this shell instead of starting one.")
def shell(sandbox_id: str, terminal: str | None) -> None:
    """Open a shell in a sandbox. It ends when the shell does.

    When the connection drops, the same shell is found again, and what it wrote meanwhile is shown; Ctrl-C gives up.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError("A shell needs a terminal. `sandyard sandbox exec` runs a command without one.")
    with connect() as client:
        address = sandbox_of(client, sandbox_id)
        client.get(f"/sandboxes/{segment(address)}")  # what is wrong is said before the terminal is taken
        login = client.login
    from sandyard.cli.sandboxes.keyboard import attach  # noqa: PLC0415 - slow to load
    from sandyard.cli.sandboxes.terminal import Terminal  # noqa: PLC0415

    sys.exit(attach(lambda write, size: Terminal(login, address, terminal, write=write, size=size)))
