"""`sandyard platform`: run only the platform, as started by `sandyard up`. Settings come from the environment."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import click

from sandyard.cli.output import try_echo
from sandyard.cli.up import lifeline

if TYPE_CHECKING:
    from sandyard.platform.app import Ready


@click.command(hidden=True)
def platform() -> None:
    """Serve the platform until SIGTERM. Settings are SANDYARD_<NAME> and E2B_… variables."""
    lifeline.watch_supervisor()
    gc.disable()  # garbage collection takes a quarter of the start-up time, and imported modules are never freed
    from sandyard.platform.app import run  # noqa: PLC0415 - slow to load
    from sandyard.platform.settings import PlatformSettings  # noqa: PLC0415

    gc.enable()
    lifeline.wait_for_turn()
    run(PlatformSettings.load(), announce, report_standby)


def report_standby(reason: str) -> None:
    try_echo(f"{lifeline.STANDBY} {reason}")


def announce(ready: Ready) -> None:
    """Print on standard output what users must know. `sandyard up` reads it."""
    if ready.admin_token is not None:
        try_echo(f"admin token: {ready.admin_token.reveal()}")
        try_echo("Save this new token: it is not shown again. To create more: `sandyard api-key create NAME`.")
    for warning in ready.warnings:
        try_echo(f"Warning: {warning}")
    if ready.exposed:
        try_echo(f"Warning: {ready.url} is reachable from other machines, and tokens are sent unencrypted.")
