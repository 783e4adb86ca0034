"""Every setting of the platform, with its default."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, field_validator

from sandyard.kit.connections import MOST
from sandyard.kit.destinations import Destinations
from sandyard.kit.secret import Secret
from sandyard.kit.settings import Settings, home, known_level

_DOMAIN = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*(:[1-9][0-9]{0,4})?")


class PlatformSettings(Settings):
    """Frozen. Times are in seconds, sizes in bytes."""

    variables: ClassVar[Mapping[str, str | None]] = {
        name: name.upper() for name in ("e2b_api_key", "e2b_api_url", "e2b_sandbox_url", "e2b_domain")
    }

    # where
    host: str = "127.0.0.1"
    port: int = Field(default=8700, ge=0, le=65535)
    data_dir: Path = Field(default_factory=lambda: home() / "platform")
    max_connections: int = Field(default=MOST, ge=1)  # of clients; at most a third of the files the platform may open
    max_connections_per_address: int = Field(default=0, ge=0)  # 0: a quarter of all; loopback: three quarters
    database_url: str | None = None  # None: SQLite in the data directory
    public_url: str | None = None  # as browsers see it; makes cookies secure when it is https
    preview_domain: str | None = (
        None  # below which previews are, e.g. previews.example.com; None: localhost, on one's own machine
    )

    # which E2B endpoint; no URL means E2B Cloud
    e2b_api_key: Secret | None = None
    e2b_api_url: str | None = None
    e2b_sandbox_url: str | None = None
    e2b_domain: str | None = None

    # sandboxes
    default_template: str = "base"
    idle_seconds: int = Field(default=300, ge=5)  # unused this long: paused
    network: Literal["none", "listed", "all"] = "all"  # of sandboxes, unless their project says something else
    network_allow: str = ""  # with "listed": presets and hosts, separated by commas
    idle_margin_s: int = Field(default=120, ge=5)  # the engine pauses by itself this much later, should we be down
    create_timeout_s: float = Field(default=5, gt=0)
    command_timeout_s: float = Field(default=300, gt=0)
    max_command_timeout_s: float = Field(default=24 * 3600, gt=0)
    output_limit: int = Field(default=256 * 1024, ge=1024)  # of a stream in an answer; the rest is paged
    output_kept: int = Field(
        default=1 << 30, ge=1024
    )  # of a stream of a command; what is beyond it is not kept, and said
    upload_limit: int = Field(default=1 << 30, ge=1)
    stale_after_s: float = Field(default=24 * 3600, gt=0)
    stale_every_s: float = Field(default=600, gt=0)
    health_every_s: float = Field(default=30, gt=0)
    reconcile_every_s: float = Field(default=30, gt=0)
    checkpoint_on_pause: bool = True

    # git
    local_git: str | None = (
        None  # the socket of `up` that serves this machine's repositories; None: they are read as they are
    )
    git_timeout_s: float = Field(default=900, gt=0)  # of one conversation with a remote
    git_transfer_limit: int = Field(default=1 << 30, ge=1 << 20)  # of one bundle into a sandbox, or out of it
    git_repository_limit: int = Field(default=10 << 30, ge=1 << 20)  # of all that is kept of one repository
    git_shallow_over: int = Field(
        default=100 << 20, ge=0
    )  # a larger repository is checked out without its whole history
    git_shallow_depth: int = Field(default=50, ge=1)
    git_checkpoints_kept: int = Field(default=20, ge=1)  # of each session
    git_operations_kept_days: int = Field(default=90, ge=1)
    forge_poll_s: float = Field(default=60, gt=0)  # open pull requests of which no webhook tells

    # agents and tasks
    default_agent: str | None = None  # None: the one made for the provider that was added first, else the demo
    parallel_attempts: int = Field(default=8, ge=1)  # on this machine
    parallel_attempts_per_user: int = Field(default=8, ge=1)
    npm_registry: str | None = None  # where agents are installed from; None: as npm in the sandbox is set up
    model_timeout_s: float = Field(default=600, gt=0)  # of one answer of a model, from byte to byte
    preparations_kept_days: int = Field(default=14, ge=1)  # unused
    agent_idle_s: float = Field(default=120, gt=0)  # an agent's process without a turn is ended so much later

    # where projects of people who are no administrators may have their repository and its API, besides the public internet
    private_hosts: tuple[str, ...] = ()  # names, *.domains, addresses and networks, e.g. git.corp.example,10.1.0.0/16

    # people
    new_admin_token: bool = False  # at start, make a token for an administrator and say it: for who has lost the first
    login_days: int = Field(default=30, ge=1)
    creates_per_minute: int = Field(default=60, ge=1)
    executes_per_minute: int = Field(default=600, ge=1)
    logins_per_minute: int = Field(default=10, ge=1)

    # events
    heartbeat_s: float = Field(default=15, gt=0)
    reader_backlog: int = Field(default=5000, ge=10)  # events a slow reader may be behind before it is sent away
    events_kept_days: int = Field(default=90, ge=1)

    # its own log
    log_level: Annotated[str, AfterValidator(known_level)] = "info"
    log_json: bool = False

    @field_validator("e2b_api_key", mode="before")
    @classmethod
    def _wrap(cls, value: Any) -> Any:
        return Secret(value) if isinstance(value, str) and value else value or None

    @field_validator("private_hosts", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        hosts = [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value
        Destinations(hosts)
        return hosts

    @field_validator("preview_domain")
    @classmethod
    def _named(cls, value: str | None) -> str | None:
        if value is not None and not _DOMAIN.fullmatch(value.lower()):
            raise ValueError("is a domain name, such as previews.example.com, and a port if it has another one")
        return value.lower() if value else None

    @property
    def git_dir(self) -> Path:
        return self.data_dir / "git"

    @property
    def durable_database(self) -> str:
        """Where workflows are recorded: beside SQLite's database, or in a schema of its own in PostgreSQL's."""
        return self.database_url or f"sqlite:///{self.data_dir / 'workflows.db'}"

    @property
    def url(self) -> str:
        """Where people reach it."""
        if self.public_url:
            return self.public_url.rstrip("/")
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    @property
    def database(self) -> str:
        return self.database_url or f"sqlite:///{self.data_dir / 'platform.db'}"
