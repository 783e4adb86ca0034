"""`sandyard ssh`: connect to a sandbox with SSH; with --stdio, be the ProxyCommand of OpenSSH. `sandyard ssh-config`: configure OpenSSH."""

from __future__ import annotations

import os
import shlex
import sys

import click

from sandyard.cli import config
from sandyard.cli.completion import complete_targets
from sandyard.cli.connection import connect, get_sandbox_id
from sandyard.cli.errors import CommandError
from sandyard.cli.output import echo
from sandyard.cli.remote import settings


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--stdio", is_flag=True, help="Forward the connection on standard input and output. Started by OpenSSH.")
@click.argument("name", metavar="SESSION_OR_SANDBOX", shell_complete=complete_targets)
@click.argument("command", nargs=-1)
def ssh(*, stdio: bool, name: str, command: tuple[str, ...]) -> None:
    """Connect to a session's sandbox with SSH, or run COMMAND there.

    A single argument is a line for the sandbox's shell; several are a command and its arguments. Standard input is forwarded, and the
    exit code is the command's own. A paused sandbox is resumed. After `sandyard ssh-config --write`, plain `ssh`, `scp`, `rsync` and
    editors can also use the host SESSION_OR_SANDBOX.sandyard.
    """
    target = settings.parse_host(name)
    if stdio:
        sys.exit(_forward_stdio(target))
    argv = [settings.find_program("ssh"), "-F", str(settings.write_settings()), f"{target}{settings.SUFFIX}"]
    command = command[1:] if command[:1] == ("--",) else command
    if command:
        argv += ["--", command[0] if len(command) == 1 else shlex.join(command)]
    os.execv(argv[0], argv)  # noqa: S606 - ssh replaces this process


@click.command("ssh-config")
@click.option("--write", is_flag=True, help="Write the settings to a file and include it in ~/.ssh/config.")
def ssh_config(write: bool) -> None:
    """Print or write the settings that let `ssh`, `scp`, `rsync` and editors reach sandboxes.

    With --write, the settings and a new SSH key are stored next to the login, and one line is added at the top of ~/.ssh/config.
    Running it again is safe and updates the settings.
    """
    if not write:
        echo(settings.format_settings(), nl=False)
        return
    path = settings.write_settings()
    file, added = settings.add_include(path)
    echo(f"Saved the settings to {path}. {file} {'now includes' if added else 'already includes'} it.")
    if os.environ.get("SANDYARD_TOKEN") or os.environ.get("SANDYARD_URL"):
        echo(
            "The login is only in this shell's environment, so other programs cannot use it. To save it, run `sandyard login`.",
            err=True,
        )
    elif config.load().token is None:
        echo("Not logged in yet. Run `sandyard login`.", err=True)


def _forward_stdio(name: str) -> int:
    if sys.stdin.isatty():
        raise CommandError("--stdio must be started by OpenSSH: it reads the protocol from standard input.")
    key = settings.ensure_key()
    with connect() as client:
        sandbox_id = get_sandbox_id(client, name)
        login = client.login
    from sandyard.cli.remote.stdio import forward  # noqa: PLC0415 - slow to load

    return forward(
        login, sandbox_id, key, lambda host_key: settings.add_known_host(f"{name}{settings.SUFFIX}", host_key)
    )
