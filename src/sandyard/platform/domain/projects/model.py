"""Project settings, validated before they are stored."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo
from pydantic.alias_generators import to_camel

from sandyard.platform.db.models import DeletedProject, Project

MAX_PATTERNS, MAX_PATTERN_LENGTH = 100, 300
_HOST_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_HOST = re.compile(rf"(?:\*\.)?(?:{_HOST_LABEL}\.)*{_HOST_LABEL}")
_STORED = object()
"""Validation context for stored settings, which were validated before: they are read far more often than written."""

Pattern = Annotated[str, Field(min_length=1, max_length=MAX_PATTERN_LENGTH)]
"""Not compiled here: `check_patterns` is called before they are stored."""
Patterns = Annotated[list[Pattern], Field(max_length=MAX_PATTERNS)]


class _SettingsModel(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)


class CommandPolicySettings(_SettingsModel):
    """Regular expressions (RE2 syntax), matched anywhere in the command. `deny` takes precedence. If `allow` is set, all else is denied."""

    allow: Patterns = Field(default_factory=list, examples=[["^git ", "^npm (ci|test)$"]])
    deny: Patterns = Field(default_factory=list, examples=[["\\bsudo\\b"]])


class IdentitySettings(_SettingsModel):
    """A name and email address for commits."""

    name: Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^<>\r\n\x00]+$")]
    email: Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^<>\s\x00]+$")]


class GitSettings(_SettingsModel):
    author: IdentitySettings | None = Field(default=None, description="Author of commits. Null means Sandyard.")
    committer: IdentitySettings | None = Field(default=None, description="Committer of commits. Null means the author.")
    co_author: IdentitySettings | None = Field(
        default=None, description="Added as a Co-authored-by line. Null means the session's agent, if it has one."
    )
    commit_messages: Literal["conventional", "any"] = Field(
        default="conventional", description="The required format of commit subjects."
    )
    ci_files: Literal["refuse", "allow"] = Field(
        default="refuse",
        description="Commits that change what continuous integration runs, such as `.github/workflows`. The forge runs these files with the "
        "repository's secrets as soon as they are pushed. refuse: such commits are not pushed.",
    )


class ForgeSettings(_SettingsModel):
    kind: Literal["auto", "github", "plain"] = Field(
        default="auto",
        description="auto: GitHub for repositories on github.com or with an apiUrl, otherwise a plain remote.",
    )
    api_url: str | None = Field(
        default=None,
        max_length=500,
        pattern=r"^https?://[^\s@?#]+$",
        description="API URL of a GitHub Enterprise Server. Null means github.com.",
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
    delete_branch: bool = Field(default=True, description="Delete the branch after its pull request is merged.")


class PermissionSettings(_SettingsModel):
    """Actions that agents may do without asking. `deny` takes precedence over everything."""

    mode: Literal["ask", "allow_reads", "allow_all"] = Field(
        default="allow_all",
        description="ask: a person decides every request of the agent. allow_reads: reading, searching and thinking are allowed, a "
        "person decides other requests. allow_all: everything inside the sandbox is allowed.",
    )
    deny: Patterns = Field(
        default_factory=list,
        description="Regular expressions (RE2 syntax), matched in a tool call's title, command, paths and input. Matching calls are denied.",
        examples=[["\\brm -rf\\b"]],
    )
    timeout_seconds: int = Field(
        default=3600, ge=5, le=30 * 24 * 3600, description="Seconds after which an unanswered request is denied."
    )

    @property
    def strictness(self) -> Literal["none", "ask", "deny"]:
        """How strictly agents must ask. ask: before every action. deny: as well, and a user cannot turn it off."""
        return "deny" if self.deny else "none" if self.mode == "allow_all" else "ask"


class BudgetSettings(_SettingsModel):
    """A limit on model usage. Null means no limit."""

    usd: float | None = Field(default=None, gt=0, le=1_000_000)
    tokens: int | None = Field(default=None, gt=0, le=10**13)


class AgentSettings(_SettingsModel):
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
        description="Tools that model providers may run for agents, outside the sandbox's network policy and budget: a tool name, or "
        "PROVIDER/name.",
        examples=[["web_search", "anthropic/code_execution"]],
    )
    stuck_minutes: int = Field(
        default=15,
        ge=1,
        le=24 * 60,
        description="Minutes without output and CPU usage after which an agent counts as stuck.",
    )
    when_stuck: Literal["show", "wake", "ask", "stop"] = Field(
        default="show",
        description="show: only report it. wake: interrupt the agent and tell it to continue. ask: ask a person. stop: end the turn.",
    )


class VerifySettings(_SettingsModel):
    """The command that must succeed before work is committed and pushed."""

    command: str | None = Field(default=None, min_length=1, max_length=10_000, examples=["make test"])
    timeout_seconds: int = Field(default=900, ge=1, le=24 * 3600)
    fixes: int = Field(default=2, ge=0, le=20, description="How many times the agent is asked to fix a failure.")


class SetupSettings(_SettingsModel):
    """Prepares a checkout, once per base commit. Null means `.sandyard/setup.sh`, or else devcontainer.json."""

    command: str | None = Field(default=None, min_length=1, max_length=10_000, examples=["npm ci"])
    timeout_seconds: int = Field(default=1800, ge=1, le=24 * 3600)


class TaskSettings(_SettingsModel):
    parallel: int = Field(
        default=4, ge=1, le=200, description="Maximum number of attempts of this project that run at once."
    )
    wip_limits: dict[Literal["backlog", "in_progress", "in_review"], Annotated[int, Field(ge=1, le=10_000)]] = Field(
        default_factory=dict, description="Maximum number of tasks per column."
    )
    budget: BudgetSettings = Field(default_factory=BudgetSettings, description="For a task without its own budget.")
    monthly_budget: BudgetSettings = Field(
        default_factory=BudgetSettings, description="For the project, per calendar month in UTC."
    )
    finished: Literal["pause", "destroy"] = Field(
        default="destroy", description="What happens to the sandbox of a finished task."
    )
    issue_label: str | None = Field(
        default=None,
        min_length=1,
        max_length=100,
        description="Issues that get this label become tasks that start immediately.",
    )
    mention: str = Field(
        default="@sandyard",
        min_length=2,
        max_length=100,
        description="A pull request comment with this word is sent to the agent.",
    )
    feedback_rounds: int = Field(
        default=5, ge=0, le=100, description="How many times failed checks may restart the agent automatically."
    )
    max_rounds: int = Field(
        default=20,
        ge=1,
        le=1000,
        description="Number of rounds of an attempt after which a person must approve further feedback from the pull request.",
    )
    trusted_bots: Annotated[
        list[Annotated[str, Field(min_length=6, max_length=100, pattern=r"^[A-Za-z0-9-]+\[bot\]$")]],
        Field(max_length=50),
    ] = Field(
        default_factory=list,
        description="GitHub Apps whose comments and reviews are treated like those of people with write access.",
        examples=[["review-helper[bot]"]],
    )


def check_host(entry: str) -> str:
    """Validate a domain name, an address or a CIDR range. Raises ValueError."""
    entry = entry.strip().lower()
    try:
        network = ipaddress.ip_network(entry, strict=False)
    except ValueError:
        if not _HOST.fullmatch(entry) or entry.rpartition(".")[2].isdigit():
            raise ValueError(
                f"{entry[:100]!r} is not a valid host. Use a domain name, *.example.org for subdomains, an IP address or a CIDR range"
            ) from None
        return entry
    if network.prefixlen == 0:
        raise ValueError(f"{entry} matches everything. Set the mode to all instead")
    return entry


def _check_host(entry: str, info: ValidationInfo) -> str:
    return entry if info.context is _STORED else check_host(entry)


Preset = Literal["forge", "debian", "pypi", "npm", "crates", "go", "maven", "rubygems"]


class NetworkSettings(_SettingsModel):
    """Destinations that the project's sandboxes may connect to. Models need no entry: they are reached through the platform's tunnel."""

    mode: Literal["none", "listed", "all"] | None = Field(
        default=None,
        description="none: nothing. listed: only `presets` and `allow`. all: the whole internet. Null: the platform's default "
        "(SANDYARD_NETWORK). Changes apply immediately to running sandboxes, and to paused ones when they are resumed.",
    )
    presets: Annotated[list[Preset], Field(max_length=len(get_args(Preset)))] = Field(
        default_factory=list,
        description="forge: the server of the project's repository. Others: the package registries of that ecosystem.",
    )
    allow: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=253), AfterValidator(_check_host)]], Field(max_length=500)
    ] = Field(default_factory=list, examples=[["api.example.org", "*.example.net", "192.0.2.0/24"]])


HostLabelName = Annotated[str, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?$")]
HostLabelValue = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,63}$")]


class QuotaSettings(_SettingsModel):
    """Limits for all sandboxes of a project together. Null means no limit. For models, see `tasks.monthlyBudget`."""

    running_sandboxes: int | None = Field(default=None, ge=1, le=10**6)
    cpus: int | None = Field(default=None, ge=1, le=10**6, description="Processors of all running sandboxes.")
    memory_mb: int | None = Field(default=None, ge=1, le=10**9, description="Memory of all running sandboxes, in MiB.")
    disk_mb: int | None = Field(
        default=None, ge=1, le=10**9, description="Disk space that all sandboxes use, including paused ones, in MiB."
    )


class ProjectSettings(_SettingsModel):
    command_policy: CommandPolicySettings = Field(default_factory=CommandPolicySettings)
    idle_seconds: int | None = Field(
        default=None,
        ge=5,
        le=7 * 24 * 3600,
        description="Seconds of inactivity after which sandboxes are paused. Null means the platform's default.",
    )
    network: NetworkSettings = Field(default_factory=NetworkSettings)
    git: GitSettings = Field(default_factory=GitSettings)
    forge: ForgeSettings = Field(default_factory=ForgeSettings)
    agent: AgentSettings = Field(default_factory=AgentSettings)
    setup: SetupSettings = Field(default_factory=SetupSettings)
    verify: VerifySettings = Field(default_factory=VerifySettings)
    tasks: TaskSettings = Field(default_factory=TaskSettings)
    quotas: QuotaSettings = Field(default_factory=QuotaSettings)
    isolation: Literal["namespace", "gvisor"] | None = Field(
        default=None,
        description="Isolation level of new sandboxes. namespace: Linux namespaces on the host's kernel. gvisor: a separate kernel per "
        "sandbox. Null: the engine's default. Sandboxes are not created if the engine does not have the level.",
    )
    containers: bool | None = Field(
        default=None,
        description="Whether programs in new sandboxes may run containers (Docker). By default, engines allow them only at the "
        "isolation level gvisor, which such sandboxes then get. Null: as their template says. Sandboxes are not created if it is true and "
        "the engine does not support or allow it.",
    )
    host_labels: Annotated[dict[HostLabelName, HostLabelValue], Field(max_length=32)] = Field(
        default_factory=dict,
        description="Labels that the hosts of new sandboxes must have, such as gpu: yes. Sandboxes are not created if no host has them.",
        examples=[{"gpu": "yes"}],
    )
    template: str | None = Field(
        default=None, min_length=1, max_length=256, pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:-]*$", examples=["base"]
    )

    @classmethod
    def from_project(cls, row: Project | DeletedProject) -> ProjectSettings:
        """Return the stored settings of a project."""
        template = row.template if isinstance(row, Project) else None
        return cls.model_validate({**row.settings, "template": template}, context=_STORED)

    @property
    def restricts_sandboxes(self) -> bool:
        """Whether something is set that limits what happens in sandboxes, and has to outlive the project."""
        usual = ProjectSettings()
        return any(
            getattr(self, name) != getattr(usual, name)
            for name in ("command_policy", "network", "isolation", "containers", "host_labels")
        ) or (self.agent.permissions != usual.agent.permissions)

    @property
    def patterns(self) -> dict[str, str]:
        """All regular expressions, by their fields in a request."""
        lists = {
            "commandPolicy.deny": self.command_policy.deny,
            "commandPolicy.allow": self.command_policy.allow,
            "agent.permissions.deny": self.agent.permissions.deny,
        }
        return {
            f"settings.{name}.{index}": pattern
            for name, patterns in lists.items()
            for index, pattern in enumerate(patterns)
        }

    def to_column(self) -> dict[str, Any]:
        """Return the value of the column `settings`. The template has its own column."""
        return self.model_dump(by_alias=True, exclude={"template"}, exclude_none=True)
