from __future__ import annotations

import pytest

from sandyard.cli import sse
from sandyard.cli.live import feed
from tests.unit.cli.server import Server
from tests.unit.cli.tasks.answers import ScriptedTask


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(sse, "MAX_PAUSE_SECONDS", 0.02)
    monkeypatch.setattr(feed, "BATCH_SECONDS", 0.02)


@pytest.fixture
def scripted(server: Server) -> ScriptedTask:
    return ScriptedTask(server)
