"""Test the real `@e2b/cli`, configured with the same variables as the SDKs. Each call starts node, so of the verbs that the SDKs also
have, `make test` runs only those used every day."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from e2b import Sandbox, SandboxState

from tests.harness.engine import Engine
from tests.images.server import Reply, run_server

from .cli import Cli
from .conftest import NewSandbox
from .waiting import until


@pytest.fixture
def cli(engine: Engine, tmp_path: Path) -> Cli:
    return Cli(engine, tmp_path)


def test_create_list_and_info(cli: Cli, unique: str, new_sandbox: NewSandbox) -> None:
    tagged = new_sandbox(metadata={"run": unique}).sandbox_id
    listed = json.loads(cli("sandbox", "list", "--format", "json", "--metadata", f"run={unique}"))
    assert [item["sandboxId"] for item in listed] == [tagged]
    assert tagged in cli("sandbox", "list", "--template", "base", "--limit", "0")
    assert "No sandboxes found" in cli("sandbox", "list", "--template", "no-such-template")
    info = cli("sandbox", "info", tagged)
    assert tagged in info
    assert "running" in info
    created = cli("sandbox", "create", "base", "--detach", "--timeout", "60").strip()
    try:
        assert Sandbox.get_info(created).state is SandboxState.RUNNING
        assert created in cli("sandbox", "list")
    finally:
        assert "has been killed" in cli("sandbox", "kill", created)
    assert "wasn't found" in cli("sandbox", "info", created, code=1)
    assert "wasn't found" in cli("sandbox", "kill", created)


@pytest.mark.slow
def test_create_passes_the_lifecycle_options(cli: Cli) -> None:
    created = cli("sandbox", "create", "-d", "--lifecycle.ontimeout", "pause", "--lifecycle.autoresume").strip()
    info = Sandbox.get_info(created)
    Sandbox.kill(created)
    assert info.lifecycle == {"on_timeout": "pause", "auto_resume": True}


@pytest.mark.slow
def test_exec(cli: Cli, sandbox: Sandbox) -> None:
    assert cli("sandbox", "exec", sandbox.sandbox_id, "echo out; echo err >&2; id -un") == "out\nuser\nerr\n"
    assert "exit status 7" in cli("sandbox", "exec", sandbox.sandbox_id, "exit 7", code=7)
    options = ("-u", "root", "-c", "/tmp", "-e", "A=1 2")
    output = cli("sandbox", "exec", *options, sandbox.sandbox_id, 'echo "$(id -un) $PWD $A"')
    assert output == "root /tmp 1 2\n"
    assert cli("sandbox", "exec", sandbox.sandbox_id, "wc", "-l", stdin="one\ntwo\n") == "2\n"


@pytest.mark.slow
def test_exec_in_the_background(cli: Cli, sandbox: Sandbox) -> None:
    pid = int(cli("sandbox", "exec", "--background", sandbox.sandbox_id, "sleep 600"))
    assert pid in [process.pid for process in sandbox.commands.list()]


def test_connect(cli: Cli, sandbox: Sandbox) -> None:
    with cli.terminal("sandbox", "connect", "--cwd", "/tmp", "--env", "MARK=here", sandbox.sandbox_id) as terminal:
        terminal.expect("Terminal connecting to sandbox")
        terminal.type('echo "it is $MARK in $PWD on $(tput cols)x$(tput lines)"')
        terminal.expect("it is here in /tmp on 100x30")
        terminal.resize(120, 40)
        terminal.type("until [ $(tput cols) = 120 ]; do sleep 0.1; done; echo now $(tput cols) by $(tput lines)")
        terminal.expect("now 120 by 40")
        terminal.type("exit")
        terminal.expect("Closing terminal connection")
        assert terminal.wait_for_exit() == 0
    assert sandbox.is_running(), "closing the terminal must not end the sandbox"


@pytest.mark.slow
def test_create_opens_a_terminal(cli: Cli) -> None:
    with cli.terminal("sandbox", "create", "base") as terminal:
        terminal.expect("with sandbox ID")
        terminal.type("echo $((6 * 7)) is the answer")
        terminal.expect("42 is the answer")
        terminal.type("exit")
        terminal.expect("Closing terminal connection to template base")
        assert terminal.wait_for_exit() == 0


@pytest.mark.slow
def test_logs(cli: Cli, sandbox: Sandbox) -> None:
    assert "The sandbox was created" in cli("sandbox", "logs", sandbox.sandbox_id)
    lines = cli("sandbox", "logs", "--format", "json", "--level", "info", sandbox.sandbox_id).split("\n")
    entries = [json.loads(line) for line in lines if line]
    assert entries[0]["message"] == "The sandbox was created"
    assert entries[0]["logger"] == "engine"
    assert "created" not in cli("sandbox", "logs", "--level", "error", sandbox.sandbox_id)
    assert "404" in cli("sandbox", "logs", "nosuchsandbox", code=1)


@pytest.mark.slow
def test_logs_follow_ends_when_the_sandbox_is_paused(cli: Cli, sandbox: Sandbox) -> None:
    with cli.terminal("sandbox", "logs", "--follow", sandbox.sandbox_id) as terminal:
        terminal.expect("The sandbox was created")
        sandbox.pause()
        terminal.expect("closed")
        assert terminal.wait_for_exit() == 0


@pytest.mark.slow
def test_metrics(cli: Cli, sandbox: Sandbox) -> None:
    until(sandbox.get_metrics)
    assert "Memory" in cli("sandbox", "metrics", sandbox.sandbox_id)


def test_pause_resume_and_kill(cli: Cli, new_sandbox: NewSandbox, unique: str) -> None:
    sandbox = new_sandbox(metadata={"run": unique})
    assert "has been paused" in cli("sandbox", "pause", sandbox.sandbox_id)
    assert "already paused" in cli("sandbox", "pause", sandbox.sandbox_id)
    assert sandbox.sandbox_id in cli("sandbox", "list", "--state", "paused")
    assert "has been resumed" in cli("sandbox", "resume", sandbox.sandbox_id)
    assert "wasn't found" in cli("sandbox", "resume", "nosuchsandbox", code=1)
    assert "Killed 1 running" in cli("sandbox", "kill", "--all", "--metadata", f"run={unique}")
    assert not sandbox.is_running()


@pytest.mark.slow
def test_snapshots(cli: Cli, sandbox: Sandbox, unique: str) -> None:
    name = f"cli-{unique}"
    assert "Created snapshot" in cli("sandbox", "snapshot", "create", "--name", name, sandbox.sandbox_id)
    listed = json.loads(cli("sandbox", "snapshot", "list", "--format", "json", sandbox.sandbox_id))
    assert [item["snapshotId"] for item in listed] == [f"{name}:default"]
    cli("sandbox", "snapshot", "delete", f"{name}:default")
    assert "No snapshots found" in cli("sandbox", "snapshot", "list", sandbox.sandbox_id)


@pytest.mark.slow
def test_templates(cli: Cli) -> None:
    assert "base" in cli("template", "list", E2B_TEAM_ID="any")
    listed = json.loads(cli("template", "list", "--format", "json"))
    assert any("base" in template["aliases"] for template in listed)
    assert "is managed on the engine's machine" in cli("template", "delete", "--yes", "base", code=1)


def test_a_wrong_key_is_refused_with_a_reason(cli: Cli) -> None:
    assert "key is not valid" in cli("sandbox", "list", code=1, E2B_API_KEY=f"e2b_{'0' * 40}")


@pytest.mark.slow
def test_login_with_a_key(cli: Cli, engine: Engine, tmp_path: Path) -> None:
    """The test does what E2B's web pages would do, because an engine has no such pages."""
    opened_url, browser = tmp_path / "opened", tmp_path / "xdg-open"
    browser.write_text(f'#!/bin/sh\necho "$1" > {opened_url}.part && mv {opened_url}.part {opened_url}\n')
    browser.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    with run_server(lambda _request: Reply(200, json.dumps({"access_token": engine.key}).encode())) as accounts:
        with cli.terminal("auth", "login", E2B_API_KEY="", E2B_DOCS_BASE=accounts.url, PATH=path) as terminal:
            until(opened_url.exists, 60)
            address = parse_qs(urlsplit(opened_url.read_text().strip()).query)["next"][0]
            endpoints = {"tokenEndpoint": accounts.url, "revokeEndpoint": accounts.url, "clientId": "cli"}
            person = {"email": "person@example.com", "accessToken": engine.key, "refreshToken": "refresh"}
            httpx.get(address.replace("localhost", "127.0.0.1"), params={**person, **endpoints})
            terminal.expect("Logged in as")
            assert terminal.wait_for_exit() == 0  # the message is shown before the login is stored
        assert "person@example.com" in cli("auth", "info", E2B_API_KEY="")
        assert "No sandboxes found" in cli("sandbox", "list", "--template", "no-such", E2B_API_KEY="")
        with cli.terminal("auth", "configure", E2B_API_KEY="") as terminal:
            terminal.expect("sandyard")
            terminal.type("")
            terminal.expect("selected")
            assert terminal.wait_for_exit() == 0
        assert "Logged out" in cli("auth", "logout", E2B_API_KEY="")


