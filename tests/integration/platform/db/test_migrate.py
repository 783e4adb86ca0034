"""The schema migrates up, down and up again, matches the models, and is never left half migrated."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import inspect, select, text
from sqlalchemy.exc import DBAPIError

from sandyard.kit.errors import InvalidInputError
from sandyard.kit.postgres import identify
from sandyard.platform.db import migrate
from sandyard.platform.db.database import Database
from sandyard.platform.db.models import Audit, Base, Project, Sandbox, User
from sandyard.platform.db.ownership import Ownership

pytestmark = pytest.mark.both_databases

NOW = datetime(2026, 1, 31, 10, tzinfo=UTC)


@pytest.fixture
async def empty_database(empty_database_url: str):
    database = Database(empty_database_url)
    await database.open()
    yield database
    await database.close()


OBSTACLE = "_alembic_tmp_model_calls"
"""The table that SQLite's migration creates to change another one."""


async def block_migration_0017(database: Database) -> None:
    """Let this migration fail at its last table, after it has changed others."""
    async with database.transaction() as tx:
        if database.is_sqlite:
            await tx.session.execute(text(f"CREATE TABLE {OBSTACLE} (id INTEGER)"))
        else:
            await tx.session.execute(text("ALTER TABLE model_calls ADD COLUMN owner_id VARCHAR(40)"))


async def list_tables(database: Database) -> set[str]:
    async with database.engine.connect() as connection:
        return set(await connection.run_sync(lambda bound: inspect(bound).get_table_names()))


async def test_the_schema_migrates_up_down_and_up_again(empty_database: Database) -> None:
    assert await migrate.get_current_revision(empty_database) is None
    await migrate.upgrade(empty_database)
    head = await migrate.get_current_revision(empty_database)
    assert head is not None
    assert await list_tables(empty_database) == {*Base.metadata.tables, "alembic_version"}
    assert await migrate.find_drift(empty_database) == []

    await migrate.downgrade(empty_database, "base")
    assert await migrate.get_current_revision(empty_database) is None
    assert await list_tables(empty_database) == {"alembic_version"}

    await migrate.upgrade(empty_database)
    await migrate.upgrade(empty_database)
    assert await migrate.get_current_revision(empty_database) == head
    assert await migrate.find_drift(empty_database) == []


async def test_destroy_requests_survive_a_downgrade_and_an_upgrade(database: Database) -> None:
    async with database.transaction() as tx:
        tx.add(User(id="usr_1", name="ada", password="", role="admin", created_at=NOW))
        await tx.session.flush()
        for name, requested in (("kept", None), ("requested", NOW)):
            tx.add(
                Sandbox(
                    id=name,
                    owner_id="usr_1",
                    template="base",
                    idempotency_key=name,
                    status="running",
                    idle_seconds=60,
                    created_at=NOW,
                    destroy_requested_at=requested,
                )
            )
    await migrate.downgrade(database, "0010")
    async with database.reading() as session:
        rows = await session.execute(text("SELECT id FROM sandboxes WHERE doomed_at IS NOT NULL"))
        assert list(rows.scalars()) == ["requested"]

    await migrate.upgrade(database)
    async with database.reading() as session:
        rows = await session.execute(select(Sandbox.id, Sandbox.destroy_requested_at).order_by(Sandbox.id))
        assert [tuple(row) for row in rows] == [("kept", None), ("requested", NOW)]
    assert await migrate.find_drift(database) == []


async def test_drift_is_detected(database: Database) -> None:
    async with database.transaction() as tx:
        await tx.session.execute(text("ALTER TABLE users ADD COLUMN shoe_size INTEGER"))
        await tx.session.execute(text("DROP INDEX ix_events_at"))
        trigger = "audit_no_delete" + ("" if database.is_sqlite else " ON audit")
        await tx.session.execute(text(f"DROP TRIGGER {trigger}"))
    found = await migrate.find_drift(database)
    assert any("shoe_size" in line for line in found)
    assert any("ix_events_at" in line for line in found)
    assert "the trigger audit_no_delete is missing" in found


async def test_platforms_that_start_at_once_migrate_without_conflict(
    empty_database: Database, empty_database_url: str
) -> None:
    others = [Database(empty_database_url) for _ in range(4)]
    for other in others:
        await other.open()
    try:
        await asyncio.gather(*(migrate.upgrade(other) for other in [empty_database, *others]))
    finally:
        for other in others:
            await other.close()
    assert await migrate.find_drift(empty_database) == []


