"""What opens a project's remote and its forge: written by its owner, shown as a hint, revealed to the platform alone."""

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

from sandyard.kit.clock import Clock
from sandyard.kit.errors import InvalidInputError, NotFoundError
from sandyard.kit.secret import Secret
from sandyard.kit.vault import Vault
from sandyard.platform.db.database import Database
from sandyard.platform.db.models import Credential, Project
from sandyard.platform.domain.projects.keys import app_key, ssh_key
from sandyard.platform.domain.projects.service import Projects
from sandyard.platform.domain.users.model import Principal
from sandyard.platform.domain.users.tokens import instant

USERNAME = "x-access-token"
"""What GitHub expects beside a token; most others take any name."""
MAX_TOKEN = 1000
MIN_WEBHOOK_SECRET = 16
_SHOWN = 4  # characters of a token
_PLAIN = re.compile(r"[!-~]+")
_NAME = re.compile(r"[!-9;-~]{1,200}")  # a colon would end it where it is sent
_APP = re.compile(r"[A-Za-z0-9._-]{1,40}")
_INSTALLATION = re.compile(r"[0-9]{1,20}")


class CredentialKind(StrEnum):
    TOKEN = "token"  # noqa: S105 - the name of a kind
    SSH_KEY = "ssh_key"
    APP = "app"
    WEBHOOK_SECRET = "webhook_secret"  # noqa: S105


@dataclass(frozen=True, slots=True)
class AppKey:
    """A GitHub App as it is installed for the repository's owner."""

    app_id: str
    installation_id: str
    private_key: Secret


@dataclass(frozen=True, slots=True)
class CredentialInfo:
    """All that anybody is told of a credential."""

    kind: CredentialKind
    hint: str
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class Draft:
    """One that was looked at and can be stored."""

    kind: CredentialKind
    value: Secret
    hint: str


class Credentials:
    """Only who may change the project writes its credentials; whoever sees it sees which there are."""

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
        """Store all that are given, or none: InvalidInputError says what is wrong with one. Others of the project stay.

        Each replaces the one of its kind. Answers with all there are now.
        """
        await self._projects.require_change(caller, project_id)
        drafts = await asyncio.to_thread(checked, token, username, ssh_key, app, webhook_secret)
        if not drafts:
            raise InvalidInputError("Give at least one: a token, an SSH key, an app or a webhook's secret.")
        await self.store(project_id, drafts)
        return await self.list(caller, project_id)

    async def store(self, project_id: str, drafts: Sequence[Draft]) -> None:
        """For who has looked already whether they may. NotFoundError when the project is gone by now."""
        sealed = {
            draft.kind: await asyncio.to_thread(self._vault.seal, draft.value, *_place(project_id, draft.kind))
            for draft in drafts
        }
        try:
            await self._write(project_id, drafts, sealed)
        except IntegrityError:  # somebody else wrote the first of its kind in the same moment: now it is there
            await self._write(project_id, drafts, sealed)

    async def _write(self, project_id: str, drafts: Sequence[Draft], sealed: dict[CredentialKind, bytes]) -> None:
        now = instant(self._clock)
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
        """NotFoundError when there is none of that kind."""
        project = await self._projects.require_change(caller, project_id)
        async with self._database.transaction() as tx:
            row = await tx.session.get(Credential, (project_id, kind))
            if row is None:
                raise NotFoundError(f"The project has no credential {kind[:40]!r}.")
            await tx.session.delete(row)
            tx.emit("project.credential_removed", owner_id=project.owner_id, project_id=project_id, credential=kind)

    async def list(self, caller: Principal, project_id: str) -> list[CredentialInfo]:
        """By kind; never a value."""
        await self._projects.get(caller, project_id)
        rows = select(Credential).where(Credential.project_id == project_id).order_by(Credential.kind)
        async with self._database.reading() as session:
            return [
                CredentialInfo(CredentialKind(row.kind), row.hint, row.created_at, row.updated_at)
                for row in await session.scalars(rows)
            ]

    async def reveal(self, project_id: str, kind: CredentialKind | str) -> Secret | None:
        """For the platform's own code only. VaultError when it cannot be opened.

        Of a token it is JSON: `token` and `username`; of an app: `appId`, `installationId` and `privateKey`. Keys are PEM.
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
    """InvalidInputError says what is wrong, and quotes nothing secret. Blocks for some milliseconds when there are keys."""
    if username is not None and token is None:
        raise InvalidInputError("A user name goes with a token: give both.")
    drafts = []
    if token is not None:
        drafts.append(_token(token, username or USERNAME))
    if key is not None:
        clean, hint = ssh_key(key)
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
            "The token is empty, or has spaces, line breaks or other characters that tokens do not have. Copy it again."
        )
    if not _NAME.fullmatch(username):
        raise InvalidInputError("The user name has at most 200 characters and neither spaces nor colons.")
    # of a short one, four characters would be too much of it
    hint = f"…{value[-_SHOWN:]}" if len(value) >= 4 * _SHOWN else "…"
    return Draft(CredentialKind.TOKEN, _json(token=value, username=username), hint)


def _app(app: AppKey) -> Draft:
    if not _APP.fullmatch(app.app_id):
        raise InvalidInputError("The app's id is its number, or its client id: letters, digits, dots and dashes.")
    if not _INSTALLATION.fullmatch(app.installation_id):
        raise InvalidInputError("The installation's id is a number: the last part of the address of its settings page.")
    key, fingerprint = app_key(app.private_key)
    value = _json(appId=app.app_id, installationId=app.installation_id, privateKey=key.reveal())
    return Draft(CredentialKind.APP, value, f"{app.app_id} {fingerprint}")


def _webhook(secret: Secret) -> Draft:
    value = secret.reveal()
    if not MIN_WEBHOOK_SECRET <= len(value) <= MAX_TOKEN or not _PLAIN.fullmatch(value):
        raise InvalidInputError(
            f"The webhook's secret has {MIN_WEBHOOK_SECRET} to {MAX_TOKEN} characters and no spaces. Make one with: openssl rand -hex 32"
        )
    return Draft(CredentialKind.WEBHOOK_SECRET, secret, "set")


def _json(**values: str) -> Secret:
    return Secret(json.dumps(values))


def _place(project_id: str, kind: str) -> tuple[str, ...]:
    """Where a sealed value belongs: moved to another row it does not open."""
    return "credential", project_id, str(kind)
