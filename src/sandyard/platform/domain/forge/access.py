"""The platform's access to a project's remote and forge."""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Protocol

from sandyard.kit.clock import Clock
from sandyard.kit.destinations import Destinations
from sandyard.kit.secret import Secret
from sandyard.platform.db.models import Project
from sandyard.platform.domain.forge import addresses
from sandyard.platform.domain.forge.app_tokens import FixedToken, InstallationTokens
from sandyard.platform.domain.forge.errors import ForgeUnsupportedError
from sandyard.platform.domain.forge.github import GitHubRepository
from sandyard.platform.domain.forge.github_connection import GitHubConnection, ResponseCache, TokenSource
from sandyard.platform.domain.forge.model import Budget, ForgeKind
from sandyard.platform.domain.projects.credentials import CredentialDraft, CredentialInfo, CredentialKind
from sandyard.platform.domain.projects.service import Projects
from sandyard.platform.domain.repositories.mirror import Mirrors
from sandyard.platform.domain.repositories.model import Credential
from sandyard.platform.domain.repositories.remote import Remote
from sandyard.platform.domain.users.model import Principal

INTERACTIVE_WAIT_S = 60.0
"""How long a request may wait for the forge's rate limit to reset while a person waits for it."""

_MAX_CONNECTIONS = 64


class CredentialStore(Protocol):
    """The part of `Credentials` that `ForgeAccess` uses."""

    async def reveal(self, project_id: str, kind: CredentialKind | str) -> Secret | None: ...

    async def list(self, caller: Principal, project_id: str) -> list[CredentialInfo]: ...


class _DraftCredentials:
    """A project's credentials, overridden by some that are not stored yet."""

    def __init__(self, stored: CredentialStore, drafts: Sequence[CredentialDraft]) -> None:
        self._drafts = {draft.kind: draft for draft in drafts}
        self.list = stored.list
        self._stored = stored

    async def reveal(self, project_id: str, kind: CredentialKind | str) -> Secret | None:
        draft = self._drafts.get(CredentialKind(kind))
        return await self._stored.reveal(project_id, kind) if draft is None else draft.value


class ForgeAccess:
    """Access to the remotes and forges of projects, with one API connection per credential.

    Closes the least recently used connections. `close` it at the end.

    Credentials are read at each use, so that a new one applies immediately.
    """

    def __init__(
        self,
        credentials: CredentialStore,
        projects: Projects,
        mirrors: Mirrors,
        clock: Clock,
        destinations: Destinations | None = None,
    ) -> None:
        """`destinations`: the allowed API hosts of projects whose owner is not an administrator. None means any."""
        self._credentials = credentials
        self._projects = projects
        self._mirrors = mirrors
        self._clock = clock
        self._destinations = destinations
        self._cache = ResponseCache()
        self.connections: OrderedDict[str, GitHubConnection] = OrderedDict()

    async def close(self) -> None:
        while self.connections:
            _, connection = self.connections.popitem()
            await connection.close()

    def get_forge(self, project: Project) -> ForgeKind:
        """Return the project's forge. Raises RepositoryInvalidError if it has no repository."""
        return addresses.get_forge(project)

    async def get_remote(self, project: Project) -> Remote:
        """Return the remote for a connection. Raises RepositoryInvalidError if the project has none."""
        return await self._projects.get_remote(project)

    async def get_credential(self, project: Project) -> Credential | None:
        """Return the Git credential for the project's remote: over SSH its key; over HTTP its token, or else a token of its App.

        None if it has or needs none. Raises ForgeError if GitHub issues no token for the App.
        """
        remote = addresses.get_remote(project)
        if remote.kind == "local":
            return None
        if remote.kind == "ssh":
            key = await self._credentials.reveal(project.id, CredentialKind.SSH_KEY)
            return None if key is None else Credential(ssh_key=key)
        stored = await self._credentials.reveal(project.id, CredentialKind.TOKEN)
        if stored is not None:
            fields = json.loads(stored.reveal())
            return Credential(token=Secret(fields["token"]), username=fields["username"])
        if await self._credentials.reveal(project.id, CredentialKind.APP) is None:
            return None
        return Credential(token=await (await self._get_connection(project)).tokens.get_token())

    async def get_github_repository(
        self, project: Project, *, max_wait_s: float = INTERACTIVE_WAIT_S
    ) -> GitHubRepository:
        """Return the repository on GitHub, for one operation with the current credential.

        Raises ForgeUnsupportedError if the project is not on GitHub.
        """
        if self.get_forge(project) is not ForgeKind.GITHUB:
            raise ForgeUnsupportedError(
                "The project's repository is on a plain Git remote, which has no pull requests. Compare its branches instead."
            )
        slug = addresses.get_slug(project)
        return GitHubRepository(await self._get_connection(project), slug, self._clock, max_wait_s=max_wait_s)

    async def get_budget(self, project: Project) -> Budget | None:
        """Return the remaining rate limit as last reported by GitHub, without a request. None for a plain remote."""
        if not project.repository or self.get_forge(project) is not ForgeKind.GITHUB:
            return None
        return (await self._get_connection(project)).rate_limit.budget

    def with_drafts(self, drafts: Sequence[CredentialDraft]) -> ForgeAccess:
        """Return a copy that uses `drafts`, which are not stored yet, in place of stored credentials. `close` it at the end."""
        credentials = _DraftCredentials(self._credentials, drafts)
        return ForgeAccess(credentials, self._projects, self._mirrors, self._clock, self._destinations)

    async def get_token_expiry(self, project: Project) -> str | None:
        """Return when the project's token expires, as last reported by GitHub; None if unknown."""
        return (await self._get_connection(project)).token_expires

    async def _get_connection(self, project: Project) -> GitHubConnection:
        api = addresses.get_api_url(project)
        stored = await self._credentials.reveal(project.id, CredentialKind.TOKEN)
        destinations = None if await self._projects.is_trusted(project) else self._destinations
        if stored is not None:
            token = Secret(json.loads(stored.reveal())["token"])
            return await self._open_connection(
                _make_key(api, "token", token.reveal()), api, lambda: FixedToken(token), destinations
            )
        app = await self._credentials.reveal(project.id, CredentialKind.APP)
        if app is None:
            return await self._open_connection(_make_key(api, "nobody"), api, lambda: FixedToken(None), destinations)
        fields, slug = json.loads(app.reveal()), addresses.get_slug(project)
        installation = InstallationTokens(
            api,
            app_id=fields["appId"],
            installation_id=fields["installationId"],
            private_key=Secret(fields["privateKey"]),
            repository=slug.partition("/")[2],
            clock=self._clock,
            destinations=destinations,
        )
        return await self._open_connection(
            _make_key(api, "app", app.reveal(), slug), api, lambda: installation, destinations
        )

    async def _open_connection(
        self, key: str, api: str, make_tokens: Callable[[], TokenSource], destinations: Destinations | None
    ) -> GitHubConnection:
        """Return the cached connection of this key, or a new one. Connections with and without a destination check are kept apart."""
        key = key if destinations is None else f"guarded:{key}"
        connection = self.connections.get(key)
        if connection is None:
            connection = self.connections[key] = GitHubConnection(
                api, make_tokens(), self._clock, self._cache, key, destinations
            )
        self.connections.move_to_end(key)
        unused = [
            name for name, other in self.connections.items() if not other.active_requests and other is not connection
        ]
        excess = max(0, len(self.connections) - _MAX_CONNECTIONS)
        for old in [self.connections.pop(name) for name in unused[:excess]]:
            await old.close()
        return connection


def _make_key(*parts: str) -> str:
    """Return an identifier of a credential that does not contain it."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
