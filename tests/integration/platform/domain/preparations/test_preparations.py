"""Prepared snapshots and the sessions that start from them, with a real engine."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import select

from sandyard.kit.errors import ConflictError, InvalidInputError, NotFoundError, SandyardError
from sandyard.platform.db.models import Event, Preparation, Sandbox
from sandyard.platform.domain.agents.profiles.model import Install, Profile
from sandyard.platform.domain.paging import PageRequest
from sandyard.platform.domain.preparations.agent_snapshots import INSTALLER_AGENT_ID, SnapshotBuild
from sandyard.platform.domain.preparations.cleanup import BUILDER_AGENT_ID
from sandyard.platform.domain.preparations.model import PreparationFailedError
from sandyard.platform.domain.sandboxes.commands import StoppingError
from sandyard.platform.domain.sandboxes.model import NewCommand, Status
from tests.harness.engine import Engine
from tests.integration.platform.domain.preparations.conftest import BARE, TOOL, PreparationHarness
from tests.integration.platform.domain.sandboxes.platform_harness import open_platform, until

SETUP = "mkdir -p node_modules && echo $CI-$A >node_modules/made && echo built >left.txt && echo changed >>readme.md\n"
DEVCONTAINER = '{"image": "node:22", /* ours */ "containerEnv": {"A": "b"}, "postCreateCommand": "exit 1",}'


async def wait_until_builder_is_gone(harness: PreparationHarness, preparation: Preparation) -> None:
    async def is_gone() -> bool:
        row = await harness.platform.services.preparations.get(harness.owner, preparation.id)
        return row.sandbox_id is None

    await until(is_gone, "the builder is destroyed")


def no_installer_is_left(harness: PreparationHarness) -> Callable[[], Awaitable[bool]]:
    """Return a condition: all sandboxes that installed agents are destroyed."""

    async def is_gone() -> bool:
        async with harness.platform.services.database.reading() as session:
            remaining = select(Sandbox.id).where(
                Sandbox.agent_id == INSTALLER_AGENT_ID, Sandbox.status != Status.DESTROYED
            )
            return not (await session.scalars(remaining)).all()

    return is_gone


async def test_the_setup_runs_once_and_sessions_start_from_its_snapshot(harness: PreparationHarness) -> None:
    commit = harness.remote.commit(
        {".sandyard/setup.sh": SETUP, ".devcontainer/devcontainer.json": DEVCONTAINER, "AGENTS.md": "Be kind.\n"}
    )
    prepared = await asyncio.gather(harness.prepare(TOOL), harness.prepare(TOOL))
    first = prepared[0]
    assert prepared[1].id == first.id and first.status == "ready" and first.base_commit == commit
    assert (first.agent, first.template, first.base_branch) == ("tool", "base", "main")
    detail = first.detail
    assert detail["sources"] == [".sandyard/setup.sh"] and detail["agentsMd"] is True and detail["envs"] == {"A": "b"}
    (ran,) = detail["commands"]
    assert ran["exitCode"] == 0 and ran["command"] == "bash .sandyard/setup.sh" and ran["commandId"].startswith("cmd_")
    output = "\n".join(detail["warnings"])
    for text in ("node:22", "postCreateCommand", "readme.md", "left.txt"):
        assert text in output or text == "postCreateCommand", output
    await wait_until_builder_is_gone(harness, first)
    assert not await harness.platform.list_engine_ids()
    assert (await harness.prepare(TOOL)).id == first.id, "nothing is prepared again"
    kinds = await harness.platform.list_event_kinds(prefix="preparation.")
    assert (kinds.count("preparation.started"), kinds[0], kinds[-1]) == (1, "preparation.started", "preparation.ready")

    row, sandbox = await harness.create_session(first, envs={"X": "y"}, model="m", mode="plan")
    assert (row.template, row.model, row.mode, sandbox.template) == ("base", "m", "plan", first.snapshot)
    output = await harness.run(
        sandbox, "cat node_modules/made left.txt ~/.tool/there ~/.tool/config readme.md; echo $A $X"
    )
    assert output == "true-b\nbuilt\n1\nplainhello\nb y\n"
    checkout = await harness.platform.services.git.get_checkout(harness.owner, sandbox.id)
    branch = f"session/untitled-session-{row.id[-4:]}"
    assert (checkout.branch, checkout.base_branch, checkout.base_commit) == (branch, "main", commit)
    assert (await harness.platform.services.git.get_status(harness.owner, sandbox.id)).clean
    refs = await harness.run(
        sandbox, "git symbolic-ref HEAD; git for-each-ref --format='%(refname)'; git config user.name"
    )
    assert refs.split() == [
        f"refs/heads/{branch}", f"refs/heads/{branch}", "refs/remotes/origin/HEAD", "refs/remotes/origin/main", "Sandyard",
    ]  # fmt: skip
    await harness.run(sandbox, "echo work >work.txt")
    git = harness.platform.services.git
    done = await git.operations.wait((await git.commit(harness.owner, sandbox.id, message="feat: work")).id)
    git.operations.raise_failure(done)
    git.operations.raise_failure(await git.operations.wait((await git.push(harness.owner, sandbox.id)).id))
    assert harness.remote.git("diff", "--name-only", "main", branch) == "work.txt"


async def test_newer_commits_are_included_and_the_same_id_is_the_same_session(harness: PreparationHarness) -> None:
    first = await harness.prepare()
    newer = harness.remote.commit({"more.txt": "more\n"})
    await harness.platform.services.git.refresh(harness.project)
    sessions, wanted = harness.platform.services.sessions, {"preparation": first, "session_id": "ses_mine"}
    requests = [sessions.create(harness.owner, project_id=harness.project.id, **wanted) for _ in range(3)]  # type: ignore[arg-type]
    created = await asyncio.gather(*requests)
    row, sandbox = created[0]
    assert {(session.id, box.id) for session, box in created} == {("ses_mine", sandbox.id)}
    await harness.wait_for_checkout(sandbox)
    checkout = await harness.platform.services.git.get_checkout(harness.owner, sandbox.id)
    assert (checkout.base_commit, await harness.run(sandbox, "git rev-parse HEAD")) == (newer, f"{newer}\n")
    assert await harness.run(sandbox, "cat more.txt; git status --porcelain") == "more\n"
    again, same = await sessions.create(harness.owner, project_id=harness.project.id, session_id="ses_mine")
    assert (again.id, same.id) == (row.id, sandbox.id)
    other = await harness.platform.create_person("other", "admin")
    with pytest.raises(ConflictError):
        await sessions.create(other, session_id="ses_mine")
    second = await harness.prepare()
    assert second.id != first.id and second.base_commit == newer
    with pytest.raises(InvalidInputError, match="task"):
        await sessions.create(harness.owner, project_id=harness.project.id, task_id="tsk_none")


async def test_a_replacement_sandbox_is_prepared_too(harness: PreparationHarness) -> None:
    await harness.update_settings(setup={"command": "mkdir node_modules && touch node_modules/made"})
    harness.remote.commit({"side.txt": "side\n"}, "side")
    made = await harness.prepare(base_branch="side")
    services = harness.platform.services
    row, sandbox = await harness.create_session(made, base_branch="side")
    await harness.run(sandbox, "echo work >work.txt")
    await services.lifecycle.destroy(await harness.platform.reload(sandbox))  # its work is saved in git
    row, second = await services.sessions.provision(harness.owner, row.id)
    await harness.wait_for_checkout(second)
    assert await harness.run(second, "ls node_modules; cat work.txt side.txt") == "made\nwork\nside\n"
    assert (await services.git.get_checkout(harness.owner, second.id)).base_branch == "side"

    await services.preparations.delete(harness.owner, made.id)
    unprepared, sandbox = await services.sessions.create(harness.owner, project_id=harness.project.id, preparation=made)
    with pytest.raises(Exception, match=r"."):
        await services.lifecycle.wait_until_provisioned(sandbox.id)
    unprepared, third = await services.sessions.provision(harness.owner, unprepared.id)
    await harness.wait_for_checkout(third)
    assert third.template == "base"
    assert await harness.run(third, "ls; git config sandyard.checkout | cut -c1-4") == "readme.md\nside.txt\nsess\n"


async def test_an_agent_is_installed_once_per_template(harness: PreparationHarness) -> None:
    """For all commits of all projects, and for sessions without a project."""
    chosen = Install(
        "1",
        ("test", "-e", "/home/user/.tool/there"),
        "mkdir -p ~/.tool && cat /proc/sys/kernel/random/uuid >~/.tool/there",
    )
    tool = replace(TOOL, install=chosen)
    first, _ = await asyncio.gather(harness.prepare(tool), harness.prepare(BARE))
    _, sandbox = await harness.create_session(first)
    installed = await harness.run(sandbox, "cat ~/.tool/there")
    harness.remote.commit({"more.txt": "more\n"})
    second = await harness.prepare(tool)
    assert second.id != first.id
    _, sandbox = await harness.create_session(second)
    assert await harness.run(sandbox, "cat ~/.tool/there more.txt") == f"{installed}more\n"

    snapshots = harness.platform.services.preparations.agent_snapshots
    known = await snapshots.ensure(harness.owner.user_id, tool, "base")
    assert await snapshots.find(harness.owner.user_id, tool, "base") == known
    assert await snapshots.find(harness.owner.user_id, BARE, "base") == "base", "this agent installs nothing"
    stranger = await harness.platform.create_person("stranger", "member")
    assert await snapshots.find(stranger.user_id, tool, "base") == "base", "a user's own agent is not for others"
    with pytest.raises(InvalidInputError, match="no template"):
        await harness.platform.services.sandboxes.create_sandbox(stranger, template=known)
    newer = replace(tool, install=replace(chosen, version="2"))
    await harness.platform.services.engine.delete_snapshot(known)
    both = await asyncio.gather(
        *(snapshots.ensure(harness.owner.user_id, item, "base") for item in (tool, newer, newer))
    )
    assert known not in both, "a snapshot lost by the engine is created again"
    assert both[0] != both[1] == both[2]
    await until(no_installer_is_left(harness), "the installing sandboxes are destroyed")
    await snapshots.tidy(timedelta(days=1))
    assert await snapshots.find(harness.owner.user_id, newer, "base") == both[1]
    await snapshots.tidy(timedelta())
    assert await snapshots.find(harness.owner.user_id, newer, "base") == "base", "the snapshot was deleted"


async def test_the_sandbox_that_installs_an_agent_is_not_accessible(harness: PreparationHarness) -> None:
    """Its snapshot is used by everybody: the user who requested it first must not be able to change it."""
    member, services = await harness.platform.create_person("member"), harness.platform.services
    wait = "echo fetching; until [ -e /tmp/go ]; do sleep 0.05; done; mkdir ~/.tool"
    tool = replace(TOOL, install=Install("1", ("test", "-e", "/home/user/.tool"), wait))
    reported: list[SnapshotBuild] = []

    async def record(made: SnapshotBuild) -> None:
        reported.append(made)

    installing_task = asyncio.create_task(
        services.preparations.agent_snapshots.ensure(member.user_id, tool, "base", record)
    )
    query = select(Sandbox).where(Sandbox.agent_id == INSTALLER_AGENT_ID, Sandbox.status == Status.RUNNING)

    async def is_output_shown() -> bool:
        return reported[0].output == "fetching"

    async def find_installer() -> Sandbox | None:
        async with services.database.reading() as session:
            return await session.scalar(query)

    await until(find_installer, "the agent is being installed")
    row = await find_installer()
    assert row is not None and row.owner_id == member.user_id
    await until(is_output_shown, "the output is shown to the waiting caller")
    for everybody in (True, False):
        page = await services.lifecycle.repository.page(member, PageRequest(), everybody=everybody)
        assert row.id not in [item.id for item in page.items]
    with pytest.raises(NotFoundError):
        await services.lifecycle.repository.get_for(member, row.id)
    with pytest.raises(NotFoundError):
        await services.commands.execute(member, row.id, NewCommand("touch /tmp/go", 10))
    async with services.lifecycle.using(row) as engine_id:
        await services.engine.programs.run(engine_id, ["touch", "/tmp/go"])
    assert await installing_task != "base"


async def test_maintenance_does_not_start_the_sandbox_before_the_agent_is_installed(
    harness: PreparationHarness,
) -> None:
    """It would be created from the template without the agent, which would be installed a second time."""
    services = harness.platform.services
    wait = "until [ -e /tmp/go ]; do sleep 0.05; done; mkdir ~/.tool"
    tool = replace(TOOL, install=Install("1", ("test", "-e", "/home/user/.tool"), wait))
    preparing = asyncio.create_task(harness.prepare(tool))

    async def list_sandboxes(agent_id: str) -> list[Sandbox]:
        async with services.database.reading() as session:
            return list(await session.scalars(select(Sandbox).where(Sandbox.agent_id == agent_id)))

    async def is_installing() -> bool:
        return [row.status for row in await list_sandboxes(INSTALLER_AGENT_ID)] == [Status.RUNNING]

    await until(is_installing, "the agent is being installed")
    await services.maintenance.reconcile()
    await services.maintenance.wait()
    assert not await list_sandboxes(BUILDER_AGENT_ID)
    (installer,) = await list_sandboxes(INSTALLER_AGENT_ID)
    async with services.lifecycle.using(installer) as engine_id:
        await services.engine.programs.run(engine_id, ["touch", "/tmp/go"])
    made = await preparing
    (builder,) = await list_sandboxes(BUILDER_AGENT_ID)
    assert builder.template == await services.preparations.agent_snapshots.find(harness.owner.user_id, tool, "base")
    await wait_until_builder_is_gone(harness, made)


async def test_installing_the_agent_in_the_prepared_sandbox_is_reported(
    harness: PreparationHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This happens if the project's template is a snapshot of somebody's work."""

    async def keep_template(owner_id: str, profile: Profile, template: str, on_wait: object = None) -> str:
        return template

    monkeypatch.setattr(harness.platform.services.preparations.agent_snapshots, "ensure", keep_template)
    made = await harness.prepare(TOOL)
    async with harness.platform.services.database.reading() as session:
        events = await session.scalars(select(Event).where(Event.kind == "preparation.progress").order_by(Event.seq))
        reported = [event.data["what"] for event in events]
    assert reported[2:4] == ["checked out", "installing Tool"]
    await wait_until_builder_is_gone(harness, made)


