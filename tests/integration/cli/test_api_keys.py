"""`sandyard api-key` with the real server."""

from __future__ import annotations

from tests.harness.up import Yard, run_json


def test_an_api_key_is_created_listed_and_revoked(yard: Yard) -> None:
    made = run_json(yard, "api-key", "create", "for a script")
    assert "for a script" in yard.ok("api-key", "list", "-o", "table")
    assert made["value"] not in yard.ok("api-key", "list")
    yard.ok("api-key", "revoke", made["id"])
    assert made["id"] not in yard.ok("api-key", "list")
    assert yard.run("api-key", "revoke", "tok_none").returncode == 3