@pytest.mark.slow
def test_commands_without_a_login_are_refused(cli: Cli) -> None:
    assert "Not logged in" in cli("auth", "info")
    assert "Not logged in" in cli("auth", "logout")
    assert "must be logged in" in cli("sandbox", "list", code=1, E2B_API_KEY="")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_template_is_created_from_a_dockerfile(
    cli: Cli, tmp_path: Path, unique: str, new_sandbox: NewSandbox
) -> None:
    name = f"cli-{unique}"
    (tmp_path / "notes.txt").write_text("from the file\n")
    steps = ("FROM e2bdev/base", "COPY notes.txt /opt/notes.txt", "ENV MARK=set", "RUN echo built > /opt/built")
    (tmp_path / "e2b.Dockerfile").write_text("\n".join(steps))
    start = ("--cmd", "python3 -m http.server 8123", "--ready-cmd", "curl -sf localhost:8123")
    assert "finished" in cli("template", "create", name, "--path", str(tmp_path), *start)
    listed = json.loads(cli("template", "list", "--format", "json"))
    (template_info,) = [template for template in listed if name in template["aliases"]]
    sandbox = new_sandbox(name)
    assert sandbox.commands.run("cat /opt/notes.txt /opt/built; echo $MARK").stdout == "from the file\nbuilt\nset\n"
    assert sandbox.commands.run("curl -sf localhost:8123 >/dev/null").exit_code == 0, (
        "the start command must be running"
    )
    assert "Publishing" in cli("template", "publish", "--yes", template_info["templateID"])
    assert _get_template(template_info["templateID"], cli)["public"] is True
    assert "Unpublishing" in cli("template", "unpublish", "--yes", template_info["templateID"])
    assert _get_template(template_info["templateID"], cli)["public"] is False
    sandbox.kill()
    assert "Deleting" in cli("template", "delete", "--yes", name)
    assert name not in cli("template", "list", "--format", "json")


