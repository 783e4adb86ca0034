"""The words for agents at work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from sandyard.kit.secret import Secret


class TurnStatus(StrEnum):
    """WAITING: the agent has asked a person. OVER_BUDGET: it was stopped, because its task or project may spend no more."""

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
    """Who has prompted: a person in the session, a task's description, its failed checks, words on its pull request, or the test of
    an agent."""

    PERSON = "person"
    TASK = "task"
    VERIFY = "verify"
    FEEDBACK = "feedback"
    TEST = "test"


class RunStatus(StrEnum):
    """LOST: its sandbox died under it, so nobody knows how it ended."""

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
    """How a model is spoken to."""

    ANTHROPIC = "anthropic"  # POST /v1/messages
    OPENAI = "openai"  # POST /v1/responses
    OPENAI_CHAT = "openai_chat"  # POST /v1/chat/completions
    GEMINI = "gemini"  # POST /v1beta/models/…:streamGenerateContent


@dataclass(frozen=True, slots=True)
class ModelEndpoint:
    """Where an agent in a sandbox finds its model: an address inside the sandbox, and a capability in the place of a key."""

    api: ModelApi
    base_url: str  # without the path of the API's own version, as http://127.0.0.1:4100/prv_…
    capability: Secret
    model: str | None


@dataclass(frozen=True, slots=True)
class LaunchWish:
    """What a profile makes a command line from."""

    home: str
    folder: str
    model: str | None = None
    mode: str | None = None
    endpoint: ModelEndpoint | None = None
    asks: bool = False
    """It has to ask before everything it does, reading included, in every mode: the project's policy has the answers."""


@dataclass(frozen=True, slots=True)
class Launch:
    """How an agent's process is started in its sandbox. `files` are written before, by absolute path."""

    argv: tuple[str, ...]
    envs: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Install:
    """How an agent comes into a sandbox. `check` succeeds where it is there already; `script` is for bash. `version` is part of
    what a preparation depends on."""

    version: str
    check: tuple[str, ...]
    script: str
    timeout_s: float = 900


class Profile(Protocol):
    """What the platform knows of one agent."""

    @property
    def name(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def description(self) -> str: ...
    @property
    def demo(self) -> bool:
        """No real agent: shown as a demo wherever it appears."""

    @property
    def install(self) -> Install | None: ...
    @property
    def apis(self) -> tuple[ModelApi, ...]:
        """What it can speak to a model, best first; empty: it needs none."""

    @property
    def models(self) -> tuple[str, ...]:
        """Some it is known to work with; others may be given."""

    @property
    def modes(self) -> tuple[str, ...]: ...
    @property
    def unasked_modes(self) -> tuple[str, ...]:
        """Of these, those in which it acts without asking. Where the project's policy wants to be asked, the first other one is set."""

    @property
    def auth_method(self) -> str | None:
        """What it wants to be authenticated with after the greeting."""

    def launch(self, wish: LaunchWish) -> Launch: ...


def asking_modes(profile: Profile) -> list[str] | None:
    """The modes in which it asks; None: all of them, as far as is known."""
    if not profile.unasked_modes:
        return None
    return [mode for mode in profile.modes if mode not in profile.unasked_modes]
