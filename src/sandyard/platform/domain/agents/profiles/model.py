"""Profiles of agents: their properties, how they are installed and how they are started."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from sandyard.platform.domain.models.model import ModelApi, ModelEndpoint


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """The inputs from which a profile builds a command line. `folder`: where the agent works."""

    home: str
    folder: str
    model: str | None = None
    mode: str | None = None
    endpoint: ModelEndpoint | None = None
    asks: bool = False
    """The agent must ask before everything it does, including reading, in every mode: the project's policy decides."""


@dataclass(frozen=True, slots=True)
class Launch:
    """The command, variables and files that start an agent. `files`, by absolute path, are written before."""

    argv: tuple[str, ...]
    envs: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Install:
    """The installation of an agent in a sandbox.

    `check` succeeds if the agent is already installed; `script` is run with bash. `version` is part of the key of
    prepared sandboxes.
    """

    version: str
    check: tuple[str, ...]
    script: str
    timeout_s: float = 900


class Profile(Protocol):
    """The properties of an agent, built in or defined by a user."""

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

    def launch(self, request: LaunchRequest) -> Launch:
        """Return how to start the agent. An agent of a user raises InvalidInputError if a placeholder has no value."""


def list_asking_modes(profile: Profile) -> list[str] | None:
    """Return the modes in which the agent asks. None means all of them, as far as is known."""
    if not profile.unasked_modes:
        return None
    return [mode for mode in profile.modes if mode not in profile.unasked_modes]
