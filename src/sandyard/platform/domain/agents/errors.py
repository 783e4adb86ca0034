"""How an agent's work can fail."""

from __future__ import annotations

from sandyard.kit.errors import ConflictError, SandyardError


class AgentFailedError(SandyardError):
    """The agent answered with an error."""

    code, status = "agent_failed", 502


class AgentDiedError(SandyardError):
    """The agent's process ended in the middle of its work."""

    code, status = "agent_died", 502


class SandboxRestartedError(AgentDiedError):
    """The agent's process was lost: its sandbox was restarted under it. Its files are there."""

    code = "sandbox_restarted"


class AgentProtocolError(SandyardError):
    """The program speaks another version of the Agent Client Protocol than the platform does (1)."""

    code, status = "agent_protocol", 502


class AgentSilentError(SandyardError):
    """The agent did not answer when it was greeted. Look whether its command speaks ACP on its standard input and output."""

    code, status = "agent_silent", 504


class PermissionRefusedError(ConflictError):
    """The agent was refused permission for what it wanted to do, and did nothing else."""

    code = "permission_refused"


class CheckoutMissingError(ConflictError):
    """The project's repository could not be checked out into the sandbox."""

    code = "checkout_failed"


class NoAgentError(ConflictError):
    """The session has no agent. Begin one with an agent, or set the project's default."""

    code = "no_agent"


class AskOverError(ConflictError):
    """This was answered already, or the agent no longer waits for it."""

    code = "ask_over"
