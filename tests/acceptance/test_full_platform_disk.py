"""The disk under the platform's own data fills up while a task runs, and is freed again: the task goes on where it was."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.acceptance import platform as platforms
from tests.acceptance.board import add
from tests.acceptance.platform import Platform, ok, until
from tests.acceptance.test_full_disk import fill
from tests.acceptance.workshop import Work, work
from tests.forge import GitHub, forge
from tests.protocol.engine import Engine

DISK = 1 << 30
FULL_S = 3.0
WORDS = ["Write it", "append a.txt: one", "commit: feat: the first", "run: touch begun; sleep 2", "append a.txt: two"]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, which takes no space that is not written to."""
    file, folder = tmp_path / "disk.img", tmp_path / "disk"
    with file.open("wb") as made:
        made.truncate(DISK)
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


def ready(platform: Platform) -> httpx.Response:
    return httpx.get(f"{platform.url}/ready", timeout=10)


def _refusal(project: Work) -> httpx.Response | None:
    """None: there was room for one more task."""
    body = {"projectId": project.id, "title": "More", "description": "x" * 15_000, "agent": "demo", "start": False}
    answer = project.client.post("/tasks", json=body)
    return None if answer.is_success else answer


@pytest.mark.slow
def test_a_task_goes_on_when_the_disk_has_room_again(platform: Platform, github: GitHub, disk: Path) -> None:
    project, process = work(platform, github), platform.process
    card = add(project, "\n".join(WORDS))
    until(lambda: card.attempt()["step"] == "agent" and card.parts(card.attempt()["sessionId"]))

    fill(disk / "filler")
    full = time.monotonic()
    answer = ready(platform)
    assert (answer.status_code, "disk is full" in answer.json()["reasons"][0]) == (503, True)
    refused = until(lambda: _refusal(project))  # the database's own files have some room left
    assert refused.status_code == 507, refused.text
    assert "disk" in refused.json()["detail"]
    assert ok(platform.client.get("/projects"))["items"], "what is there can be read"
    time.sleep(max(0.0, FULL_S - (time.monotonic() - full)))  # the agent goes on meanwhile
    (disk / "filler").unlink()

    until(lambda: ready(platform).status_code == 200)
    card.rests("in_review")
    assert platform.process is process
    assert process is not None
    assert process.poll() is None
    (pull,) = github.colleague("grace").pulls(project.slug, "all")
    branch = pull["head"]["ref"]
    assert project.repository.read(branch, "a.txt") == b"one\ntwo\n"
