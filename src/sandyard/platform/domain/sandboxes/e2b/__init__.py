"""The engine client: the only part of the platform that uses the official `e2b` SDK.

engine = SandboxEngine(EngineConfig(api_key=Secret("e2b_…")))
sandbox = await engine.create(template="base", timeout_s=600, metadata={}, envs={}, idempotency_key="sbx-1")
async for event in engine.commands.start(sandbox.id, CommandSpec(id="cmd_1", command="make")):
    ...
"""

from sandyard.platform.domain.sandboxes.e2b.commands import Commands
from sandyard.platform.domain.sandboxes.e2b.directory_pages import FileEntry
from sandyard.platform.domain.sandboxes.e2b.engine import (
    DeniedConnection,
    EngineSandbox,
    EngineState,
    SandboxEngine,
    Usage,
)
from sandyard.platform.domain.sandboxes.e2b.errors import (
    CircuitOpenError,
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
    TemplateNotFoundError,
    TerminalNotFoundError,
)
from sandyard.platform.domain.sandboxes.e2b.ports import AGENT_PORT, Listener, Ports, Route
from sandyard.platform.domain.sandboxes.e2b.programs import DirectoryMissingError, ProgramResult, ProgramTimeoutError
from sandyard.platform.domain.sandboxes.e2b.relay import (
    CommandEnded,
    CommandOutput,
    CommandSpec,
    CommandStarted,
    EndReason,
    Stream,
)
from sandyard.platform.domain.sandboxes.e2b.streams import GuestProgram, LineStream, NoPythonError, ProgramProtocolError
from sandyard.platform.domain.sandboxes.e2b.terminals import Terminal, Terminals
from sandyard.platform.domain.sandboxes.e2b.transport import CircuitBreaker, CircuitState, EngineConfig

__all__ = [
    "AGENT_PORT",
    "CircuitBreaker",
    "CircuitOpenError",
    "CircuitState",
    "CommandEnded",
    "CommandOutput",
    "CommandSpec",
    "CommandStarted",
    "Commands",
    "DeniedConnection",
    "DirectoryMissingError",
    "EndReason",
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
    "Ports",
    "ProcessesFullError",
    "ProgramProtocolError",
    "ProgramResult",
    "ProgramTimeoutError",
    "Route",
    "SandboxEngine",
    "SandboxNotFoundError",
    "SandboxNotRunningError",
    "SandboxUnreachableError",
    "Stream",
    "TemplateNotFoundError",
    "Terminal",
    "TerminalNotFoundError",
    "Terminals",
    "Usage",
]
