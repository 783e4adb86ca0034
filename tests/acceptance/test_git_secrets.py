"""Test that credentials of repositories are only in the vault: not in a log, event, response, process list, file or sandbox."""

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

from tests.acceptance.project_client import ForgeProject, Session, check_problem, create_forge_project
from tests.acceptance.secret_scanner import ProcessWatcher, SecretScanner
from tests.forge import GitHub, forge
from tests.harness.engine import Engine, serving
from tests.harness.platform import Platform, ok, running, until

pytestmark = pytest.mark.timeout(600)
SETTINGS = {"FORGE_POLL_S": "2", "LOG_LEVEL": "debug", "GIT_TIMEOUT_S": "30", "CREATES_PER_MINUTE": "1000"}
CANARY = "canary-" + secrets.token_hex(16)
"""The test puts it into a sandbox to check that the search finds what is there."""


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with serving(POOL_SIZE="0", LOG_LEVEL="debug") as engine:
        yield engine


@pytest.fixture(scope="module")
def github() -> Iterator[GitHub]:
    with forge() as github:
        yield github


@pytest.fixture(scope="module")
def platform(engine: Engine) -> Iterator[Platform]:
    with running(engine, None, **SETTINGS) as platform:
        yield platform


def test_credentials_are_not_disclosed_anywhere(engine: Engine, platform: Platform, github: GitHub) -> None:
    started_at = time.time() - 1
    scanner = SecretScanner()
    responses: list[str] = []
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
        scanner.add_secret(name, text)
    assert scanner.find_in_text(f"Basic {_encode_basic_credentials(token)}") == {"token, base64"}, (
        "the search must find encoded secrets"
    )

    with ProcessWatcher(scanner) as watcher:
        project = create_forge_project(platform, github, text=token)
        project.set_credentials(webhookSecret=webhook, sshKey=ssh_key)
        session = _run_git_operations(project, scanner, watcher, responses)
        by_app = create_forge_project(platform, github)
        ok(platform.client.delete(f"/projects/{by_app.id}/credentials/token"))
        credentials = {
            "appId": str(app.app_id),
            "installationId": str(app.installation_id),
            "privateKey": app.private_key,
        }
        by_app.set_credentials(app=credentials)
        app_session = _run_git_operations(by_app, scanner, watcher, responses)
        _connect_by_ssh(platform, ssh_key, watcher, responses)
    assert watcher.rounds > 20
    assert {"git-remote-http", "ssh"} <= watcher.names, "the watcher must have seen git and ssh running"
    assert watcher.hits == set()

    responses += _read_all_responses(platform, [project.id, by_app.id], [session, app_session])
    for response in responses:
        assert scanner.find_in_text(response) == set(), response[:300]
    assert scanner.find_in_files(platform.folder) == {}, "no secret may be in the log, the database or the mirror"
    assert scanner.find_in_bytes(engine.log.read_bytes()) == set()
    assert github.tokens.installations(), "tokens of the App must have been created and searched for"

    scanner.add_secret("canary", CANARY)
    for target in (session, app_session):
        _search_sandbox(engine, scanner, target, started_at)


def _run_git_operations(
    project: ForgeProject, scanner: SecretScanner, watcher: ProcessWatcher, responses: list[str]
) -> Session:
    """Clone, push and open a pull request, each paused for a scan of all processes; and cause some failures."""
    github = project.github
    gate = github.faults.hold("fetch")
    session = project.start_session()
    gate.wait()
    for token in github.tokens.installations():
        scanner.add_secret("installation token", token)
    watcher.wait_for_scan()
    gate.release()
    session.wait_for_checkout()
    session.commit_file("a.txt", "a\n", "feat: a")
    project.repository.reject("Not on Sundays.")
    responses.append(json.dumps(check_problem(session.post_git("push"))))
    project.repository.accept()
    github.faults.answer(502, times=100, on="git")
    responses.append(json.dumps(check_problem(session.post_git("push"))))
    github.faults.clear()
    gate = github.faults.hold("push")
    pushing = threading.Thread(target=session.post_git, args=("push",))
    pushing.start()
    gate.wait()
    watcher.wait_for_scan()
    gate.release()
    pushing.join()
    responses.append(json.dumps(session.open_pull_request()[1]))
    assert session.checkout()["pushed"]
    return session


