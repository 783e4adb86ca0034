"""`sandyard sandbox create, list, pause, resume, fork, kill` with the real server."""

from __future__ import annotations

from tests.harness.up import Yard, run_json


def test_a_sandbox_is_created_paused_resumed_forked_and_killed(yard: Yard) -> None:
    made = run_json(yard, "sandbox", "create", "--idle-seconds", "600")
    name = made["id"]
    yard.ok("sandbox", "exec", name, "echo kept > note")
    assert run_json(yard, "sandbox", "pause", name)["status"] == "paused"
    assert f"{name}  paused" in yard.ok("sandbox", "list", "-o", "table")
    assert run_json(yard, "sandbox", "resume", name)["status"] == "running"
    copy = run_json(yard, "sandbox", "fork", name)
    assert yard.ok("sandbox", "exec", copy["id"], "cat note") == "kept\n"
    yard.ok("sandbox", "kill", name, copy["id"])
    yard.ok("sandbox", "kill", name)
    assert name in [sandbox["id"] for sandbox in run_json(yard, "sandbox", "list", "--status", "destroyed")["items"]]
    assert yard.run("sandbox", "kill", "sbx_none").returncode == 3
    assert yard.run("sandbox", "exec", name, "true").returncode == 3
