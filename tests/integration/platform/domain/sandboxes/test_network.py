"""What sandboxes of a project may connect to, as configured in a real engine."""

from __future__ import annotations

from typing import Any

from sandyard.platform.db.models import Sandbox
from sandyard.platform.domain.projects.model import ProjectSettings
from sandyard.platform.domain.sandboxes.model import NewSandbox
from tests.integration.platform.domain.sandboxes.yard import Yard, until

ALL = "0.0.0.0/0"


async def create_in_project(yard: Yard, project_id: str | None) -> Sandbox:
    wanted = NewSandbox(template="base", idle_seconds=300, project_id=project_id)
    row = await yard.services.lifecycle.create(yard.owner.user_id, wanted)
    return await yard.services.lifecycle.wait_until_provisioned(row.id)


async def get_policy(yard: Yard, row: Sandbox) -> tuple[bool | None, list[str], list[str]]:
    """Return internet access, allowed and denied destinations, as reported by the engine."""
    assert row.engine_id is not None
    detail = (await yard.services.engine.transport.get_detail(row.engine_id)).to_dict()
    network = detail.get("network") or {}
    return detail.get("allowInternetAccess"), network.get("allowOut") or [], network.get("denyOut") or []


async def change_network(yard: Yard, project_id: str, **network: Any) -> None:
    settings = ProjectSettings.model_validate({"network": network})
    await yard.services.projects.update(yard.owner, project_id, settings=settings)


async def test_a_sandbox_gets_the_network_policy_of_its_project(yard: Yard) -> None:
    listed = await yard.project(yard.owner, network={"mode": "listed", "presets": ["pypi"], "allow": ["8.8.8.8"]})
    closed = await yard.project(yard.owner, network={"mode": "none"})
    hosts = ["pypi.org", "files.pythonhosted.org", "8.8.8.8"]
    assert (await get_policy(yard, await create_in_project(yard, listed)))[1:] == (hosts, [ALL])
    assert (await get_policy(yard, await create_in_project(yard, closed)))[0] is False
    assert (await get_policy(yard, await create_in_project(yard, None)))[1:] == ([], [])


async def test_a_policy_change_applies_to_running_sandboxes_and_to_paused_ones_on_resume(yard: Yard) -> None:
    project = await yard.project(yard.owner)
    running, paused = await create_in_project(yard, project), await create_in_project(yard, project)
    await yard.services.lifecycle.pause(paused)
    await change_network(yard, project, mode="listed", allow=["example.org"])

    async def is_applied() -> bool:
        return (await yard.reload(running)).network == ["example.org"]

    await until(is_applied, "the policy of the running sandbox is changed")
    assert (await get_policy(yard, running))[1:] == (["example.org"], [ALL])
    assert (await get_policy(yard, paused))[1:] == ([], [])
    resumed = await yard.services.lifecycle.resume(await yard.reload(paused))
    assert (await get_policy(yard, resumed))[1:] == (["example.org"], [ALL])
    copy = await yard.services.sandboxes.fork(yard.owner, running.id)
    assert (await get_policy(yard, copy))[1:] == (["example.org"], [ALL])
    await change_network(yard, project, mode="all")

    async def is_open_again() -> bool:
        return (await yard.reload(running)).network is None

    await until(is_open_again, "the network is open again")
    assert (await get_policy(yard, running))[1:] == ([], [])


async def test_a_policy_change_during_an_engine_outage_is_applied_later(yard: Yard) -> None:
    project = await yard.project(yard.owner)
    row = await create_in_project(yard, project)
    await yard.engine_proxy.stop()
    await change_network(yard, project, mode="none")
    await yard.services.lifecycle.apply_network(project)
    assert (await yard.reload(row)).network is None
    await yard.reconnect_engine()
    await yard.finish_round(yard.services.maintenance.reconcile())
    assert ((await yard.reload(row)).network, (await get_policy(yard, row))[0]) == ([], False)


async def test_denied_connections_are_listed_if_the_engine_reports_them(yard: Yard) -> None:
    row = await create_in_project(yard, await yard.project(yard.owner, network={"mode": "none"}))
    await yard.wait(await yard.start(row, "getent hosts evil.test; true"))
    found = await yard.services.sandboxes.list_denied_connections(yard.owner, row.id)
    assert found is None or "evil.test" in {one.host for one in found}, "None: an engine without its own network"
