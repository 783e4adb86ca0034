"""Token sources of GitHub connections: a personal token, or tokens issued to a GitHub App's installation."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import jwt

from sandyard.kit.clock import Clock
from sandyard.kit.destinations import Destinations
from sandyard.kit.logging import get_logger
from sandyard.kit.secret import Secret
from sandyard.platform.domain.forge.errors import (
    ForgeInvalidError,
    ForgeNotFoundError,
    ForgeUnauthorizedError,
    ForgeUnreachableError,
)
from sandyard.platform.domain.forge.github_connection import GitHubConnection, ResponseCache
from sandyard.platform.domain.forge.github_responses import JsonObject, as_object, parse_time

log = get_logger(__name__)

EXPIRY_MARGIN_S = 300.0
"""A token that expires sooner than this is no longer used, because operations may take a while."""
_MAX_WAIT_S = 60.0


class FixedToken:
    """A personal token, or none: public repositories can be read without one."""

    def __init__(self, token: Secret | None) -> None:
        self._token = token

    async def get_token(self) -> Secret | None:
        return self._token

    def discard(self, token: Secret) -> bool:
        return False

    async def get_permissions(self) -> Mapping[str, str] | None:
        return None


@dataclass(frozen=True, slots=True)
class _IssuedToken:
    token: Secret
    expires_at: float
    permissions: Mapping[str, str]


class InstallationTokens:
    """Tokens of an App's installation, for one repository only.

    A token is created when needed, shared until shortly before it expires, and replaced if GitHub rejects it. Tokens are never stored.
    """

    def __init__(
        self,
        api_url: str,
        *,
        app_id: str,
        installation_id: str,
        private_key: Secret,
        repository: str,
        clock: Clock,
        destinations: Destinations | None = None,
    ) -> None:
        self._api_url = api_url
        self._app_id = app_id
        self._installation_id = installation_id
        self._private_key = private_key
        self._repository = repository
        self._clock = clock
        self._destinations = destinations
        self._issued: _IssuedToken | None = None
        self._lock = asyncio.Lock()

    async def get_token(self) -> Secret:
        return (await self._get_current()).token

    def discard(self, token: Secret) -> bool:
        if self._issued is not None and self._issued.token == token:
            self._issued = None
        return True

    async def get_permissions(self) -> Mapping[str, str] | None:
        return (await self._get_current()).permissions or None

    async def _get_current(self) -> _IssuedToken:
        async with self._lock:
            if self._issued is None or self._issued.expires_at - EXPIRY_MARGIN_S <= self._clock.now():
                self._issued = await self._issue_token()
            return self._issued

    async def _issue_token(self) -> _IssuedToken:
        signed = FixedToken(_sign_jwt(self._app_id, self._private_key))
        connection = GitHubConnection(self._api_url, signed, self._clock, ResponseCache(0), "", self._destinations)
        path = f"/app/installations/{self._installation_id}/access_tokens"
        try:
            # creating it twice after a broken connection does no harm: the first one expires unused
            response = await connection.request(
                "POST", path, body={"repositories": [self._repository]}, max_wait_s=_MAX_WAIT_S, repeat=True
            )
        except ForgeUnauthorizedError:
            raise ForgeUnauthorizedError(
                "GitHub rejected the project's App: its id and private key do not match, or the key was revoked. Enter the "
                "App's id and one of its private keys."
            ) from None
        except ForgeNotFoundError:
            raise ForgeNotFoundError(
                f"The GitHub App has no installation {self._installation_id}. Install it for the repository's owner and enter "
                "that installation id."
            ) from None
        except ForgeInvalidError as error:
            raise ForgeNotFoundError(
                f"The installation of the GitHub App has no access to {self._repository}. Grant it access to the repository. "
                f"({error.message})"
            ) from None
        finally:
            await connection.close()
        return self._parse_token(as_object(response.json))

    def _parse_token(self, body: JsonObject) -> _IssuedToken:
        token, expires_at = body.get("token"), parse_time(body.get("expires_at"))
        if not isinstance(token, str) or not token or expires_at is None:
            raise ForgeUnreachableError("GitHub's response contains no token for the App's installation.")
        log.info(
            "forge_token_issued", installation=self._installation_id, repository=self._repository, until=str(expires_at)
        )
        permissions = {str(name): str(level) for name, level in as_object(body.get("permissions")).items()}
        return _IssuedToken(Secret(token), expires_at.timestamp(), permissions)


def _sign_jwt(app_id: str, private_key: Secret) -> Secret:
    """Return a JWT signed by the App, valid for a few minutes and useful only to request tokens."""
    issued_at = datetime.now(UTC) - timedelta(minutes=1)  # GitHub's clock may be behind ours
    claims = {"iss": app_id, "iat": issued_at, "exp": issued_at + timedelta(minutes=10)}
    try:
        return Secret(jwt.encode(claims, private_key.reveal(), algorithm="RS256"))
    except Exception:  # the libraries raise many kinds of errors, and none of their messages is needed
        raise ForgeUnauthorizedError(
            "The private key of the project's GitHub App is not an RSA key in PEM format. Use the file generated by GitHub."
        ) from None
