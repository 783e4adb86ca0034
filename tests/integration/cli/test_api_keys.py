"""`sandyard api-key` against the real server."""

from __future__ import annotations

from tests.integration.cli.real import Yard, read


def test_api_keys(yard: Yard) -> None:
    made = read(yard, "api-key", "create", "for a script")
    assert "for a script" in yard.ok("api-key", "list", "-o", "table")
    assert made["value"] not in yard.ok("api-key", "list")
    yard.ok("api-key", "revoke", made["id"])
    assert made["id"] not in yard.ok("api-key", "list")
    assert yard.run("api-key", "revoke", "tok_none").returncode == 3
