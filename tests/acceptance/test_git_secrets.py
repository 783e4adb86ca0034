"""What opens a repository is nowhere but in the vault: not in a log, an event, an answer, a process list, a file or a sandbox."""

from __future__ import annotations

import base64
import contextlib
import json
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from tests.acceptance.conftest import serving
from tests.acceptance.planted import Planted, Watch
from tests.acceptance.platform import Platform, ok, running, until
from tests.acceptance.workshop import Seat, Work, problem, work
from tests.forge import GitHub, forge
from tests.protocol.engine import Engine

pytestmark = pytest.mark.timeout(600)
SETTINGS = {"FORGE_POLL_S": "2", "LOG_LEVEL": "debug", "GIT_TIMEOUT_S": "30", "CREATES_PER_MINUTE": "1000"}
CANARY = "canary-" + secrets.token_hex(16)
"""Put into a sandbox by the test, to know that the search would find what is there."""


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with serving(POOL_SIZE="2", LOG_LEVEL="debug") as engine:
        yield engine


@pytest.fixture(scope="module")
def github() -> Iterator[GitHub]:
    with forge() as github:
        yield github


@pytest.fixture(scope="module")
def platform(engine: Engine) -> Iterator[Platform]:
    with running(engine, None, **SETTINGS) as platform:
        yield platform


def test_planted_secrets_are_found_nowhere(engine: Engine, platform: Platform, github: GitHub) -> None:
    began = time.time() - 1
    planted = Planted()
    answers: list[str] = []
    token = f"ghp_{secrets.token_hex(20)}"
    webhook = f"whsec+/={secrets.token_urlsafe(24)}&%"
    key = ed25519.Ed25519PrivateKey.generate()
    ssh_key = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()).decode()
    app = github.app("acme")
    for name, text in (
        ("token", token),
        ("webhook secret", webhook),
        ("ssh key", ssh_key),
        ("app key", app.private_key),
    ):
        planted.plant(name, text)
    assert planted.in_text(f"Basic {_basic(token)}") == {"token, base64"}, "the search finds what it is to find"

    with Watch(planted) as watch:
        project = work(platform, github, text=token)
        project.credentials(webhookSecret=webhook, sshKey=ssh_key)
        seat = _story(project, planted, watch, answers)
        by_app = work(platform, github)
        ok(platform.client.delete(f"/projects/{by_app.id}/credentials/token"))
        given = {"appId": str(app.app_id), "installationId": str(app.installation_id), "privateKey": app.private_key}
        by_app.credentials(app=given)
        other = _story(by_app, planted, watch, answers)
        _by_ssh(platform, ssh_key, watch, answers)
    assert watch.rounds > 20
    assert {"git-remote-http", "ssh"} <= watch.names, "the right moments were watched"
    assert watch.hits == set()

    answers += _everything(platform, [project.id, by_app.id], [seat, other])
    for answer in answers:
        assert planted.in_text(answer) == set(), answer[:300]
    assert planted.in_files(platform.folder) == {}, "neither log nor database nor mirror"
    assert planted.found(engine.log.read_bytes()) == set()
    assert github.tokens.installations(), "an App's tokens were made, and looked for too"

    planted.plant("canary", CANARY)
    for one in (seat, other):
        _inside(engine, planted, one, began)


def _story(project: Work, planted: Planted, watch: Watch, answers: list[str]) -> Seat:
    """Clone, push and pull request, each held in the middle for the watch to see; and some failures."""
    github = project.github
    gate = github.faults.hold("fetch")
    seat = project.begin()
    gate.wait()
    for made in github.tokens.installations():
        planted.plant("installation token", made)
    watch.looks()
    gate.release()
    seat.mark_ready()
    seat.change("a.txt", "a\n", "feat: a")
    project.repository.reject("Not on Sundays.")
    answers.append(json.dumps(problem(seat.ask("push"))))
    project.repository.accept()
    github.faults.answer(502, times=100, on="git")
    answers.append(json.dumps(problem(seat.ask("push"))))
    github.faults.clear()
    gate = github.faults.hold("push")
    pushing = threading.Thread(target=seat.ask, args=("push",))
    pushing.start()
    gate.wait()
    watch.looks()
    gate.release()
    pushing.join()
    answers.append(json.dumps(seat.pull_request()[1]))
    assert seat.checkout()["pushed"]
    return seat


