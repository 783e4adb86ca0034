"""All settings of the platform, with their defaults."""

from __future__ import annotations

import re
from collections.abc import Mapping
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, field_validator

from sandyard.kit.connections import MAX_CONNECTIONS
from sandyard.kit.destinations import Destinations
from sandyard.kit.endpoints import format_endpoint
from sandyard.kit.secret import Secret
from sandyard.kit.settings import get_default_data_dir, validate_log_level
from sandyard.kit.telemetry import TelemetrySettings

_DOMAIN = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*(:[1-9][0-9]{0,4})?")


class PlatformSettings(TelemetrySettings):
    """Settings of the platform. Immutable. Times are in seconds, sizes in bytes."""

    variables: ClassVar[Mapping[str, str | None]] = {
        name: name.upper() for name in ("e2b_api_key", "e2b_api_url", "e2b_sandbox_url", "e2b_domain")
    }

    # Address and storage
    host: str = "127.0.0.1"
    """Address that the platform listens on. `sandyard up --host` sets it."""
    port: int = Field(default=8700, ge=0, le=65535)
    """Port that the platform listens on. `sandyard up --port` sets it."""
    data_dir: Path = Field(default_factory=lambda: get_default_data_dir() / "platform")
    """Directory of the platform's data. With `sandyard up`: the directory of both processes, like `--data-dir`."""
    max_connections: int = Field(default=MAX_CONNECTIONS, ge=1)
    """Client connections, at most a third of the files that the process may open."""
    max_connections_per_address: int = Field(default=0, ge=0)
    """Client connections of one address. 0: a quarter of all, and three quarters for loopback."""
    database_url: str | None = None
    """`postgresql://user:password@host/database` for PostgreSQL 15 or newer. None: SQLite in the data directory."""
    public_url: str | None = None
    """The URL that browsers use when the platform is behind a proxy. With https, cookies are marked secure."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses and networks of reverse proxies, separated by commas, such as `127.0.0.1`. The platform
    takes the addresses of clients from the `X-Forwarded-For` of these proxies. Without it, all clients of a proxy count as one
    for limits, such as those on signing in."""
    preview_domain: str | None = None
    """The domain below which previews of sandbox ports are served, such as `previews.example.net`. Append `:port` if
    the port differs from the platform's. None: `localhost`, if no public URL is set."""

    # E2B endpoint
    e2b_api_key: Secret | None = None
    """API key of the E2B endpoint. `sandyard up` sets all of these for its own engine, except with `--engine none`."""
    e2b_api_url: str | None = None
    """URL of its API. None: E2B Cloud."""
    e2b_sandbox_url: str | None = None
    """URL under which it serves sandboxes, if that is not a name below its domain."""
    e2b_domain: str | None = None
    """Its domain, as for E2B's SDKs."""

    # Sandboxes
    default_template: str = "base"
    """Template of sandboxes whose project names none."""
    running_sandboxes_per_user: int = Field(default=100, ge=0)
    """Sandboxes of a user that may run or be provisioned at the same time, including those of sessions and tasks.
    Further ones are refused with 429 and the code `too_many_sandboxes`, and tasks wait. Paused sandboxes do not
    count. 0: no limit."""
    cpus_per_user: int = Field(default=0, ge=0)
    """Processors that the running sandboxes of a user may have together. 0: no limit. Administrators can set this and
    the following limits for each user, and the owner of a project for its sandboxes."""
    memory_mb_per_user: int = Field(default=0, ge=0)
    """The same for memory, in MiB."""
    disk_mb_per_user: int = Field(default=0, ge=0)
    """Disk space, in MiB, that the sandboxes of a user may use together, including paused ones, as last measured. A user
    who uses more can start no further sandboxes. 0: no limit."""
    idle_seconds: int = Field(default=300, ge=5)
    """Idle time after which a sandbox is paused. Applies to sandboxes created after the change."""
    network: Literal["none", "listed", "all"] = "all"
    """What sandboxes may connect to if their project does not set it: `none`, `listed` or `all`."""
    network_allow: str = ""
    """With `listed`: presets and hosts, separated by commas, such as `pypi,npm,api.example.org`."""
    idle_margin_s: int = Field(default=120, ge=5)
    """How much later the engine pauses an idle sandbox by itself, in case the platform is down."""
    create_timeout_s: float = Field(default=30, gt=0)
    """Timeout of creating a sandbox."""
    command_timeout_s: float = Field(default=300, gt=0)
    """Timeout of a command that does not set one."""
    max_command_timeout_s: float = Field(default=24 * 3600, gt=0)
    """The longest timeout that a command may set."""
    output_limit: int = Field(default=256 * 1024, ge=1024)
    """Bytes of each output stream returned in a response. The full output is stored and can be paged."""
    output_kept: int = Field(default=1 << 30, ge=1024)
    """Stored bytes of each output stream of a command. If a command writes more, its `error` says so."""
    upload_limit: int = Field(default=1 << 30, ge=1)
    """Maximum size of one uploaded file."""
    stale_after_s: float = Field(default=24 * 3600, gt=0)
    """Idle time after which sandboxes without an active session, and failed sandboxes, are deleted."""
    stale_every_s: float = Field(default=600, gt=0)
    """How often such sandboxes are looked for."""
    health_every_s: float = Field(default=30, gt=0)
    """How often the engine's health is checked."""
    reconcile_every_s: float = Field(default=30, gt=0)
    """How often the platform's sandboxes are compared with the engine's."""
    checkpoint_on_pause: bool = True
    """Take a snapshot of a session's files before each pause."""

    # Git
    local_git: str | None = None
    """Socket of `sandyard up`, which sets it, that serves this machine's repositories. None: they are read directly."""
    git_timeout_s: float = Field(default=900, gt=0)
    """Timeout of one exchange with a remote."""
    git_transfer_limit: int = Field(default=1 << 30, ge=1 << 20)
    """Maximum size of a bundle transferred into or out of a sandbox."""
    git_repository_limit: int = Field(default=10 << 30, ge=1 << 20)
    """Maximum size of a project's mirror. A fetch that would exceed it is stopped."""
    git_shallow_over: int = Field(default=100 << 20, ge=0)
    """Repositories with larger packs are checked out with a shallow history."""
    git_shallow_depth: int = Field(default=50, ge=1)
    """Generations in such a history."""
    git_checkpoints_kept: int = Field(default=20, ge=1)
    """Checkpoints kept per session."""
    git_operations_kept_days: int = Field(default=90, ge=1)
    """Days after which records of git operations are deleted."""
    forge_poll_s: float = Field(default=60, gt=0)
    """Polling interval for open pull requests without a webhook."""

    # Agents and tasks
    default_agent: str | None = None
    """Agent for tasks and sessions if neither they nor their project name one. None: the agent made for the model
    provider that was added first; if there is none, the demo agent."""
    parallel_attempts: int = Field(default=8, ge=1)
    """Attempts that work at the same time on this machine. Projects have their own limit."""
    parallel_attempts_per_user: int = Field(default=6, ge=1)
    """The same, of one user."""
    schedules_per_user: int = Field(default=100, ge=1)
    """Schedules that a user may have, in all projects together. Existing ones above the limit continue."""
    preparations_per_user: int = Field(default=4, ge=1)
    """Preparations of a user that may run at the same time. Up to 50 more wait; further ones are refused with 429 and
    the code `too_many_preparations`, and tasks wait."""
    npm_registry: str | None = None
    """npm registry from which agents are installed. None: as configured for npm in the sandbox."""
    model_timeout_s: float = Field(default=600, gt=0)
    """Maximum time a model may send nothing."""
    monthly_usd_per_user: float = Field(default=0, ge=0)
    """US dollars that the sessions of a user may spend on models per calendar month (UTC). 0: no limit."""
    monthly_tokens_per_user: int = Field(default=0, ge=0)
    """The same in tokens."""
    preparations_kept_days: int = Field(default=14, ge=1)
    """Days after which an unused prepared snapshot is deleted."""
    agent_idle_s: float = Field(default=120, gt=0)
    """Idle time after which an agent's process is stopped. Its conversation can continue later."""

    # Private networks
    private_hosts: tuple[str, ...] = ()
    """Hosts in private networks, and in networks that the platform's machine is attached to, that users who are not
    administrators may use for repositories, forge APIs, MCP servers (https) and the network setting of their
    projects: names, `*.corp.example`, addresses and networks, separated by commas."""

    # People
    new_admin_token: bool = False
    """At start, create and print a new token for an administrator, in case the first one was lost. Unset it afterwards."""
    login_days: int = Field(default=30, ge=1)
    """Days after which a login in the web ends."""
    creates_per_minute: int = Field(default=60, ge=1)
    """Sandboxes and sessions that a user may create per minute."""
    executes_per_minute: int = Field(default=600, ge=1)
    """Commands that a user may run per minute."""
    logins_per_minute: int = Field(default=10, ge=1)
    """Attempts to sign in per minute."""

    # Events
    heartbeat_s: float = Field(default=15, gt=0)
    """How often an event stream without events sends a comment."""
    reader_backlog: int = Field(default=5000, ge=10)
    """Events kept in memory for readers. A reader that is further behind is served from the database."""
    events_kept_days: int = Field(default=90, ge=1)
    """Days after which events, commands with their output, and the workflow records of finished tasks are deleted."""

    # Log
    log_level: Annotated[str, AfterValidator(validate_log_level)] = "info"
    """The least severe level to log: `debug`, `info`, `warning` or `error`."""
    log_json: bool = False
    """Log one JSON object per line."""

    @field_validator("e2b_api_key", mode="before")
    @classmethod
    def _wrap_secret(cls, value: Any) -> Any:
        return Secret(value) if isinstance(value, str) and value else value or None

    @field_validator("private_hosts", mode="before")
    @classmethod
    def _parse_private_hosts(cls, value: Any) -> Any:
        hosts = [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value
        Destinations(hosts)
        return hosts

    @field_validator("trusted_proxies", mode="before")
    @classmethod
    def _parse_trusted_proxies(cls, value: Any) -> Any:
        proxies = [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value
        for proxy in proxies:
            ip_network(proxy, strict=False)
        return proxies

    @field_validator("preview_domain")
    @classmethod
    def _check_preview_domain(cls, value: str | None) -> str | None:
        if value is not None and not _DOMAIN.fullmatch(value.lower()):
            raise ValueError("must be a domain name such as previews.example.com, with a port if it is not the default")
        return value.lower() if value else None

    @property
    def git_dir(self) -> Path:
        return self.data_dir / "git"

    @property
    def samples_dir(self) -> Path:
        return self.data_dir / "samples"

    @property
    def durable_database(self) -> str:
        """Return the database of workflows: next to SQLite's database file, or a schema of its own in PostgreSQL."""
        return self.database_url or f"sqlite:///{self.data_dir / 'workflows.db'}"

    @property
    def url(self) -> str:
        """Return the URL under which people reach the platform."""
        if self.public_url:
            return self.public_url.rstrip("/")
        return f"http://{format_endpoint(self.host, self.port)}"

    @property
    def database(self) -> str:
        return self.database_url or f"sqlite:///{self.data_dir / 'platform.db'}"
