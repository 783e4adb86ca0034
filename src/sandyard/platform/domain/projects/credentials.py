"""Credentials of a project's remote and forge: written by its owner, shown as hints, revealed only to the platform."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError

from sandyard.kit.clock import Clock, get_time
from sandyard.kit.errors import InvalidInputError, NotFoundError
from sandyard.kit.secret import Secret
from sandyard.kit.vault import Vault
from sandyard.platform.db.database import Database
from sandyard.platform.db.models import Credential, Project
from sandyard.platform.domain.projects.keys import parse_app_key, parse_ssh_key
from sandyard.platform.domain.projects.service import Projects
from sandyard.platform.domain.users.model import Principal

USERNAME = "x-access-token"
"""The username GitHub expects with a token. Most others accept any name."""
MAX_TOKEN = 1000
MIN_WEBHOOK_SECRET = 16
_SHOWN = 4  # characters of a token
_PLAIN = re.compile(r"[!-~]+")
_NAME = re.compile(r"[!-9;-~]{1,200}")  # a colon would end the username in an Authorization header
_APP = re.compile(r"[A-Za-z0-9._-]{1,40}")
_INSTALLATION = re.compile(r"[0-9]{1,20}")


class CredentialKind(StrEnum):
    TOKEN = "token"  # noqa: S105 - the name of a kind
    SSH_KEY = "ssh_key"
    APP = "app"
    WEBHOOK_SECRET = "webhook_secret"  # noqa: S105


@dataclass(frozen=True, slots=True)
class AppKey:
    """A GitHub App, as installed for the repository's owner."""

    app_id: str
    installation_id: str
    private_key: Secret


@dataclass(frozen=True, slots=True)
class CredentialInfo:
    """The visible part of a credential."""

    kind: CredentialKind
    hint: str
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class Draft:
    """A validated credential that can be stored."""

    kind: CredentialKind
    value: Secret
    hint: str


class Credentials:
    """Credentials of projects. Those who may change a project write them; those who see it see which exist."""

    def __init__(self, database: Database, projects: Projects, vault: Vault, clock: Clock) -> None:
        self._database = database
        self._projects = projects
        self._vault = vault
        self._clock = clock

    async def put(
        self,
        caller: Principal,
        project_id: str,
        *,
        token: Secret | None = None,
        username: str | None = None,
        ssh_key: Secret | None = None,
        app: AppKey | None = None,
        webhook_secret: Secret | None = None,
    ) -> list[CredentialInfo]:
        """Store all given credentials, or none. Raises InvalidInputError, which says what is wrong.

        Each replaces the one of its kind; others of the project are kept. Returns all stored credentials.
        """
        await self._projects.require_change(caller, project_id)
        drafts = await asyncio.to_thread(checked, token, username, ssh_key, app, webhook_secret)
        if not drafts:
            raise InvalidInputError("Enter at least one credential: a token, an SSH key, an app or a webhook secret.")
        await self.store(project_id, drafts)
        return await self.list(caller, project_id)

    async def store(self, project_id: str, drafts: Sequence[Draft]) -> None:
        """Store credentials for a caller who is already authorized. Raises NotFoundError if the project was deleted."""
        sealed = {
            draft.kind: await asyncio.to_thread(self._vault.seal, draft.value, *_place(project_id, draft.kind))
            for draft in drafts
        }
        try:
            await self._write(project_id, drafts, sealed)
        except IntegrityError:  # a concurrent request created the first one of its kind: now it exists
            await self._write(project_id, drafts, sealed)

    async def _write(self, project_id: str, drafts: Sequence[Draft], sealed: dict[CredentialKind, bytes]) -> None:
        now = get_time(self._clock)
        async with self._database.transaction() as tx:
            project = await tx.session.get(Project, project_id)
            if project is None:
                raise NotFoundError(f"There is no project {project_id[:60]}.")
            for draft in drafts:
                row = await tx.session.get(Credential, (project_id, draft.kind))
                if row is None:
                    row = Credential(project_id=project_id, kind=draft.kind, created_at=now)
                    tx.add(row)
                row.value, row.hint, row.updated_at = sealed[draft.kind], draft.hint, now
                tx.emit(
                    "project.credential_written",
                    owner_id=project.owner_id,
                    project_id=project_id,
                    credential=draft.kind.value,
                )

    async def remove(self, caller: Principal, project_id: str, kind: str) -> None:
        """Remove a credential. Raises NotFoundError if there is none of that kind."""
        project = await self._projects.require_change(caller, project_id)
        async with self._database.transaction() as tx:
            row = await tx.session.get(Credential, (project_id, kind))
            if row is None:
                raise NotFoundError(f"The project has no credential {kind[:40]!r}.")
            await tx.session.delete(row)
            tx.emit("project.credential_removed", owner_id=project.owner_id, project_id=project_id, credential=kind)

    async def list(self, caller: Principal, project_id: str) -> list[CredentialInfo]:
        """List credentials by kind, without values."""
        await self._projects.get(caller, project_id)
        rows = select(Credential).where(Credential.project_id == project_id).order_by(Credential.kind)
        async with self._database.reading() as session:
            return [
                CredentialInfo(CredentialKind(row.kind), row.hint, row.created_at, row.updated_at)
                for row in await session.scalars(rows)
            ]

    async def reveal(self, project_id: str, kind: CredentialKind | str) -> Secret | None:
        """Return a credential. Internal use only. Raises VaultError if it cannot be decrypted.

        A token is JSON with `token` and `username`; an app is JSON with `appId`, `installationId` and `privateKey`. Keys are PEM.
        """
        async with self._database.reading() as session:
            row = await session.get(Credential, (project_id, str(kind)))
        if row is None:
            return None
        return await asyncio.to_thread(self._vault.open, row.value, *_place(project_id, kind))


