"""Test what a user does, from the first session to its deletion, with the platform killed in between."""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Iterator

import httpx
import pytest
from e2b import Sandbox

from tests.harness.engine import Engine
from tests.harness.platform import Platform, ok, running, until

pytestmark = pytest.mark.timeout(400)
QUICK = {"IDLE_SECONDS": "6", "RECONCILE_EVERY_S": "2", "HEALTH_EVERY_S": "2"}


@pytest.fixture
def platform(engine: Engine, database_url: str) -> Iterator[Platform]:
    with running(engine, database_url, **QUICK) as platform:
        yield platform


def execute(client: httpx.Client, sandbox: str, command: str, **more: object) -> dict[str, object]:
    result: dict[str, object] = ok(client.post(f"/sandboxes/{sandbox}/execute", json={"command": command, **more}))
    return result


def get_status(client: httpx.Client, sandbox: str) -> str:
    return str(ok(client.get(f"/sandboxes/{sandbox}"))["status"])


def test_a_session_from_creation_to_deletion(engine: Engine, platform: Platform) -> None:
    client = platform.client
    session = ok(client.post("/sessions", json={"title": "first"}), 201)
    sandbox = session["sandboxId"]
    assert session["sandbox"]["status"] in ("provisioning", "running")

    result = execute(client, sandbox, "echo out; echo err >&2; exit 3")
    assert (result["stdout"], result["stderr"], result["exitCode"]) == ("out\n", "err\n", 3)

    body = secrets.token_bytes(3_000_000)
    ok(client.put(f"/sandboxes/{sandbox}/files", params={"path": "work/data.bin"}, content=body))
    assert client.get(f"/sandboxes/{sandbox}/files", params={"path": "work/data.bin"}).content == body
    missing = client.get(f"/sandboxes/{sandbox}/files", params={"path": "/home/user/nope.txt"})
    assert missing.status_code == 404
    assert "/home/user/nope.txt" in missing.json()["detail"]

    # a process whose memory must be kept over the pause
    count_step = 'time.sleep(0.2); n += 1; open("/tmp/next", "w").write(str(n)); os.replace("/tmp/next", "/tmp/n")'
    counter = f"python3 -c 'import os, time\nn = 41\nwhile True:\n    {count_step}'"
    execute(client, sandbox, f"nohup {counter} >/dev/null 2>&1 & echo $! > /tmp/pid")
    until(lambda: get_status(client, sandbox) == "paused")
    assert [info.state.value for info in Sandbox.list().next_items()] == ["paused"]
    for _ in range(3):
        assert get_status(client, sandbox) == "paused", "reading must not resume the sandbox"
        ok(client.get(f"/sandboxes/{sandbox}/metrics"))
    assert execute(client, sandbox, "kill -0 $(cat /tmp/pid) && echo alive")["stdout"] == "alive\n"
    count = int(str(execute(client, sandbox, "cat /tmp/n")["stdout"]))
    assert until(lambda: int(str(execute(client, sandbox, "cat /tmp/n")["stdout"])) > count), (
        "the process must continue counting"
    )
    assert client.get(f"/sandboxes/{sandbox}/files", params={"path": "work/data.bin"}).content == body

    # the platform is killed during a command
    background_command = ok(
        client.post(
            f"/sandboxes/{sandbox}/execute",
            json={"command": "for i in $(seq 300); do echo line $i; sleep 0.02; done; exit 7", "background": True},
        ),
        202,
    )
    until(lambda: ok(client.get(f"/commands/{background_command['id']}"))["stdoutBytes"] > 100)
    platform.restart()
    client = platform.client
    finished = until(
        lambda: (seen := ok(client.get(f"/commands/{background_command['id']}")))["status"] == "exited" and seen
    )
    assert finished["exitCode"] == 7
    output = ok(client.get(f"/commands/{background_command['id']}/output", params={"limit": 1_000_000}))
    assert output["text"] == "".join(f"line {i}\n" for i in range(1, 301))
    assert output["complete"]

    # everything can be read back
    events = ok(client.get("/events/history", params={"sessionId": session["id"], "limit": 200}))["items"]
    kinds = [event["kind"] for event in events]
    for kind in ("session.created", "sandbox.running", "file.uploaded", "sandbox.paused", "sandbox.resumed"):
        assert kind in kinds
    assert sorted(event["seq"] for event in events) == [event["seq"] for event in events]

    assert client.delete(f"/sandboxes/{sandbox}").status_code == 204
    assert client.delete(f"/sandboxes/{sandbox}").status_code == 204
    assert get_status(client, sandbox) == "destroyed"
    assert client.post(f"/sandboxes/{sandbox}/execute", json={"command": "true"}).status_code == 410
    assert ok(client.delete(f"/sessions/{session['id']}"), 204) is None
    assert client.get(f"/sessions/{session['id']}").status_code == 404
    until(lambda: not Sandbox.list().next_items())
    assert not Sandbox.list_snapshots().next_items(), "no checkpoint may be left"


