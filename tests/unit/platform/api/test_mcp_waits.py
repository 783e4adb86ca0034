"""Tools that wait: what a caller gets who loses access meanwhile."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sandyard.kit.errors import UnauthenticatedError
from sandyard.platform.api.limits import RateLimiter
from sandyard.platform.api.mcp import event_wait, server
from sandyard.platform.api.mcp.event_wait import wait_for_events
from sandyard.platform.api.mcp.tool import Call
from sandyard.platform.api.mcp.tools import TOOLS
from sandyard.platform.domain.events.model import EventFilter
from tests.unit.platform.world import Person, World

LOADS = 20
"""More of them, and the wait has not noticed that access was lost."""


class BusySubscription:
    """Events without end, none of them long after the last one."""

    ended = False

    async def wait_for_batch(self, timeout: float) -> list[Any]:
        return [SimpleNamespace(kind="message.delta")]


class BusyFeed:
    async def subscribe(self, *_: object) -> BusySubscription:
        return BusySubscription()


async def ignore_progress(*_: object) -> None: ...


@pytest.fixture
async def maria(world: World) -> Person:
    return await world.create_person("maria")


def make_call(world: World, person: Person) -> Call:
    services = SimpleNamespace(database=world.database, clock=world.clock, events=BusyFeed())
    return Call(cast(Any, services), person.principal, ignore_progress)


async def revoke_tokens(world: World, person: Person) -> None:
    await world.users.revoke_token(person.principal, person.principal.means.partition(":")[2])


async def test_wait_ends_when_token_is_revoked_although_there_are_events(
    world: World, maria: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_wait, "PROGRESS_S", 0.0)
    loads: list[None] = []

    async def load() -> int:
        loads.append(None)
        if len(loads) == 3:
            await revoke_tokens(world, maria)
        return len(loads)

    with pytest.raises(UnauthenticatedError):
        await wait_for_events(make_call(world, maria), EventFilter(), load, lambda n: n > LOADS, lambda _: "busy", 60)
    assert len(loads) == 3


@pytest.mark.parametrize("change", ["revoked", "demoted"])
async def test_no_result_for_who_lost_access_during_the_wait(world: World, maria: Person, change: str) -> None:
    async def lose_access(call: Call, _: object) -> Any:
        if change == "revoked":
            await revoke_tokens(world, maria)
        else:
            call.caller = dataclasses.replace(call.caller, role="admin")  # as which the call has started
        return SimpleNamespace(model_dump_json=lambda **_: "{}", model_dump=lambda **_: {})

    tool = dataclasses.replace(TOOLS["wait_for_task"], run=lose_access)
    limits = RateLimiter(world.settings, world.clock)
    with pytest.raises(UnauthenticatedError):
        await server._run_tool(tool, make_call(world, maria), limits, {"taskId": "tsk_1"})
