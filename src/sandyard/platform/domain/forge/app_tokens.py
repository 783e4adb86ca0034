"""Where a line to GitHub has its token from: a token that a person made, or those that a GitHub App's installation is given."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from githubkit import GitHub
from githubkit.auth.app import AppAuth
from githubkit.cache import MemCacheStrategy

from sandyard.kit.clock import Clock
from sandyard.kit.destinations import Destinations
from sandyard.kit.logging import get_logger
from sandyard.kit.secret import Secret
from sandyard.platform.domain.forge.connection import Connection
from sandyard.platform.domain.forge.errors import (
    ForgeInvalidError,
    ForgeNotFoundError,
    ForgeUnauthorizedError,
    ForgeUnreachableError,
)
from sandyard.platform.domain.forge.github_reading import Json, instant, table
from sandyard.platform.domain.forge.remembered import Remembered

log = get_logger(__name__)

MARGIN_S = 300.0
"""A token that ends sooner than this is not used any more: what was begun with it may take a while."""
_PATIENCE_S = 60.0


class FixedToken:
    """A token that somebody made, or none at all: public repositories can be read without."""

    def __init__(self, token: Secret | None) -> None:
        self._token = token

    async def token(self) -> Secret | None:
        return self._token

    def rejected(self, token: Secret) -> bool:
        return False

    async def granted(self) -> Mapping[str, str] | None:
        return None


@dataclass(frozen=True, slots=True)
class _Issued:
    token: Secret
    ends: float
    granted: Mapping[str, str]


class Installation:
    """The tokens of an App's installation, for one repository and no other. One is made when it is needed, used by all until
    shortly before it ends, and made anew when GitHub does not accept it any more. Nothing of it outlives the process."""

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
        self._issued: _Issued | None = None
        self._one = asyncio.Lock()

    async def token(self) -> Secret:
        return (await self._current()).token

    def rejected(self, token: Secret) -> bool:
        if self._issued is not None and self._issued.token == token:
            self._issued = None
        return True

    async def granted(self) -> Mapping[str, str] | None:
        return (await self._current()).granted or None

    async def _current(self) -> _Issued:
        async with self._one:
            if self._issued is None or self._issued.ends - MARGIN_S <= self._clock.now():
                self._issued = await self._issue()
            return self._issued

    async def _issue(self) -> _Issued:
        signed = FixedToken(_signed(self._app_id, self._private_key))
        line = Connection(self._api_url, signed, self._clock, Remembered(0), "", self._destinations)
        path = f"/app/installations/{self._installation_id}/access_tokens"
        try:
            # made twice after a cut line it does no harm: the first one just ends unused
            answer = await line.request(
                "POST", path, body={"repositories": [self._repository]}, max_wait_s=_PATIENCE_S, repeat=True
            )
        except ForgeUnauthorizedError:
            raise ForgeUnauthorizedError(
                "GitHub does not accept the project's App: its id and its private key do not belong together, or the key was revoked. "
                "Give the project the App's id and a private key of it."
            ) from None
        except ForgeNotFoundError:
            raise ForgeNotFoundError(
                f"The GitHub App has no installation {self._installation_id}. Install it for the repository's owner, and give the project "
                "that installation's id."
            ) from None
        except ForgeInvalidError as error:
            raise ForgeNotFoundError(
                f"The installation of the GitHub App does not reach {self._repository}. Give it access to the repository. ({error.message})"
            ) from None
        finally:
            await line.close()
        return self._read(table(answer.json))

    def _read(self, said: Json) -> _Issued:
        token, ends = said.get("token"), instant(said.get("expires_at"))
        if not isinstance(token, str) or not token or ends is None:
            raise ForgeUnreachableError("GitHub's answer holds no token for the installation of the App.")
        log.info("forge_token_issued", installation=self._installation_id, repository=self._repository, until=str(ends))
        granted = {str(name): str(level) for name, level in table(said.get("permissions")).items()}
        return _Issued(Secret(token), ends.timestamp(), granted)


def _signed(app_id: str, private_key: Secret) -> Secret:
    """A statement of the App that it is the App; good for some minutes, and for little more than asking for tokens."""
    # a cache of its own: githubkit's is the process's, and goes by the App's id alone, whoever has its key or not
    github = GitHub(cache_strategy=MemCacheStrategy())
    try:
        return Secret(AppAuth(github, app_id, private_key.reveal()).get_jwt())
    except Exception:  # the libraries below have many names for it, and none of their sentences is needed
        raise ForgeUnauthorizedError(
            "The private key of the project's GitHub App is not an RSA key in PEM form. Give the project the file that GitHub made."
        ) from None
