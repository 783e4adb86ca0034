"""`sandyard sandbox create, list, pause, resume, fork, kill` against the real server."""

from __future__ import annotations

from tests.integration.cli.real import Yard, read


def test_the_life_of_a_sandbox(yard: Yard) -> None:
    made = read(yard, "sandbox", "create", "--idle-seconds", "600")
    name = made["id"]
    yard.ok("sandbox", "exec", name, "echo kept > note")
    assert read(yard, "sandbox", "pause", name)["status"] == "paused"
    assert f"{name}  paused" in yard.ok("sandbox", "list", "-o", "table")
    assert read(yard, "sandbox", "resume", name)["status"] == "running"
    copy = read(yard, "sandbox", "fork", name)
    assert yard.ok("sandbox", "exec", copy["id"], "cat note") == "kept\n"
    yard.ok("sandbox", "kill", name, copy["id"])
    yard.ok("sandbox", "kill", name)
    assert name in [box["id"] for box in read(yard, "sandbox", "list", "--status", "destroyed")["items"]]
    assert yard.run("sandbox", "kill", "sbx_none").returncode == 3
    assert yard.run("sandbox", "exec", name, "true").returncode == 3
