"""The engine client: the only part of the platform that uses the official `e2b` SDK.

engine = SandboxEngine(EngineConfig(api_key=Secret("e2b_…")))
sandbox = await engine.create(template="base", timeout_s=600, metadata={}, envs={}, idempotency_key="sbx-1")
async for event in engine.commands.start(sandbox.id, CommandSpec(id="cmd_1", command="make")):
    ...
"""

from sandyard.platform.domain.sandboxes.e2b.breaker import Breaker, BreakerState
from sandyard.platform.domain.sandboxes.e2b.commands import Commands
from sandyard.platform.domain.sandboxes.e2b.config import Denied, EngineConfig, EngineSandbox, EngineState, Usage
from sandyard.platform.domain.sandboxes.e2b.engine import SandboxEngine
from sandyard.platform.domain.sandboxes.e2b.errors import (
    BreakerOpenError,
    EngineAuthError,
    EngineBusyError,
    EngineError,
    EngineInvalidError,
    EngineNotConfiguredError,
    EngineQuotaError,
    EngineTimeoutError,
    EngineUnreachableError,
    FileMissingError,
    NotEnoughSpaceError,
    ProcessesFullError,
    SandboxNotFoundError,
    SandboxNotRunningError,
    SandboxUnreachableError,
    TerminalNotFoundError,
)
from sandyard.platform.domain.sandboxes.e2b.listing import FileEntry
from sandyard.platform.domain.sandboxes.e2b.ports import AGENT_PORT, Listener, Ports, Route
from sandyard.platform.domain.sandboxes.e2b.programs import DirectoryMissingError, ProgramTimeoutError, Ran
from sandyard.platform.domain.sandboxes.e2b.relay import CommandSpec, Ended, EndReason, Output, Started, Stream
from sandyard.platform.domain.sandboxes.e2b.streams import GuestProgram, LineStream, NoPythonError
from sandyard.platform.domain.sandboxes.e2b.terminal import Terminal, Terminals

__all__ = [
    "AGENT_PORT",
    "Breaker",
    "BreakerOpenError",
    "BreakerState",
    "CommandSpec",
    "Commands",
    "Denied",
    "DirectoryMissingError",
    "EndReason",
    "Ended",
    "EngineAuthError",
    "EngineBusyError",
    "EngineConfig",
    "EngineError",
    "EngineInvalidError",
    "EngineNotConfiguredError",
    "EngineQuotaError",
    "EngineSandbox",
    "EngineState",
    "EngineTimeoutError",
    "EngineUnreachableError",
    "FileEntry",
    "FileMissingError",
    "GuestProgram",
    "LineStream",
    "Listener",
    "NoPythonError",
    "NotEnoughSpaceError",
    "Output",
    "Ports",
    "ProcessesFullError",
    "ProgramTimeoutError",
    "Ran",
    "Route",
    "SandboxEngine",
    "SandboxNotFoundError",
    "SandboxNotRunningError",
    "SandboxUnreachableError",
    "Started",
    "Stream",
    "Terminal",
    "TerminalNotFoundError",
    "Terminals",
    "Usage",
]
