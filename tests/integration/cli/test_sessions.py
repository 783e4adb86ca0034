"""`sandyard session` with the real server."""

from __future__ import annotations

from tests.harness.up import Installation, run_json


def test_a_session_is_created_paused_forked_provisioned_archived_and_deleted(installation: Installation) -> None:
    made = run_json(installation, "session", "create", "--title", "Fix [bold]it", "--env", "STAGE=test", "--wait")
    assert made["sandbox"]["status"] == "running"
    name = made["id"]
    assert installation.ok("sandbox", "exec", name, "echo $STAGE") == "test\n", (
        "the id of a session stands for its sandbox"
    )
    table = installation.ok("session", "list", "-o", "table")
    assert "Fix [bold]it" in table
    assert made["sandboxId"] in table
    assert name in [session["id"] for session in run_json(installation, "session", "list")["items"]]
    assert run_json(installation, "session", "rename", name, "Fixed")["title"] == "Fixed"
    assert run_json(installation, "session", "pause", name)["sandbox"]["status"] == "paused"
    assert run_json(installation, "session", "show", name)["sandbox"]["status"] == "paused"
    assert run_json(installation, "session", "resume", name)["sandbox"]["status"] == "running"
    installation.ok("sandbox", "exec", name, "echo both > file")
    fork = run_json(installation, "session", "fork", name, "--title", "Another way")
    assert (fork["title"], fork["sandbox"]["status"]) == ("Another way", "running")
    assert installation.ok("sandbox", "exec", fork["id"], "cat file") == "both\n"
    installation.ok("session", "delete", fork["id"], "--yes")
    installation.ok("sandbox", "kill", name)
    again = run_json(installation, "session", "provision", name)
    assert again["sandboxId"] != made["sandboxId"]
    assert run_json(installation, "session", "archive", name)["archivedAt"]
    assert name in [session["id"] for session in run_json(installation, "session", "list", "--archived")["items"]]
    assert installation.run("session", "delete", name).returncode == 1, "there is no terminal to confirm on"
    installation.ok("session", "delete", name, "--yes")
    assert installation.run("session", "show", name).returncode == 3
