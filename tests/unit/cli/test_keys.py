"""`sandyard keys` on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sandyard.cli.main import cli
from sandyard.engine.store.database import Database
from sandyard.engine.store.datadir import DataDir
from sandyard.engine.store.keys import ApiKeys


def run(data: Path, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["keys", "--data-dir", str(data), *arguments])


def test_a_key_is_created_shown_once_and_revoked(tmp_path: Path) -> None:
    data = tmp_path / "data"
    made = run(data, "create", "laptop")
    assert made.exit_code == 0, made.output
    secret = made.output.strip()
    assert secret.startswith("e2b_")
    listed = run(data, "list").output
    assert "laptop" in listed
    assert secret not in listed
    assert secret.encode() not in (data / "engine.db").read_bytes()
    assert (data / "engine.db").stat().st_mode & 0o077 == 0
    assert run(data, "revoke", "laptop").exit_code == 0
    assert "laptop" not in run(data, "list").output


def test_a_running_engine_sees_new_and_revoked_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = DataDir(tmp_path / "data")
    data.lock()
    database = Database(data.database)
    database.open()
    try:
        monkeypatch.setattr("sandyard.engine.store.keys.RECHECK_S", -1)
        keys = ApiKeys(database)
        assert keys.check("e2b_nothing") is None
        secret = run(data.path, "create", "later").output.strip()
        assert keys.check(secret) is not None
        run(data.path, "revoke", "later")
        assert keys.check(secret) is None
    finally:
        database.close()
        data.unlock()


def test_mistakes_are_reported_in_one_sentence(tmp_path: Path) -> None:
    assert run(tmp_path / "data", "create", "twice").exit_code == 0
    for arguments in (("create", "twice"), ("create", ""), ("revoke", "nobody")):
        result = run(tmp_path / "data", *arguments)
        assert result.exit_code == 1
        assert result.output.startswith("sandyard: ")
        assert result.output.count("\n") == 1
    result = run(tmp_path / "nothing", "list")
    assert result.exit_code == 1
    assert "--data-dir" in result.output
    assert not (tmp_path / "nothing").exists()
