"""Every setting of the platform, with its default."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from sandyard.kit.errors import InvalidInputError
from sandyard.kit.secret import Secret

ENV_PREFIX = "SANDYARD_"
_E2B = {"e2b_api_key": "E2B_API_KEY", "e2b_api_url": "E2B_API_URL", "e2b_sandbox_url": "E2B_SANDBOX_URL"} | {
    "e2b_domain": "E2B_DOMAIN"
}


class PlatformSettings(BaseModel):
    """Frozen. Times are in seconds, sizes in bytes."""

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True, extra="forbid")

    # where
    host: str = "127.0.0.1"
    port: int = Field(default=8700, ge=0, le=65535)
    data_dir: Path = Field(default_factory=lambda: _home() / "platform")
    database_url: str | None = None  # None: SQLite in the data directory
    public_url: str | None = None  # as browsers see it; makes cookies secure when it is https

    # which E2B endpoint; no URL means E2B Cloud
    e2b_api_key: Secret | None = None
    e2b_api_url: str | None = None
    e2b_sandbox_url: str | None = None
    e2b_domain: str | None = None

    # sandboxes
    default_template: str = "base"
    idle_seconds: int = Field(default=300, ge=5)  # unused this long: paused
    idle_margin_s: int = Field(default=120, ge=5)  # the engine pauses by itself this much later, should we be down
    create_timeout_s: float = Field(default=5, gt=0)
    command_timeout_s: float = Field(default=300, gt=0)
    max_command_timeout_s: float = Field(default=24 * 3600, gt=0)
    output_limit: int = Field(default=256 * 1024, ge=1024)  # of a stream in an answer; the rest is paged
    upload_limit: int = Field(default=1 << 30, ge=1)
    stale_after_s: float = Field(default=24 * 3600, gt=0)
    stale_every_s: float = Field(default=600, gt=0)
    health_every_s: float = Field(default=30, gt=0)
    reconcile_every_s: float = Field(default=30, gt=0)
    checkpoint_on_pause: bool = True

    # people
    login_days: int = Field(default=30, ge=1)
    creates_per_minute: int = Field(default=60, ge=1)
    executes_per_minute: int = Field(default=600, ge=1)
    logins_per_minute: int = Field(default=10, ge=1)

    # events
    heartbeat_s: float = Field(default=15, gt=0)
    reader_backlog: int = Field(default=5000, ge=10)  # events a slow reader may be behind before it is sent away
    events_kept_days: int = Field(default=90, ge=1)

    # its own log
    log_level: str = "info"
    log_json: bool = False

    @field_validator("e2b_api_key", mode="before")
    @classmethod
    def _wrap(cls, value: Any) -> Any:
        return Secret(value) if isinstance(value, str) and value else value or None

    @field_validator("log_level")
    @classmethod
    def _known_level(cls, value: str) -> str:
        if value.lower() not in {"debug", "info", "warning", "error"}:
            raise ValueError("is one of debug, info, warning, error")
        return value.lower()

    @property
    def database(self) -> str:
        return self.database_url or f"sqlite:///{self.data_dir / 'platform.db'}"

    @classmethod
    def load(cls, environ: Mapping[str, str] | None = None, **given: Any) -> PlatformSettings:
        """`given` (options that are not None) over variables over defaults. InvalidInputError names the bad one."""
        environ = os.environ if environ is None else environ
        values: dict[str, Any] = {}
        for name in cls.model_fields:
            text = environ.get(_E2B.get(name, ENV_PREFIX + name.upper()))
            if text:
                values[name] = text
        values |= {name: value for name, value in given.items() if value is not None}
        try:
            return cls(**values)
        except ValidationError as error:
            wrong = error.errors(include_input=False, include_url=False)[0]
            name = ".".join(str(part) for part in wrong["loc"])
            raise InvalidInputError(f"The setting {name!r} is not valid: {wrong['msg']}.") from None


def _home() -> Path:
    if os.geteuid() == 0:
        return Path("/var/lib/sandyard")
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "sandyard"
