"""The fields of a task, validated before they are stored."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints
from pydantic.alias_generators import to_camel

from sandyard.kit.hidden_characters import make_one_line
from sandyard.platform.domain.projects.model import BudgetSettings
from sandyard.platform.domain.repositories.ref_names import MAX_NAME_LENGTH, find_name_error

MAX_TITLE, MAX_DESCRIPTION, MAX_ATTEMPTS, MAX_NEEDS, MAX_FEEDBACK = 300, 100_000, 8, 50, 50_000
PRIORITIES = (-100, 100)


def _validate_branch(name: str) -> str:
    if (fault := find_name_error(name)) is not None:
        raise ValueError(fault)
    return name


def _make_one_line(title: str) -> str:
    """Make the title one visible line, because it becomes a commit subject, a branch name and a line on a terminal."""
    if not (line := make_one_line(title)):
        raise ValueError("Must contain a visible character")
    return line


AgentName = Annotated[str, Field(min_length=1, max_length=100)]
ModelName = Annotated[str, Field(min_length=1, max_length=200)]
Title = Annotated[
    str, StringConstraints(min_length=1, max_length=MAX_TITLE, strip_whitespace=True), AfterValidator(_make_one_line)
]
Description = Annotated[str, Field(max_length=MAX_DESCRIPTION)]
Branch = Annotated[str, Field(min_length=1, max_length=MAX_NAME_LENGTH), AfterValidator(_validate_branch)]
Priority = Annotated[
    int, Field(ge=PRIORITIES[0], le=PRIORITIES[1], description="Tasks with a higher priority start first.")
]


class _FieldsModel(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)


class WantedAttempt(_FieldsModel):
    agent: AgentName | None = Field(default=None, description="Null means the task's agent, or else the project's.")
    model: ModelName | None = Field(default=None, description="Null means the task's model, or else the project's.")


class TaskFields(_FieldsModel):
    """All fields of a task that a person can set, except its needs."""

    title: Title
    description: Description = ""
    agent: AgentName | None = None
    model: ModelName | None = None
    attempts: Annotated[list[WantedAttempt], Field(max_length=MAX_ATTEMPTS)] = Field(
        default_factory=list, description="Attempts to run in parallel, one session each. Empty means one."
    )
    base_branch: Branch | None = None
    priority: Priority = 0
    budget: BudgetSettings = Field(default_factory=BudgetSettings)

    def to_columns(self) -> dict[str, Any]:
        """Return the fields by column name."""
        values = self.model_dump(exclude={"attempts", "budget"})
        attempts = [attempt.model_dump(by_alias=True) for attempt in self.attempts]
        return {**values, "attempts": attempts, "budget": self.budget.model_dump(by_alias=True, exclude_none=True)}

    @property
    def agents(self) -> set[str]:
        """Return every agent that is named."""
        return {name for name in (self.agent, *(attempt.agent for attempt in self.attempts)) if name is not None}
