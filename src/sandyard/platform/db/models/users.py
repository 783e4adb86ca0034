"""Users and their credentials. Tokens, cookies, keys and tickets are stored as hashes only."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import String
from sqlalchemy.orm import Mapped, mapped_column

from sandyard.platform.db.base import Base, Id, Name, ShortText, belongs_to
from sandyard.platform.db.types import Json


class User(Base):
    __tablename__ = "users"

    id: Mapped[Id]
    name: Mapped[str] = mapped_column(String(200), unique=True)
    role: Mapped[ShortText]  # admin or member
    password: Mapped[str | None] = mapped_column(String(300))  # scrypt, with its parameters
    quotas: Mapped[dict[str, Any]] = mapped_column(Json, default=dict)  # users.quotas.UserQuotas
    created_at: Mapped[datetime]
    disabled_at: Mapped[datetime | None]

    @property
    def has_password(self) -> bool:
        return self.password is not None


class ApiToken(Base):
    __tablename__ = "api_tokens"

    id: Mapped[Id]
    user_id: Mapped[str] = mapped_column(belongs_to("users.id"), index=True)
    name: Mapped[Name]
    hash: Mapped[str] = mapped_column(String(64), unique=True)
    hint: Mapped[str] = mapped_column(String(20))  # its first characters, so that people can recognize it
    created_at: Mapped[datetime]
    last_used_at: Mapped[datetime | None]
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]


class Login(Base):
    """A browser's login: a cookie, and a key without which the cookie is not accepted."""

    __tablename__ = "logins"

    id: Mapped[Id]
    user_id: Mapped[str] = mapped_column(belongs_to("users.id"), index=True)
    token_id: Mapped[str | None] = mapped_column(belongs_to("api_tokens.id"), index=True)
    """The token that was used to sign in, if any. The login ends with it."""
    hash: Mapped[str] = mapped_column(String(64), unique=True)
    key_hash: Mapped[str] = mapped_column(String(64), unique=True)
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime] = mapped_column(index=True)


class Ticket(Base):
    """A short-lived credential that opens one stream or terminal and can be used once.

    `means` is the credential of the user who requested it, such as `token:tok_…`. When that becomes invalid, the stream
    or terminal is closed.
    """

    __tablename__ = "tickets"

    hash: Mapped[str] = mapped_column(String(64), primary_key=True)
    user_id: Mapped[str] = mapped_column(belongs_to("users.id"), index=True)
    means: Mapped[str] = mapped_column(String(60))
    expires_at: Mapped[datetime] = mapped_column(index=True)