async def test_the_sandbox_that_prepares_a_project_is_not_accessible(harness: PreparationHarness) -> None:
    member, services = await harness.platform.create_person("member"), harness.platform.services
    await services.projects.add_member(harness.owner, harness.project.id, member.user_id)
    await harness.update_settings(setup={"command": "until [ -e /tmp/go ]; do sleep 0.05; done; echo ready"})
    preparing = asyncio.create_task(harness.prepare(caller=member))

    async def find_running_setup() -> Preparation | None:
        page = await services.preparations.list(member, harness.project.id, PageRequest())
        return next((item for item in page.items if item.detail.get("commands")), None)

    await until(find_running_setup, "the setup runs")
    row = await find_running_setup()
    assert row is not None and row.sandbox_id is not None
    command_id = row.detail["commands"][0]["commandId"]
    for forbidden in (
        services.lifecycle.repository.get_for(member, row.sandbox_id),
        services.commands.execute(member, row.sandbox_id, NewCommand("touch /tmp/go", 10)),
        services.commands.kill(member, command_id),
        services.previews.create(member, row.sandbox_id, 8000),
        services.previews.list_ports(member, row.sandbox_id),
        services.sandboxes.resume(member, row.sandbox_id),
        services.sandboxes.fork(member, row.sandbox_id),
        services.sandboxes.list_files(member, row.sandbox_id, "/", 1),
        services.git.get_checkout(member, row.sandbox_id),
        services.git.push(member, row.sandbox_id),
        services.terminals.open(member, row.sandbox_id, 80, 24),
    ):
        with pytest.raises(NotFoundError):
            await forbidden
    command, _ = await services.commands.get_for(member, command_id)
    assert "/tmp/go" in command.command, "its output can be read"
    async with services.lifecycle.using(await services.lifecycle.repository.get(row.sandbox_id)) as engine_id:
        await services.engine.programs.run(engine_id, ["touch", "/tmp/go"])
    assert (await preparing).status == "ready"


