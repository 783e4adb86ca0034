"""How to work on a project, checked before it is stored."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from sandyard.platform.domain.projects.patterns import PatternError, compiled

MAX_PATTERNS, MAX_PATTERN = 100, 300


def check_pattern(pattern: str) -> str:
    """ValueError for what is no regular expression."""
    try:
        compiled(pattern)
    except PatternError as error:
        raise ValueError(f"{pattern[:60]!r} is not a regular expression: {error}") from None
    return pattern


Pattern = Annotated[str, Field(min_length=1, max_length=MAX_PATTERN), AfterValidator(check_pattern)]
Patterns = Annotated[list[Pattern], Field(max_length=MAX_PATTERNS)]


class _Part(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)


class CommandPolicySettings(_Part):
    """Regular expressions (RE2 syntax), searched for in the whole command. `deny` wins; with `allow`, all else is refused."""

    allow: Patterns = Field(default_factory=list, examples=[["^git ", "^npm (ci|test)$"]])
    deny: Patterns = Field(default_factory=list, examples=[["\\bsudo\\b"]])


class ProjectSettings(_Part):
    command_policy: CommandPolicySettings = Field(default_factory=CommandPolicySettings)
    idle_seconds: int | None = Field(
        default=None,
        ge=5,
        le=7 * 24 * 3600,
        description="Sandboxes unused this long are paused; null: as the platform says.",
    )
    template: str | None = Field(
        default=None, min_length=1, max_length=256, pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:-]*$", examples=["base"]
    )

    def stored(self) -> dict[str, Any]:
        """What goes into the column `settings`; the template has its own."""
        return self.model_dump(by_alias=True, exclude={"template"}, exclude_none=True)
