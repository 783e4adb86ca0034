"""An older database is upgraded on a copy first, and stays as it was if that fails."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from sandyard.engine.store import database as database_module
from sandyard.engine.store.database import Database, try_migration
from sandyard.engine.store.schema import STEPS
from sandyard.kit import sqlite_copy
from sandyard.kit.errors import NoSpaceError, SandyardError

FAILING = "CREATE TABLE new (id TEXT);\nUPDATE meta SET value = 'changed';\nINSERT INTO missing VALUES (1);\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The path of a database with the schema of this version, which is in use."""
    path = tmp_path / "engine.db"
    database = Database(path)
    database.open()
    database.set_meta("name", "kept")
    database.close()
    return path


def read(path: Path) -> tuple[int, str, int]:
    """Return the version of the schema, a value, and how many tables there are."""
    with closing(sqlite3.connect(path)) as connection:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        (value,) = connection.execute("SELECT value FROM meta WHERE key = 'name'").fetchone()
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    return version, value, tables


def test_nothing_is_tried_without_an_older_database(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(database_module, "make_temporary_copy")
    try_migration(path)
    try_migration(path.with_name("missing.db"))
    assert not path.with_name("missing.db").exists()


def test_an_upgrade_that_would_work_changes_nothing_until_the_database_is_opened(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = read(path)
    monkeypatch.setattr(database_module, "STEPS", (*STEPS, "CREATE TABLE new (id TEXT);\n"))
    (path.parent / ".engine.db-copy-killed").mkdir()  # a process was killed while it tried
    try_migration(path)
    assert read(path) == before
    assert not list(path.parent.glob(".*"))
    database = Database(path)
    database.open()
    database.close()
    assert read(path) == (len(STEPS) + 1, "kept", before[2] + 1)


def test_an_upgrade_that_fails_leaves_everything_as_it_was(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = read(path)
    with monkeypatch.context() as newer:
        newer.setattr(database_module, "STEPS", (*STEPS, FAILING))
        for attempt in (lambda: try_migration(path), Database(path).open):
            with pytest.raises(
                SandyardError, match=r"no such table: missing.*nothing has been changed.*version before"
            ):
                attempt()
            assert read(path) == before
            assert not list(path.parent.glob(".*"))
    database = Database(path)  # the version before still opens it
    database.open()
    assert database.get_meta("name") == "kept"
    database.close()


def test_an_upgrade_without_space_for_the_copy_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = read(path)
    monkeypatch.setattr(database_module, "STEPS", (*STEPS, "CREATE TABLE new (id TEXT);\n"))
    monkeypatch.setattr(sqlite_copy, "SIZES", 1 << 40)
    with pytest.raises(NoSpaceError, match=r"engine\.db needs \d+ MiB on its disk, which has \d+ MiB left"):
        Database(path).open()
    assert read(path) == before


def test_a_damaged_database_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_module, "STEPS", (*STEPS, "CREATE TABLE new (id TEXT);\n"))
    content = bytearray(path.read_bytes())
    content[8192:] = bytes(len(content) - 8192)
    path.write_bytes(content)
    with pytest.raises(SandyardError, match="damaged"):
        try_migration(path)
    assert path.read_bytes() == content


def test_a_newer_database_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_module, "STEPS", STEPS[:-1])
    with pytest.raises(SandyardError, match="created by a newer engine"):
        try_migration(path)
