"""Prepared snapshots and the sessions that start from them, before a real engine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import select

from sandyard.kit.errors import ConflictError, InvalidInputError, NotFoundError
from sandyard.platform.db.models import Preparation, Sandbox
from sandyard.platform.domain.agents.profiles.model import Install
from sandyard.platform.domain.paging import PageRequest
from sandyard.platform.domain.preparations.agent_snapshots import INSTALLER, Making
from sandyard.platform.domain.preparations.model import PreparationFailedError
from sandyard.platform.domain.sandboxes.commands import StoppingError
from sandyard.platform.domain.sandboxes.model import NewCommand, Status
from tests.integration.platform.domain.preparations.conftest import BARE, TOOL, Garden
from tests.integration.platform.domain.sandboxes.yard import opened, until
from tests.protocol.engine import Engine

SETUP = "mkdir -p node_modules && echo $CI-$A >node_modules/made && echo built >left.txt && echo changed >>readme.md\n"
DEVCONTAINER = '{"image": "node:22", /* ours */ "containerEnv": {"A": "b"}, "postCreateCommand": "exit 1",}'


async def builder_is_gone(garden: Garden, preparation: Preparation) -> None:
    async def gone() -> bool:
        row = await garden.yard.services.preparations.get(garden.owner, preparation.id)
        return row.sandbox_id is None

    await until(gone, "the builder goes")


def nobody_is_there(garden: Garden) -> Callable[[], Awaitable[bool]]:
    """Nobody but sessions."""

    async def gone() -> bool:
        async with garden.yard.services.database.reading() as session:
            left = select(Sandbox.id).where(Sandbox.agent_id == INSTALLER, Sandbox.status != Status.DESTROYED)
            return not (await session.scalars(left)).all()

    return gone


async def test_setup_runs_once_and_sessions_start_from_it(garden: Garden) -> None:
    commit = garden.remote.commit(
        {".sandyard/setup.sh": SETUP, ".devcontainer/devcontainer.json": DEVCONTAINER, "AGENTS.md": "Be kind.\n"}
    )
    both = await asyncio.gather(garden.prepare(TOOL), garden.prepare(TOOL))
    first = both[0]
    assert both[1].id == first.id and first.status == "ready" and first.base_commit == commit
    assert (first.agent, first.template, first.base_branch) == ("tool", "base", "main")
    detail = first.detail
    assert detail["sources"] == [".sandyard/setup.sh"] and detail["agentsMd"] is True and detail["envs"] == {"A": "b"}
    (ran,) = detail["commands"]
    assert ran["exitCode"] == 0 and ran["command"] == "bash .sandyard/setup.sh" and ran["commandId"].startswith("cmd_")
    told = "\n".join(detail["warnings"])
    for word in ("node:22", "postCreateCommand", "readme.md", "left.txt"):
        assert word in told or word == "postCreateCommand", told
    await builder_is_gone(garden, first)
    assert not await garden.yard.there()
    assert (await garden.prepare(TOOL)).id == first.id, "nothing is made anew"
    kinds = await garden.yard.kinds(about="preparation.")
    assert (kinds.count("preparation.started"), kinds[0], kinds[-1]) == (1, "preparation.started", "preparation.ready")

    row, sandbox = await garden.session(first, envs={"X": "y"}, model="m", mode="plan")
    assert (row.template, row.model, row.mode, sandbox.template) == ("base", "m", "plan", first.snapshot)
    told = await garden.run(
        sandbox, "cat node_modules/made left.txt ~/.tool/there ~/.tool/config readme.md; echo $A $X"
    )
    assert told == "true-b\nbuilt\n1\nplainhello\nb y\n"
    checkout = await garden.yard.services.git.get_checkout(garden.owner, sandbox.id)
    branch = f"session/untitled-session-{row.id[-4:]}"
    assert (checkout.branch, checkout.base_branch, checkout.base_commit) == (branch, "main", commit)
    assert (await garden.yard.services.git.status(garden.owner, sandbox.id)).clean
    refs = await garden.run(
        sandbox, "git symbolic-ref HEAD; git for-each-ref --format='%(refname)'; git config user.name"
    )
    assert refs.split() == [
        f"refs/heads/{branch}", f"refs/heads/{branch}", "refs/remotes/origin/HEAD", "refs/remotes/origin/main", "Sandyard",
    ]  # fmt: skip
    await garden.run(sandbox, "echo work >work.txt")
    git = garden.yard.services.git
    done = await git.operations.wait((await git.commit(garden.owner, sandbox.id, message="feat: work")).id)
    git.operations.raise_failure(done)
    git.operations.raise_failure(await git.operations.wait((await git.push(garden.owner, sandbox.id)).id))
    assert garden.remote.git("diff", "--name-only", "main", branch) == "work.txt"


async def test_what_is_new_since_comes_along_and_the_same_id_is_the_same_session(garden: Garden) -> None:
    first = await garden.prepare()
    newer = garden.remote.commit({"more.txt": "more\n"})
    await garden.yard.services.git.refresh(garden.project)
    sessions, wanted = garden.yard.services.sessions, {"preparation": first, "session_id": "ses_mine"}
    asked = [sessions.create(garden.owner, project_id=garden.project.id, **wanted) for _ in range(3)]  # type: ignore[arg-type]
    made = await asyncio.gather(*asked)
    row, sandbox = made[0]
    assert {(one.id, box.id) for one, box in made} == {("ses_mine", sandbox.id)}
    await garden.checked_out(sandbox)
    checkout = await garden.yard.services.git.get_checkout(garden.owner, sandbox.id)
    assert (checkout.base_commit, await garden.run(sandbox, "git rev-parse HEAD")) == (newer, f"{newer}\n")
    assert await garden.run(sandbox, "cat more.txt; git status --porcelain") == "more\n"
    again, same = await sessions.create(garden.owner, project_id=garden.project.id, session_id="ses_mine")
    assert (again.id, same.id) == (row.id, sandbox.id)
    other = await garden.yard.person("other", "admin")
    with pytest.raises(ConflictError):
        await sessions.create(other, session_id="ses_mine")
    second = await garden.prepare()
    assert second.id != first.id and second.base_commit == newer
    with pytest.raises(InvalidInputError, match="task"):
        await sessions.create(garden.owner, project_id=garden.project.id, task_id="tsk_none")


async def test_a_sandbox_in_the_place_of_a_lost_one_is_prepared_too(garden: Garden) -> None:
    await garden.set(setup={"command": "mkdir node_modules && touch node_modules/made"})
    garden.remote.commit({"side.txt": "side\n"}, "side")
    made = await garden.prepare(base_branch="side")
    services = garden.yard.services
    row, sandbox = await garden.session(made, base_branch="side")
    await garden.run(sandbox, "echo work >work.txt")
    await services.lifecycle.destroy(await garden.yard.row(sandbox))  # its work is kept in git
    row, second = await services.sessions.provision(garden.owner, row.id)
    await garden.checked_out(second)
    assert await garden.run(second, "ls node_modules; cat work.txt side.txt") == "made\nwork\nside\n"
    assert (await services.git.get_checkout(garden.owner, second.id)).base_branch == "side"

    await services.preparations.delete(garden.owner, made.id)
    bare, sandbox = await services.sessions.create(garden.owner, project_id=garden.project.id, preparation=made)
    with pytest.raises(Exception, match=r"."):
        await services.lifecycle.wait_until_provisioned(sandbox.id)
    bare, third = await services.sessions.provision(garden.owner, bare.id)
    await garden.checked_out(third)
    assert third.template == "base"
    assert await garden.run(third, "ls; git config sandyard.checkout | cut -c1-4") == "readme.md\nside.txt\nsess\n"


async def test_an_agent_is_installed_once_for_a_template(garden: Garden) -> None:
    """For every commit of every project, and for sessions of none."""
    chosen = Install(
        "1",
        ("test", "-e", "/home/user/.tool/there"),
        "mkdir -p ~/.tool && cat /proc/sys/kernel/random/uuid >~/.tool/there",
    )
    tool = replace(TOOL, install=chosen)
    first, _ = await asyncio.gather(garden.prepare(tool), garden.prepare(BARE))
    _, sandbox = await garden.session(first)
    installed = await garden.run(sandbox, "cat ~/.tool/there")
    garden.remote.commit({"more.txt": "more\n"})
    second = await garden.prepare(tool)
    assert second.id != first.id
    _, sandbox = await garden.session(second)
    assert await garden.run(sandbox, "cat ~/.tool/there more.txt") == f"{installed}more\n"

    snapshots = garden.yard.services.preparations.agent_snapshots
    known = await snapshots.ensure(garden.owner.user_id, tool, "base")
    assert await snapshots.find(garden.owner.user_id, tool, "base") == known
    assert await snapshots.find(garden.owner.user_id, BARE, "base") == "base", "which installs nothing"
    stranger = await garden.yard.person("stranger", "member")
    assert await snapshots.find(stranger.user_id, tool, "base") == "base", "an agent of one's own is not for others"
    with pytest.raises(InvalidInputError, match="no template"):
        await garden.yard.services.sandboxes.create_sandbox(stranger, template=known)
    newer = replace(tool, install=replace(chosen, version="2"))
    await garden.yard.services.engine.delete_snapshot(known)
    both = await asyncio.gather(*(snapshots.ensure(garden.owner.user_id, one, "base") for one in (tool, newer, newer)))
    assert known not in both, "one that the engine has lost is made again"
    assert both[0] != both[1] == both[2]
    await until(nobody_is_there(garden), "what they were installed in is gone")
    await snapshots.tidy(timedelta(days=1))
    assert await snapshots.find(garden.owner.user_id, newer, "base") == both[1]
    await snapshots.tidy(timedelta())
    assert await snapshots.find(garden.owner.user_id, newer, "base") == "base", "it was dropped"


async def test_nobody_enters_the_sandbox_in_which_an_agent_is_installed(garden: Garden) -> None:
    """What is made in it is used by everybody: who asked for it first must not be able to change it."""
    member, services = await garden.yard.person("member"), garden.yard.services
    wait = "echo fetching; until [ -e /tmp/go ]; do sleep 0.05; done; mkdir ~/.tool"
    tool = replace(TOOL, install=Install("1", ("test", "-e", "/home/user/.tool"), wait))
    told: list[Making] = []

    async def waiting(made: Making) -> None:
        told.append(made)

    making = asyncio.create_task(services.preparations.agent_snapshots.ensure(member.user_id, tool, "base", waiting))
    query = select(Sandbox).where(Sandbox.agent_id == INSTALLER, Sandbox.status == Status.RUNNING)

    async def heard() -> bool:
        return told[0].output == "fetching"

    async def installing() -> Sandbox | None:
        async with services.database.reading() as session:
            return await session.scalar(query)

    await until(installing, "it is being installed")
    row = await installing()
    assert row is not None and row.owner_id == member.user_id
    await until(heard, "who waits sees what it says")
    for everybody in (True, False):
        page = await services.lifecycle.repository.page(member, PageRequest(), everybody=everybody)
        assert row.id not in [one.id for one in page.items]
    with pytest.raises(NotFoundError):
        await services.lifecycle.repository.get_for(member, row.id)
    with pytest.raises(NotFoundError):
        await services.commands.execute(member, row.id, NewCommand("touch /tmp/go", 10))
    async with services.lifecycle.using(row) as engine_id:
        await services.engine.programs.run(engine_id, ["touch", "/tmp/go"])
    assert await making != "base"


async def test_nobody_enters_the_sandbox_in_which_a_project_is_prepared(garden: Garden) -> None:
    member, services = await garden.yard.person("member"), garden.yard.services
    await services.projects.add_member(garden.owner, garden.project.id, member.user_id)
    await garden.set(setup={"command": "until [ -e /tmp/go ]; do sleep 0.05; done; echo ready"})
    making = asyncio.create_task(garden.prepare(caller=member))

    async def setting_up() -> Preparation | None:
        page = await services.preparations.list(member, garden.project.id, PageRequest())
        return next((one for one in page.items if one.detail.get("commands")), None)

    await until(setting_up, "its setup runs")
    row = await setting_up()
    assert row is not None and row.sandbox_id is not None
    command_id = row.detail["commands"][0]["commandId"]
    for forbidden in (
        services.lifecycle.repository.get_for(member, row.sandbox_id),
        services.commands.execute(member, row.sandbox_id, NewCommand("touch /tmp/go", 10)),
        services.commands.kill(member, command_id),
    ):
        with pytest.raises(NotFoundError):
            await forbidden
    command, _ = await services.commands.get_for(member, command_id)
    assert "/tmp/go" in command.command, "its output can be read"
    async with services.lifecycle.using(await services.lifecycle.repository.get(row.sandbox_id)) as engine_id:
        await services.engine.programs.run(engine_id, ["touch", "/tmp/go"])
    assert (await making).status == "ready"


async def test_a_setup_that_fails(garden: Garden) -> None:
    await garden.set(setup={"command": "echo wrong >&2; exit 3"})
    with pytest.raises(PreparationFailedError, match=r"exited with code 3.*wrong") as caught:
        await garden.prepare()
    extra = caught.value.extra
    assert (extra["exitCode"], extra["outputTail"]) == (3, "wrong")
    assert not await garden.yard.there(), "its sandbox is gone"
    with pytest.raises(PreparationFailedError, match="exited with code 3"):
        await garden.prepare()
    page = await garden.yard.services.preparations.list(garden.owner, garden.project.id, PageRequest())
    (row,) = page.items
    assert (row.status, row.error_code, row.sandbox_id) == ("failed", "preparation_failed", None)
    kinds = await garden.yard.kinds(about="preparation.")
    assert kinds.count("preparation.started") == 1, "not again so soon"
    with pytest.raises(PreparationFailedError, match="exited with code 3"):
        await garden.prepare(again=True)
    assert (await garden.yard.kinds(about="preparation.")).count("preparation.started") == 2
    await garden.set(setup={"command": "true"})
    assert (await garden.prepare()).status == "ready"


async def test_who_may_not_see_the_project_gets_nothing_of_it(garden: Garden) -> None:
    made = await garden.prepare()
    stranger, services = await garden.yard.person("stranger"), garden.yard.services
    with pytest.raises(NotFoundError):
        await services.preparations.get(stranger, made.id)
    with pytest.raises(NotFoundError):
        await services.preparations.list(stranger, garden.project.id, PageRequest())
    with pytest.raises(NotFoundError):
        await garden.prepare(caller=stranger)
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
        if name == name.strip():  # a project takes no other
            own = await garden.yard.project(stranger, template=name)
            with pytest.raises(InvalidInputError, match="template"):
                await services.sessions.create(stranger, project_id=own)
    with pytest.raises(NotFoundError):
        await services.sessions.create(stranger, project_id=garden.project.id, preparation=made)
    other = await garden.yard.project(stranger)
    with pytest.raises(InvalidInputError, match="another project"):
        await services.sessions.create(stranger, project_id=other, preparation=made)


async def test_a_preparation_is_for_sandboxes_of_its_project(garden: Garden) -> None:
    made = await garden.prepare()
    services, snapshot = garden.yard.services, made.snapshot or ""
    other = await garden.yard.project(garden.owner)
    for project_id in (None, other):
        with pytest.raises(InvalidInputError, match="sandbox of that project"):
            await services.sandboxes.create_sandbox(garden.owner, template=snapshot, project_id=project_id)
        with pytest.raises(InvalidInputError, match="sandbox of that project"):
            await services.sessions.create(garden.owner, template=snapshot, project_id=project_id)
    sandbox = await services.sandboxes.create_sandbox(garden.owner, template=snapshot, project_id=garden.project.id)
    assert sandbox.project_id == garden.project.id
    profile = await services.agents.profile(garden.owner.user_id, "opencode")
    assert profile.install is not None
    find = services.preparations.agent_snapshots.find
    assert await find(garden.owner.user_id, profile, snapshot) == snapshot
    async with (
        services.database.reading() as session
    ):  # no sandbox of no project is made of it, to install an agent there
        query = select(Sandbox).where(Sandbox.template == snapshot, Sandbox.project_id.is_(None))
        assert (await session.scalars(query)).first() is None


async def test_unused_and_lost_snapshots(garden: Garden) -> None:
    services = garden.yard.services
    made = await garden.prepare()
    await builder_is_gone(garden, made)
    await services.preparations.tidy(timedelta(days=1))
    assert (await garden.prepare()).snapshot == made.snapshot
    await services.engine.delete_snapshot(made.snapshot or "")
    again = await garden.prepare()
    assert again.id == made.id and again.snapshot not in (None, made.snapshot)
    await builder_is_gone(garden, again)
    engine_id = again.detail["engineId"]
    await services.preparations.tidy(timedelta(seconds=-1))
    with pytest.raises(NotFoundError):
        await services.preparations.get(garden.owner, made.id)
    assert not await services.engine.list_snapshots(engine_id)

    last = await garden.prepare()
    await builder_is_gone(garden, last)
    await services.projects.delete(garden.owner, garden.project.id)
    assert await services.engine.list_snapshots(last.detail["engineId"])
    await services.preparations.tidy(timedelta(days=1))
    assert not await services.engine.list_snapshots(last.detail["engineId"])


async def test_a_platform_that_ends_in_the_middle(
    garden: Garden, engine_process: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await garden.set(setup={"command": "sleep 60"})
    preparing = garden.yard.services.preparations
    waiting = asyncio.create_task(garden.prepare())

    async def under_way() -> bool:
        async with garden.yard.services.database.reading() as session:
            row = await session.get(Preparation, next(iter(preparing._flights), ""))
        return row is not None and "running" in row.detail["step"]

    await until(under_way, "the setup runs")
    await preparing.close()
    with pytest.raises(StoppingError):
        await waiting
    page = await preparing.list(garden.owner, garden.project.id, PageRequest())
    (row,) = page.items
    assert row.status == "preparing" and row.sandbox_id is not None
    async with opened(tmp_path, engine_process, monkeypatch) as second:
        next_ = second.services.preparations

        async def cleared() -> Sandbox | None:
            found = await next_.get(garden.owner, row.id)
            box = await second.services.lifecycle.repository.get(row.sandbox_id or "")
            done = found.sandbox_id is None and box.status == "destroyed"
            assert found.error_code == "interrupted"
            return box if done else None

        await until(cleared, "the builder goes")
        assert not await second.there()
        settings = garden.project.settings
        assert settings["setup"]["command"] == "sleep 60"
        await garden.set(setup={"command": "true"})
        made = await next_.prepare(garden.owner, garden.project, base_branch=None, profile=BARE)
        assert made.status == "ready"


async def test_a_snapshot_that_nobody_wrote_down_goes(garden: Garden, monkeypatch: pytest.MonkeyPatch) -> None:
    preparing, services = garden.yard.services.preparations, garden.yard.services
    taken: list[str] = []

    async def never(preparation_id: str, snapshot: str, seconds: float) -> Preparation:
        taken.append(snapshot)
        await asyncio.Event().wait()
        raise AssertionError

    async def is_taken() -> bool:
        return bool(taken)

    monkeypatch.setattr(preparing, "_ready", never)
    waiting = asyncio.create_task(garden.prepare())
    await until(is_taken, "the snapshot is taken")
    (flight,) = preparing._flights.values()
    engine_id = (await garden.yard.row(flight.sandbox)).engine_id or ""
    assert list(await services.engine.list_snapshots(engine_id)) == taken
    flight.task.cancel()
    with pytest.raises(StoppingError):
        await waiting
    await preparing.recover()

    async def gone() -> bool:
        return not await services.engine.list_snapshots(engine_id) and not await garden.yard.there()

    await until(gone, "all of it goes")
    monkeypatch.undo()
    assert (await garden.prepare()).status == "ready"


async def test_prepared_anew_while_it_is_deleted(garden: Garden, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, preparing = garden.yard.services.engine, garden.yard.services.preparations
    made = await garden.prepare()
    delete = engine.delete_snapshot

    async def meanwhile(snapshot: str) -> None:
        monkeypatch.setattr(engine, "delete_snapshot", delete)
        await delete(snapshot)
        await preparing.begin(garden.owner, garden.project, base_branch=None, profile=BARE)

    monkeypatch.setattr(engine, "delete_snapshot", meanwhile)
    await preparing.delete(garden.owner, made.id)
    again = await preparing.wait(made.id)
    assert (again.status, again.snapshot != made.snapshot) == ("ready", True)
