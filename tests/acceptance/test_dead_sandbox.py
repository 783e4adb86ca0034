"""A sandbox whose processes end while the engine runs, as when the machine runs out of memory: it goes on from its files."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator

import pytest
from e2b import Sandbox

from tests.acceptance.board import add, configure
from tests.acceptance.platform import Platform, ok, running, until
from tests.acceptance.workshop import work
from tests.forge import forge
from tests.protocol.engine import Engine

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def platform(engine: Engine) -> Iterator[Platform]:
    with running(engine, CREATES_PER_MINUTE="10000", EXECUTES_PER_MINUTE="10000") as platform:
        yield platform


def end(engine: Engine, sandbox_id: str) -> None:
    """From outside, and wait until the engine has started it again."""
    os.kill(engine.first_process(sandbox_id), signal.SIGKILL)
    with engine.client() as client:
        until(lambda: "killed from outside" in ok(client.get(f"/sandboxes/{sandbox_id}")).get("memoryLost", ""))


@pytest.mark.slow  # the task that goes on has its files too
def test_files_are_kept(engine: Engine, new_sandbox: Callable[..., Sandbox]) -> None:
    sandbox = new_sandbox(envs={"NAME": "value"}, timeout=120)
    sandbox.files.write("work.txt", "precious")
    ends_at = sandbox.get_info().end_at
    end(engine, sandbox.sandbox_id)
    again = Sandbox.connect(sandbox.sandbox_id, timeout=60)
    assert again.files.read("work.txt") == "precious"
    assert again.commands.run("echo $NAME").stdout == "value\n"
    assert again.get_info().end_at == ends_at, "its timeout is as it was"


@pytest.mark.slow
def test_a_sandbox_of_a_snapshot_and_its_fork(engine: Engine, new_sandbox: Callable[..., Sandbox]) -> None:
    first = new_sandbox()
    first.files.write("work.txt", "precious")
    sandbox = new_sandbox(template=first.create_snapshot().snapshot_id)
    sandbox.files.write("more.txt", "new")
    end(engine, sandbox.sandbox_id)
    (fork,) = sandbox.fork()
    assert isinstance(fork, Sandbox)
    assert fork.files.read("work.txt") + fork.files.read("more.txt") == "preciousnew"
    fork.kill()


def test_a_task_goes_on(engine: Engine, platform: Platform) -> None:
    """The agent is told to look at what is there. The demo, which only follows orders, says that this is none and is done."""
    with forge() as github:
        project = work(platform, github)
        card = add(
            project, "Count\nappend log.txt: one\ncommit: feat: first\nappend log.txt: two\nsay: waiting\nsleep: 600"
        )
        session = until(lambda: card.attempt()["sessionId"])
        until(lambda: card.client.get(f"/sessions/{session}").is_success)
        until(lambda: "waiting" in card.said(session))
        sandbox = ok(card.client.get(f"/sessions/{session}"))["sandboxId"]
        end(engine, ok(card.client.get(f"/sandboxes/{sandbox}"))["engineId"])
        attempt = card.rests("in_review")
        assert attempt["sessionId"] == session
        assert ok(card.client.get(f"/sessions/{session}"))["sandboxId"] == sandbox
        assert project.repository.read(card.pull()["headBranch"], "log.txt") == b"one\ntwo\n", (
            "also what was not committed"
        )
        assert "sandbox was restarted" in card.transcript(session)


@pytest.mark.slow
def test_a_check_is_run_again(engine: Engine, platform: Platform) -> None:
    with forge() as github:
        project = work(platform, github)
        command = "test -e /home/user/again && exit 0; touch /home/user/again; sleep 600"
        configure(project, verify={"command": command, "fixes": 0})
        card = add(project, "Count\nappend log.txt: one")
        session = until(lambda: card.attempt()["sessionId"])
        until(lambda: card.attempt()["step"] == "verify")
        sandbox = ok(card.client.get(f"/sessions/{session}"))["sandboxId"]
        engine_id = ok(card.client.get(f"/sandboxes/{sandbox}"))["engineId"]
        until(lambda: Sandbox.connect(engine_id).files.exists("/home/user/again"))
        end(engine, engine_id)
        assert card.rests("in_review")["verified"]
