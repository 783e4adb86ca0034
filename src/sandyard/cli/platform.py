"""`sandyard platform`: the platform alone, as `sandyard up` starts it. Settings come from the environment."""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING

import click

from sandyard.cli.output import echo
from sandyard.cli.up import lifeline

if TYPE_CHECKING:
    from sandyard.platform.app import Ready


@click.command(hidden=True)
def platform() -> None:
    """Serve the platform until SIGTERM. Settings are SANDYARD_<NAME> and E2B_… variables."""
    lifeline.hold()
    gc.disable()  # what is loaded stays; to look for garbage in it takes a quarter of the start
    from sandyard.platform.app import run  # noqa: PLC0415 - slow to load
    from sandyard.platform.settings import PlatformSettings  # noqa: PLC0415

    gc.enable()
    lifeline.wait_for_turn()
    run(PlatformSettings.load(), announce, stand_by)


def stand_by(reason: str) -> None:
    echo(f"{lifeline.STANDBY} {reason}")
    sys.stdout.flush()


def announce(ready: Ready) -> None:
    """On standard output, and read by `sandyard up`: what a person must be told."""
    if ready.admin_token is not None:
        echo(f"admin token: {ready.admin_token.reveal()}")
        echo("It was made just now and is not shown again; `sandyard api-key create` makes more.")
    for warning in ready.warnings:
        echo(f"Warning: {warning}")
    if ready.exposed:
        echo(f"Warning: {ready.url} may be reached from other machines, and tokens cross the network unencrypted.")
    sys.stdout.flush()
