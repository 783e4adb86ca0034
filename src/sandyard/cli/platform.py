"""`sandyard platform`: run only the platform, as started by `sandyard up`. Settings come from the environment."""

from __future__ import annotations

import asyncio
import gc
import logging
from typing import TYPE_CHECKING

import click

from sandyard.cli.output import try_echo
from sandyard.cli.up import lifeline

if TYPE_CHECKING:
    from sandyard.platform.app import Ready


@click.command(hidden=True)
@click.option("--try-upgrade", is_flag=True, help="Only try whether the database can be upgraded; nothing is changed.")
def platform(*, try_upgrade: bool) -> None:
    """Serve the platform until SIGTERM. Settings are SANDYARD_<NAME> and E2B_… variables."""
    lifeline.watch_supervisor()
    if try_upgrade:
        asyncio.run(_try_upgrade())
        return
    gc.disable()  # garbage collection takes a quarter of the start-up time, and imported modules are never freed
    from sandyard.platform.app import run  # noqa: PLC0415 - slow to load
    from sandyard.platform.settings import PlatformSettings  # noqa: PLC0415

    gc.enable()
    lifeline.wait_for_turn()
    run(PlatformSettings.load(), announce, report_standby)


async def _try_upgrade() -> None:
    from sandyard.kit.logging import configure  # noqa: PLC0415 - slow to load
    from sandyard.platform.db import migrate  # noqa: PLC0415
    from sandyard.platform.db.database import Database  # noqa: PLC0415
    from sandyard.platform.settings import PlatformSettings  # noqa: PLC0415

    settings = PlatformSettings.load()
    configure(settings.log_level, as_json=settings.log_json)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    database = Database(settings.database)
    await database.open()
    try:
        await migrate.try_upgrade(database)
    finally:
        await database.close()


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
