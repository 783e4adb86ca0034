"""Following a command whose sandbox is paused."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from sandyard.platform.domain.sandboxes.e2b.commands import PAUSED_RETRIES, Commands
from sandyard.platform.domain.sandboxes.e2b.errors import SandboxNotRunningError
from sandyard.platform.domain.sandboxes.e2b.files import Files
from sandyard.platform.domain.sandboxes.e2b.transport import EngineTransport, SandboxHandle
from tests.unit.platform.domain.forge.clocks import HurriedClock


class PausedSandbox:
    """The transport to a sandbox that is never resumed."""

    def __init__(self) -> None:
        self.clock = HurriedClock()
        self.calls = 0

    async def call_sandbox(
        self, verb: str, engine_id: str, work: Callable[[SandboxHandle], Awaitable[Any]], **options: Any
    ) -> None:
        self.calls += 1
        assert self.calls < 100, "it is followed forever"
        raise SandboxNotRunningError


async def test_a_follower_of_a_paused_sandbox_gives_up_and_logs_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    sandbox = PausedSandbox()
    commands = Commands(cast("EngineTransport", sandbox), cast("Files", None))
    with pytest.raises(SandboxNotRunningError):
        await anext(commands.follow("i1", "cmd_1"))
    await commands.close()
    assert sandbox.calls == PAUSED_RETRIES + 1
    assert [record.message for record in caplog.records].count("command_stream_broken") == 1
