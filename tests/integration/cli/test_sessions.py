"""`sandyard session` with the real server."""

from __future__ import annotations

from tests.harness.up import Yard, run_json


def test_a_session_is_created_paused_provisioned_archived_and_deleted(yard: Yard) -> None:
    made = run_json(yard, "session", "create", "--title", "Fix [bold]it", "--env", "STAGE=test", "--wait")
    assert made["sandbox"]["status"] == "running"
    name = made["id"]
    assert yard.ok("sandbox", "exec", name, "echo $STAGE") == "test\n", "the id of a session stands for its sandbox"
    table = yard.ok("session", "list", "-o", "table")
    assert "Fix [bold]it" in table
    assert made["sandboxId"] in table
    assert name in [session["id"] for session in run_json(yard, "session", "list")["items"]]
    assert run_json(yard, "session", "rename", name, "Fixed")["title"] == "Fixed"
    assert run_json(yard, "session", "pause", name)["sandbox"]["status"] == "paused"
    assert run_json(yard, "session", "show", name)["sandbox"]["status"] == "paused"
    assert run_json(yard, "session", "resume", name)["sandbox"]["status"] == "running"
    yard.ok("sandbox", "kill", name)
    again = run_json(yard, "session", "provision", name)
    assert again["sandboxId"] != made["sandboxId"]
    assert run_json(yard, "session", "archive", name)["archivedAt"]
    assert name in [session["id"] for session in run_json(yard, "session", "list", "--archived")["items"]]
    assert yard.run("session", "delete", name).returncode == 1, "there is no terminal to confirm on"
    yard.ok("session", "delete", name, "--yes")
    assert yard.run("session", "show", name).returncode == 3
