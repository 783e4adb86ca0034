"""`sandyard events` with the real server, which is killed while a client follows."""

from __future__ import annotations

import json
import signal

import pytest

from tests.harness.up import Installation, run_json


@pytest.mark.slow
def test_events_are_followed_across_a_restart(installation: Installation, sandbox: str) -> None:
    last = run_json(installation, "events", "--limit", "1000")["items"][-1]["seq"]
    following = installation.start_command("events", "--follow", "--after", str(last), "-o", "json")
    first = run_json(installation, "session", "create", "--title", "before")
    following.wait_for_line(rf'"session.created".*{first["id"]}')
    installation.kill("platform")
    second = run_json(installation, "session", "create", "--title", "after")
    following.wait_for_line(rf'"session.created".*{second["id"]}')
    following.process.send_signal(signal.SIGINT)
    assert following.wait_for_exit() == 0
    numbers = [json.loads(line)["seq"] for line in following.lines if line.startswith("{")]
    assert numbers == sorted(set(numbers))
    stored = [
        event["seq"] for event in run_json(installation, "events", "--after", str(last), "--limit", "1000")["items"]
    ]
    assert numbers == stored[: len(numbers)]
    table = installation.ok("events", "--session", first["id"], "-o", "table")
    assert "session.created" in table
    everything = run_json(installation, "events", "--limit", "1000")["items"]
    assert [event["seq"] for event in run_json(installation, "events", "--limit", "3")["items"]] == [
        e["seq"] for e in everything[-3:]
    ]
