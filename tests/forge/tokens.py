"""Access to the forge double: tokens that can be read-only, expired, revoked, or limited to some repositories."""

from __future__ import annotations

import base64
import binascii
import secrets
import time
from collections.abc import Collection
from dataclasses import dataclass


@dataclass
class Token:
    text: str
    login: str
    write: bool = True
    repositories: frozenset[str] | None = None
    """The repositories it is valid for. None: all."""
    expires_at: float | None = None
    revoked: bool = False

    @property
    def valid(self) -> bool:
        return not self.revoked and (self.expires_at is None or time.time() < self.expires_at)

    def reaches(self, repository: str) -> bool:
        return self.repositories is None or repository.lower() in self.repositories

    def expire(self) -> None:
        """Expire the token now."""
        self.expires_at = time.time() - 1

    def renew(self) -> None:
        """Make the token valid again, without an expiry."""
        self.expires_at, self.revoked = None, False

    def revoke(self) -> None:
        self.revoked = True


class Tokens:
    def __init__(self) -> None:
        self._known: dict[str, Token] = {}

    def make(
        self,
        login: str,
        *,
        write: bool = True,
        repositories: Collection[str] | None = None,
        expires_in_s: float | None = None,
        text: str | None = None,
        kind: str = "ghp",
    ) -> Token:
        text = text or f"{kind}_{secrets.token_hex(18)}"
        only = None if repositories is None else frozenset(name.lower() for name in repositories)
        end = None if expires_in_s is None else time.time() + expires_in_s
        self._known[text] = token = Token(text, login, write, only, end)
        return token

    def find(self, text: str) -> Token | None:
        """Return the token with this text, if it is valid now."""
        token = self._known.get(text)
        return token if token is not None and token.valid else None

    def find_by_header(self, authorization: str | None) -> Token | None:
        """Return the token of an Authorization header: Basic (token as password, or as user name with
        `x-oauth-basic`), Bearer, or `token`."""
        text = parse_token(authorization)
        return None if text is None else self.find(text)


def parse_token(authorization: str | None) -> str | None:
    """Return the text of the token in an Authorization header, valid or not."""
    if not authorization or " " not in authorization:
        return None
    scheme, value = authorization.split(" ", 1)
    if scheme.lower() in ("bearer", "token"):
        return value.strip()
    if scheme.lower() != "basic":
        return None
    try:
        name, _, password = base64.b64decode(value, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return None
    return name if password in ("", "x-oauth-basic") else password
