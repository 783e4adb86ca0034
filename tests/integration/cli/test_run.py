"""`sandyard run` with a scripted server, and once with a platform that it starts itself."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner, Result

from sandyard.cli.main import cli
from sandyard.cli.up.health import choose_port
from tests.harness.engine import Engine
from tests.unit.cli.server import Reply, Server
from tests.unit.cli.tasks.answers import PULL, TASK, ScriptedTask, attempt, page, task


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "website"
    subprocess.run(["git", "init", "-q", "-b", "main", str(folder)], check=True)
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", "-C", str(folder), *identity, "commit", "-q", "--allow-empty", "-m", "begin"], check=True)
    return folder


@pytest.fixture
def scripted(server: Server) -> ScriptedTask:
    scripted = ScriptedTask(server)
    server.on("GET", "/me", Reply(200, {"name": "admin"}))
    server.on("GET", "/projects", page([]))
    server.on("POST", "/projects", lambda request: Reply(201, {"id": "prj_1", "settings": {}, **request.json()}))
    server.on("POST", "/projects/prj_1/test", Reply(200, {"ok": True, "findings": []}))
    server.on("POST", "/tasks", Reply(201, task("in_progress", attempt("queued"))))
    return scripted


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["run", *arguments])


def get_request_body(scripted: ScriptedTask, path: str) -> Any:
    return next(
        request.json()
        for request in scripted.server.requests
        if request.method == "POST" and request.path == f"/api/v1{path}"
    )


def end_attempt(scripted: ScriptedTask, status: str, **more: Any) -> None:
    def end() -> None:
        scripted.task = task("in_review" if status == "in_review" else "in_progress", attempt(status, **more))

    scripted.add_stage(end, "attempt.step")


def test_run_ends_with_a_pull_request(scripted: ScriptedTask, monkeypatch: pytest.MonkeyPatch) -> None:
    end_attempt(scripted, "in_review", pullRequest=PULL)
    monkeypatch.setenv("MY_TOKEN", "ghp_secret")
    url = "https://example.org/o/website.git"
    result = run("Mend it\nall", "--repo", url, "--token-from", "MY_TOKEN", "--verify", "make test", "--base", "dev")
    assert (result.exit_code, result.stdout) == (0, f"{PULL['url']}\n"), result.stderr
    settings = {"verify": {"command": "make test"}}
    assert get_request_body(scripted, "/projects") == {
        "name": "website",
        "repository": url,
        "settings": settings,
        "token": "ghp_secret",
        "test": True,
    }
    made = {"title": "Mend it", "description": "all", "baseBranch": "dev", "projectId": "prj_1", "start": True}
    assert get_request_body(scripted, "/tasks") == made
    assert "demo (no model) is not a real agent" in result.stderr
    assert "ghp_secret" not in result.output


def test_without_a_forge_run_ends_with_a_branch(scripted: ScriptedTask, repository: Path) -> None:
    end_attempt(scripted, "in_review", pullRequest={**PULL, "number": None, "state": "pushed"})
    known = {"id": "prj_1", "name": "website", "repository": str(repository), "settings": {}}
    scripted.server.on("GET", "/projects", page([known]))
    result = run("Mend it", "--repo", f"{repository}/")
    assert (result.exit_code, result.stdout) == (0, "sandyard/login\n"), result.stderr
    assert f"git -C {repository} diff main...sandyard/login" in result.stderr
    # main is checked out there: git merges, and the platform is refreshed
    by_hand = f"To merge it: git -C {repository} merge sandyard/login && sandyard pr refresh {TASK}\n"
    assert by_hand in result.stderr
    subprocess.run(["git", "-C", str(repository), "checkout", "-q", "--orphan", "elsewhere"], check=True)
    end_attempt(scripted, "in_review", pullRequest={**PULL, "number": None, "state": "pushed"})
    assert f"To merge it: sandyard pr merge {TASK}\n" in run("Mend it", "--repo", f"{repository}/").stderr
    assert not [
        request
        for request in scripted.server.requests
        if request.method == "POST" and request.path == "/api/v1/projects"
    ]


def test_a_failed_task_is_reported(scripted: ScriptedTask, repository: Path) -> None:
    end_attempt(scripted, "failed", error="The agent gave up.")
    result = run("Mend it", "--repo", str(repository))
    assert result.exit_code == 1
    assert "The task failed: The agent gave up.\n" in result.stderr
    assert f"sandyard task retry {TASK}" in result.stderr


def test_unusable_repositories_are_reported(scripted: ScriptedTask, tmp_path: Path) -> None:
    for repo, words in (
        (str(tmp_path), "is not a git repository"),
        ("./nothing", "is neither a directory nor"),
        ("", "--repo is empty"),
    ):
        result = run("Mend it", "--repo", repo)
        assert (result.exit_code, words in result.stderr) == (1, True), result.stderr
    assert not scripted.server.requests, "local paths are checked before any request"
    findings = [{"what": "push", "ok": False, "detail": "The token may not push."}]
    refused = {"detail": "The connection test failed.", "code": "connection_test_failed", "findings": findings}
    scripted.server.on("POST", "/projects", Reply(409, refused, "application/problem+json"))
    result = run("Mend it", "--repo", "https://example.org/o/website.git")
    assert result.exit_code == 1
    assert "Cannot use the repository: The token may not push." in result.stderr
    assert "--token-from" in result.stderr
    assert run("Mend it", "--repo", "git@example.org:o/r", "--token-from", "NOT_SET").exit_code == 1
    assert run(" ", "--repo", "git@example.org:o/r").exit_code == 1


def test_unusable_directories_and_uncommitted_files_are_reported(
    scripted: ScriptedTask, repository: Path, tmp_path: Path
) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path / "empty")], check=True)
    (repository / "inside").mkdir()
    for repo, words in ((tmp_path / "empty", "has no commit yet"), (repository / "inside", f"Use --repo {repository}")):
        result = run("Mend it", "--repo", str(repo))
        assert (result.exit_code, words in result.stderr) == (1, True), result.stderr
    (repository / "a.txt").write_text("new")
    end_attempt(scripted, "failed", error="The agent gave up.")
    assert "1 file is not committed" in run("Mend it", "--repo", str(repository)).stderr


def test_run_requires_a_login(server: Server) -> None:
    server.on("GET", "/me", Reply(401, {"detail": "The token is not valid."}, "application/problem+json"))
    result = run("Mend it", "--repo", "https://example.org/o/r")
    assert result.exit_code == 4
    assert "sandyard login" in result.stderr


def test_run_starts_no_platform_for_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDYARD_URL", "http://sandyard.invalid:1")
    assert run("Mend it", "--repo", "https://example.org/o/r").exit_code == 5


@pytest.mark.skipif(os.geteuid() != 0, reason="sandboxes with all features need root")
def test_run_starts_its_own_platform(repository: Path, config_dir: Path) -> None:
    """A platform is started, does the task, and ends. The repository is hostile: none of its code runs on this machine, neither modules
    that Python could import nor hooks, and the platform does not run as root."""
    ran = repository.parent / "ran"
    for name in ("sandyard/__init__.py", "sandyard/__main__.py", "tarfile.py", "json.py", "sitecustomize.py"):
        (repository / name).parent.mkdir(exist_ok=True)
        (repository / name).write_text(f"open({str(ran)!r}, 'a').write(__file__)\n")
    (repository / ".git" / "hooks").mkdir(exist_ok=True)
    for name in ("pre-receive", "post-receive", "reference-transaction"):
        (repository / ".git" / "hooks" / name).write_text(f"#!/bin/sh\necho $0 >> {ran}\n")
    (repository / "a.txt").write_text("old\n")
    for words in (
        ["add", "."],
        ["-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "-qm", "feat: begin"],
    ):
        subprocess.run(["git", "-C", str(repository), *words], check=True)
    for hook in (repository / ".git" / "hooks").iterdir():
        hook.chmod(0o755)
    engine = Engine()  # on the data of the started platform: afterwards it ends the sandboxes, which survive it
    engine.data = engine.folder / "up" / "engine"
    settings = {
        "SANDYARD_URL": f"http://127.0.0.1:{choose_port('127.0.0.1', 0, '--port')}",
        "SANDYARD_DATA_DIR": str(engine.folder / "up"),
        "SANDYARD_POOL_SIZE": "0",
    }
    command = [str(Path(sys.executable).with_name("sandyard")), "run", "-", "--repo", ".", "--agent", "demo"]
    try:
        done = subprocess.run(
            [*command, "--verify", "grep new a.txt"],
            input="Make it new\nreplace a.txt: old -> new\ncommit: feat: make it new\n",
            env=os.environ | settings,
            cwd=repository,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        with pytest.raises(httpx.ConnectError):
            httpx.get(settings["SANDYARD_URL"])
        database = engine.folder / "up" / "platform" / "platform.db"
        platform_user = database.stat().st_uid if database.exists() else None
        log_mode, log = (engine.folder / "up" / "up.log").stat().st_mode, (engine.folder / "up" / "up.log").read_text()
    finally:
        engine.start()
        engine.stop()
    assert done.returncode == 0, done.stderr
    assert "attempt 1: demo (no model)\n" in done.stderr
    for name in ("setup", "sandbox", "checkout", "agent", "verify", "commit", "push"):
        assert f"✓ {name}" in done.stderr
    assert "- pull request  not applicable: the remote does not support pull requests\n" in done.stderr
    assert "✓ edit  Replace in a.txt\n    a.txt  +1 -1\n    -old\n    +new\n" in done.stdout
    assert not ran.exists(), f"code of the repository ran on this machine: {ran.read_text()}"
    assert platform_user == pwd.getpwnam("sandyard").pw_uid
    assert log_mode & 0o777 == 0o600
    assert "admin token: ***" in log and "#token=***" in log and "sy_" not in log, "the log must not contain the token"
    branch = done.stdout.splitlines()[-1]
    shown = ["git", "-C", str(repository), "show", f"{branch}:a.txt"]
    assert subprocess.run(shown, capture_output=True, text=True, check=True).stdout == "new\n"
    assert (config_dir / "sandyard" / "config.json").stat().st_mode & 0o777 == 0o600, "the login is stored"