def _connect_by_ssh(platform: Platform, ssh_key: str, watcher: ProcessWatcher, responses: list[str]) -> None:
    """Connect to a server that accepts and sends nothing, so that ssh waits while it holds the key."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        body = {"name": "by ssh", "repository": f"ssh://git@127.0.0.1:{port}/acme/website.git"}
        created = ok(platform.client.post("/projects", json=body), 201)
        responses.append(
            get_text(platform.client.put(f"/projects/{created['id']}/credentials", json={"sshKey": ssh_key}))
        )

        def accept_connections() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    watcher.wait_for_scan()
                    connection.close()

        threading.Thread(target=accept_connections, daemon=True).start()
        responses.append(get_text(platform.client.post(f"/projects/{created['id']}/test")))
        server.shutdown(socket.SHUT_RDWR)


def get_text(response: httpx.Response) -> str:
    assert response.is_success, response.text
    return response.text


def _read_all_responses(platform: Platform, projects: list[str], sessions: list[Session]) -> Iterator[str]:
    """Yield every response of the API that could contain credentials."""
    client = platform.client
    for project in projects:
        for path in ("", "/credentials", "/members", "/compare?base=main&head=main"):
            yield get_text(client.get(f"/projects/{project}{path}"))
    for session in sessions:
        for path in ("", "/status", "/history", "/diff"):
            yield get_text(client.get(f"/git/{session.sandbox}{path}"))
        for path in ("", "/messages", "/checkpoints", "/pull-request", "/sandbox"):
            yield get_text(client.get(f"/sessions/{session.id}{path}"))
        yield get_text(client.get(f"/sandboxes/{session.sandbox}/commands"))
    for path in ("/events/history", "/audit", "/git/operations", "/github/pull-requests", "/projects", "/sessions"):
        cursor: str | None = None
        while True:
            page = get_text(client.get(path, params={"limit": 200, **({"cursor": cursor} if cursor else {})}))
            yield page
            cursor = json.loads(page).get("nextCursor")
            if not cursor:
                break
    yield httpx.get(f"{platform.url}/metrics", headers=client.headers).text


def _search_sandbox(engine: Engine, scanner: SecretScanner, session: Session, started_at: float) -> None:
    """Search the disk of the sandbox and the memory of its processes, from the host."""
    session.execute(f"echo {CANARY} > /home/user/canary.txt; git log --format=%H >/dev/null")
    command = {"command": f"C={CANARY} exec sleep 300", "background": True}
    ok(session.client.post(f"/sandboxes/{session.sandbox}/execute", json=command), 202)
    engine_id = ok(session.client.get(f"/sandboxes/{session.sandbox}"))["engineId"]
    pids = until(
        lambda: (
            [pid for pid in _list_processes(engine, engine_id) if scanner.find_in_memory(pid) & {"canary"}]
            and _list_processes(engine, engine_id)
        )
    )
    assert len(pids) > 1
    memory = {pid: _remove_canary(scanner.find_in_memory(pid)) for pid in pids}
    assert not any(memory.values()), memory
    root = Path(f"/proc/{pids[-1]}/root")
    files = scanner.find_in_files(root, since=started_at)
    assert not any(_remove_canary(names) for names in files.values()), files
    assert f"{root}/home/user/canary.txt" in files, "the search must include the disk of the sandbox"


def _remove_canary(names: set[str]) -> set[str]:
    return {name for name in names if not name.startswith("canary")}


def _list_processes(engine: Engine, sandbox: str) -> list[int]:
    pids = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            groups = (process / "cgroup").read_text()
            if "/sandyard-" in groups and sandbox in groups:
                pids.append(int(process.name))
    return sorted(pids)


def _encode_basic_credentials(token: str) -> str:
    return base64.b64encode(f"x-access-token:{token}".encode()).decode()
