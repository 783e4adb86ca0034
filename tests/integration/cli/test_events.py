"""`sandyard events` against the real server, which is killed while somebody follows."""

from __future__ import annotations

import json
import signal

import pytest

from tests.integration.cli.real import Yard, read


@pytest.mark.slow
def test_events_are_followed_across_a_restart(yard: Yard, box: str) -> None:
    last = read(yard, "events", "--limit", "1000")["items"][-1]["seq"]
    following = yard.begin("events", "--follow", "--after", str(last), "-o", "json")
    first = read(yard, "session", "create", "--title", "before")
    following.heard(rf'"session.created".*{first["id"]}')
    yard.kill("platform")
    second = read(yard, "session", "create", "--title", "after")
    following.heard(rf'"session.created".*{second["id"]}')
    following.process.send_signal(signal.SIGINT)
    assert following.ends() == 0
    numbers = [json.loads(line)["seq"] for line in following.said if line.startswith("{")]
    assert numbers == sorted(set(numbers))
    stored = [event["seq"] for event in read(yard, "events", "--after", str(last), "--limit", "1000")["items"]]
    assert numbers == stored[: len(numbers)]
    table = yard.ok("events", "--session", first["id"], "-o", "table")
    assert "session.created" in table
    everything = read(yard, "events", "--limit", "1000")["items"]
    assert [event["seq"] for event in read(yard, "events", "--limit", "3")["items"]] == [
        e["seq"] for e in everything[-3:]
    ]
