"""Agents that users add: any command that speaks ACP on its standard input and output."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from sandyard.kit.errors import InvalidInputError
from sandyard.platform.domain.agents.profiles.model import Install, Launch, LaunchRequest
from sandyard.platform.domain.models.model import ModelApi

PLACEHOLDERS = ("{model}", "{base_url}", "{capability}", "{folder}", "{home}")
PROVIDER_PLACEHOLDERS = ("{base_url}", "{capability}")
MAX_SCRIPT = 32 << 10
_PLACEHOLDER = re.compile("|".join(re.escape(word) for word in PLACEHOLDERS))
_ENV_NAME = r"^[A-Za-z_][A-Za-z0-9_]*$"
Word = Annotated[str, Field(max_length=4096)]
Name = Annotated[str, Field(min_length=1, max_length=200)]


class _Part(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)


class InstallScript(_Part):
    """A script that installs the agent in a sandbox. Runs once, as the sandbox's user. Pin the versions of what it installs."""

    script: str = Field(
        min_length=1, max_length=MAX_SCRIPT, description="Run with bash.", examples=["npm i -g my-agent@1.2.3"]
    )
    check: str = Field(
        min_length=1,
        max_length=4096,
        description="A bash command that succeeds if the agent is already installed.",
        examples=["command -v my-agent"],
    )
    timeout_seconds: int = Field(default=900, ge=1, le=3600)


class Definition(_Part):
    """The command that starts an agent, and its variables. Arguments and variables may contain {model}, {base_url},
    {capability}, {folder} and {home}."""

    description: str = Field(default="", max_length=1000)
    argv: list[Word] = Field(
        min_length=1, max_length=100, description="The program and its arguments. Not run in a shell."
    )
    install: InstallScript | None = Field(default=None, description="Null if the agent is part of the template.")
    envs: dict[Annotated[str, Field(pattern=_ENV_NAME, max_length=200)], Word] = Field(
        default_factory=dict,
        max_length=100,
        description="Not secret: visible to everyone who may use the agent, and to every process in the sandbox. Model keys stay with the "
        "platform: use {base_url} and {capability}.",
    )
    apis: list[ModelApi] = Field(
        default_factory=list,
        max_length=len(ModelApi),
        description="Model APIs the agent can use, in order of preference. Empty means it needs no model.",
    )
    models: list[Name] = Field(default_factory=list, max_length=100)
    modes: list[Name] = Field(default_factory=list, max_length=50)
    auth_method: Name | None = Field(
        default=None, description="The authentication method the agent requires after initialization."
    )

    @model_validator(mode="after")
    def _check_placeholders(self) -> Definition:
        if not self.argv[0].strip():
            raise ValueError("The first item of argv must be a program")
        words = [*self.argv, *self.envs.values()]
        if not self.apis and any(place in word for word in words for place in PROVIDER_PLACEHOLDERS):
            raise ValueError("{base_url} and {capability} require at least one of `apis`")
        return self

    def to_column(self) -> dict[str, Any]:
        return self.model_dump(mode="json", by_alias=True)


@dataclass(frozen=True, slots=True)
class CustomProfile:
    """A profile made from a user's definition."""

    name: str
    title: str
    definition: Definition
    demo: bool = False

    @property
    def description(self) -> str:
        return self.definition.description

    @property
    def install(self) -> Install | None:
        script = self.definition.install
        if script is None:
            return None
        version = hashlib.sha256(f"{script.check}\0{script.script}".encode()).hexdigest()[:12]
        return Install(version, ("bash", "-c", script.check), script.script, script.timeout_seconds)

    @property
    def apis(self) -> tuple[ModelApi, ...]:
        return tuple(self.definition.apis)

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(self.definition.models)

    @property
    def modes(self) -> tuple[str, ...]:
        return tuple(self.definition.modes)

    @property
    def unasked_modes(self) -> tuple[str, ...]:
        return ()

    @property
    def auth_method(self) -> str | None:
        return self.definition.auth_method

    def launch(self, request: LaunchRequest) -> Launch:
        """Fill in the placeholders. Raises InvalidInputError if the model or provider that one needs is not known."""
        endpoint = request.endpoint
        values = {
            "{model}": request.model or (endpoint.model if endpoint else None),
            "{base_url}": endpoint.base_url if endpoint else None,
            "{capability}": endpoint.capability.reveal() if endpoint else None,
            "{folder}": request.folder,
            "{home}": request.home,
        }
        return Launch(
            argv=tuple(self._fill_placeholders(word, values) for word in self.definition.argv),
            envs={name: self._fill_placeholders(word, values) for name, word in self.definition.envs.items()},
        )

    def _fill_placeholders(self, word: str, values: Mapping[str, str | None]) -> str:
        def get_value(found: re.Match[str]) -> str:
            value = values[found[0]]
            if value is None:
                missing = "a model. Choose one" if found[0] == "{model}" else "a model provider. Add one"
                raise InvalidInputError(
                    f"The agent {self.name!r} needs {missing}, or remove {found[0]} from the agent's command and variables."
                )
            return value

        return _PLACEHOLDER.sub(get_value, word)
