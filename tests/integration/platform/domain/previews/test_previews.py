"""Listing ports without resuming, passes that end with the access of their holder, and routing."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from sandyard.kit.errors import InvalidInputError, NotFoundError
from sandyard.platform.db.models import Sandbox
from sandyard.platform.domain.previews.addresses import PreviewPort
from sandyard.platform.domain.previews.model import PreviewSleepingError, TooManyPreviewConnectionsError
from sandyard.platform.domain.previews.passes import CACHE_S
from sandyard.platform.domain.previews.service import (
    MAX_CONNECTIONS,
    MAX_CONNECTIONS_PER_USER,
    PORTS_CACHE_S,
    TICKET_PARAMETER,
    Previews,
)
from sandyard.platform.domain.sandboxes.e2b import SandboxNotFoundError
from sandyard.platform.domain.sandboxes.model import SandboxDestroyedError, SandboxFailedError
from sandyard.platform.domain.users.model import Principal
from tests.integration.platform.domain.sandboxes.platform_harness import PlatformHarness, until


async def start_server(platform: PlatformHarness, port: int = 3000) -> Sandbox:
    row = await platform.create_sandbox()
    await platform.start(row, f"python3 -m http.server {port}", background=True)

    async def is_listening() -> bool:
        platform.clock.advance(PORTS_CACHE_S)
        return port in [
            item.port for item in (await platform.services.previews.list_ports(platform.owner, row.id)).items
        ]

    await until(is_listening, "a server listens")
    return row


async def create_ticket(previews: Previews, who: Principal, preview: PreviewPort) -> str:
    created = await previews.create(who, preview.sandbox_id, preview.port)
    return created.url.partition(f"?{TICKET_PARAMETER}=")[2]


async def test_listing_ports_does_not_count_as_use_of_the_sandbox(
    platform: PlatformHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    previews, lifecycle = platform.services.previews, platform.services.lifecycle
    row = await start_server(platform)
    [one] = (await previews.list_ports(platform.owner, row.id)).items
    assert (one.port, one.address, one.process) == (3000, "0.0.0.0", "python3")
    assert one.url == f"http://3000-{row.id.removeprefix('sbx_')}.localhost:8700/"

    lookups = 0
    list_listeners = lifecycle.engine.ports.list_listeners

    async def count_lookup(engine_id: str) -> object:
        nonlocal lookups
        lookups += 1
        return await list_listeners(engine_id)

    monkeypatch.setattr(lifecycle.engine.ports, "list_listeners", count_lookup)
    platform.clock.advance(PORTS_CACHE_S)
    found = await asyncio.gather(*(previews.list_ports(platform.owner, row.id) for _ in range(10)))
    assert lookups == 1
    assert all(same == found[0] for same in found)
    with pytest.raises(NotFoundError):
        await previews.list_ports(await platform.create_person("stranger"), row.id)

    idle = lifecycle.activity.idle_for(row.id)
    platform.clock.advance(PORTS_CACHE_S)
    await previews.list_ports(platform.owner, row.id)
    assert lifecycle.activity.idle_for(row.id) >= idle + PORTS_CACHE_S, "listing ports is not a use"

    await lifecycle.engine.pause(row.engine_id or "")  # without the platform's knowledge
    platform.clock.advance(PORTS_CACHE_S)
    assert (await previews.list_ports(platform.owner, row.id)).sleeping
    await lifecycle.record_pause(row.id)
    assert (await previews.list_ports(platform.owner, row.id)).sleeping
    assert await platform.get_engine_state(row) == "paused"
    await platform.services.sandboxes.destroy_sandbox(platform.owner, row.id)
    with pytest.raises(SandboxDestroyedError):
        await previews.list_ports(platform.owner, row.id)


async def test_a_preview_is_routed_to_its_sandbox(platform: PlatformHarness) -> None:
    previews = platform.services.previews
    row = await start_server(platform)
    preview = PreviewPort(row.id, 3000)
    async with previews.open_route(preview, wake=False) as route:
        assert (route.url, route.keeps_host) == (platform.engine_proxy.url, True)
        assert route.headers["E2b-Sandbox-Port"] == "3000"
        assert platform.services.lifecycle.activity.idle_for(row.id) == 0
        answer = await previews.http.get(route.url, headers=dict(route.headers))
        assert "Directory listing" in answer.text

    await platform.services.sandboxes.pause(platform.owner, row.id)
    with pytest.raises(PreviewSleepingError):
        async with previews.open_route(preview, wake=False):
            pass
    async with previews.open_route(preview, wake=True):
        assert await platform.get_engine_state(row) == "running"

    await platform.services.engine.pause(row.engine_id or "")
    with pytest.raises(PreviewSleepingError):
        await previews.resume_if_paused(preview, wake=False)
    assert (await platform.reload(row)).status == "paused", "the pause is recorded"
    assert await previews.resume_if_paused(preview, wake=True)
    assert await platform.get_engine_state(row) == "running"
    assert not await previews.resume_if_paused(preview, wake=True), "it is running: something else is wrong"

    await platform.services.engine.kill(row.engine_id or "")
    # the follower of the server's command may notice it first
    with pytest.raises((SandboxNotFoundError, SandboxFailedError)):
        await previews.resume_if_paused(preview, wake=True)
    assert (await platform.reload(row)).status == "error"


async def test_a_pass_is_valid_for_one_port_and_a_limited_time(platform: PlatformHarness) -> None:
    previews, passes = platform.services.previews, platform.services.previews.passes
    row = await platform.create_sandbox()
    preview, other_preview = PreviewPort(row.id, 3000), PreviewPort(row.id, 3001)
    given = await create_ticket(previews, platform.owner, preview)
    assert await passes.exchange_ticket(other_preview, given) is None, "the ticket is for another port"
    pass_value = await passes.exchange_ticket(preview, given)
    assert pass_value is not None
    assert await passes.exchange_ticket(preview, given) is None, "the ticket was used"
    late = await create_ticket(previews, platform.owner, preview)
    platform.clock.advance(31)
    assert await passes.exchange_ticket(preview, late) is None
    assert await platform.services.users.authenticate_ticket(late) is None, "it opens no stream of the API either"

    holder = await passes.find_holder(preview, pass_value)
    assert holder is not None
    assert holder.user_id == platform.owner.user_id
    assert await passes.find_holder(other_preview, pass_value) is None
    issued = await platform.services.users.create_ticket(platform.owner)
    for wrong in ("", "x", pass_value[:-4], pass_value[:-4] + "AAAA", given, issued.value.reveal(), "A" * 5000, "ü"):
        assert await passes.find_holder(preview, wrong) is None
        assert await passes.exchange_ticket(preview, wrong) is None
    platform.clock.advance(passes.lifetime_s)
    assert await passes.find_holder(preview, pass_value) is None


async def test_a_pass_ends_with_the_access_of_its_holder(platform: PlatformHarness) -> None:
    previews, users = platform.services.previews, platform.services.users
    guest = await platform.create_person("guest")
    project = await platform.project(platform.owner, guest)
    _, row = await platform.services.sessions.create(platform.owner, title="shared", project_id=project)
    preview = PreviewPort(row.id, 3000)
    issued = await users.create_token(guest, "laptop")
    known = await users.authenticate_token(issued.value.reveal())
    assert known is not None
    by_token = await previews.passes.exchange_ticket(preview, await create_ticket(previews, known, preview))
    by_person = await previews.passes.exchange_ticket(preview, await create_ticket(previews, guest, preview))
    assert by_token is not None
    assert by_person is not None
    unused = await create_ticket(previews, guest, preview)

    await users.revoke_token(guest, issued.id)
    platform.clock.advance(CACHE_S)
    assert await previews.passes.find_holder(preview, by_token) is None
    assert await previews.passes.find_holder(preview, by_person) is not None
    await platform.services.projects.remove_member(platform.owner, project, guest.user_id)
    platform.clock.advance(CACHE_S)
    assert await previews.passes.find_holder(preview, by_person) is None
    assert await previews.passes.exchange_ticket(preview, unused) is None
    with pytest.raises(NotFoundError):
        await previews.create(guest, preview.sandbox_id, 3000)


async def test_invalid_ports_and_paths_are_rejected(platform: PlatformHarness) -> None:
    row = await platform.create_sandbox()
    for port, path in ((49983, "/"), (0, "/"), (3000, "//a b"), (3000, "a")):
        with pytest.raises(InvalidInputError):
            await platform.services.previews.create(platform.owner, row.id, port, path)
    created = await platform.services.previews.create(platform.owner, row.id, 3000, "/a?b=c")
    assert f"/a?b=c&{TICKET_PARAMETER}=" in created.url


async def test_connections_and_reloads_are_bounded(platform: PlatformHarness) -> None:
    previews, preview = platform.services.previews, PreviewPort("sbx_crowded", 3000)
    with contextlib.ExitStack() as inside:
        for _ in range(MAX_CONNECTIONS):
            inside.enter_context(previews.count_connection(preview, "usr_one"))
        with pytest.raises(TooManyPreviewConnectionsError), previews.count_connection(preview, "usr_other"):
            pass
        for number in range(MAX_CONNECTIONS_PER_USER - MAX_CONNECTIONS):
            inside.enter_context(previews.count_connection(PreviewPort(f"sbx_{number}", 3000), "usr_one"))
        with (
            pytest.raises(TooManyPreviewConnectionsError),
            previews.count_connection(PreviewPort("sbx_other", 3000), "usr_one"),
        ):
            pass
        with previews.count_connection(PreviewPort("sbx_other", 3000), "usr_other"):
            pass
    with previews.count_connection(preview, "usr_one"):
        pass
    assert not previews.connections

    assert previews.record_closed_port(preview)
    for _ in range(20):
        platform.clock.advance(10)
        again = previews.record_closed_port(preview)
    assert not again, "a forgotten tab stops reloading"
    platform.clock.advance(60)
    assert previews.record_closed_port(preview), "somebody is back"
