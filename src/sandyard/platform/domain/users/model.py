"""Types for users and their credentials."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from sandyard.kit.errors import ForbiddenError, SandyardError
from sandyard.kit.secret import Secret

Role = Literal["admin", "member"]


@dataclass(frozen=True, slots=True)
class Principal:
    """The authenticated user. `means` names the token, cookie or ticket, such as `token:tok_…`."""

    user_id: str
    name: str
    role: str
    means: str

    @property
    def is_admin(self) -> bool:
        return self.role == "admin"

    def require_admin(self) -> None:
        """Raise ForbiddenError if the user is not an administrator."""
        if not self.is_admin:
            raise ForbiddenError("Only an administrator may do this.")


@dataclass(frozen=True, slots=True)
class IssuedSecret:
    """A secret that is shown once: a token or a ticket."""

    id: str
    value: Secret
    expires_at: datetime | None


@dataclass(frozen=True, slots=True)
class IssuedLogin:
    """A new login. The cookie's value and the key are shown once and are valid only together."""

    id: str
    cookie: Secret
    key: Secret
    expires_at: datetime


class LastAdminError(SandyardError):
    """This is the last administrator who can sign in. Make another user an administrator first."""

    code, status = "last_admin", 409


class NameTakenError(SandyardError):
    """This name is already taken."""

    code, status = "name_taken", 409


class WrongPasswordError(SandyardError):
    """The current password is wrong."""

    code, status = "wrong_password", 403


class WrongLoginError(SandyardError):
    """Wrong name, password or token."""

    code, status = "unauthenticated", 401
