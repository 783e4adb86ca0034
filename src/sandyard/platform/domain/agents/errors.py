"""Errors of agents and their work."""

from __future__ import annotations

from sandyard.kit.errors import ConflictError, SandyardError


class AgentFailedError(SandyardError):
    """The agent returned an error."""

    code, status = "agent_failed", 502


class AgentDiedError(SandyardError):
    """The agent's process ended unexpectedly."""

    code, status = "agent_died", 502


class SandboxRestartedError(AgentDiedError):
    """The agent's process was lost because its sandbox was restarted. Its files are kept."""

    code = "sandbox_restarted"


class AgentProtocolError(SandyardError):
    """The agent uses an unsupported version of the Agent Client Protocol. The platform supports version 1."""

    code, status = "agent_protocol", 502


class AgentSilentError(SandyardError):
    """The agent did not respond to initialize. Check that its command speaks ACP on its standard input and output."""

    code, status = "agent_silent", 504


class PermissionRefusedError(ConflictError):
    """The agent was denied permission, and did nothing else."""

    code = "permission_refused"


class CheckoutMissingError(ConflictError):
    """The project's repository could not be checked out into the sandbox."""

    code = "checkout_failed"


class AskOverError(ConflictError):
    """This request was already answered, or the agent no longer waits for it."""

    code = "ask_over"


class RunGoneError(SandyardError):
    """The agent's session was deleted."""

    code, status = "run_gone", 410


class RunBrokenError(SandyardError):
    """The agent could not be used, and its process has to be ended. `reason` is the error code of its turn."""

    TOO_MUCH_OUTPUT = "agent_too_loud"

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason
