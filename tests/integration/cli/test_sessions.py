"""`sandyard session` with the real server."""

from __future__ import annotations

from tests.harness.up import Installation, run_json


def test_a_session_is_created_paused_forked_provisioned_archived_and_deleted(installation: Installation) -> None:
    session = run_json(installation, "session", "create", "--title", "Fix [bold]it", "--env", "STAGE=test", "--wait")
    assert session["sandbox"]["status"] == "running"
    session_id = session["id"]
    assert installation.ok("sandbox", "exec", session_id, "echo $STAGE") == "test\n", (
        "the id of a session stands for its sandbox"
    )
    table = installation.ok("session", "list", "-o", "table")
    assert "Fix [bold]it" in table
    assert session_id in table
    assert session_id in [item["id"] for item in run_json(installation, "session", "list")["items"]]
    assert run_json(installation, "session", "rename", session_id, "Fixed")["title"] == "Fixed"
    assert run_json(installation, "session", "pause", session_id)["sandbox"]["status"] == "paused"
    assert run_json(installation, "session", "show", session_id)["sandbox"]["status"] == "paused"
    assert run_json(installation, "session", "resume", session_id)["sandbox"]["status"] == "running"
    installation.ok("sandbox", "exec", session_id, "echo both > file")
    fork = run_json(installation, "session", "fork", session_id, "--title", "Another way")
    assert (fork["title"], fork["sandbox"]["status"]) == ("Another way", "running")
    assert installation.ok("sandbox", "exec", fork["id"], "cat file") == "both\n"
    installation.ok("session", "delete", fork["id"], "--yes")
    installation.ok("sandbox", "kill", session_id)
    provisioned = run_json(installation, "session", "provision", session_id)
    assert provisioned["sandboxId"] != session["sandboxId"]
    assert run_json(installation, "session", "archive", session_id)["archivedAt"]
    assert session_id in [item["id"] for item in run_json(installation, "session", "list", "--archived")["items"]]
    assert installation.run("session", "delete", session_id).returncode == 1, "there is no terminal to confirm on"
    installation.ok("session", "delete", session_id, "--yes")
    assert installation.run("session", "show", session_id).returncode == 3
