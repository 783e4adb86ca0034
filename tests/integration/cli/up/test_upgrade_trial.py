"""`sandyard up` tries the upgrade of both databases before it starts anything."""

from __future__ import annotations

import os
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

from sandyard.cli.errors import CommandError
from sandyard.cli.up import upgrade_trial
from sandyard.cli.up.child import Child
from sandyard.cli.up.data_directory import DataDirectory
from sandyard.cli.up.upgrade_trial import describe_schemas, try_upgrade
from sandyard.engine.store import database as engine_database
from sandyard.engine.store.database import Database
from sandyard.engine.store.schema import STEPS
from sandyard.kit.errors import SandyardError
from sandyard.platform.db.migrate import get_newest_revision

FAIL = (
    "import sys; sys.exit('a line of the log\\nsandyard: It cannot be upgraded.' if '--try-upgrade' in sys.argv else 0)"
)


@pytest.fixture
def data(tmp_path: Path) -> DataDirectory:
    data = DataDirectory(tmp_path)
    data.platform.mkdir()
    data.engine.mkdir()
    return data


@pytest.fixture
def platform() -> Child:
    """A platform that cannot upgrade its database."""
    return Child("platform", [sys.executable, "-c", FAIL], dict(os.environ), "", 200, -1, print)


def test_a_first_start_tries_nothing(data: DataDirectory, platform: Child) -> None:
    try_upgrade(data, [platform])


def test_the_schemas_of_both_databases_are_named() -> None:
    assert describe_schemas().startswith(f"engine {len(STEPS)}, platform {get_newest_revision()}_")


def test_a_platform_that_cannot_be_upgraded_stops_the_start(
    data: DataDirectory, platform: Child, capsys: pytest.CaptureFixture[str]
) -> None:
    (data.platform / "platform.db").touch()
    with pytest.raises(CommandError, match=r"^It cannot be upgraded\.$"):
        try_upgrade(data, [platform])
    assert capsys.readouterr().err == "a line of the log\n"
    data.record_schemas(describe_schemas())  # the last start was with the same schemas
    try_upgrade(data, [platform])


def test_an_engine_that_cannot_be_upgraded_stops_the_start_first(
    data: DataDirectory, platform: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    (data.platform / "platform.db").touch()
    database = Database(data.engine / "engine.db")
    database.open()
    database.close()
    data.record_schemas(describe_schemas())
    newer = (*STEPS, "INSERT INTO missing VALUES (1);\n")
    monkeypatch.setattr(engine_database, "STEPS", newer)
    monkeypatch.setattr(upgrade_trial, "STEPS", newer)
    with pytest.raises(SandyardError, match="no such table: missing"):
        try_upgrade(data, [platform])
    with closing(sqlite3.connect(data.engine / "engine.db")) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (len(STEPS),)
