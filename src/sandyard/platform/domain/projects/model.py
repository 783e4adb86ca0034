"""How to work on a project, checked before it is stored."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo
from pydantic.alias_generators import to_camel

from sandyard.platform.db.models import Project

MAX_PATTERNS, MAX_PATTERN = 100, 300
_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_HOST = re.compile(rf"(?:\*\.)?(?:{_LABEL}\.)*{_LABEL}")
_STORED = object()
"""Validation context of settings that were checked when they were stored: they are read far more often."""

Pattern = Annotated[str, Field(min_length=1, max_length=MAX_PATTERN)]
"""Not compiled here: `check_patterns` is called before they are stored."""
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


class PermissionSettings(_Part):
    """What agents may do without asking. `deny` wins over everything."""

    mode: Literal["ask", "allow_reads", "allow_all"] = Field(
        default="allow_all",
        description="ask: a person is asked for everything the agent asks for. allow_reads: reading, searching and thinking are "
        "allowed, the rest is asked. allow_all: everything inside the sandbox is allowed.",
    )
    deny: Patterns = Field(
        default_factory=list,
        description="Regular expressions (RE2 syntax), searched for in a tool call's title, command, paths and input: refused.",
        examples=[["\\brm -rf\\b"]],
    )
    timeout_seconds: int = Field(default=3600, ge=5, le=30 * 24 * 3600, description="Nobody answered in time: refused.")

    @property
    def strictness(self) -> Literal["none", "ask", "deny"]:
        """ask: agents have to ask before everything they do. deny: and may not be told to stop asking."""
        return "deny" if self.deny else "none" if self.mode == "allow_all" else "ask"


class BudgetSettings(_Part):
    """What may be spent on models. What is null has no limit."""

    usd: float | None = Field(default=None, gt=0, le=1_000_000)
    tokens: int | None = Field(default=None, gt=0, le=10**13)


class AgentSettings(_Part):
    default: str | None = Field(
        default=None, min_length=1, max_length=100, description="The agent of tasks that name none."
    )
    model: str | None = Field(default=None, min_length=1, max_length=200)
    mode: str | None = Field(default=None, min_length=1, max_length=100)
    permissions: PermissionSettings = Field(default_factory=PermissionSettings)
    hosted_tools: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=200, pattern=r"^([^\s/]+/)?[a-z0-9_.-]+$")]],
        Field(max_length=50),
    ] = Field(
        default_factory=list,
        description="What agents may have model providers do themselves, past the sandbox's network and its budget: a tool's name, or "
        "PROVIDER/name.",
        examples=[["web_search", "anthropic/code_execution"]],
    )
    stuck_minutes: int = Field(default=15, ge=1, le=24 * 60, description="No output and no CPU for so long: stuck.")
    when_stuck: Literal["show", "wake", "ask", "stop"] = Field(
        default="show",
        description="show: only say so. wake: interrupt it and tell it to go on. ask: a person is asked what to do. stop: the turn ends.",
    )


class VerifySettings(_Part):
    """What must succeed before work is committed and pushed."""

    command: str | None = Field(default=None, min_length=1, max_length=10_000, examples=["make test"])
    timeout_seconds: int = Field(default=900, ge=1, le=24 * 3600)
    fixes: int = Field(default=2, ge=0, le=20, description="How often a failure goes back to the agent.")


class SetupSettings(_Part):
    """What prepares a checkout, once for each base commit. Null: `.sandyard/setup.sh`, else what devcontainer.json says."""

    command: str | None = Field(default=None, min_length=1, max_length=10_000, examples=["npm ci"])
    timeout_seconds: int = Field(default=1800, ge=1, le=24 * 3600)


class TaskSettings(_Part):
    parallel: int = Field(default=4, ge=1, le=200, description="Attempts of this project that may run at once.")
    wip_limits: dict[Literal["backlog", "in_progress", "in_review"], Annotated[int, Field(ge=1, le=10_000)]] = Field(
        default_factory=dict, description="Cards a column may hold."
    )
    budget: BudgetSettings = Field(default_factory=BudgetSettings, description="Of one task that has none of its own.")
    monthly_budget: BudgetSettings = Field(
        default_factory=BudgetSettings, description="Of the project, per calendar month in UTC."
    )
    finished: Literal["pause", "destroy"] = Field(
        default="destroy", description="What becomes of a finished task's sandbox."
    )
    issue_label: str | None = Field(
        default=None,
        min_length=1,
        max_length=100,
        description="Issues that get this label become tasks that start at once.",
    )
    mention: str = Field(
        default="@sandyard",
        min_length=2,
        max_length=100,
        description="A comment on a pull request with this word goes to the agent.",
    )
    feedback_rounds: int = Field(
        default=5, ge=0, le=100, description="How often failed checks may wake the agent by themselves."
    )
    max_rounds: int = Field(
        default=20,
        ge=1,
        le=1000,
        description="After so many rounds of an attempt a person is asked before anything from the pull request begins another.",
    )
    trusted_bots: Annotated[
        list[Annotated[str, Field(min_length=6, max_length=100, pattern=r"^[A-Za-z0-9-]+\[bot\]$")]],
        Field(max_length=50),
    ] = Field(
        default_factory=list,
        description="GitHub Apps whose comments and reviews go to the agent as those of people with write access do.",
        examples=[["review-helper[bot]"]],
    )


def check_host(entry: str) -> str:
    """ValueError for what is neither a domain name, nor an address, nor a range of addresses."""
    entry = entry.strip().lower()
    try:
        network = ipaddress.ip_network(entry, strict=False)
    except ValueError:
        if not _HOST.fullmatch(entry) or entry.rpartition(".")[2].isdigit():
            raise ValueError(
                f"{entry[:100]!r} is not a host: give a domain name, *.example.org for all below one, an address or a CIDR"
            ) from None
        return entry
    if network.prefixlen == 0:
        raise ValueError(f"{entry} is everything: set the mode to all instead")
    return entry


def _check_host(entry: str, info: ValidationInfo) -> str:
    return entry if info.context is _STORED else check_host(entry)


Preset = Literal["forge", "debian", "pypi", "npm", "crates", "go", "maven", "rubygems"]


class NetworkSettings(_Part):
    """What sandboxes of the project may connect to. Models need nothing here: they are reached through the platform's own tunnel."""

    mode: Literal["none", "listed", "all"] | None = Field(
        default=None,
        description="none: nothing. listed: `presets` and `allow`, and nothing else. all: the whole internet. Null: as the platform "
        "says (SANDYARD_NETWORK). A change holds at once for running sandboxes, and for paused ones when they are woken.",
    )
    presets: Annotated[list[Preset], Field(max_length=len(get_args(Preset)))] = Field(
        default_factory=list,
        description="forge: the server of the project's repository. The others: where packages of that kind come from.",
    )
    allow: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=253), AfterValidator(_check_host)]], Field(max_length=500)
    ] = Field(default_factory=list, examples=[["api.example.org", "*.example.net", "192.0.2.0/24"]])


