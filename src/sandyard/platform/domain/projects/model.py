"""How to work on a project, checked before it is stored."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from sandyard.platform.db.models import Project
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


class IdentitySettings(_Part):
    """A name and an address, as commits have them."""

    name: Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^<>\r\n\x00]+$")]
    email: Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^<>\s\x00]+$")]


class GitSettings(_Part):
    author: IdentitySettings | None = Field(default=None, description="Of commits; null: Sandyard.")
    committer: IdentitySettings | None = Field(default=None, description="Of commits; null: the author.")
    co_author: IdentitySettings | None = Field(
        default=None, description="Named in a Co-authored-by line; null: the session's agent, if it has one."
    )
    commit_messages: Literal["conventional", "any"] = Field(
        default="conventional", description="What subjects commits must have to be made and pushed."
    )


class ForgeSettings(_Part):
    kind: Literal["auto", "github", "plain"] = Field(
        default="auto",
        description="auto: GitHub for repositories on github.com or with an apiUrl, else a plain remote.",
    )
    api_url: str | None = Field(
        default=None,
        max_length=500,
        pattern=r"^https?://[^\s@?#]+$",
        description="Of a GitHub Enterprise Server; null: GitHub's own.",
        examples=["https://github.example.org/api/v3"],
    )
    draft: bool = Field(default=False, description="Open pull requests as drafts.")
    labels: Annotated[list[Annotated[str, Field(min_length=1, max_length=100)]], Field(max_length=50)] = Field(
        default_factory=list
    )
    reviewers: Annotated[list[Annotated[str, Field(min_length=1, max_length=100)]], Field(max_length=15)] = Field(
        default_factory=list
    )
    assignees: Annotated[list[Annotated[str, Field(min_length=1, max_length=100)]], Field(max_length=10)] = Field(
        default_factory=list
    )
    merge_method: Literal["squash", "merge", "rebase"] = "squash"
    delete_branch: bool = Field(default=True, description="Delete the branch when its pull request was merged.")


class ProjectSettings(_Part):
    command_policy: CommandPolicySettings = Field(default_factory=CommandPolicySettings)
    idle_seconds: int | None = Field(
        default=None,
        ge=5,
        le=7 * 24 * 3600,
        description="Sandboxes unused this long are paused; null: as the platform says.",
    )
    git: GitSettings = Field(default_factory=GitSettings)
    forge: ForgeSettings = Field(default_factory=ForgeSettings)
    template: str | None = Field(
        default=None, min_length=1, max_length=256, pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:-]*$", examples=["base"]
    )

    @classmethod
    def of(cls, row: Project) -> ProjectSettings:
        return cls.model_validate({**row.settings, "template": row.template})

    def stored(self) -> dict[str, Any]:
        """What goes into the column `settings`; the template has its own."""
        return self.model_dump(by_alias=True, exclude={"template"}, exclude_none=True)
