"""What a user of the platform does, from the first session to nothing left, with the platform killed on the way."""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Iterator

import httpx
import pytest
from e2b import Sandbox

from tests.acceptance.conftest import serving
from tests.acceptance.platform import Platform, ok, running, until
from tests.protocol.engine import Engine

pytestmark = pytest.mark.timeout(400)
QUICK = {"IDLE_SECONDS": "6", "RECONCILE_EVERY_S": "2", "HEALTH_EVERY_S": "2"}


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with serving(POOL_SIZE="2") as engine:
        yield engine


@pytest.fixture
def platform(engine: Engine, database_url: str) -> Iterator[Platform]:
    with running(engine, database_url, **QUICK) as platform:
        yield platform


def execute(client: httpx.Client, sandbox: str, command: str, **more: object) -> dict[str, object]:
    result: dict[str, object] = ok(client.post(f"/sandboxes/{sandbox}/execute", json={"command": command, **more}))
    return result


def status(client: httpx.Client, sandbox: str) -> str:
    return str(ok(client.get(f"/sandboxes/{sandbox}"))["status"])


def test_the_life_of_a_session(engine: Engine, platform: Platform) -> None:
    client = platform.client
    session = ok(client.post("/sessions", json={"title": "first"}), 201)
    sandbox = session["sandboxId"]
    assert session["sandbox"]["status"] in ("provisioning", "running")

    said = execute(client, sandbox, "echo out; echo err >&2; exit 3")
    assert (said["stdout"], said["stderr"], said["exitCode"]) == ("out\n", "err\n", 3)

    body = secrets.token_bytes(3_000_000)
    ok(client.put(f"/sandboxes/{sandbox}/files", params={"path": "work/data.bin"}, content=body))
    assert client.get(f"/sandboxes/{sandbox}/files", params={"path": "work/data.bin"}).content == body
    missing = client.get(f"/sandboxes/{sandbox}/files", params={"path": "/home/user/nope.txt"})
    assert missing.status_code == 404
    assert "/home/user/nope.txt" in missing.json()["detail"]

    # a process whose memory must be found again
    step = 'time.sleep(0.2); n += 1; open("/tmp/next", "w").write(str(n)); os.replace("/tmp/next", "/tmp/n")'
    counter = f"python3 -c 'import os, time\nn = 41\nwhile True:\n    {step}'"
    execute(client, sandbox, f"nohup {counter} >/dev/null 2>&1 & echo $! > /tmp/pid")
    until(lambda: status(client, sandbox) == "paused")
    assert [info.state.value for info in Sandbox.list().next_items()] == ["paused"]
    for _ in range(3):
        assert status(client, sandbox) == "paused", "to look does not wake"
        ok(client.get(f"/sandboxes/{sandbox}/metrics"))
    assert execute(client, sandbox, "kill -0 $(cat /tmp/pid) && echo alive")["stdout"] == "alive\n"
    count = int(str(execute(client, sandbox, "cat /tmp/n")["stdout"]))
    assert until(lambda: int(str(execute(client, sandbox, "cat /tmp/n")["stdout"])) > count), "it goes on counting"
    assert client.get(f"/sandboxes/{sandbox}/files", params={"path": "work/data.bin"}).content == body

    # the platform dies in the middle of a command
    running = ok(
        client.post(
            f"/sandboxes/{sandbox}/execute",
            json={"command": "for i in $(seq 300); do echo line $i; sleep 0.02; done; exit 7", "background": True},
        ),
        202,
    )
    until(lambda: ok(client.get(f"/commands/{running['id']}"))["stdoutBytes"] > 100)
    platform.restart()
    client = platform.client
    over = until(lambda: (seen := ok(client.get(f"/commands/{running['id']}")))["status"] == "exited" and seen)
    assert over["exitCode"] == 7
    text = ok(client.get(f"/commands/{running['id']}/output", params={"limit": 1_000_000}))
    assert text["text"] == "".join(f"line {i}\n" for i in range(1, 301))
    assert text["complete"]

    # everything can be read back
    events = ok(client.get("/events/history", params={"sessionId": session["id"], "limit": 200}))["items"]
    kinds = [event["kind"] for event in events]
    for kind in ("session.created", "sandbox.running", "file.uploaded", "sandbox.paused", "sandbox.resumed"):
        assert kind in kinds
    assert sorted(event["seq"] for event in events) == [event["seq"] for event in events]

    assert client.delete(f"/sandboxes/{sandbox}").status_code == 204
    assert client.delete(f"/sandboxes/{sandbox}").status_code == 204
    assert status(client, sandbox) == "destroyed"
    assert client.post(f"/sandboxes/{sandbox}/execute", json={"command": "true"}).status_code == 410
    assert ok(client.delete(f"/sessions/{session['id']}"), 204) is None
    assert client.get(f"/sessions/{session['id']}").status_code == 404
    until(lambda: not Sandbox.list().next_items())
    assert not Sandbox.list_snapshots().next_items(), "no checkpoint is left either"