class ProjectSettings(_Part):
    command_policy: CommandPolicySettings = Field(default_factory=CommandPolicySettings)
    idle_seconds: int | None = Field(
        default=None,
        ge=5,
        le=7 * 24 * 3600,
        description="Sandboxes unused this long are paused; null: as the platform says.",
    )
    network: NetworkSettings = Field(default_factory=NetworkSettings)
    git: GitSettings = Field(default_factory=GitSettings)
    forge: ForgeSettings = Field(default_factory=ForgeSettings)
    agent: AgentSettings = Field(default_factory=AgentSettings)
    setup: SetupSettings = Field(default_factory=SetupSettings)
    verify: VerifySettings = Field(default_factory=VerifySettings)
    tasks: TaskSettings = Field(default_factory=TaskSettings)
    template: str | None = Field(
        default=None, min_length=1, max_length=256, pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:-]*$", examples=["base"]
    )

    @classmethod
    def of(cls, row: Project) -> ProjectSettings:
        return cls.model_validate({**row.settings, "template": row.template}, context=_STORED)

    @property
    def patterns(self) -> dict[str, str]:
        """All regular expressions, by their fields in a request."""
        lists = {
            "commandPolicy.deny": self.command_policy.deny,
            "commandPolicy.allow": self.command_policy.allow,
            "agent.permissions.deny": self.agent.permissions.deny,
        }
        return {f"settings.{name}.{at}": pattern for name, given in lists.items() for at, pattern in enumerate(given)}

    def stored(self) -> dict[str, Any]:
        """What goes into the column `settings`; the template has its own."""
        return self.model_dump(by_alias=True, exclude={"template"}, exclude_none=True)