def checked(
    token: Secret | None = None,
    username: str | None = None,
    key: Secret | None = None,
    app: AppKey | None = None,
    webhook_secret: Secret | None = None,
) -> list[Draft]:
    """Validate credentials. Raises InvalidInputError, which quotes nothing secret. Blocks for a few milliseconds if there are keys."""
    if username is not None and token is None:
        raise InvalidInputError("A username requires a token. Enter both.")
    drafts = []
    if token is not None:
        drafts.append(_token(token, username or USERNAME))
    if key is not None:
        clean, hint = parse_ssh_key(key)
        drafts.append(Draft(CredentialKind.SSH_KEY, clean, hint))
    if app is not None:
        drafts.append(_app(app))
    if webhook_secret is not None:
        drafts.append(_webhook(webhook_secret))
    return drafts


def _token(token: Secret, username: str) -> Draft:
    value = token.reveal()
    if len(value) > MAX_TOKEN:
        raise InvalidInputError(f"The token is longer than {MAX_TOKEN} characters.")
    if not _PLAIN.fullmatch(value):
        raise InvalidInputError(
            "The token is empty, or contains spaces, line breaks or other invalid characters. Copy it again."
        )
    if not _NAME.fullmatch(username):
        raise InvalidInputError("The username must have at most 200 characters, without spaces and colons.")
    # four characters of a short one would reveal too much
    hint = f"…{value[-_SHOWN:]}" if len(value) >= 4 * _SHOWN else "…"
    return Draft(CredentialKind.TOKEN, _json(token=value, username=username), hint)


def _app(app: AppKey) -> Draft:
    if not _APP.fullmatch(app.app_id):
        raise InvalidInputError("The app id must be the app's id or client id: letters, digits, dots and hyphens.")
    if not _INSTALLATION.fullmatch(app.installation_id):
        raise InvalidInputError("The installation id must be a number: the last part of the URL of its settings page.")
    key, fingerprint = parse_app_key(app.private_key)
    value = _json(appId=app.app_id, installationId=app.installation_id, privateKey=key.reveal())
    return Draft(CredentialKind.APP, value, f"{app.app_id} {fingerprint}")


def _webhook(secret: Secret) -> Draft:
    value = secret.reveal()
    if not MIN_WEBHOOK_SECRET <= len(value) <= MAX_TOKEN or not _PLAIN.fullmatch(value):
        raise InvalidInputError(
            f"The webhook secret must have {MIN_WEBHOOK_SECRET} to {MAX_TOKEN} characters and no spaces. Generate one with: "
            "openssl rand -hex 32"
        )
    return Draft(CredentialKind.WEBHOOK_SECRET, secret, "set")


def _json(**values: str) -> Secret:
    return Secret(json.dumps(values))


def _place(project_id: str, kind: str) -> tuple[str, ...]:
    """Return the context a sealed value is bound to. It cannot be opened in another row."""
    return "credential", project_id, str(kind)