async def test_a_failed_setup_is_reported_and_not_repeated_at_once(harness: PreparationHarness) -> None:
    await harness.update_settings(setup={"command": "echo wrong >&2; exit 3"})
    with pytest.raises(PreparationFailedError, match=r"exited with code 3.*wrong") as caught:
        await harness.prepare()
    extra = caught.value.extra
    assert (extra["exitCode"], extra["outputTail"]) == (3, "wrong")
    assert not await harness.platform.list_engine_ids(), "its sandbox is destroyed"
    with pytest.raises(PreparationFailedError, match="exited with code 3"):
        await harness.prepare()
    page = await harness.platform.services.preparations.list(harness.owner, harness.project.id, PageRequest())
    (row,) = page.items
    assert (row.status, row.error_code, row.sandbox_id) == ("failed", "preparation_failed", None)
    kinds = await harness.platform.list_event_kinds(prefix="preparation.")
    assert kinds.count("preparation.started") == 1, "it is not repeated so soon"
    with pytest.raises(PreparationFailedError, match="exited with code 3"):
        await harness.prepare(again=True)
    assert (await harness.platform.list_event_kinds(prefix="preparation.")).count("preparation.started") == 2
    await harness.update_settings(setup={"command": "true"})
    assert (await harness.prepare()).status == "ready"


