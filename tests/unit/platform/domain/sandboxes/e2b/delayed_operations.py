"""Operations of the engine that a sandbox may delay."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tenacity import wait_none

from sandyard.kit.clock import ManualClock
from sandyard.kit.secret import Secret
from sandyard.platform.domain.sandboxes.e2b import EngineConfig, SandboxEngine

Operation = Callable[[SandboxEngine], Awaitable[object]]
DELAYED: dict[str, tuple[str, Operation]] = {
    "create": (
        "create",
        lambda engine: engine.create(template="base", timeout_s=9, metadata={}, envs={}, idempotency_key="k"),
    ),
    "fork": ("fork", lambda engine: engine.fork("i1", 9)),
    "snapshot": ("create_snapshot", lambda engine: engine.create_snapshot("i1")),
    "delete_snapshot": ("delete_snapshot", lambda engine: engine.delete_snapshot("s1")),
    "pause": ("pause", lambda engine: engine.pause("i1")),
    "resume": ("connect", lambda engine: engine.resume("i1", 9)),
    "extend": ("set_timeout", lambda engine: engine.extend("i1", 9)),
    "set_network": ("update_network", lambda engine: engine.set_network("i1", None)),
    "kill": ("kill", lambda engine: engine.kill("i1")),
    "usage": ("get_metrics", lambda engine: engine.get_usage("i1")),
}


def make_engine(clock: ManualClock) -> SandboxEngine:
    config = EngineConfig(api_key=Secret("e2b_" + "a" * 40), api_url="http://127.0.0.1:1")
    return SandboxEngine(config, clock, backoff=wait_none())
