"""What `sandyard up` tries before a newer version upgrades anything: the migrations of both databases, on copies.

Without this, an upgrade of the platform's database that fails would leave the engine's upgraded, and the version before refuses it.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import sandyard
from sandyard.cli.errors import CommandError
from sandyard.cli.output import try_echo
from sandyard.cli.up.child import Child
from sandyard.cli.up.data_directory import DataDirectory
from sandyard.engine.store.database import try_migration
from sandyard.engine.store.schema import STEPS
from sandyard.kit.python import SAFE_FOLDER

MIGRATIONS = Path(sandyard.__file__).parent / "platform" / "db" / "migrations" / "versions"


def try_upgrade(data: DataDirectory, children: Sequence[Child]) -> None:
    """Try whether both databases can be upgraded to this version. Takes no time if the last start was with the same schemas.

    The data directory must be locked. Raises SandyardError if one cannot be upgraded; both are as before then.
    """
    if data.get_schemas() == describe_schemas():
        return
    try_migration(data.engine / "engine.db")
    if not ((data.platform / "platform.db").exists() or os.environ.get("SANDYARD_DATABASE_URL")):
        return
    for child in children:
        if child.name == "platform":
            _try_platform(child)


def _try_platform(child: Child) -> None:
    """Run the trial as the platform's user, who owns the database."""
    done = subprocess.run(
        [*child.command, "--try-upgrade"],
        env=child.environment,
        cwd=SAFE_FOLDER,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        check=False,
    )
    *lines, last = done.stderr.strip().splitlines() or [""]
    if done.returncode:
        for line in lines:
            try_echo(line, err=True)
        raise CommandError(last.removeprefix("sandyard: ") or "Could not try the upgrade of the platform's database.")


def describe_schemas() -> str:
    """Return which schemas this version upgrades to."""
    return f"engine {len(STEPS)}, platform {max(file.stem for file in MIGRATIONS.glob('*.py'))}"
