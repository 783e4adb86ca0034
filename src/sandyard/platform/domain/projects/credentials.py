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

DEFAULT_USERNAME = "x-access-token"
"""The username GitHub expects with a token. Most others accept any name."""
MAX_TOKEN_LENGTH = 1000
MIN_WEBHOOK_SECRET_LENGTH = 16
_HINT_LENGTH = 4
_PRINTABLE = re.compile(r"[!-~]+")
_USERNAME_PATTERN = re.compile(r"[!-9;-~]{1,200}")  # a colon would end the username in an Authorization header
_APP_ID = re.compile(r"[A-Za-z0-9._-]{1,40}")
_INSTALLATION_ID = re.compile(r"[0-9]{1,20}")


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
class CredentialDraft:
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
        await self._projects.get_changeable(caller, project_id)
        drafts = await asyncio.to_thread(validate_credentials, token, username, ssh_key, app, webhook_secret)
        if not drafts:
            raise InvalidInputError("Enter at least one credential: a token, an SSH key, an app or a webhook secret.")
        await self.store(project_id, drafts)
        return await self.list(caller, project_id)

    async def store(self, project_id: str, drafts: Sequence[CredentialDraft]) -> None:
        """Store credentials for a caller who is already authorized. Raises NotFoundError if the project was deleted."""
        sealed = {
            draft.kind: await asyncio.to_thread(
                self._vault.seal, draft.value, *_make_vault_context(project_id, draft.kind)
            )
            for draft in drafts
        }
        try:
            await self._write_rows(project_id, drafts, sealed)
        except IntegrityError:  # a concurrent request created the first one of its kind: now it exists
            await self._write_rows(project_id, drafts, sealed)

    async def _write_rows(
        self, project_id: str, drafts: Sequence[CredentialDraft], sealed: dict[CredentialKind, bytes]
    ) -> None:
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
        project = await self._projects.get_changeable(caller, project_id)
        async with self._database.transaction() as tx:
            row = await tx.session.get(Credential, (project_id, kind))
            if row is None:
                raise NotFoundError(f"The project has no credential {kind[:40]!r}.")
            await tx.session.delete(row)
            tx.emit("project.credential_removed", owner_id=project.owner_id, project_id=project_id, credential=kind)

    async def list(self, caller: Principal, project_id: str) -> list[CredentialInfo]:
        """List credentials by kind, without values."""
        await self._projects.get(caller, project_id)
        query = select(Credential).where(Credential.project_id == project_id).order_by(Credential.kind)
        async with self._database.reading() as session:
            return [
                CredentialInfo(CredentialKind(row.kind), row.hint, row.created_at, row.updated_at)
                for row in await session.scalars(query)
            ]

    async def reveal(self, project_id: str, kind: CredentialKind | str) -> Secret | None:
        """Return a credential. Internal use only. Raises VaultError if it cannot be decrypted.

        A token is JSON with `token` and `username`; an app is JSON with `appId`, `installationId` and `privateKey`. Keys are PEM.
        """
        async with self._database.reading() as session:
            row = await session.get(Credential, (project_id, str(kind)))
        if row is None:
            return None
        return await asyncio.to_thread(self._vault.open, row.value, *_make_vault_context(project_id, kind))

    def open(self, project_id: str, kind: CredentialKind, stored: bytes) -> Secret:
        """Decrypt a credential that was read from the database. Internal use only. Raises VaultError if it cannot be decrypted.

        Takes microseconds, but blocks when the vault's key is first read.
        """
        return self._vault.open(stored, *_make_vault_context(project_id, kind))


def validate_credentials(
    token: Secret | None = None,
    username: str | None = None,
    key: Secret | None = None,
    app: AppKey | None = None,
    webhook_secret: Secret | None = None,
) -> list[CredentialDraft]:
    """Validate credentials. Raises InvalidInputError, which quotes nothing secret. Blocks for a few milliseconds if there are keys."""
    if username is not None and token is None:
        raise InvalidInputError("A username requires a token. Enter both.")
    drafts = []
    if token is not None:
        drafts.append(_draft_token(token, username or DEFAULT_USERNAME))
    if key is not None:
        clean, hint = parse_ssh_key(key)
        drafts.append(CredentialDraft(CredentialKind.SSH_KEY, clean, hint))
    if app is not None:
        drafts.append(_draft_app(app))
    if webhook_secret is not None:
        drafts.append(_draft_webhook_secret(webhook_secret))
    return drafts


def _draft_token(token: Secret, username: str) -> CredentialDraft:
    value = token.reveal()
    if len(value) > MAX_TOKEN_LENGTH:
        raise InvalidInputError(f"The token is longer than {MAX_TOKEN_LENGTH} characters.")
    if not _PRINTABLE.fullmatch(value):
        raise InvalidInputError(
            "The token is empty, or contains spaces, line breaks or other invalid characters. Copy it again."
        )
    if not _USERNAME_PATTERN.fullmatch(username):
        raise InvalidInputError("The username must have at most 200 characters, without spaces and colons.")
    # the last characters of a short token would reveal too much of it
    hint = f"…{value[-_HINT_LENGTH:]}" if len(value) >= 4 * _HINT_LENGTH else "…"
    return CredentialDraft(CredentialKind.TOKEN, _to_secret_json(token=value, username=username), hint)


def _draft_app(app: AppKey) -> CredentialDraft:
    if not _APP_ID.fullmatch(app.app_id):
        raise InvalidInputError("The app id must be the app's id or client id: letters, digits, dots and hyphens.")
    if not _INSTALLATION_ID.fullmatch(app.installation_id):
        raise InvalidInputError("The installation id must be a number: the last part of the URL of its settings page.")
    key, fingerprint = parse_app_key(app.private_key)
    value = _to_secret_json(appId=app.app_id, installationId=app.installation_id, privateKey=key.reveal())
    return CredentialDraft(CredentialKind.APP, value, f"{app.app_id} {fingerprint}")


def _draft_webhook_secret(secret: Secret) -> CredentialDraft:
    value = secret.reveal()
    if not MIN_WEBHOOK_SECRET_LENGTH <= len(value) <= MAX_TOKEN_LENGTH or not _PRINTABLE.fullmatch(value):
        raise InvalidInputError(
            f"The webhook secret must have {MIN_WEBHOOK_SECRET_LENGTH} to {MAX_TOKEN_LENGTH} characters and no spaces. Generate one with: "
            "openssl rand -hex 32"
        )
    return CredentialDraft(CredentialKind.WEBHOOK_SECRET, secret, "set")


def _to_secret_json(**values: str) -> Secret:
    return Secret(json.dumps(values))


def _make_vault_context(project_id: str, kind: str) -> tuple[str, ...]:
    """Return the context that a sealed value is bound to, so that it cannot be opened in another row."""
    return "credential", project_id, str(kind)