def test_the_event_stream_continues_after_a_restart_without_gaps(platform: Platform) -> None:
    """A reader that is disconnected when the platform is killed resumes after its last event."""
    client = platform.client
    seen: list[int] = []
    kinds: list[str] = []

    def read(until_kind: str) -> None:
        headers = {"Last-Event-ID": str(seen[-1])} if seen else {"Last-Event-ID": "0"}
        with client.stream("GET", "/events", headers=headers) as stream:
            for line in stream.iter_lines():
                if line.startswith("data:"):
                    event = json.loads(line[5:])
                    seen.append(event["seq"])
                    kinds.append(event["kind"])
                    if event["kind"] == until_kind:
                        return

    reader = threading.Thread(target=read, args=("sandbox.running",))
    reader.start()
    session = ok(client.post("/sessions", json={}), 201)
    reader.join(60)
    assert "session.created" in kinds
    platform.restart()
    client = platform.client
    execute(client, session["sandboxId"], "echo hello")
    read("command.finished")
    assert seen == list(range(seen[0], seen[-1] + 1)), "events must not be missing or repeated"
    ok(client.delete(f"/sessions/{session['id']}"))


def test_a_lost_sandbox_is_replaced_from_its_checkpoint(engine: Engine, platform: Platform) -> None:
    client = platform.client
    session = ok(client.post("/sessions", json={}), 201)
    sandbox = session["sandboxId"]
    execute(client, sandbox, "echo precious > work.txt")
    ok(client.post(f"/sessions/{session['id']}/checkpoint"))
    Sandbox.kill(ok(client.get(f"/sandboxes/{sandbox}"))["engineId"])  # without telling the platform
    until(lambda: get_status(client, sandbox) == "error")
    assert ok(client.get(f"/sandboxes/{sandbox}"))["error"]
    refused = client.post(f"/sandboxes/{sandbox}/execute", json={"command": "true"})
    assert (refused.status_code, refused.json()["code"]) == (409, "sandbox_failed")
    replacement = ok(client.post(f"/sessions/{session['id']}/provision"), 201)
    assert replacement["sandboxId"] != sandbox
    assert execute(client, replacement["sandboxId"], "cat work.txt")["stdout"] == "precious\n"
    assert client.post(f"/sessions/{session['id']}/provision").status_code == 409
    ok(client.delete(f"/sessions/{session['id']}"))


def test_crashes_during_creation_leak_no_sandbox(engine: Engine, platform: Platform) -> None:
    """A platform killed during creation finds its sandboxes again or kills them, so that each has a database row."""
    for _ in range(2):
        client = platform.client
        requests = [
            threading.Thread(target=_post_ignoring_disconnects, args=(client, "/sessions")),
            threading.Thread(target=_post_ignoring_disconnects, args=(client, "/sandboxes")),
        ]
        for request in requests:
            request.start()
        requests[0].join(0.05)
        platform.kill()
        for request in requests:
            request.join()
        platform.start()
    client = platform.client

    def is_settled() -> bool:
        rows = ok(client.get("/sandboxes", params={"limit": 200}))["items"]
        known_ids = {row["engineId"] for row in rows if row["status"] in ("running", "paused")}
        engine_ids = {info.sandbox_id for info in Sandbox.list().next_items()}
        return known_ids == engine_ids and all(row["status"] != "provisioning" for row in rows)

    until(is_settled)
    for row in ok(client.get("/sandboxes", params={"limit": 200}))["items"]:
        ok(client.delete(f"/sandboxes/{row['id']}"))
    assert not Sandbox.list().next_items()


def _post_ignoring_disconnects(client: httpx.Client, path: str) -> None:
    try:
        client.post(path, json={})
    except httpx.TransportError:
        return


@pytest.mark.slow
def test_an_unreachable_engine_is_reported_and_used_again_when_it_is_back(engine: Engine, platform: Platform) -> None:
    client = platform.client
    sandbox = ok(client.post("/sandboxes", json={}), 201)["id"]
    engine.kill()
    refused = client.post("/sandboxes", json={})
    assert refused.status_code in (503, 504), refused.text
    assert refused.json()["code"] in ("engine_unreachable", "engine_timeout")
    assert ok(client.get(f"/sandboxes/{sandbox}"))["status"] == "running", (
        "the status must not change while the engine is unreachable"
    )
    engine.start()
    until(lambda: client.post(f"/sandboxes/{sandbox}/execute", json={"command": "true"}).status_code == 200)
    ok(client.delete(f"/sandboxes/{sandbox}"))
