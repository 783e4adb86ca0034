"""A project's network settings, as applied by a real engine."""

from __future__ import annotations

from typing import Any

from sandyard.platform.db.models import Sandbox
from sandyard.platform.domain.projects.model import ProjectSettings
from sandyard.platform.domain.sandboxes.model import NewSandbox
from tests.integration.platform.domain.sandboxes.platform_harness import PlatformHarness, until

ALL = "0.0.0.0/0"


async def create_in_project(platform: PlatformHarness, project_id: str | None) -> Sandbox:
    wanted = NewSandbox(template="base", idle_seconds=300, project_id=project_id)
    row = await platform.services.lifecycle.create(platform.owner.user_id, wanted)
    return await platform.services.lifecycle.wait_until_provisioned(row.id)


async def get_policy(platform: PlatformHarness, row: Sandbox) -> tuple[bool | None, list[str], list[str]]:
    """Return internet access, allowed and denied destinations, as reported by the engine."""
    assert row.engine_id is not None
    detail = (await platform.services.engine.transport.get_detail(row.engine_id)).to_dict()
    network = detail.get("network") or {}
    return detail.get("allowInternetAccess"), network.get("allowOut") or [], network.get("denyOut") or []


async def change_network(platform: PlatformHarness, project_id: str, **network: Any) -> None:
    settings = ProjectSettings.model_validate({"network": network})
    await platform.services.projects.update(platform.owner, project_id, settings=settings)


async def test_a_sandbox_gets_the_network_policy_of_its_project(platform: PlatformHarness) -> None:
    listed = await platform.project(
        platform.owner, network={"mode": "listed", "presets": ["pypi"], "allow": ["8.8.8.8"]}
    )
    closed = await platform.project(platform.owner, network={"mode": "none"})
    hosts = ["pypi.org", "files.pythonhosted.org", "8.8.8.8"]
    assert (await get_policy(platform, await create_in_project(platform, listed)))[1:] == (hosts, [ALL])
    assert (await get_policy(platform, await create_in_project(platform, closed)))[0] is False
    assert (await get_policy(platform, await create_in_project(platform, None)))[1:] == ([], [])


async def test_a_policy_change_applies_to_running_sandboxes_and_to_paused_ones_on_resume(
    platform: PlatformHarness,
) -> None:
    project = await platform.project(platform.owner)
    running, paused = await create_in_project(platform, project), await create_in_project(platform, project)
    await platform.services.lifecycle.pause(paused)
    await change_network(platform, project, mode="listed", allow=["example.org"])

    async def is_applied() -> bool:
        return (await platform.reload(running)).network == ["example.org"]

    await until(is_applied, "the policy of the running sandbox is changed")
    assert (await get_policy(platform, running))[1:] == (["example.org"], [ALL])
    assert (await get_policy(platform, paused))[1:] == ([], [])
    resumed = await platform.services.lifecycle.resume(await platform.reload(paused))
    assert (await get_policy(platform, resumed))[1:] == (["example.org"], [ALL])
    copy = await platform.services.sandboxes.fork(platform.owner, running.id)
    assert (await get_policy(platform, copy))[1:] == (["example.org"], [ALL])
    await change_network(platform, project, mode="all")

    async def is_open_again() -> bool:
        return (await platform.reload(running)).network is None

    await until(is_open_again, "the network is open again")
    assert (await get_policy(platform, running))[1:] == ([], [])


async def test_a_policy_change_during_an_engine_outage_is_applied_later(platform: PlatformHarness) -> None:
    project = await platform.project(platform.owner)
    row = await create_in_project(platform, project)
    await platform.engine_proxy.stop()
    await change_network(platform, project, mode="none")
    await platform.services.lifecycle.apply_network(project)
    assert (await platform.reload(row)).network is None
    await platform.reconnect_engine()
    await platform.finish_round(platform.services.maintenance.reconcile())
    assert ((await platform.reload(row)).network, (await get_policy(platform, row))[0]) == ([], False)


async def test_denied_connections_are_listed_if_the_engine_reports_them(platform: PlatformHarness) -> None:
    row = await create_in_project(platform, await platform.project(platform.owner, network={"mode": "none"}))
    await platform.wait(await platform.start(row, "getent hosts evil.test; true"))
    found = await platform.services.sandboxes.list_denied_connections(platform.owner, row.id)
    assert found is None or "evil.test" in {item.host for item in found}, "None: an engine without its own network"
