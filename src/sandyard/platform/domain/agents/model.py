"""Types of the agents package."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from sandyard.kit.secret import Secret


class TurnStatus(StrEnum):
    """WAITING: the agent waits for a person. OVER_BUDGET: the turn was stopped because the budget of its task or
    project is used up."""

    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    FAILED = "failed"
    OVER_BUDGET = "over_budget"

    @property
    def over(self) -> bool:
        return self not in OPEN_TURNS


OPEN_TURNS = (TurnStatus.QUEUED, TurnStatus.RUNNING, TurnStatus.WAITING)


PLATFORM = "platform"
"""The source of a text part of a prompt that no person wrote."""


class Origin(StrEnum):
    """Where a prompt comes from: a person in the session, a task's description, failed checks, comments on the pull
    request, or the test of an agent."""

    PERSON = "person"
    TASK = "task"
    VERIFY = "verify"
    FEEDBACK = "feedback"
    TEST = "test"


class RunStatus(StrEnum):
    """LOST: the sandbox failed or was deleted, so the end of the process is unknown."""

    STARTING = "starting"
    READY = "ready"
    ENDED = "ended"
    LOST = "lost"


class AskKind(StrEnum):
    PERMISSION = "permission"
    QUESTION = "question"


class AskStatus(StrEnum):
    PENDING = "pending"
    ANSWERED = "answered"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


class ModelApi(StrEnum):
    """The API of a model."""

    ANTHROPIC = "anthropic"  # POST /v1/messages
    OPENAI = "openai"  # POST /v1/responses
    OPENAI_CHAT = "openai_chat"  # POST /v1/chat/completions
    GEMINI = "gemini"  # POST /v1beta/models/…:streamGenerateContent


@dataclass(frozen=True, slots=True)
class ModelEndpoint:
    """Where an agent finds its model: an address inside the sandbox, and a capability in place of an API key."""

    api: ModelApi
    base_url: str  # without the version path of the API, as in http://127.0.0.1:4100/prv_…
    capability: Secret
    model: str | None


@dataclass(frozen=True, slots=True)
class LaunchWish:
    """The inputs from which a profile builds a command line."""

    home: str
    folder: str
    model: str | None = None
    mode: str | None = None
    endpoint: ModelEndpoint | None = None
    asks: bool = False
    """The agent must ask before everything it does, including reading, in every mode: the project's policy decides."""


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start an agent's process in its sandbox. `files`, by absolute path, are written before."""

    argv: tuple[str, ...]
    envs: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Install:
    """How to install an agent in a sandbox.

    `check` succeeds if the agent is already installed; `script` is run with bash. `version` is part of the key of
    prepared sandboxes.
    """

    version: str
    check: tuple[str, ...]
    script: str
    timeout_s: float = 900


class Profile(Protocol):
    """What the platform knows about an agent."""

    @property
    def name(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def description(self) -> str: ...
    @property
    def demo(self) -> bool:
        """Whether this is not a real agent, and is shown as a demo wherever it appears."""

    @property
    def install(self) -> Install | None: ...
    @property
    def apis(self) -> tuple[ModelApi, ...]:
        """The model APIs it supports, best first. Empty if it needs no model."""

    @property
    def models(self) -> tuple[str, ...]:
        """Models it is known to work with. Others may be used."""

    @property
    def modes(self) -> tuple[str, ...]: ...
    @property
    def unasked_modes(self) -> tuple[str, ...]:
        """The modes in which it acts without asking. If the project's policy requires asking, the first other mode is
        used."""

    @property
    def auth_method(self) -> str | None:
        """The authentication method it requires after `initialize`."""

    def launch(self, wish: LaunchWish) -> Launch: ...


def asking_modes(profile: Profile) -> list[str] | None:
    """Return the modes in which the agent asks. None means all of them, as far as is known."""
    if not profile.unasked_modes:
        return None
    return [mode for mode in profile.modes if mode not in profile.unasked_modes]
