from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from sandyard.kit.errors import ForbiddenError
from sandyard.platform.domain.agents.demo import instructions
from sandyard.platform.domain.agents.demo.turn import HELP
from sandyard.platform.domain.git.commit_messages import check_message
from sandyard.platform.domain.projects.model import ProjectSettings
from sandyard.platform.domain.projects.sample import TASKS, SampleTask
from tests.unit.platform.world import World


def git(folder: Path | str, *arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True
    ).stdout.strip()


async def test_each_user_gets_one_sample_project(world: World) -> None:
    maria, otto = await world.create_person("maria"), await world.create_person("otto")
    made = await world.samples.ensure(maria.principal)
    again, other = await world.samples.ensure(maria.principal), await world.samples.ensure(otto.principal)
    assert (made.created, again.created, other.created) == (True, False, True)
    assert made.project.id == again.project.id != other.project.id
    assert made.project.repository != other.project.repository
    settings = ProjectSettings.from_project(made.project)
    assert (made.project.name, settings.agent.default, made.project.base_branch) == ("Sample", "demo", "main")
    events = [event for event in await world.list_events() if event.kind == "project.created"]
    assert [event.project_id for event in events] == [made.project.id, other.project.id]


async def test_concurrent_requests_create_one_sample_project(world: World) -> None:
    maria = await world.create_person("maria")
    found = await asyncio.gather(*(world.samples.ensure(maria.principal) for _ in range(5)))
    assert len({item.project.id for item in found}) == 1 and sum(item.created for item in found) == 1


async def test_the_sample_is_a_valid_repository(world: World) -> None:
    maria, otto = await world.create_person("maria"), await world.create_person("otto")
    folders = [(await world.samples.ensure(item.principal)).project.repository for item in (maria, otto)]
    heads = [git(str(folder), "rev-parse", "HEAD") for folder in folders]
    assert heads[0] == heads[1], "the commit is the same wherever it is created"
    assert git(str(folders[0]), "symbolic-ref", "HEAD") == "refs/heads/main"
    assert git(str(folders[0]), "fsck", "--full", "--strict") == ""
    names = git(str(folders[0]), "ls-tree", "-r", "--name-only", "HEAD").splitlines()
    assert {"README.md", "AGENTS.md", ".gitignore", "words/text.py", "tests/test_text.py"} <= set(names)
    assert not [name for name in names if "pycache" in name or name.startswith(".sandyard")]


async def test_an_archived_sample_is_restored_and_a_deleted_one_created_again(world: World) -> None:
    maria = (await world.create_person("maria")).principal
    first = (await world.samples.ensure(maria)).project
    git(str(first.repository), "update-ref", "refs/heads/work", "HEAD")
    await world.projects.update(maria, first.id, archived=True)
    back = await world.samples.ensure(maria)
    assert (back.project.id, back.project.archived_at, back.created) == (first.id, None, False)
    await world.projects.delete(maria, first.id)
    second = await world.samples.ensure(maria)
    assert second.created and second.project.id != first.id
    assert git(str(second.project.repository), "branch", "--list", "--all").split() == ["*", "main"], (
        "the repository is created again"
    )


async def test_a_member_may_keep_the_repository_path_but_not_change_it(world: World) -> None:
    maria = (await world.create_person("maria")).principal
    project = (await world.samples.ensure(maria)).project
    same = await world.projects.update(maria, project.id, name="Mine", repository=project.repository)
    assert same.name == "Mine"
    with pytest.raises(ForbiddenError):
        await world.projects.update(maria, project.id, repository="/etc")


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.title)
async def test_the_demo_agent_can_complete_each_sample_task(world: World, task: SampleTask, tmp_path: Path) -> None:
    """Every instruction is understood and finds its text, and tests that failed before pass at the end."""
    project = (await world.samples.ensure((await world.create_person("maria")).principal)).project
    work = tmp_path / "work"
    git(tmp_path, "clone", "--quiet", str(project.repository), str(work))
    found = instructions.parse_prompt(f"{task.title}\n\n{task.description}")
    steps = found.steps + instructions.parse_prompt("\n".join(found.fixes)).steps
    assert steps[-1].verb == "commit"
    check_message(steps[-1].text)
    for step in steps:
        assert step.verb in HELP
        file = work / step.path
        if step.verb == "append":
            file.write_text(file.read_text() + step.text)
            if file.suffix == ".py":
                assert not suite_passes(work), "the new test detects the fault"
        elif step.verb == "replace":
            assert file.read_text().count(step.old) == 1
            file.write_text(file.read_text().replace(step.old, step.text, 1))
    assert suite_passes(work)
    assert "__pycache__" not in git(work, "status", "--porcelain", "--untracked-files=all")


def suite_passes(work: Path) -> bool:
    command = [sys.executable, "-m", "unittest", "-q"]  # the project's verification command, with this Python
    return subprocess.run(command, cwd=work, capture_output=True, check=False).returncode == 0
