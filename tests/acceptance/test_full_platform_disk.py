"""Test a full disk under the data of the platform while a task runs: the task continues after the disk is freed."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.acceptance.project_client import ForgeProject, create_forge_project
from tests.acceptance.task_client import create_task
from tests.forge import GitHub, forge
from tests.harness import platform as platforms
from tests.harness.engine import Engine
from tests.harness.full_disk import fill
from tests.harness.platform import Platform, ok, until

DISK_BYTES = 1 << 30
FULL_SECONDS = 3.0
TASK_LINES = [
    "Write it",
    "append a.txt: one",
    "commit: feat: the first",
    "run: touch begun; sleep 2",
    "append a.txt: two",
]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A separate sparse file system that takes only the space written to it."""
    file, folder = tmp_path / "disk.img", tmp_path / "disk"
    with file.open("wb") as image_file:
        image_file.truncate(DISK_BYTES)
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", str(file)], check=True)
    folder.mkdir()
    subprocess.run(["mount", "-o", "loop", str(file), str(folder)], check=True)
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture
def platform(engine: Engine, disk: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Platform]:
    monkeypatch.setattr(platforms, "SCRATCH", disk)
    with platforms.running(engine, FORGE_POLL_S="3600") as platform:
        yield platform
        (disk / "filler").unlink(missing_ok=True)


@pytest.fixture
def github() -> Iterator[GitHub]:
    with forge() as github:
        yield github


def get_readiness(platform: Platform) -> httpx.Response:
    return httpx.get(f"{platform.url}/ready", timeout=10)


def _try_to_create_task(project: ForgeProject) -> httpx.Response | None:
    """Return the error response, or None if there was room for one more task."""
    body = {"projectId": project.id, "title": "More", "description": "x" * 15_000, "agent": "demo", "start": False}
    response = project.client.post("/tasks", json=body)
    return None if response.is_success else response


@pytest.mark.slow
def test_a_task_continues_after_the_full_disk_is_freed(platform: Platform, github: GitHub, disk: Path) -> None:
    project = create_forge_project(platform, github)
    process = platform.process
    task = create_task(project, "\n".join(TASK_LINES))
    until(lambda: task.get_attempt()["step"] == "agent" and task.read_agent_parts(task.get_attempt()["sessionId"]))

    fill(disk / "filler")
    full_since = time.monotonic()
    response = get_readiness(platform)
    assert response.status_code == 503
    assert "disk is full" in response.json()["reasons"][0]
    refusal = until(lambda: _try_to_create_task(project))  # the files of the database have some free space left
    assert refusal.status_code == 507, refusal.text
    assert "disk" in refusal.json()["detail"]
    assert ok(platform.client.get("/projects"))["items"], "existing data must be readable"
    time.sleep(max(0.0, FULL_SECONDS - (time.monotonic() - full_since)))  # the agent continues meanwhile
    (disk / "filler").unlink()

    until(lambda: get_readiness(platform).status_code == 200)
    task.wait_until_settled("in_review")
    assert platform.process is process
    assert process is not None
    assert process.poll() is None
    (pull,) = github.colleague("grace").pulls(project.slug, "all")
    branch = pull["head"]["ref"]
    assert project.repository.read(branch, "a.txt") == b"one\ntwo\n"
