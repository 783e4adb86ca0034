"""The engine's records are the same in SQLite and PostgreSQL."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import asyncpg
import pytest

import sandyard.engine
from sandyard.engine.app import _check_records
from sandyard.engine.contract import Handle
from sandyard.engine.drivers.cluster.model import ELSEWHERE
from sandyard.engine.hosts.origins import StoredOrigins
from sandyard.engine.sandboxes.logs import LogQuery, SandboxLogs
from sandyard.engine.sandboxes.model import LogLevel
from sandyard.engine.sandboxes.repository import KeyUse, SandboxRepository
from sandyard.engine.settings import EngineSettings
from sandyard.engine.store.database import Database
from sandyard.engine.store.datadir import DataDir
from sandyard.engine.store.keys import ApiKeys
from sandyard.engine.store.postgres import PostgresDatabase, translate_sql
from sandyard.engine.store.schema import STEPS
from sandyard.kit.clock import SystemClock
from sandyard.kit.errors import ConflictError, SandyardError
from tests.unit.engine.e2b.support import sandbox as make_sandbox

pytestmark = pytest.mark.both_databases


async def open_postgres(url: str, identity: str = "one") -> PostgresDatabase:
    database = PostgresDatabase(url, identity)
    await database.acquire(lambda _: None)
    database.open()
    return database


@pytest.fixture(params=["sqlite", "postgresql"])
def records(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """An open database of an engine."""
    if request.param == "sqlite":
        database = Database(tmp_path / "engine.db")
        database.open()
    else:
        database = asyncio.run(open_postgres(request.getfixturevalue("postgres_url")))
    yield database
    database.close()


def test_sandboxes_are_stored_changed_and_deleted(records: Database) -> None:
    repository = SandboxRepository(records)
    with records.transaction():
        first = repository.insert(make_sandbox("a"))
        second = repository.insert(make_sandbox("b"))
        repository.insert_key_use("owner", "key", KeyUse(b"\0digest", "a"), 1.0)
    assert first.seq < second.seq
    repository.update(replace(first, ends_at=77.5))
    repository.delete("b")
    (stored,) = repository.list_all()
    assert stored == replace(first, ends_at=77.5)
    assert repository.find_key_use("owner", "key") == KeyUse(b"\0digest", "a")
    repository.delete_keys(2.0)
    assert repository.find_key_use("owner", "key") is None


def test_a_failed_transaction_changes_nothing(records: Database) -> None:
    records.set_meta("name", "before")
    with pytest.raises(ZeroDivisionError), records.transaction():
        records.set_meta("name", "after")
        _ = 1 / 0
    with pytest.raises(SandyardError), records.transaction():
        records.set_meta("name", "after")
        records.execute("INSERT INTO missing VALUES (1)")
    assert records.get_meta("name") == "before"
    assert records.execute("UPDATE meta SET value = ? WHERE key = ?", ("new", "name")) == 1
    assert records.execute("UPDATE meta SET value = ? WHERE key = ?", ("new", "unknown")) == 0


def test_logs_are_searched_trimmed_and_expire(records: Database) -> None:
    logs = SandboxLogs(records, SystemClock(), kept=3, retention_s=-1)
    for number in range(80):
        logs.append("a", LogLevel.INFO, f"line {number} of 100%\0", number=str(number))
    newest = logs.query("a", LogQuery(limit=100, newest_first=True, search="of 100%"))
    assert newest[0].message.startswith("line 79 of 100%")
    assert len(newest) < 80
    logs.mark_ended("a")
    logs.mark_ended("a")
    logs.delete_expired()
    assert not logs.has_entries("a")


def test_layers_keep_their_origin(records: Database) -> None:
    origins = StoredOrigins(records)
    origins.record("snap:a", "host")
    origins.record("snap:a", "host")
    with pytest.raises(ConflictError):
        origins.record("snap:a", "other")
    origins.record_content("snap:a", "first")
    origins.record_content("snap:a", "second")
    assert (origins.find_host("snap:a"), origins.find_content("snap:a")) == ("host", "first")


def test_keys_that_another_process_creates_or_revokes_are_noticed(records: Database, tmp_path: Path) -> None:
    keys = ApiKeys(records)
    other = (
        PostgresDatabase(records._url) if isinstance(records, PostgresDatabase) else Database(tmp_path / "engine.db")
    )
    other.open()
    key, secret = ApiKeys(other).create("laptop")
    assert keys.check(secret.reveal()) == key
    ApiKeys(other).revoke("laptop")
    keys._checked_at = 0.0
    assert keys.check(secret.reveal()) is None
    other.close()


def test_a_data_directory_is_not_used_without_its_records(tmp_path: Path) -> None:
    """The engine would remove all sandboxes, because it would find no records of them."""
    url, data = "postgresql://localhost/records", DataDir(tmp_path)
    with_postgres = EngineSettings.load({}, data_dir=tmp_path, database_url=url)
    without = EngineSettings.load({}, data_dir=tmp_path)
    data.database.touch()
    with pytest.raises(ConflictError, match="are in SQLite"):
        _check_records(with_postgres, data)
    _check_records(without, data)
    data.database.unlink()
    data.read_id()
    with pytest.raises(ConflictError, match="are in PostgreSQL"):
        _check_records(without, data)
    _check_records(with_postgres, data)


@pytest.fixture
async def postgres_records(postgres_url: str) -> AsyncIterator[PostgresDatabase]:
    database = await open_postgres(postgres_url)
    yield database
    database.close()


def list_statements() -> list[str]:
    """Return the SQL that is a literal argument of a database's method, anywhere in the engine."""
    found = set()
    for path in Path(sandyard.engine.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
                first = node.args[0]
                is_text = isinstance(first, ast.Constant) and isinstance(first.value, str)
                if node.func.attr in {"execute", "query", "insert"} and is_text and " " in first.value:
                    found.add(first.value)
    return sorted(text for text in found if text.split()[0] in {"INSERT", "UPDATE", "DELETE", "SELECT"})


async def test_postgresql_understands_every_statement_of_the_engine(
    postgres_records: PostgresDatabase, postgres_url: str
) -> None:
    statements = [text for text in list_statements() if "pragma" not in text.lower()]
    assert len(statements) > 60
    connection = await asyncpg.connect(postgres_url, server_settings={"search_path": "sandyard_engine"})
    try:
        for statement in statements:
            await connection.prepare(translate_sql(statement))
    finally:
        await connection.close()


async def test_an_upgrade_of_a_newer_database_is_refused(
    postgres_records: PostgresDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandyard.engine.store.postgres.STEPS", STEPS[:-1])
    with pytest.raises(SandyardError, match="created by a newer engine"):
        postgres_records.open()


async def test_sandboxes_of_another_machine_are_out_of_reach_and_kept(postgres_records: PostgresDatabase) -> None:
    repository = SandboxRepository(postgres_records)
    postgres_records.machine = "first"
    handle = Handle("a", "namespace", {"root": "/here"})
    repository.insert(make_sandbox("a", handle=handle))
    postgres_records.machine = "second"
    (there,) = repository.list_all()
    assert there.handle.driver == ELSEWHERE
    repository.update(there)
    assert repository.list_all() == [there]
    postgres_records.machine = "first"
    assert repository.list_all()[0].handle == handle
