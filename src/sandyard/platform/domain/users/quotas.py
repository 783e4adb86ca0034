"""The resource limits of users."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from sandyard.platform.db.models import User
from sandyard.platform.settings import PlatformSettings

Count = Annotated[int, Field(ge=0, le=10**9)]


class UserQuotas(BaseModel):
    """Limits of one user. Null: the server's default. 0: no limit."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)

    running_sandboxes: Count | None = Field(default=None, description="Sandboxes that run at the same time.")
    cpus: Count | None = Field(default=None, description="Processors of all running sandboxes together.")
    memory_mb: Count | None = Field(default=None, description="Memory of all running sandboxes together, in MiB.")
    disk_mb: Count | None = Field(default=None, description="Disk space that all sandboxes use, in MiB.")
    monthly_usd: Annotated[float, Field(ge=0, le=1_000_000)] | None = Field(
        default=None, description="US dollars for models per calendar month (UTC)."
    )
    monthly_tokens: Annotated[int, Field(ge=0, le=10**13)] | None = Field(
        default=None, description="Tokens for models per calendar month (UTC)."
    )

    @classmethod
    def from_user(cls, user: User | None) -> UserQuotas:
        """Return the stored quotas of a user."""
        return cls.model_validate(user.quotas or {}) if user is not None else cls()

    def with_defaults(self, settings: PlatformSettings) -> UserQuotas:
        """Return the limits that apply. None: no limit."""
        defaults = {
            "running_sandboxes": settings.running_sandboxes_per_user,
            "cpus": settings.cpus_per_user,
            "memory_mb": settings.memory_mb_per_user,
            "disk_mb": settings.disk_mb_per_user,
            "monthly_usd": settings.monthly_usd_per_user,
            "monthly_tokens": settings.monthly_tokens_per_user,
        }
        own = self.model_dump()
        chosen = {name: default if own[name] is None else own[name] for name, default in defaults.items()}
        return UserQuotas.model_validate({name: value or None for name, value in chosen.items()})
