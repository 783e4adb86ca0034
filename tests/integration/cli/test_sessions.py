"""`sandyard session` against the real server."""

from __future__ import annotations

from tests.integration.cli.real import Yard, read


def test_the_life_of_a_session(yard: Yard) -> None:
    made = read(yard, "session", "create", "--title", "Fix [bold]it", "--env", "STAGE=test", "--wait")
    assert made["sandbox"]["status"] == "running"
    name = made["id"]
    assert yard.ok("sandbox", "exec", name, "echo $STAGE") == "test\n", "a session's id does for its sandbox's"
    table = yard.ok("session", "list", "-o", "table")
    assert "Fix [bold]it" in table
    assert made["sandboxId"] in table
    assert name in [session["id"] for session in read(yard, "session", "list")["items"]]
    assert read(yard, "session", "rename", name, "Fixed")["title"] == "Fixed"
    assert read(yard, "session", "pause", name)["sandbox"]["status"] == "paused"
    assert read(yard, "session", "show", name)["sandbox"]["status"] == "paused"
    assert read(yard, "session", "resume", name)["sandbox"]["status"] == "running"
    yard.ok("sandbox", "kill", name)
    again = read(yard, "session", "provision", name)
    assert again["sandboxId"] != made["sandboxId"]
    assert read(yard, "session", "archive", name)["archivedAt"]
    assert name in [session["id"] for session in read(yard, "session", "list", "--archived")["items"]]
    assert yard.run("session", "delete", name).returncode == 1, "nobody is there to say yes"
    yard.ok("session", "delete", name, "--yes")
    assert yard.run("session", "show", name).returncode == 3
