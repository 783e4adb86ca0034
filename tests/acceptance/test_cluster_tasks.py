"""Tasks whose sandboxes are on three hosts, while a host, the engine and the network of a host fail."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

import pytest
from e2b import Sandbox

from tests.acceptance.joined_hosts import Cluster, Host, start_cluster, wait_until
from tests.acceptance.project_client import ForgeProject, create_forge_project
from tests.acceptance.task_client import Task, create_task, update_settings
from tests.forge import GitHub, forge
from tests.harness.platform import Platform, ok, running, until
from tests.proof.record import record

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]
TASKS = int(os.environ.get("SANDYARD_CLUSTER_TASKS", "12"))
BATCH = 4
HOSTS = ("one", "two", "three")
GATES = 3
ENGINE = {
    "POOL_SIZE": "0",
    "LOCAL_SANDBOXES": "false",
    "CHECKPOINT_INTERVAL_S": "0",
    "RECOVER_AFTER_S": "600",
    "DEFAULT_DISK_MB": "256",
    "DEFAULT_MEMORY_MB": "256",
    "DISK_RESERVE_MB": "1024",
}
PLATFORM = {
    "CREATES_PER_MINUTE": "100000",
    "EXECUTES_PER_MINUTE": "100000",
    "FORGE_POLL_S": "3600",
    "PARALLEL_ATTEMPTS": str(TASKS),
    "PARALLEL_ATTEMPTS_PER_USER": str(TASKS),
    "IDLE_SECONDS": "600",
    "RECONCILE_EVERY_S": "2",
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    if os.geteuid() != 0:
        pytest.skip("hosts with networks of their own need root")
    with start_cluster(HOSTS, ENGINE, "namespace") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def platform(cluster: Cluster) -> Iterator[Platform]:
    with running(cluster.engine, **PLATFORM) as platform:
        yield platform


@pytest.fixture(scope="module")
def github() -> Iterator[GitHub]:
    with forge() as github:
        yield github


def format_task(number: int) -> str:
    """Return a task that prints lines until the test opens the next gate, and commits after each."""
    lines = [f"Number {number}"]
    for gate in range(1, GATES + 1):
        wait = f"i=0; until [ -e .git/gate-{gate} ]; do i=$((i+1)); echo line $i; sleep 0.2; done; echo gate {gate}: $i"
        lines += [f"run: {wait}", f"append log-{number}.txt: {gate}", f"commit: feat: {gate} of {number}"]
    return "\n".join([*lines, f"say: end {number}"])


class GatedTask:
    """A task that `format_task` describes, and the sandbox that it started in."""

    def __init__(self, cluster: Cluster, task: Task, number: int) -> None:
        self._cluster, self.task, self.number = cluster, task, number
        session = until(lambda: task.get_attempt()["sessionId"], 240)
        until(lambda: task.client.get(f"/sessions/{session}").is_success)
        self.session = str(session)
        self.sandbox_id = until(self.find_sandbox, 240)

    def find_sandbox(self) -> str | None:
        """Return the engine's id of the session's sandbox."""
        sandbox = ok(self.task.client.get(f"/sessions/{self.session}"))["sandboxId"]
        found: str | None = ok(self.task.client.get(f"/sandboxes/{sandbox}"))["engineId"]
        return found

    def wait_for_another_sandbox(self) -> None:
        """Wait until the session has another sandbox, with a checkout."""
        before = self.sandbox_id
        until(lambda: self.find_sandbox() not in (before, None), 240)
        self.sandbox_id = self.find_sandbox() or ""
        until(lambda: self.connect().files.exists("workspace/.git/HEAD"), 240)

    def connect(self) -> Sandbox:
        engine = self._cluster.engine
        return Sandbox.connect(self.sandbox_id, api_url=engine.url, sandbox_url=engine.url, api_key=engine.key)

    @property
    def host(self) -> Host:
        return self._cluster.find_host(self.connect())

    def read_output(self, gate: int) -> list[str]:
        """Return the lines that the task has printed in front of a gate."""
        parts = self.task.read_agent_parts(self.session)
        calls = [part for part in parts if part["type"] == "tool_call" and f"gate-{gate}" in part["title"]]
        assert len(calls) <= 1, "each command must run once"
        return "".join(piece.get("text", "") for call in calls for piece in call["content"]).splitlines()

    def open_gate(self, gate: int) -> None:
        self.connect().files.write(f"workspace/.git/gate-{gate}", "")


def start_tasks(
    cluster: Cluster, platform: Platform, github: GitHub, count: int
) -> tuple[ForgeProject, list[GatedTask]]:
    cluster.create().kill()  # waits for the copies of the template
    project = create_forge_project(platform, github)
    update_settings(project, tasks={"parallel": count, "finished": "destroy"})
    tasks: list[GatedTask] = []
    for start in range(0, count, BATCH):  # the others start when their snapshot was copied from the first one's host
        created = [create_task(project, format_task(number)) for number in range(start, min(count, start + BATCH))]
        tasks += [GatedTask(cluster, task, start + number) for number, task in enumerate(created)]
    return project, tasks


def wait_for_gate(tasks: Iterable[GatedTask], gate: int) -> None:
    for task in tasks:
        until(lambda task=task: len(task.read_output(gate)) >= 3, 240)


def test_twelve_tasks_while_hosts_engine_and_network_fail(cluster: Cluster, platform: Platform, github: GitHub) -> None:
    project, tasks = start_tasks(cluster, platform, github, TASKS)
    wait_for_gate(tasks, 1)
    homes = {task.number: task.host for task in tasks}
    assert {home.name for home in homes.values()} == set(HOSTS)
    one, _, three = cluster.hosts.values()

    one.kill()
    cluster.wait_for("unreachable", "one")
    elsewhere = [task for task in tasks if homes[task.number] is not one]
    for task in elsewhere:
        task.open_gate(1)
    wait_for_gate(elsewhere, 2)
    one.serve()
    cluster.wait_for("ready", "one")
    for task in tasks:
        if task not in elsewhere:
            task.open_gate(1)
    wait_for_gate(tasks, 2)

    cluster.engine.kill()
    cluster.engine.start()
    cluster.wait_for("ready", *HOSTS)
    for task in tasks:
        task.open_gate(2)
    wait_for_gate(tasks, 3)

    assert three.cable is not None
    elsewhere = [task for task in tasks if homes[task.number] is not three]
    with three.cable.cut():
        cluster.wait_for("unreachable", "three")
        for task in elsewhere:
            task.open_gate(3)
        for task in elsewhere:
            task.task.wait_until_settled("in_review", patience=240)
    cluster.wait_for("ready", "three")
    for task in tasks:
        if task not in elsewhere:
            assert task.host is three
            task.open_gate(3)
    for task in tasks:
        task.task.wait_until_settled("in_review", patience=240)
        check(project, task)
        ok(task.task.move("done"))
    assert len({pull["head"]["ref"] for pull in github.colleague("grace").pulls(project.slug, "all")}) == TASKS
    wait_until(lambda: not any(host.list_sandboxes() for host in cluster.hosts.values()), cluster.explain)
    cluster.engine.clear()  # the snapshot of the project's preparation
    wait_until(lambda: not any(host.list_leftovers() for host in cluster.hosts.values()), cluster.explain)
    tried = {"tasks": TASKS, "kills of a host": 1, "kills of the engine": 1, "cuts of the network": 1}
    record(tried, {"tasks": 0, "commits": 0})


def test_tasks_continue_when_hosts_do_not_come_back(cluster: Cluster, platform: Platform, github: GitHub) -> None:
    restart_engine(cluster, CHECKPOINT_INTERVAL_S="1", RECOVER_AFTER_S="5")
    project, tasks = start_tasks(cluster, platform, github, 6)
    wait_for_gate(tasks, 1)
    for task in tasks:
        task.open_gate(1)
    wait_for_gate(tasks, 2)
    lost = tasks[0].host
    saved = [task for task in tasks if task.host is lost]
    started = time.time()
    wait_until(lambda: is_saved_since(cluster, lost, started, len(saved)), cluster.explain)
    lost.kill()
    for task in saved:
        task.task.wait_until_settled("in_review", patience=240)
        branch = task.task.get_pull_request()["headBranch"]
        assert project.repository.log(f"main..{branch}") == [f"feat: 1 of {task.number}"]
        assert task.find_sandbox() in (task.sandbox_id, None)
        assert "sandbox was restarted" in task.task.read_transcript(task.session)

    restart_engine(cluster, CHECKPOINT_INTERVAL_S="0")
    left = [task for task in tasks if task not in saved]
    gone = left[0].host
    unsaved = [task for task in left if task.host is gone]
    gone.kill()
    for task in left:
        if task in unsaved:
            task.wait_for_another_sandbox()
            task.open_gate(1)
        for gate in (2, 3):
            task.open_gate(gate)
    for task in left:
        task.task.wait_until_settled("in_review", patience=240)
        branch = task.task.get_pull_request()["headBranch"]
        assert project.repository.log(f"main..{branch}") == [
            f"feat: {gate} of {task.number}" for gate in range(GATES, 0, -1)
        ]
        assert project.repository.read(branch, f"log-{task.number}.txt") == b"1\n2\n3\n"

    for task in tasks:
        ok(task.task.move("done"))
    for host in (lost, gone):
        host.serve()
    cluster.wait_for("ready", *HOSTS)
    wait_until(lambda: not any(host.list_sandboxes() for host in cluster.hosts.values()), cluster.explain)
    record({"tasks": len(tasks), "kills of a host": 2}, {"tasks": 0, "commits": 0})


def is_saved_since(cluster: Cluster, host: Host, moment: float, count: int) -> bool:
    """Return whether all sandboxes of a host have a checkpoint that is newer than this."""
    found = cluster.list()[host.name]["checkpoints"]
    return found["count"] == count and datetime.fromisoformat(found["oldest"]).timestamp() > moment


def restart_engine(cluster: Cluster, **settings: str) -> None:
    """Restart the engine with other settings and without checkpoints."""
    cluster.engine.kill()
    with contextlib.closing(sqlite3.connect(cluster.engine.data / "engine.db")) as database, database:
        database.execute("DELETE FROM checkpoints")
    cluster.engine.settings |= settings
    cluster.engine.start()


def check(project: ForgeProject, task: GatedTask) -> None:
    """Check that the task was done in one turn in its first sandbox, and that neither commits nor output are missing."""
    number = task.number
    branch = task.task.get_pull_request()["headBranch"]
    assert project.repository.log(f"main..{branch}") == [f"feat: {gate} of {number}" for gate in range(GATES, 0, -1)]
    assert project.repository.read(branch, f"log-{number}.txt") == b"1\n2\n3\n"
    assert task.find_sandbox() in (task.sandbox_id, None)
    (turn,) = _list_turns(task)
    assert turn["status"] == "completed"
    for gate in range(1, GATES + 1):
        *lines, last = task.read_output(gate)
        assert lines == [f"line {line}" for line in range(1, len(lines) + 1)]
        assert last == f"gate {gate}: {len(lines)}"


def _list_turns(task: GatedTask) -> list[dict[str, Any]]:
    return list(ok(task.task.client.get(f"/sessions/{task.session}/turns"))["items"])
