from __future__ import annotations

import asyncio
import errno
import os
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sandyard.engine.store import database as database_module
from sandyard.engine.store.database import Database
from sandyard.engine.store.datadir import DataDir
from sandyard.engine.store.keys import ApiKeys
from sandyard.kit.errors import (
    BusyError,
    ConflictError,
    InvalidInputError,
    NoSpaceError,
    NotFoundError,
    SandyardError,
)
from sandyard.kit.secret import Secret


@pytest.fixture
def database(tmp_path: Path):
    database = Database(tmp_path / "engine.db", flush_interval_s=0.01)
    database.open()
    yield database
    database.close()


def test_two_engines_cannot_open_one_directory(tmp_path: Path) -> None:
    first, second = DataDir(tmp_path / "data"), DataDir(tmp_path / "data")
    first.lock()
    with pytest.raises(ConflictError, match=rf"in use by another engine \(process {os.getpid()}\)"):
        second.lock()
    first.unlock()
    first.unlock()
    second.lock()
    second.unlock()
    assert (tmp_path / "data").stat().st_mode & 0o777 == 0o700


def test_a_directory_can_be_locked_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    first, second = DataDir(tmp_path), DataDir(tmp_path)
    first.lock()
    first.unlock()
    monkeypatch.setattr(os, "pwrite", fail)
    first.lock()
    with pytest.raises(ConflictError, match=r"\(process unknown\)"):
        second.lock()
    first.unlock()


def test_a_lock_held_by_another_process_is_free_when_it_dies(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from sandyard.engine.store.datadir import DataDir;"
        "DataDir(pathlib.Path(sys.argv[1])).lock(); print('locked', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout.readline() == b"locked\n"
        with pytest.raises(ConflictError, match=f"process {holder.pid}"):
            DataDir(tmp_path).lock()
        holder.kill()
        holder.wait()
    own_lock = DataDir(tmp_path)
    own_lock.lock()  # a lock ends with its process
    own_lock.unlock()


def test_children_do_not_keep_the_lock(tmp_path: Path) -> None:
    data = DataDir(tmp_path)
    data.lock()
    with subprocess.Popen(["/bin/sleep", "1000"], close_fds=False) as child:
        data.unlock()
        again = DataDir(tmp_path)
        again.lock()
        again.unlock()
        child.kill()


def test_a_data_directory_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SandyardError, match="Could not create the data directory"):
        DataDir(tmp_path / "file" / "data").lock()


def test_transactions_are_all_or_nothing(database: Database) -> None:
    with pytest.raises(ValueError, match="half-way"), database.transaction():
        database.set_meta("a", "1")
        raise ValueError("half-way")
    assert database.get_meta("a") is None
    with database.transaction():
        database.set_meta("a", "1")
        database.set_meta("a", "2")
    assert database.get_meta("a") == "2"


def test_committed_data_survives_without_a_close(tmp_path: Path) -> None:
    first = Database(tmp_path / "engine.db")
    first.open()
    first.set_meta("a", "1")
    first.abandon()  # no close, no checkpoint
    second = Database(tmp_path / "engine.db")
    second.open()
    assert second.get_meta("a") == "1"
    second.close()
    second.close()
    assert (tmp_path / "engine.db").stat().st_mode & 0o777 == 0o600


def test_kill_9_right_after_a_commit_loses_nothing(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from sandyard.engine.store.database import Database\n"
        "d = Database(pathlib.Path(sys.argv[1])); d.open()\n"
        "for n in range(10**9):\n    d.set_meta('n', str(n)); print(n, flush=True)"
    )
    path = tmp_path / "engine.db"
    for _ in range(3):
        with subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE) as writer:
            for _ in range(200):
                line = writer.stdout.readline()
            writer.kill()
            rest = writer.stdout.read().split()
        last = int(rest[-1] if rest else line)
        database = Database(path)
        database.open()
        assert int(database.get_meta("n")) >= last
        assert database.query("PRAGMA integrity_check") == [("ok",)]
        database.close()


def test_an_old_database_is_upgraded_and_a_newer_one_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "engine.db"
    old = Database(path)
    old.open()
    old.set_meta("a", "1")
    old.close()
    steps = (*database_module.STEPS, "CREATE TABLE later (x);")
    with monkeypatch.context() as patch:
        patch.setattr(database_module, "STEPS", steps)
        newer = Database(path)
        newer.open()
        assert newer.get_meta("a") == "1" and newer.query("SELECT * FROM later") == []
        newer.close()
    with pytest.raises(SandyardError, match="newer engine"):
        Database(path).open()


def test_a_failed_upgrade_keeps_the_old_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "engine.db"
    old = Database(path)
    old.open()
    old.close()
    with monkeypatch.context() as patch:
        patch.setattr(
            database_module, "STEPS", (*database_module.STEPS, "CREATE TABLE later (x); CREATE TABLE meta (y);")
        )
        with pytest.raises(SandyardError):
            Database(path).open()
    again = Database(path)
    again.open()
    assert again.query("SELECT count(*) FROM sqlite_master WHERE name = 'later'") == [(0,)]
    again.close()


def test_a_file_that_is_not_a_database_is_reported(tmp_path: Path) -> None:
    (tmp_path / "engine.db").write_bytes(b"not a database" * 1000)
    with pytest.raises(SandyardError, match="Could not open"):
        Database(tmp_path / "engine.db").open()