def test_events_are_watched_live_and_nothing_is_missed(platform: Platform) -> None:
    """A reader that is cut off by the platform's death goes on with what came after its last event."""
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
    assert seen == list(range(seen[0], seen[-1] + 1)), "none is missing, none comes twice"
    ok(client.delete(f"/sessions/{session['id']}"))


def test_a_sandbox_that_died_is_shown_and_replaced_from_its_checkpoint(engine: Engine, platform: Platform) -> None:
    client = platform.client
    session = ok(client.post("/sessions", json={}), 201)
    sandbox = session["sandboxId"]
    execute(client, sandbox, "echo precious > work.txt")
    ok(client.post(f"/sessions/{session['id']}/checkpoint"))
    Sandbox.kill(ok(client.get(f"/sandboxes/{sandbox}"))["engineId"])  # behind the platform's back
    until(lambda: status(client, sandbox) == "error")
    assert ok(client.get(f"/sandboxes/{sandbox}"))["error"]
    refused = client.post(f"/sandboxes/{sandbox}/execute", json={"command": "true"})
    assert (refused.status_code, refused.json()["code"]) == (409, "sandbox_failed")
    again = ok(client.post(f"/sessions/{session['id']}/provision"), 201)
    assert again["sandboxId"] != sandbox
    assert execute(client, again["sandboxId"], "cat work.txt")["stdout"] == "precious\n"
    assert client.post(f"/sessions/{session['id']}/provision").status_code == 409
    ok(client.delete(f"/sessions/{session['id']}"))


def test_no_crash_leaks_a_sandbox(engine: Engine, platform: Platform) -> None:
    """Killed while it creates, it finds its sandboxes again or ends them: none is left that no row knows."""
    for _ in range(2):
        client = platform.client
        makers = [
            threading.Thread(target=_quietly, args=(client, "/sessions")),
            threading.Thread(target=_quietly, args=(client, "/sandboxes")),
        ]
        for maker in makers:
            maker.start()
        makers[0].join(0.05)
        platform.kill()
        for maker in makers:
            maker.join()
        platform.start()
    client = platform.client

    def settled() -> bool:
        rows = ok(client.get("/sandboxes", params={"limit": 200}))["items"]
        known = {row["engineId"] for row in rows if row["status"] in ("running", "paused")}
        there = {info.sandbox_id for info in Sandbox.list().next_items()}
        return known == there and all(row["status"] != "provisioning" for row in rows)

    until(settled)
    for row in ok(client.get("/sandboxes", params={"limit": 200}))["items"]:
        ok(client.delete(f"/sandboxes/{row['id']}"))
    assert not Sandbox.list().next_items()


def _quietly(client: httpx.Client, path: str) -> None:
    try:
        client.post(path, json={})
    except httpx.TransportError:
        return


@pytest.mark.slow
def test_an_engine_that_is_away_is_said_so_and_comes_back(engine: Engine, platform: Platform) -> None:
    client = platform.client
    sandbox = ok(client.post("/sandboxes", json={}), 201)["id"]
    engine.kill()
    refused = client.post("/sandboxes", json={})
    assert refused.status_code in (503, 504), refused.text
    assert refused.json()["code"] in ("engine_unreachable", "engine_timeout")
    assert ok(client.get(f"/sandboxes/{sandbox}"))["status"] == "running", "what is not known is not changed"
    engine.start()
    until(lambda: client.post(f"/sandboxes/{sandbox}/execute", json={"command": "true"}).status_code == 200)
    ok(client.delete(f"/sandboxes/{sandbox}"))
