"""All settings of the platform, with their defaults."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, field_validator

from sandyard.kit.connections import MOST
from sandyard.kit.destinations import Destinations
from sandyard.kit.secret import Secret
from sandyard.kit.settings import Settings, home, validate_log_level

_DOMAIN = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*(:[1-9][0-9]{0,4})?")


class PlatformSettings(Settings):
    """Settings of the platform. Immutable. Times are in seconds, sizes in bytes."""

    variables: ClassVar[Mapping[str, str | None]] = {
        name: name.upper() for name in ("e2b_api_key", "e2b_api_url", "e2b_sandbox_url", "e2b_domain")
    }

    # address and storage
    host: str = "127.0.0.1"
    port: int = Field(default=8700, ge=0, le=65535)
    data_dir: Path = Field(default_factory=lambda: home() / "platform")
    # of clients; at most a third of the files that the platform may open
    max_connections: int = Field(default=MOST, ge=1)
    max_connections_per_address: int = Field(default=0, ge=0)  # 0: a quarter of all; loopback: three quarters
    database_url: str | None = None  # None: SQLite in the data directory
    public_url: str | None = None  # as browsers see it; cookies are secure if it is https
    # parent domain of previews, e.g. previews.example.com; None: localhost, on the user's own machine
    preview_domain: str | None = None

    # E2B endpoint; without a URL it is E2B Cloud
    e2b_api_key: Secret | None = None
    e2b_api_url: str | None = None
    e2b_sandbox_url: str | None = None
    e2b_domain: str | None = None

    # sandboxes
    default_template: str = "base"
    running_sandboxes_per_user: int = Field(default=100, ge=0)  # 0: any number
    idle_seconds: int = Field(default=300, ge=5)  # idle time after which a sandbox is paused
    network: Literal["none", "listed", "all"] = "all"  # of sandboxes, unless their project overrides it
    network_allow: str = ""  # with "listed": presets and hosts, separated by commas
    # the engine pauses a sandbox this much later on its own, in case the platform is down
    idle_margin_s: int = Field(default=120, ge=5)
    create_timeout_s: float = Field(default=30, gt=0)
    command_timeout_s: float = Field(default=300, gt=0)
    max_command_timeout_s: float = Field(default=24 * 3600, gt=0)
    output_limit: int = Field(default=256 * 1024, ge=1024)  # of a stream in a response; the rest is paged
    # of a command's stream; output beyond it is dropped, and the result says so
    output_kept: int = Field(default=1 << 30, ge=1024)
    upload_limit: int = Field(default=1 << 30, ge=1)
    stale_after_s: float = Field(default=24 * 3600, gt=0)
    stale_every_s: float = Field(default=600, gt=0)
    health_every_s: float = Field(default=30, gt=0)
    reconcile_every_s: float = Field(default=30, gt=0)
    checkpoint_on_pause: bool = True

    # git
    local_git: str | None = None  # socket of `up` that serves this machine's repositories; None: they are read directly
    git_timeout_s: float = Field(default=900, gt=0)  # of one command with a remote
    git_transfer_limit: int = Field(default=1 << 30, ge=1 << 20)  # of one bundle to or from a sandbox
    git_repository_limit: int = Field(default=10 << 30, ge=1 << 20)  # of all stored data of one repository
    git_shallow_over: int = Field(default=100 << 20, ge=0)  # larger repositories are checked out with a shallow history
    git_shallow_depth: int = Field(default=50, ge=1)
    git_checkpoints_kept: int = Field(default=20, ge=1)  # per session
    git_operations_kept_days: int = Field(default=90, ge=1)
    forge_poll_s: float = Field(default=60, gt=0)  # for open pull requests without a webhook

    # agents and tasks
    default_agent: str | None = None  # None: the one created for the first provider, else the demo
    parallel_attempts: int = Field(default=8, ge=1)  # on this machine
    parallel_attempts_per_user: int = Field(default=6, ge=1)
    schedules_per_user: int = Field(default=100, ge=1)
    npm_registry: str | None = None  # where agents are installed from; None: as configured for npm in the sandbox
    model_timeout_s: float = Field(default=600, gt=0)  # between two bytes of a model's response
    preparations_kept_days: int = Field(default=14, ge=1)  # if unused
    agent_idle_s: float = Field(default=120, gt=0)  # an agent process without a turn is ended after this time

    # where projects of non-administrators may have their repository and its API, besides the public internet
    private_hosts: tuple[str, ...] = ()  # names, *.domains, addresses and networks, e.g. git.corp.example,10.1.0.0/16

    # people
    # at start, create and print a token for an administrator, in case the first one was lost
    new_admin_token: bool = False
    login_days: int = Field(default=30, ge=1)
    creates_per_minute: int = Field(default=60, ge=1)
    executes_per_minute: int = Field(default=600, ge=1)
    logins_per_minute: int = Field(default=10, ge=1)

    # events
    heartbeat_s: float = Field(default=15, gt=0)
    # how many events a slow reader may lag behind before it is disconnected
    reader_backlog: int = Field(default=5000, ge=10)
    events_kept_days: int = Field(default=90, ge=1)

    # logging
    log_level: Annotated[str, AfterValidator(validate_log_level)] = "info"
    log_json: bool = False

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
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    @property
    def database(self) -> str:
        return self.database_url or f"sqlite:///{self.data_dir / 'platform.db'}"