@pytest.mark.slow
def test_a_failed_build_shows_the_failing_command(cli: Cli, tmp_path: Path, unique: str) -> None:
    (tmp_path / "e2b.Dockerfile").write_text("FROM e2bdev/base\nRUN echo no further >&2; exit 9\n")
    output = cli("template", "create", f"cli-{unique}", "--path", str(tmp_path), code=1)
    assert "Template build failed" in output
    assert "no further" in output


def _get_template(template_id: str, cli: Cli) -> dict[str, object]:
    listed: list[dict[str, object]] = json.loads(cli("template", "list", "--format", "json"))
    return next(template for template in listed if template["templateID"] == template_id)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_project_generated_by_init_builds_unchanged(
    cli: Cli, tmp_path: Path, unique: str, new_sandbox: NewSandbox
) -> None:
    name = f"init-{unique}"
    cli("template", "init", "--path", str(tmp_path), "--name", name, "--language", "python-sync")
    subprocess.run([sys.executable, "build_prod.py"], cwd=tmp_path / name, check=True, timeout=200)
    assert new_sandbox(name).commands.run("echo it works").stdout == "it works\n"


@pytest.mark.slow
def test_migrate_generates_a_template_file(cli: Cli, tmp_path: Path) -> None:
    """`migrate` writes files without contacting a server, in the same form as `init`."""
    (tmp_path / "e2b.Dockerfile").write_text("FROM e2bdev/base\nRUN echo hi\n")
    (tmp_path / "e2b.toml").write_text('template_id = "abc"\ntemplate_name = "old"\ndockerfile = "e2b.Dockerfile"\n')
    cli("template", "migrate", "--path", str(tmp_path), "--language", "python-sync")
    assert "run_cmd" in (tmp_path / "template.py").read_text()
