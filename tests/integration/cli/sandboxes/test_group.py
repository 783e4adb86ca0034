"""`sandyard sandbox create, list, pause, resume, fork, kill` with the real server."""

from __future__ import annotations

from tests.harness.up import Installation, run_json


def test_a_sandbox_is_created_paused_resumed_forked_and_killed(installation: Installation) -> None:
    made = run_json(installation, "sandbox", "create", "--idle-seconds", "600")
    name = made["id"]
    installation.ok("sandbox", "exec", name, "echo kept > note")
    assert run_json(installation, "sandbox", "pause", name)["status"] == "paused"
    assert f"{name}  paused" in installation.ok("sandbox", "list", "-o", "table")
    assert run_json(installation, "sandbox", "resume", name)["status"] == "running"
    copy = run_json(installation, "sandbox", "fork", name)
    assert installation.ok("sandbox", "exec", copy["id"], "cat note") == "kept\n"
    installation.ok("sandbox", "kill", name, copy["id"])
    installation.ok("sandbox", "kill", name)
    assert name in [
        sandbox["id"] for sandbox in run_json(installation, "sandbox", "list", "--status", "destroyed")["items"]
    ]
    assert installation.run("sandbox", "kill", "sbx_none").returncode == 3
    assert installation.run("sandbox", "exec", name, "true").returncode == 3
