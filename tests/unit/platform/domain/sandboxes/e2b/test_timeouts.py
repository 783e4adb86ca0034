"""Timeouts of sandboxes on the engine."""

from __future__ import annotations

from typing import Any

import pytest
from e2b import AsyncSandbox

from sandyard.kit.clock import ManualClock
from sandyard.kit.errors import SandyardError
from tests.unit.platform.domain.sandboxes.e2b.delayed_operations import DELAYED, make_engine

DAY_S = 24 * 3600


@pytest.mark.parametrize("name", ["create", "fork", "resume", "extend"])
@pytest.mark.parametrize(("wanted", "sent"), [(0.1, 1), (300, 300), (7 * DAY_S + 120, DAY_S)])
async def test_timeouts_are_those_that_engines_accept(
    name: str, wanted: float, sent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    timeouts: list[Any] = []

    async def record(*_: Any, timeout: int, **__: Any) -> None:
        timeouts.append(timeout)
        raise PermissionError  # what follows is of no interest

    monkeypatch.setattr(AsyncSandbox, DELAYED[name][0], record)
    engine = make_engine(ManualClock())
    calls = {
        "create": lambda: engine.create(template="base", timeout_s=wanted, metadata={}, envs={}, idempotency_key="k"),
        "fork": lambda: engine.fork("i1", wanted),
        "resume": lambda: engine.resume("i1", wanted),
        "extend": lambda: engine.extend("i1", wanted),
    }
    with pytest.raises((PermissionError, SandyardError)):
        await calls[name]()
    assert set(timeouts) == {sent}