async def test_a_stranger_cannot_use_a_preparation(harness: PreparationHarness) -> None:
    made = await harness.prepare()
    stranger, services = await harness.platform.create_person("stranger"), harness.platform.services
    with pytest.raises(NotFoundError):
        await services.preparations.get(stranger, made.id)
    with pytest.raises(NotFoundError):
        await services.preparations.list(stranger, harness.project.id, PageRequest())
    with pytest.raises(NotFoundError):
        await harness.prepare(caller=stranger)
    snapshot = made.snapshot or ""
    for name in (
        snapshot,
        snapshot.partition(":")[0],
        f" {snapshot}",
        f"{snapshot}\n",
        snapshot.upper(),
        f"x/{snapshot}",
    ):
        with pytest.raises(InvalidInputError, match="template"):
            await services.sessions.create(stranger, template=name)
        with pytest.raises(InvalidInputError, match="template"):
            await services.sandboxes.create_sandbox(stranger, template=name)
        if name == name.strip():  # a project accepts no other name
            own = await harness.platform.project(stranger, template=name)
            with pytest.raises(InvalidInputError, match="template"):
                await services.sessions.create(stranger, project_id=own)
    with pytest.raises(NotFoundError):
        await services.sessions.create(stranger, project_id=harness.project.id, preparation=made)
    other = await harness.platform.project(stranger)
    with pytest.raises(InvalidInputError, match="another project"):
        await services.sessions.create(stranger, project_id=other, preparation=made)


