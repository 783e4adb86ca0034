"""Shell completion: commands without loading them, ids from the real server, and nothing without a server."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from sandyard.cli.main import cli
from tests.harness.up import Installation, run_json
from tests.unit.cli.server import Reply, Server


def test_ids_are_completed_from_the_server(
    installation: Installation, sandbox: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SANDYARD_URL", "SANDYARD_TOKEN"):
        monkeypatch.setenv(name, installation.environment[name])

    assert sandbox in complete("sandbox", "exec", "sbx")
    assert f"{sandbox}:" in complete("sandbox", "cp", "sb")
    session = run_json(installation, "session", "create")["id"]
    assert session in complete("session", "show", "ses")
    assert session in complete("sandbox", "exec", "ses"), "a session id is accepted in place of its sandbox's"
    assert complete("sandbox", "exec", "sbx_nothing") == []


def test_projects_and_pull_requests_are_completed(server: Server) -> None:
    projects = {"items": [{"id": "prj_1", "name": "website", "repository": None}], "nextCursor": None}
    pulls = {"items": [{"id": "pul_1", "number": 12}, {"id": "pul_2", "number": None}], "nextCursor": None}
    sessions = {"items": [{"id": "ses_1", "title": "Mend"}], "nextCursor": None}
    for path, page in (("/projects", projects), ("/github/pull-requests", pulls), ("/sessions", sessions)):
        server.on("GET", path, Reply(200, page))
    assert complete("project", "show", "web") == ["website"]
    assert complete("session", "create", "--project", "prj") == ["prj_1"]
    assert complete("pr", "merge", "") == ["12"]
    assert complete("pr", "merge", "ses") == ["ses_1"]
    assert complete("git", "push", "") == ["ses_1"]
    assert complete("git", "p") == ["push"]


def test_names_that_a_shell_would_interpret_are_not_completed(server: Server) -> None:
    """bash inserts a completion into the command line as it is, and other users have chosen the name."""
    names = ("web$(id)", "web`id`", "web;id", "web|id", "web\nplain,x;id", "web>x", "web'", "web 2")
    items = [{"id": f"prj_{number}", "name": name, "repository": None} for number, name in enumerate(names)]
    server.on("GET", "/projects", Reply(200, {"items": items, "nextCursor": None}))
    assert complete("project", "show", "web") == ["web 2"]


def test_tasks_schedules_and_agents_are_completed(server: Server) -> None:
    tasks = {"items": [{"id": "tsk_1", "title": "Mend", "status": "backlog"}], "nextCursor": None}
    schedules = {"items": [{"id": "sch_1", "name": "nightly", "cron": "0 3 * * *"}], "nextCursor": None}
    agents = {"items": [{"name": "demo", "title": "Demo"}, {"name": "codex", "title": "Codex"}]}
    for path, page in (("/tasks", tasks), ("/schedules", schedules), ("/agents", agents)):
        server.on("GET", path, Reply(200, page))
    assert complete("task", "show", "") == ["tsk_1"]
    assert complete("task", "add", "--needs", "tsk") == ["tsk_1"]
    assert complete("schedule", "run", "n") == ["nightly"]
    assert complete("schedule", "run", "sch") == ["sch_1"]
    assert complete("run", "--agent", "c") == ["codex"]


def complete(*words: str) -> list[str]:
    *before, incomplete = words
    return [item.value for item in ShellComplete(cli, {}, "", "").get_completions(before, incomplete)]


def test_commands_and_options_are_completed() -> None:
    assert complete("s") == [
        "setup",
        "support-bundle",
        "schedule",
        "session",
        "sandbox",
        "ssh",
        "ssh-config",
        "snapshot",
    ]
    assert "platform" not in complete("")
    assert "exec" in complete("sandbox", "")
    assert "--follow" in complete("events", "--f")


def test_completion_without_a_server_is_empty(monkeypatch: pytest.MonkeyPatch, config_dir: Path) -> None:
    monkeypatch.setenv("SANDYARD_URL", "http://127.0.0.1:1")
    assert complete("sandbox", "exec", "sbx") == []
    assert complete("session", "show", "") == []
    monkeypatch.delenv("SANDYARD_URL")
    (config_dir / "sandyard").mkdir(parents=True)
    (config_dir / "sandyard" / "config.json").write_text("{")
    assert complete("sandbox", "kill", "") == []


@pytest.mark.parametrize(
    "reply", [Reply(500, b"oops"), Reply(200, b"oops"), Reply(200, []), Reply(200, {"items": [{}]})]
)
def test_an_unexpected_response_completes_nothing(server: Server, reply: Reply) -> None:
    server.on("GET", "/sandboxes", reply)
    assert complete("sandbox", "pause", "") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_printed(shell: str) -> None:
    result = CliRunner().invoke(cli, ["completion", shell])
    assert result.exit_code == 0
    assert "_SANDYARD_COMPLETE" in result.stdout
    if shell == "bash":
        assert subprocess.run(["bash", "-n"], input=result.stdout, text=True, check=False).returncode == 0