def _by_ssh(platform: Platform, ssh_key: str, watch: Watch, answers: list[str]) -> None:
    """A server that takes the connection and says nothing: ssh has the key in its hands, and waits."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        body = {"name": "by ssh", "repository": f"ssh://git@127.0.0.1:{port}/acme/website.git"}
        made = ok(platform.client.post("/projects", json=body), 201)
        answers.append(ok_text(platform.client.put(f"/projects/{made['id']}/credentials", json={"sshKey": ssh_key})))

        def take() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    watch.looks()
                    connection.close()

        threading.Thread(target=take, daemon=True).start()
        answers.append(ok_text(platform.client.post(f"/projects/{made['id']}/test")))
        server.shutdown(socket.SHUT_RDWR)


def ok_text(answer: httpx.Response) -> str:
    assert answer.is_success, answer.text
    return answer.text


def _everything(platform: Platform, projects: list[str], seats: list[Seat]) -> Iterator[str]:
    """Every answer of the API that could tell of them."""
    client = platform.client
    for project in projects:
        for path in ("", "/credentials", "/members", "/compare?base=main&head=main"):
            yield ok_text(client.get(f"/projects/{project}{path}"))
    for seat in seats:
        for path in ("", "/status", "/history", "/diff"):
            yield ok_text(client.get(f"/git/{seat.sandbox}{path}"))
        for path in ("", "/messages", "/checkpoints", "/pull-request", "/sandbox"):
            yield ok_text(client.get(f"/sessions/{seat.id}{path}"))
        yield ok_text(client.get(f"/sandboxes/{seat.sandbox}/commands"))
    for path in ("/events/history", "/audit", "/git/operations", "/github/pull-requests", "/projects", "/sessions"):
        cursor: str | None = None
        while True:
            page = ok_text(client.get(path, params={"limit": 200, **({"cursor": cursor} if cursor else {})}))
            yield page
            cursor = json.loads(page).get("nextCursor")
            if not cursor:
                break
    yield httpx.get(f"{platform.url}/metrics", headers=client.headers).text


def _inside(engine: Engine, planted: Planted, seat: Seat, began: float) -> None:
    """The sandbox's own disk and the memory of all that runs in it, seen from the host."""
    seat.execute(f"echo {CANARY} > /home/user/canary.txt; git log --format=%H >/dev/null")
    started = {"command": f"C={CANARY} exec sleep 300", "background": True}
    ok(seat.client.post(f"/sandboxes/{seat.sandbox}/execute", json=started), 202)
    known = ok(seat.client.get(f"/sandboxes/{seat.sandbox}"))["engineId"]
    pids = until(
        lambda: (
            [pid for pid in _processes(engine, known) if planted.in_memory(pid) & {"canary"}]
            and _processes(engine, known)
        )
    )
    assert len(pids) > 1
    memory = {pid: _leaks(planted.in_memory(pid)) for pid in pids}
    assert not any(memory.values()), memory
    root = Path(f"/proc/{pids[-1]}/root")
    files = planted.in_files(root, since=began)
    assert not any(_leaks(names) for names in files.values()), files
    assert f"{root}/home/user/canary.txt" in files, "the search sees the sandbox's disk"


def _leaks(names: set[str]) -> set[str]:
    return {name for name in names if not name.startswith("canary")}


def _processes(engine: Engine, sandbox: str) -> list[int]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            groups = (process / "cgroup").read_text()
            if "/sandyard-" in groups and sandbox in groups:
                found.append(int(process.name))
    return sorted(found)


def _basic(token: str) -> str:
    return base64.b64encode(f"x-access-token:{token}".encode()).decode()
