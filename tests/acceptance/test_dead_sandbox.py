"""Test a sandbox whose processes are killed while the engine runs, as when the machine runs out of memory: it restarts from its files."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator

import pytest
from e2b import Sandbox

from tests.acceptance.project_client import create_forge_project
from tests.acceptance.task_client import create_task, update_settings
from tests.forge import forge
from tests.harness.engine import Engine
from tests.harness.platform import Platform, ok, running, until

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def platform(engine: Engine) -> Iterator[Platform]:
    with running(engine, CREATES_PER_MINUTE="10000", EXECUTES_PER_MINUTE="10000") as platform:
        yield platform


def kill_processes(engine: Engine, sandbox_id: str) -> None:
    """Kill the processes from the host and wait until the engine has restarted the sandbox."""
    os.kill(engine.first_process(sandbox_id), signal.SIGKILL)
    with engine.client() as client:
        until(lambda: "killed from outside" in ok(client.get(f"/sandboxes/{sandbox_id}")).get("memoryLost", ""))


@pytest.mark.slow  # the task test below also checks that files are kept
def test_files_and_variables_are_kept(engine: Engine, new_sandbox: Callable[..., Sandbox]) -> None:
    sandbox = new_sandbox(envs={"NAME": "value"}, timeout=120)
    sandbox.files.write("work.txt", "precious")
    ends_at = sandbox.get_info().end_at
    kill_processes(engine, sandbox.sandbox_id)
    connected = Sandbox.connect(sandbox.sandbox_id, timeout=60)
    assert connected.files.read("work.txt") == "precious"
    assert connected.commands.run("echo $NAME").stdout == "value\n"
    assert connected.get_info().end_at == ends_at, "the timeout must be unchanged"


@pytest.mark.slow
def test_a_sandbox_from_a_snapshot_can_be_forked_afterwards(
    engine: Engine, new_sandbox: Callable[..., Sandbox]
) -> None:
    first = new_sandbox()
    first.files.write("work.txt", "precious")
    sandbox = new_sandbox(template=first.create_snapshot().snapshot_id)
    sandbox.files.write("more.txt", "new")
    kill_processes(engine, sandbox.sandbox_id)
    (fork,) = sandbox.fork()
    assert isinstance(fork, Sandbox)
    assert fork.files.read("work.txt") + fork.files.read("more.txt") == "preciousnew"
    fork.kill()


def test_a_task_continues_in_the_restarted_sandbox(engine: Engine, platform: Platform) -> None:
    """After the restart, the platform asks the agent to check its work. This prompt has no script lines, so the demo agent ends its turn."""
    with forge() as github:
        project = create_forge_project(platform, github)
        task = create_task(
            project, "Count\nappend log.txt: one\ncommit: feat: first\nappend log.txt: two\nsay: waiting\nsleep: 600"
        )
        session = until(lambda: task.get_attempt()["sessionId"])
        until(lambda: task.client.get(f"/sessions/{session}").is_success)
        until(lambda: "waiting" in task.read_agent_text(session))
        sandbox = ok(task.client.get(f"/sessions/{session}"))["sandboxId"]
        kill_processes(engine, ok(task.client.get(f"/sandboxes/{sandbox}"))["engineId"])
        attempt = task.wait_until_settled("in_review")
        assert attempt["sessionId"] == session
        assert ok(task.client.get(f"/sessions/{session}"))["sandboxId"] == sandbox
        assert project.repository.read(task.get_pull_request()["headBranch"], "log.txt") == b"one\ntwo\n", (
            "uncommitted changes must be kept too"
        )
        assert "sandbox was restarted" in task.read_transcript(session)


@pytest.mark.slow
def test_an_interrupted_check_is_run_again(engine: Engine, platform: Platform) -> None:
    with forge() as github:
        project = create_forge_project(platform, github)
        command = "test -e /home/user/again && exit 0; touch /home/user/again; sleep 600"
        update_settings(project, verify={"command": command, "fixes": 0})
        task = create_task(project, "Count\nappend log.txt: one")
        session = until(lambda: task.get_attempt()["sessionId"])
        until(lambda: task.get_attempt()["step"] == "verify")
        sandbox = ok(task.client.get(f"/sessions/{session}"))["sandboxId"]
        engine_id = ok(task.client.get(f"/sandboxes/{sandbox}"))["engineId"]
        until(lambda: Sandbox.connect(engine_id).files.exists("/home/user/again"))
        kill_processes(engine, engine_id)
        assert task.wait_until_settled("in_review")["verified"]
