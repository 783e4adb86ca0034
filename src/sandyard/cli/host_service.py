"""`sandyard host install-service` and `sandyard host uninstall-service`: run `sandyard host serve` as a service of systemd."""

from __future__ import annotations

from pathlib import Path

import click

from sandyard.cli.output import echo
from sandyard.cli.service import Service, install, render_unit, sign, uninstall
from sandyard.kit.settings import get_default_data_dir

HOST = Service(
    name="sandyard-host",
    settings_name="host",
    description="Sandyard: sandboxes of an engine on another machine",
    command_prefix="host ",
    example_settings="""\
#SANDYARD_LAN=deny
#SANDYARD_MEMORY_RESERVE_MB=512
""",
    after="network-online.target",
    timeouts="""\
# Calls of the engine that are in progress are ended.
TimeoutStopSec=1min""",
)


def data_dir_option(command: click.decorators.FC) -> click.decorators.FC:
    """Add the option `--data-dir`."""
    return click.option(
        "--data-dir",
        type=click.Path(file_okay=False, path_type=Path),
        default=lambda: get_default_data_dir() / "host",
        help="Data directory of the host.  [default: host, next to that of the engine]",
    )(command)


@click.command("install-service")
@click.option("--listen", help="Address to listen on for the engine.  [default: all]")
@data_dir_option
@click.option("--print", "only_print", is_flag=True, help="Print the unit, and change nothing.")
@click.option("--force", is_flag=True, help="Replace a unit that was changed or written by somebody else.")
@click.option("--now", is_flag=True, help="Start the service, or restart it if it runs.")
def install_service(*, listen: str | None, data_dir: Path, only_print: bool, force: bool, now: bool) -> None:
    """Write a systemd unit that runs `sandyard host serve`, and enable it. Join first.

    Sandboxes survive a restart of the service. Settings are read from /etc/sandyard/host.
    """
    from sandyard.engine.hosts.identity import HostIdentity  # noqa: PLC0415 - slow to load

    text = sign(make_unit(listen, data_dir.absolute()), HOST)
    if only_print:
        echo(text, nl=False)
        return
    HostIdentity(data_dir).get()
    install(HOST, text, force=force, now=now)


@click.command("uninstall-service")
@click.option("--force", is_flag=True, help="Remove a unit that was changed or written by somebody else.")
def uninstall_service(force: bool) -> None:
    """Stop the service and remove its unit. The data directory, the settings and running sandboxes stay."""
    uninstall(HOST, force=force)


def make_unit(listen: str | None, data_dir: Path) -> str:
    """Return the unit of `sandyard host serve`."""
    arguments = ["host", "serve", *(["--listen", listen] if listen else []), "--data-dir", str(data_dir)]
    return render_unit(HOST, arguments, data_dir)
