"""Back up a running installation, destroy it, restore it and continue."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import httpx
import pytest

from sandyard.kit.vault import Vault
from tests.harness.platform import ok, until
from tests.harness.postgres import Server
from tests.harness.up import Installation, run_json
from tests.harness.upstream_repository import Upstream

pytestmark = pytest.mark.timeout(400)
TASK = "Count further\nappend a.txt: four\nsay: counted"


@pytest.fixture
def own() -> Iterator[Installation]:
    running = Installation()
    yield running
    running.stop()


def destroy(installation: Installation) -> None:
    """Lose the machine's state."""
    installation.kill_sandboxes()
    installation.up.process.send_signal(signal.SIGTERM)
    installation.up.wait_for_exit()
    installation.up.wait_until_none_left()
    installation.unmount()
    shutil.rmtree(installation.data)


def read_secret(data: Path, name: str) -> str:
    with contextlib.closing(sqlite3.connect(data / "platform" / "platform.db")) as connection:
        query = "SELECT value, owner_id, project_key FROM secrets WHERE name = ?"
        value, owner, project = connection.execute(query, (name,)).fetchone()
    return Vault(data / "platform" / "secret.key").open(value, owner, project, name).reveal()


@pytest.mark.skipif(os.geteuid() != 0, reason="sandboxes with all features need root")
def test_an_installation_survives_the_loss_of_its_machine(own: Installation, tmp_path: Path) -> None:
    upstream, file, key = Upstream(tmp_path), tmp_path / "backup.age", tmp_path / "key.txt"
    run_json(own, "project", "add", "site", "--repository", str(upstream.bare))
    task = run_json(own, "task", "add", TASK, "--project", "site", "--agent", "demo")
    session = run_json(own, "session", "create", "--project", "site", "--agent", "demo", "--wait")["id"]
    own.ok("sandbox", "exec", "--cwd", "/home/user/workspace", session, "echo mine > draft.txt")
    own.ok("session", "prompt", session, "say: remember me", "--follow")
    own.ok("git", "checkpoint", session)
    client = httpx.Client(base_url=f"{own.url}/api/v1", headers={"Authorization": f"Bearer {own.token}"}, timeout=60)
    ok(client.put("/secrets/DEPLOY_KEY", json={"value": "hunter2-hunter2"}))
    until(lambda: run_json(own, "task", "show", task["id"])["status"] == "in_review")
    busy = own.start_command("sandbox", "exec", session, "while :; do echo busy; sleep 0.01; done")
    busy.wait_for_line("^busy")
    written = own.run("backup", str(file), "--data-dir", str(own.data), "--new-key", str(key))
    busy.process.kill()
    busy.wait_for_exit()
    assert written.returncode == 0, written.stderr
    assert file.stat().st_mode & 0o777 == key.stat().st_mode & 0o777 == 0o600
    assert b"hunter2" not in file.read_bytes()
    assert sorted(path.name for path in tmp_path.glob(".*")) == []
    assert not (own.data / "backup.tmp").exists()

    options = ("--data-dir", str(own.data), "--identity", str(key))
    refused = own.run("restore", str(file), *options)
    assert (refused.returncode, refused.stderr.startswith(b"sandyard: `sandyard up` is already running")) == (
        1,
        True,
    ), refused
    assert "is complete" in own.ok("restore", str(file), *options, "--check")
    destroy(own)
    shown = own.ok("restore", str(file), *options)
    assert "session provision" in shown
    assert own.run("restore", str(file), *options).stderr.startswith(f"sandyard: {own.data} is not empty".encode())
    assert (own.data / "engine.key").stat().st_mode & 0o777 == 0o600
    assert read_secret(own.data, "DEPLOY_KEY") == "hunter2-hunter2"
    for mirror in (own.data / "platform" / "git").glob("*.git"):
        subprocess.run(["git", "-C", mirror, "fsck", "--full", "--strict"], check=True, capture_output=True)

    own.start()
    found = run_json(own, "task", "show", task["id"])
    assert (found["status"], found["title"]) == ("in_review", "Count further")
    assert "remember me" in own.ok("session", "transcript", session)
    assert own.ok("git", "log", session)
    until(lambda: run_json(own, "sandbox", "list")["items"] == [] or get_status(own, session) == "error")
    own.ok("session", "provision", session)
    until(lambda: get_status(own, session) == "running")
    command = ("sandbox", "exec", "--cwd", "/home/user/workspace", session, "cat draft.txt")
    until(lambda: own.run(*command).stdout == b"mine\n")
    own.ok("task", "add", TASK, "--project", "site", "--agent", "demo", "--follow")


def get_status(installation: Installation, session: str) -> str:
    return str(json.loads(installation.ok("session", "show", session, "-o", "json"))["sandbox"]["status"])


@pytest.mark.skipif(shutil.which("pg_dump") is None, reason="pg_dump is not installed")
async def test_a_postgresql_database_is_part_of_the_backup(postgres: Server, postgres_url: str, tmp_path: Path) -> None:
    new_name = await postgres.create()
    new_url, data = postgres.url(new_name), tmp_path / "data"
    (data / "platform").mkdir(parents=True)
    statements = "CREATE SCHEMA dbos; CREATE TABLE dbos.workflows (id int); CREATE TABLE things (name text UNIQUE)"
    await query(postgres_url, f"{statements}; INSERT INTO things VALUES ('one')")

    async def call(url: str, *arguments: str) -> tuple[int | None, str]:
        variables = {**os.environ, "SANDYARD_DATABASE_URL": url, "SANDYARD_DATA_DIR": str(data)}
        command, pipe = Installation.command(*arguments), asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *command, env=variables, stdout=pipe, stderr=asyncio.subprocess.STDOUT
        )
        printed, _ = await process.communicate()
        return process.returncode, printed.decode()

    file = str(tmp_path / "backup")
    restoring = ("restore", file, "--data-dir", str(tmp_path / "restored"))
    code, printed = await call(postgres_url, "backup", file, "--no-encryption")
    assert code == 0, printed
    code, printed = await call(postgres_url, *restoring)
    assert (code, "is not empty: it has 2 tables" in printed) == (1, True), printed
    code, printed = await call(new_url, *restoring)
    assert code == 0, printed
    assert await query(new_url, "SELECT name FROM things UNION SELECT count(*)::text FROM dbos.workflows") == [
        "0",
        "one",
    ]
    assert not (tmp_path / "restored" / "database.dump").exists()
    await postgres.drop(new_name)


async def query(url: str, statements: str) -> list[str]:
    """Run statements, or one SELECT, whose first column is returned, sorted."""
    connection = await asyncpg.connect(url)
    try:
        if not statements.startswith("SELECT"):
            await connection.execute(statements)
            return []
        return sorted(row[0] for row in await connection.fetch(statements))
    finally:
        await connection.close()