async def test_a_preparation_is_only_for_sandboxes_of_its_project(harness: PreparationHarness) -> None:
    made = await harness.prepare()
    services, snapshot = harness.platform.services, made.snapshot or ""
    other = await harness.platform.project(harness.owner)
    for project_id in (None, other):
        with pytest.raises(InvalidInputError, match="sandbox of that project"):
            await services.sandboxes.create_sandbox(harness.owner, template=snapshot, project_id=project_id)
        with pytest.raises(InvalidInputError, match="sandbox of that project"):
            await services.sessions.create(harness.owner, template=snapshot, project_id=project_id)
    sandbox = await services.sandboxes.create_sandbox(harness.owner, template=snapshot, project_id=harness.project.id)
    assert sandbox.project_id == harness.project.id
    profile = await services.agents.profile(harness.owner.user_id, "opencode")
    assert profile.install is not None
    find = services.preparations.agent_snapshots.find
    assert await find(harness.owner.user_id, profile, snapshot) == snapshot
    # no sandbox outside the project is created from it to install an agent
    async with services.database.reading() as session:
        query = select(Sandbox).where(Sandbox.template == snapshot, Sandbox.project_id.is_(None))
        assert (await session.scalars(query)).first() is None


async def test_unused_snapshots_are_deleted_and_lost_ones_replaced(harness: PreparationHarness) -> None:
    services = harness.platform.services
    made = await harness.prepare()
    await wait_until_builder_is_gone(harness, made)
    await services.preparations.tidy(timedelta(days=1))
    assert (await harness.prepare()).snapshot == made.snapshot
    await services.engine.delete_snapshot(made.snapshot or "")
    again = await harness.prepare()
    assert again.id == made.id and again.snapshot not in (None, made.snapshot)
    await wait_until_builder_is_gone(harness, again)
    engine_id = again.detail["engineId"]
    await services.preparations.tidy(timedelta(seconds=-1))
    with pytest.raises(NotFoundError):
        await services.preparations.get(harness.owner, made.id)
    assert not await services.engine.list_snapshots(engine_id)

    last = await harness.prepare()
    await wait_until_builder_is_gone(harness, last)
    await services.projects.delete(harness.owner, harness.project.id)
    assert await services.engine.list_snapshots(last.detail["engineId"])
    await services.preparations.tidy(timedelta(days=1))
    assert not await services.engine.list_snapshots(last.detail["engineId"])


