from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from sandyard.kit.errors import NotFoundError
from sandyard.platform.api import revocation
from sandyard.platform.api.revocation import end_when_revoked
from sandyard.platform.domain.sandboxes.model import OwnerWithoutAccessError
from tests.unit.platform.world import ROOT, World


@pytest.mark.parametrize("reason", ["disabled", "no longer visible", "owner without access"])
async def test_download_ends_when_access_is_lost(world: World, monkeypatch: pytest.MonkeyPatch, reason: str) -> None:
    monkeypatch.setattr(revocation, "RECHECK_SECONDS", 0.001)
    maria = (await world.person("maria")).principal
    connection: Any = SimpleNamespace(
        app=SimpleNamespace(state=SimpleNamespace(services=SimpleNamespace(database=world.database, clock=world.clock)))
    )
    visible = True

    async def look() -> None:
        if not visible:
            raise OwnerWithoutAccessError if reason == "owner without access" else NotFoundError("gone")

    async def endless() -> AsyncIterator[bytes]:
        nonlocal visible
        number = 0
        while True:
            number += 1
            if number == 100 and reason == "disabled":
                await world.users.update(ROOT, maria.user_id, disabled=True)
            elif number == 100:
                visible = False
            await asyncio.sleep(0)
            yield b"x"

    async with asyncio.timeout(30):
        received = [chunk async for chunk in end_when_revoked(connection, maria, look, endless())]
    assert len(received) >= 99
