"""`sandyard api-key` with the real server."""

from __future__ import annotations

from tests.harness.up import Installation, run_json


def test_an_api_key_is_created_listed_and_revoked(installation: Installation) -> None:
    made = run_json(installation, "api-key", "create", "for a script")
    assert "for a script" in installation.ok("api-key", "list", "-o", "table")
    assert made["value"] not in installation.ok("api-key", "list")
    installation.ok("api-key", "revoke", made["id"])
    assert made["id"] not in installation.ok("api-key", "list")
    assert installation.run("api-key", "revoke", "tok_none").returncode == 3
