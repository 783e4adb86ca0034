"""What sandboxes of a project may connect to, as a real engine is told."""

from __future__ import annotations

from typing import Any

from sandyard.platform.db.models import Sandbox
from sandyard.platform.domain.projects.model import ProjectSettings
from sandyard.platform.domain.sandboxes.model import NewSandbox
from tests.integration.platform.domain.sandboxes.yard import Yard, until

ALL = "0.0.0.0/0"


async def made(yard: Yard, project_id: str | None) -> Sandbox:
    wanted = NewSandbox(template="base", idle_seconds=300, project_id=project_id)
    row = await yard.services.lifecycle.create(yard.owner.user_id, wanted)
    return await yard.services.lifecycle.wait_until_provisioned(row.id)


async def policy(yard: Yard, row: Sandbox) -> tuple[bool | None, list[str], list[str]]:
    """Internet, what is allowed, what is denied: as the engine says."""
    assert row.engine_id is not None
    detail = (await yard.services.engine.transport.get_detail(row.engine_id)).to_dict()
    network = detail.get("network") or {}
    return detail.get("allowInternetAccess"), network.get("allowOut") or [], network.get("denyOut") or []


async def change(yard: Yard, project_id: str, **network: Any) -> None:
    settings = ProjectSettings.model_validate({"network": network})
    await yard.services.projects.update(yard.owner, project_id, settings=settings)


async def test_a_sandbox_is_made_with_its_projects_network(yard: Yard) -> None:
    listed = await yard.project(yard.owner, network={"mode": "listed", "presets": ["pypi"], "allow": ["8.8.8.8"]})
    closed = await yard.project(yard.owner, network={"mode": "none"})
    hosts = ["pypi.org", "files.pythonhosted.org", "8.8.8.8"]
    assert (await policy(yard, await made(yard, listed)))[1:] == (hosts, [ALL])
    assert (await policy(yard, await made(yard, closed)))[0] is False
    assert (await policy(yard, await made(yard, None)))[1:] == ([], [])


async def test_a_change_holds_for_running_sandboxes_and_for_paused_ones_when_they_wake(yard: Yard) -> None:
    project = await yard.project(yard.owner)
    running, paused = await made(yard, project), await made(yard, project)
    await yard.services.lifecycle.pause(paused)
    await change(yard, project, mode="listed", allow=["example.org"])

    async def applied() -> bool:
        return (await yard.row(running)).network == ["example.org"]

    await until(applied, "the running one is told")
    assert (await policy(yard, running))[1:] == (["example.org"], [ALL])
    assert (await policy(yard, paused))[1:] == ([], [])
    woken = await yard.services.lifecycle.resume(await yard.row(paused))
    assert (await policy(yard, woken))[1:] == (["example.org"], [ALL])
    copy = await yard.services.sandboxes.fork(yard.owner, running.id)
    assert (await policy(yard, copy))[1:] == (["example.org"], [ALL])
    await change(yard, project, mode="all")

    async def open_again() -> bool:
        return (await yard.row(running)).network is None

    await until(open_again, "it is open again")
    assert (await policy(yard, running))[1:] == ([], [])


async def test_what_could_not_be_told_is_told_later(yard: Yard) -> None:
    project = await yard.project(yard.owner)
    row = await made(yard, project)
    await yard.door.shut()
    await change(yard, project, mode="none")
    await yard.services.lifecycle.apply_network(project)
    assert (await yard.row(row)).network is None
    await yard.back()
    await yard.services.maintenance.reconcile()
    assert ((await yard.row(row)).network, (await policy(yard, row))[0]) == ([], False)


async def test_what_was_refused_is_shown_where_the_engine_tells(yard: Yard) -> None:
    row = await made(yard, await yard.project(yard.owner, network={"mode": "none"}))
    await yard.wait(await yard.start(row, "getent hosts evil.test; true"))
    found = await yard.services.sandboxes.list_denied_connections(yard.owner, row.id)
    assert found is None or "evil.test" in {one.host for one in found}, "None: an engine without a network of its own"