async def test_an_interrupted_preparation_is_cleaned_up_by_the_next_platform(
    harness: PreparationHarness, engine_process: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await harness.update_settings(setup={"command": "sleep 60"})
    preparations = harness.platform.services.preparations
    waiting = asyncio.create_task(harness.prepare())

    async def is_running() -> bool:
        async with harness.platform.services.database.reading() as session:
            row = await session.get(Preparation, next(iter(preparations.builds), ""))
        return row is not None and "running" in row.detail["step"]

    await until(is_running, "the setup runs")
    await preparations.close()
    with pytest.raises(StoppingError):
        await waiting
    page = await preparations.list(harness.owner, harness.project.id, PageRequest())
    (row,) = page.items
    assert row.status == "preparing" and row.sandbox_id is not None
    async with open_platform(tmp_path, engine_process, monkeypatch) as second:
        next_preparations = second.services.preparations

        async def find_destroyed_builder() -> Sandbox | None:
            found = await next_preparations.get(harness.owner, row.id)
            box = await second.services.lifecycle.repository.get(row.sandbox_id or "")
            done = found.sandbox_id is None and box.status == "destroyed"
            assert found.error_code == "interrupted"
            return box if done else None

        await until(find_destroyed_builder, "the builder is destroyed")
        assert not await second.list_engine_ids()
        settings = harness.project.settings
        assert settings["setup"]["command"] == "sleep 60"
        await harness.update_settings(setup={"command": "true"})
        made = await next_preparations.prepare(harness.owner, harness.project, base_branch=None, profile=BARE)
        assert made.status == "ready"


async def test_an_unrecorded_snapshot_is_deleted(harness: PreparationHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    preparations, services = harness.platform.services.preparations, harness.platform.services
    taken: list[str] = []

    async def wait_forever(preparation_id: str, snapshot: str, seconds: float) -> Preparation:
        taken.append(snapshot)
        await asyncio.Event().wait()
        raise AssertionError

    async def is_taken() -> bool:
        return bool(taken)

    monkeypatch.setattr(preparations, "mark_ready", wait_forever)
    waiting = asyncio.create_task(harness.prepare())
    await until(is_taken, "the snapshot is taken")
    (flight,) = preparations.builds.values()
    engine_id = (await harness.platform.reload(flight.sandbox)).engine_id or ""
    assert list(await services.engine.list_snapshots(engine_id)) == taken
    flight.task.cancel()
    with pytest.raises(StoppingError):
        await waiting
    await preparations.recover()

    async def is_gone() -> bool:
        return not await services.engine.list_snapshots(engine_id) and not await harness.platform.list_engine_ids()

    await until(is_gone, "the snapshot and the sandbox are deleted")
    monkeypatch.undo()
    assert (await harness.prepare()).status == "ready"


async def test_a_preparation_can_start_again_while_it_is_deleted(
    harness: PreparationHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, preparations = harness.platform.services.engine, harness.platform.services.preparations
    made = await harness.prepare()
    delete = engine.delete_snapshot

    async def delete_and_prepare(snapshot: str) -> None:
        monkeypatch.setattr(engine, "delete_snapshot", delete)
        await delete(snapshot)
        await preparations.start(harness.owner, harness.project, base_branch=None, profile=BARE)

    monkeypatch.setattr(engine, "delete_snapshot", delete_and_prepare)
    await preparations.delete(harness.owner, made.id)
    again = await preparations.wait(made.id)
    assert (again.status, again.snapshot != made.snapshot) == ("ready", True)


async def test_preparations_of_one_user_wait_for_each_other(harness: PreparationHarness) -> None:
    """Their sandboxes do not count as the user's, so there must not be any number of them."""
    services = harness.platform.services
    harness.remote.commit({".sandyard/setup.sh": "until [ -e /tmp/go ]; do sleep 0.05; done\n"})
    limit, names = services.settings.preparations_per_user, list[str]()
    for number in range(limit + 1):
        names.append(f"branch{number}")
        harness.remote.commit({f"{number}.txt": "more\n"}, branch=names[-1])
    rows = [
        await services.preparations.start(harness.owner, harness.project, base_branch=name, profile=BARE)
        for name in names
    ]
    last = rows[-1]

    async def is_waiting() -> bool:
        progress = services.preparations.get_progress(last.id)
        return progress is not None and "waiting for other preparations of this user" in progress.step

    async def list_running() -> list[str]:
        steps = [services.preparations.get_progress(row.id) for row in rows]
        return [row.id for row, step in zip(rows, steps, strict=True) if step and step.step.startswith("running")]

    async def all_others_run() -> bool:
        return len(await list_running()) == limit

    await until(is_waiting, "the last one waits")
    await until(all_others_run, "the others run")
    assert await is_waiting() and len(await harness.platform.list_engine_ids()) == limit
    other = await harness.platform.create_person("other", "admin")
    of_another = await services.preparations.start(other, harness.project, base_branch="main", profile=BARE)
    assert of_another.id not in {row.id for row in rows}

    async def release() -> bool:
        for engine_id in await harness.platform.list_engine_ids():
            with contextlib.suppress(SandyardError):  # it has ended
                await services.engine.programs.run(engine_id, ["touch", "/tmp/go"])
        running = [services.preparations.get_progress(row.id) for row in (*rows, of_another)]
        return not any(running)

    await until(release, "all are ready")
    for row in (*rows, of_another):
        assert (await services.preparations.wait(row.id)).status == "ready"
