"""`sandyard ssh`: a sandbox by SSH, for people; with --stdio, for OpenSSH itself. `sandyard ssh-config` tells OpenSSH so."""

from __future__ import annotations

import os
import shlex
import sys

import click

from sandyard.cli import config
from sandyard.cli.completion import workplace_ids
from sandyard.cli.connection import connect, sandbox_of
from sandyard.cli.errors import CommandError
from sandyard.cli.output import echo
from sandyard.cli.remote import settings


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--stdio", is_flag=True, help="Carry the connection on standard input and output, for OpenSSH to start.")
@click.argument("name", metavar="SESSION_OR_SANDBOX", shell_complete=workplace_ids)
@click.argument("command", nargs=-1)
def ssh(*, stdio: bool, name: str, command: tuple[str, ...]) -> None:
    """Log in to a session's sandbox by SSH, or run COMMAND there.

    A single argument is a line for the sandbox's shell; several are a command and its arguments, as they are. Standard input is passed on,
    and the exit code is the command's own. A sandbox that sleeps is woken. After `sandyard ssh-config --write`, plain `ssh`, `scp`,
    `rsync` and editors do the same with the host SESSION_OR_SANDBOX.sandyard.
    """
    asked = settings.name_of(name)
    if stdio:
        sys.exit(_carry(asked))
    words = [settings.needed("ssh"), "-F", str(settings.write_settings()), f"{asked}{settings.SUFFIX}"]
    command = command[1:] if command[:1] == ("--",) else command
    if command:
        words += ["--", command[0] if len(command) == 1 else shlex.join(command)]
    os.execv(words[0], words)  # noqa: S606 - ssh takes our place


@click.command("ssh-config")
@click.option("--write", is_flag=True, help="Write the settings, and have ~/.ssh/config include them.")
def ssh_config(write: bool) -> None:
    """Print the settings with which `ssh`, `scp`, `rsync` and editors reach sandboxes; or write them.

    With --write they go into a file beside the login, with a key of their own, and ~/.ssh/config gets one line at its top. Running it
    again changes nothing, or brings it up to date.
    """
    if not write:
        echo(settings.settings(), nl=False)
        return
    path = settings.write_settings()
    file, added = settings.include(path)
    echo(f"{path} has the settings. {file} {'now includes' if added else 'includes'} it.")
    if os.environ.get("SANDYARD_TOKEN") or os.environ.get("SANDYARD_URL"):
        echo(
            "The login is in this shell's environment: programs started elsewhere do not have it. `sandyard login` stores one.",
            err=True,
        )
    elif config.load().token is None:
        echo("Nobody is logged in here yet: `sandyard login` does that.", err=True)


def _carry(name: str) -> int:
    if sys.stdin.isatty():
        raise CommandError("--stdio is for OpenSSH: it reads the protocol from its standard input.")
    key = settings.ensure_key()
    with connect() as client:
        sandbox_id = sandbox_of(client, name)
        login = client.login
    from sandyard.cli.remote.stdio import carry  # noqa: PLC0415 - slow to load

    return carry(login, sandbox_id, key, lambda host_key: settings.know_host(f"{name}{settings.SUFFIX}", host_key))