def test_database_errors_become_sandyard_errors(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SandyardError, match="database failed"):
        database.query("SELECT * FROM nowhere")
    database.execute("PRAGMA max_page_count = 1")
    with pytest.raises(NoSpaceError):
        for number in range(1000):
            database.set_meta(f"k{number}", "x" * 1000)
    database.execute("PRAGMA busy_timeout = 10")
    with sqlite3.connect(tmp_path / "engine.db", isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(BusyError):
            database.set_meta("a", "1")
        other.execute("ROLLBACK")
    other.close()


async def test_the_write_ahead_log_stays_small(database: Database, tmp_path: Path) -> None:
    for number in range(20):
        for _ in range(100):
            database.set_meta("a", str(number) * 100)
        await database.flush()
    assert (tmp_path / "engine.db-wal").stat().st_size < 2_000_000


async def test_flush_writes_everything_to_the_main_file(database: Database, tmp_path: Path) -> None:
    database.set_meta("a", "needle-in-the-main-file")
    await database.flush()
    assert b"needle-in-the-main-file" in (tmp_path / "engine.db").read_bytes()


async def test_changes_are_flushed_automatically(database: Database, tmp_path: Path) -> None:
    database.set_meta("a", "needle-in-the-main-file")
    for _ in range(500):
        if b"needle-in-the-main-file" in (tmp_path / "engine.db").read_bytes():
            return
        await asyncio.sleep(0.01)
    pytest.fail("the change must be in the main file")


async def test_a_change_committed_after_a_flush_began_is_flushed_automatically(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushes: list[None] = []
    monkeypatch.setattr(database, "_flush", lambda flush=database._flush: flushes.append(flush()))
    with database.transaction():
        database.set_meta("a", "needle-in-the-main-file")
        while not flushes:  # a transaction must not await
            time.sleep(0.001)
    for _ in range(500):
        if b"needle-in-the-main-file" in (tmp_path / "engine.db").read_bytes():
            return
        await asyncio.sleep(0.01)
    pytest.fail("the change must be in the main file")


async def test_flush_syncs_the_log_while_another_process_reads(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await database.flush()
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(str(Path(f"/proc/self/fd/{fd}").readlink())))
    with sqlite3.connect(tmp_path / "engine.db", isolation_level=None) as other:
        other.execute("BEGIN")
        other.execute("SELECT count(*) FROM meta").fetchone()
        database.set_meta("a", "1")
        await database.flush()
        other.execute("ROLLBACK")
    other.close()
    assert str(tmp_path / "engine.db-wal") in synced


async def test_a_failed_flush_is_a_sandyard_error(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(database, "_flush", fail)
    with pytest.raises(SandyardError, match="disk I/O error"):
        await database.flush()


def test_keys_are_created_checked_and_revoked(database: Database) -> None:
    keys = ApiKeys(database)
    key, secret = keys.create("laptop")
    assert secret.reveal().startswith("e2b_") and secret.reveal().startswith(key.hint[:-1])
    assert keys.check(secret.reveal()) == key and keys.list() == [key]
    for wrong in (None, "", "e2b_", secret.reveal()[:-1], secret.reveal() + "0", "e2b_\udc80"):
        assert keys.check(wrong) is None
    with pytest.raises(ConflictError):
        keys.create("laptop")
    for bad in ("", "  ", "x" * 101, "a\nb"):
        with pytest.raises(InvalidInputError):
            keys.create(bad)
    assert keys.revoke("laptop") == key
    assert keys.check(secret.reveal()) is None
    with pytest.raises(NotFoundError):
        keys.revoke(key.id)


async def test_keys_are_stored_hashed(database: Database, tmp_path: Path) -> None:
    _, secret = ApiKeys(database).create("laptop")
    await database.flush()
    stored = (tmp_path / "engine.db").read_bytes() + (tmp_path / "engine.db-wal").read_bytes()
    assert b"laptop" in stored and secret.reveal().encode() not in stored


def test_configured_keys_are_accepted_and_not_listed(database: Database) -> None:
    keys = ApiKeys(database, [Secret("k1"), Secret("k2")])
    assert keys.check("k1") and keys.check("k2") and keys.check("k1") != keys.check("k2")
    assert keys.check("k3") is None and keys.list() == []


def test_keys_created_and_revoked_by_another_process_are_noticed(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandyard.engine.store.keys.RECHECK_S", 0)
    engine = ApiKeys(database)
    assert engine.check("x") is None
    cli_database = Database(tmp_path / "engine.db")
    cli_database.open()
    cli = ApiKeys(cli_database)
    key, secret = cli.create("laptop")
    assert engine.check(secret.reveal()) == key
    cli.revoke("laptop")
    assert engine.check(secret.reveal()) is None
    cli_database.close()


def test_repeated_checks_of_a_key_do_not_query_the_database(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandyard.engine.store.keys.RECHECK_S", 1000)
    keys = ApiKeys(database)
    _, secret = keys.create("laptop")
    keys.check(secret.reveal())
    seen: list[object] = []
    for method in ("execute", "query", "transaction", "get_data_version"):
        monkeypatch.setattr(database, method, lambda *arguments: seen.append(arguments))
    for _ in range(100):
        assert keys.check(secret.reveal())
    assert seen == []  # the database is not queried for every request


def test_keys_can_be_renamed(database: Database) -> None:
    keys = ApiKeys(database)
    key, secret = keys.create("laptop")
    keys.create("desk")
    assert keys.rename(key.id, " notebook ").label == "notebook"
    assert keys.check(secret.reveal()) == keys.rename(key.id, "notebook"), "the same key under its new name"
    with pytest.raises(ConflictError):
        keys.rename(key.id, "desk")
    with pytest.raises(NotFoundError):
        keys.rename("kabsent", "x")
