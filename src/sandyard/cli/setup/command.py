"""`sandyard setup`: install system packages, gVisor and CRIU."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import click

from sandyard.cli.errors import CommandError
from sandyard.cli.output import echo
from sandyard.cli.setup.packages import (
    APT_COMMAND,
    SystemPackage,
    format_install_command,
    list_missing_packages,
)
from sandyard.kit.python import PYTHON, SAFE_FOLDER

PACKAGES = "packages"
PROGRAMS = ("gvisor", "criu")


@click.command()
@click.argument("parts", nargs=-1, type=click.Choice([PACKAGES, *PROGRAMS]))
@click.option("--print", "only_print", is_flag=True, help="Print the commands instead of running them.")
def setup(*, parts: Sequence[str], only_print: bool) -> None:
    """Install what this machine lacks. Requires root, and Debian or Ubuntu.

    \b
    packages  packages of the distribution that Sandyard uses (the default)
    gvisor    runsc, so that sandboxes can have a kernel of their own
    criu      CRIU, so that the memory of paused sandboxes can be written to disk

    gVisor and CRIU come from the package archive of the distribution. If only a later release of the distribution has a suitable
    version, it is unpacked below /var/lib/sandyard, and no installed package changes. Restart Sandyard afterwards.
    """
    chosen = parts or (PACKAGES,)
    if PACKAGES in chosen:
        _install_packages(list_missing_packages(), only_print=only_print)
    for name in PROGRAMS:
        if name in chosen:
            _install_program(name, only_print=only_print)


def _install_packages(missing: Sequence[SystemPackage], *, only_print: bool) -> None:
    if not missing:
        echo("No package is missing.")
        return
    for package in missing:
        echo(f"{package.name}: {package.purpose}")
    command = format_install_command(missing)
    if only_print:
        echo(command)
        return
    if shutil.which("apt-get") is None:
        raise CommandError(f"Could not install the packages: this machine has no apt. To install them, {command}.")
    if os.geteuid() != 0:
        raise CommandError(f"Installing packages requires root. Run: {command}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    names = [package.name for package in missing]
    for arguments in (["apt-get", "update", "-qq"], [*APT_COMMAND, "-qq", *names]):
        if subprocess.run(arguments, cwd=SAFE_FOLDER, env=environment, check=False).returncode:
            raise CommandError(f"`{shlex.join(arguments)}` failed. Its messages are above.")
    echo("Installed. Restart Sandyard to use them.")


def _install_program(name: str, *, only_print: bool) -> None:
    """Run the script that installs a program. It begins with the functions of `later_release.sh`."""
    folder = files("sandyard.cli.setup")
    script = (folder / "later_release.sh").read_text() + (folder / f"{name}.sh").read_text()
    if only_print:
        echo(script, nl=False)
        return
    if os.geteuid() != 0:
        raise CommandError(f"Installing {name} requires root. Run: {format_own_command('setup', name)}")
    if code := subprocess.run(["bash", "-c", script], cwd=SAFE_FOLDER, check=False).returncode:
        sys.exit(code)


def format_own_command(*arguments: str) -> str:
    """Return a `sandyard` command with sudo, by its absolute path, because sudo does not search the directories of a user."""
    program = Path(PYTHON).with_name("sandyard")
    return shlex.join(("sudo", str(program) if program.exists() else "sandyard", *arguments))