async def test_a_newer_database_is_refused(database: Database) -> None:
    async with database.transaction() as tx:
        await tx.session.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(migrate.NewerDatabaseError, match="created by a newer version of Sandyard: its schema is 9999"):
        await migrate.upgrade(database)


async def test_an_unknown_revision_is_rejected(database: Database) -> None:
    with pytest.raises(InvalidInputError, match="no revision 'yesterday'"):
        await migrate.downgrade(database, "yesterday")


async def test_a_failed_migration_is_rolled_back(empty_database: Database) -> None:
    async with empty_database.transaction() as tx:
        await tx.session.execute(text("CREATE TABLE terminals (id INTEGER)"))  # the last table of the revision
    with pytest.raises(migrate.MigrationError, match=r"from empty to \d+: .*terminals.*Nothing has been changed"):
        await migrate.upgrade(empty_database)
    assert await migrate.get_current_revision(empty_database) is None
    assert await list_tables(empty_database) <= {"terminals", "alembic_version"}


async def test_a_migration_that_fails_half_way_is_found_before_anything_changes(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await migrate.downgrade(database, "0016")
    tables = await list_tables(database)
    await block_migration_0017(database)
    for attempt in (migrate.try_upgrade, migrate.upgrade):
        with pytest.raises(
            migrate.MigrationError, match=r"(?s)from 0016 to \d+: .*exists.*Nothing has been changed.*version before"
        ):
            await attempt(database)
        assert await migrate.get_current_revision(database) == "0016"
        assert await list_tables(database) - {OBSTACLE} == tables
        async with database.engine.connect() as connection:
            columns = await connection.run_sync(lambda bound: inspect(bound).get_columns("users"))
        assert "quotas" not in {column["name"] for column in columns}
    async with database.transaction() as tx:
        undo = f"DROP TABLE {OBSTACLE}" if database.is_sqlite else "ALTER TABLE model_calls DROP COLUMN owner_id"
        await tx.session.execute(text(undo))
    await migrate.try_upgrade(database)
    assert await migrate.get_current_revision(database) == "0016"
    await migrate.upgrade(database)
    assert await migrate.find_drift(database) == []
    if database.is_sqlite:
        assert database.url.database is not None
        assert not list(Path(database.url.database).parent.glob(".*-copy-*"))
        with monkeypatch.context() as without_copies:  # nothing to try
            without_copies.delattr(migrate, "make_temporary_copy")
            await migrate.try_upgrade(database)


async def test_a_database_in_use_by_another_platform_is_not_tried(database: Database, tmp_path: Path) -> None:
    if database.is_sqlite:
        pytest.skip("its directory is locked")
    await migrate.downgrade(database, "0016")
    await block_migration_0017(database)
    owner = Ownership(database, identify(tmp_path))
    await owner.acquire(lambda reason: None)
    try:
        await migrate.try_upgrade(database)
    finally:
        await owner.release()


async def test_foreign_keys_are_enforced_after_a_migration(database: Database) -> None:
    with pytest.raises(DBAPIError, match=r"(?i)foreign key"):
        async with database.transaction() as tx:
            tx.add(Project(id="prj_1", owner_id="usr_nobody", name="x", created_at=NOW, updated_at=NOW))


async def test_broken_references_stop_a_migration(tmp_path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'platform.db'}")
    await database.open()
    await migrate.upgrade(database)
    row = "INSERT INTO project_members VALUES ('prj_none', 'usr_none', '2026-01-01')"
    with pytest.raises(migrate.BrokenReferencesError, match="project_members"):
        async with migrate.migrating(database) as connection:
            await connection.execute(text(row))
    async with database.reading() as session:
        assert await session.scalar(text("SELECT count(*) FROM project_members")) == 0
    await database.close()


async def test_the_audit_log_is_append_only(database: Database) -> None:
    async with database.transaction() as tx:
        tx.add(Audit(at=NOW, action="user.login", outcome="unauthenticated", detail={}))
    columns = "seq, at, action, outcome, detail"
    replace = f"INSERT OR REPLACE INTO audit ({columns}) SELECT {columns} FROM audit"
    for statement in (
        "UPDATE audit SET outcome = 'ok'",
        "DELETE FROM audit",
        replace if database.is_sqlite else "TRUNCATE audit",
    ):
        with pytest.raises(DBAPIError, match="append-only"):
            async with database.transaction() as tx:
                await tx.session.execute(text(statement))
    async with database.reading() as session:
        assert await session.scalar(text("SELECT outcome FROM audit")) == "unauthenticated"
