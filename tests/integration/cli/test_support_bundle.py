"""A support bundle of a real installation, in which secrets of every kind were planted."""

from __future__ import annotations

import json
import os
import secrets
import sqlite3
import zipfile
from pathlib import Path

import httpx
import pytest
from sqlalchemy import LargeBinary

from sandyard.platform.db.migrate import get_newest_revision
from sandyard.platform.db.models import Base
from sandyard.platform.domain.secrets.inventory import SEALED_COLUMNS
from tests.acceptance.secret_scanner import SecretScanner
from tests.harness.platform import ok
from tests.harness.up import Installation, run_json

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="sandboxes with all features need root")


def test_every_encrypted_column_is_in_the_inventory() -> None:
    columns = {
        (table.name, column.name)
        for table in Base.metadata.sorted_tables
        for column in table.c
        if isinstance(column.type, LargeBinary)
    }
    assert {(sealed.model.__tablename__, sealed.column) for sealed in SEALED_COLUMNS} == columns


def test_a_bundle_has_the_facts_and_no_secrets(installation: Installation, tmp_path: Path) -> None:
    scanner = SecretScanner()

    def plant(name: str, prefix: str = "") -> str:
        text = f"{prefix}{secrets.token_urlsafe(18)}"
        scanner.add_secret(name, text)
        return text

    project = f"bundle-{secrets.token_hex(3)}"
    options = ("--repository", "https://127.0.0.1:1/o/x.git", "--token-stdin", "--no-test")
    installation.ok("project", "add", project, *options, stdin=f"{plant('token of a project')}\n".encode())
    installation.ok("model", "add", "openrouter", "--key-stdin", "--no-test", stdin=f"{plant('model key')}\n".encode())
    headers = f"X-Team: {plant('header of an MCP server')}\n".encode()
    where = (
        "project",
        "mcp",
        "add",
        project,
        "issues",
        "--url",
        "http://127.0.0.1:1/mcp",
        "--no-test",
        "--headers-stdin",
    )
    installation.ok(*where, stdin=headers)
    client = httpx.Client(
        base_url=f"{installation.url}/api/v1", headers={"Authorization": f"Bearer {installation.token}"}
    )
    ok(client.put("/secrets/MINE", json={"value": plant("secret of a user")}))
    sandbox = ok(client.post("/sandboxes", json={"envs": {"STAGE": plant("variable of a sandbox")}}))["id"]
    failed = installation.run("session", "create", "--project", project, "--wait")
    assert failed.returncode != 0, "so that there is an error to report"

    engine = httpx.Client(
        base_url=str(httpx.URL(installation.url).copy_with(port=int(installation.port) + 1)),
        headers={"X-API-KEY": (installation.data / "engine.key").read_text().strip()},
    )
    ok(engine.post("/secrets", json={"name": "bundle", "value": plant("secret of a client of the engine")}))
    volume = ok(engine.post("/volumes", json={"name": "bundle"}))
    scanner.add_secret("token of a volume", volume["token"])
    with sqlite3.connect(f"file:{installation.data}/engine/engine.db?mode=ro", uri=True) as database:
        for (spec,) in database.execute("SELECT spec FROM sandboxes"):
            scanner.add_secret("access token of a sandbox", json.loads(spec)["access_token"])
    database.close()

    for name in ("engine.key", "platform/secret.key", "engine/secrets.key"):
        scanner.add_secret(name, (installation.data / name).read_text().strip())
    scanner.add_secret("administrator's token", installation.token)
    log = tmp_path / "server.log"
    lines = [
        f"sent {text}"
        for text in (f"https://me:{plant('password in a URL')}@git.example", f"Bearer {plant('bearer token')}")
    ]
    by_pattern_only = {"password in a URL", "bearer token", "administrator's token"}
    lines += [form.decode() for form, name in scanner.forms.items() if name.partition(",")[0] not in by_pattern_only]
    lines += [f"admin token: {installation.token}", f"sent {installation.token}"]
    lines += [f'time info started api_key="{plant("key in a log")}" port=8700', "last line of the log"]
    log.write_text("\n".join(lines))
    variables = {
        "SANDYARD_LAYER_STORE_SECRET_KEY": plant("secret of the layer store"),
        "SANDYARD_DATABASE_URL": None,
        "SANDYARD_ENGINE_DATABASE_URL": f"postgresql://me:{plant('password of the records')}@127.0.0.1:1/db",
        "E2B_API_KEY": plant("key of E2B", "e2b_"),
        "HTTPS_PROXY": f"http://me:{plant('password of a proxy')}@127.0.0.1:1",
        "SANDYARD_OTLP_HEADERS": f"x-key={plant('header of a collector')}",
        "AWS_SECRET_ACCESS_KEY": plant("key of AWS"),
        "SANDYARD_IDLE_SECONDS": "77",
    }
    file = tmp_path / "bundle.zip"
    data = ("--data-dir", str(installation.data))
    done = installation.run(
        "support-bundle", str(file), *data, "--url", installation.url, "--log", str(log), **variables
    )
    assert done.returncode == 0, done.stderr
    assert file.stat().st_mode & 0o777 == 0o600

    with zipfile.ZipFile(file) as archive:
        parts = {name: archive.read(name).decode() for name in archive.namelist()}
    found = {name: hits for name, text in parts.items() if (hits := scanner.find_in_text(text))}
    assert not found
    assert parts["logs/server.log"].endswith("last line of the log")
    assert "port=8700" in parts["logs/server.log"]
    settings = json.loads(parts["settings.json"])
    assert settings["platform"]["idle_seconds"] == 77
    assert settings["environment"]["SANDYARD_LAYER_STORE_SECRET_KEY"] == "***"
    counts = json.loads(parts["counts.json"])
    assert counts["platform"]["sandboxes"]["running"] >= 1
    assert counts["engine"]["sandboxes"]["running"] >= 1
    expected = get_newest_revision()
    migrations = json.loads(parts["migrations.json"])
    assert migrations["platform"] == {"expected": expected, "current": expected, "drift": [], "database": "SQLite"}
    assert migrations["engine"]["current"] == migrations["engine"]["expected"] > 0
    assert any("did not respond" in error["error"] for error in json.loads(parts["errors.json"])["git_operations"])
    assert json.loads(parts["disk.json"])["usedBytes"]["platform/platform.db"] > 0
    assert "Sandboxes can run here" in parts["doctor.txt"]
    assert "returned 200" in parts["servers/platform-health.txt"]
    assert "sandyard_sandboxes" in parts["servers/platform-metrics.txt"]
    assert "sandyard_engine" in parts["servers/engine-metrics.txt"]
    assert '"local":true' in parts["servers/engine-hosts.txt"]
    assert '"kind":"templates"' in parts["servers/engine-disk.txt"]
    assert json.loads(parts["versions.json"])["packages"]["cryptography"]
    again = installation.run("support-bundle", str(file), *data)
    assert (again.returncode, b"exists already" in again.stderr) == (1, True)
    installation.ok("sandbox", "kill", sandbox)
    for path in ("/secrets/bundle", f"/volumes/{volume['volumeID']}"):
        assert engine.delete(path).is_success
    for session in run_json(installation, "session", "list", "--project", project)["items"]:
        installation.ok("session", "delete", session["id"], "--yes")
    installation.ok("project", "delete", project, "--yes")


def test_an_empty_bundle_says_so(installation: Installation, tmp_path: Path) -> None:
    file = tmp_path / "bundle.zip"
    installation.ok("support-bundle", str(file), "--data-dir", str(tmp_path / "none"), "--url", "http://127.0.0.1:1")
    with zipfile.ZipFile(file) as archive:
        assert "There is no database" in archive.read("counts.json").decode()
        assert "did not respond" in archive.read("servers/platform-health.txt").decode()
    assert not (tmp_path / "none").exists()
