"""Secrets of people and projects: written by them, listed by name, revealed only to the platform's own code."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import delete, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from sandyard.kit.clock import Clock, get_time
from sandyard.kit.errors import InvalidInputError, NotFoundError
from sandyard.kit.ids import make_ordered_id
from sandyard.kit.secret import Secret
from sandyard.kit.vault import Vault
from sandyard.platform.db.database import Database
from sandyard.platform.db.models import StoredSecret
from sandyard.platform.domain.paging import Listing, PageRequest, list_newest_first
from sandyard.platform.domain.projects.service import Projects
from sandyard.platform.domain.users.model import Principal

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}")
MAX_SIZE = 64 * 1024


@dataclass(frozen=True, slots=True)
class SecretInfo:
    """Everything about a secret that may be shown."""

    id: str
    name: str
    project_id: str | None
    created_at: datetime
    updated_at: datetime


class Secrets:
    """A person's own secrets, or a project's. A project's secrets belong to its owner; only people who may change the
    project can write them."""

    def __init__(self, database: Database, projects: Projects, vault: Vault, clock: Clock) -> None:
        self._database = database
        self._projects = projects
        self._vault = vault
        self._clock = clock

    async def put(self, caller: Principal, name: str, value: Secret, project_id: str | None = None) -> SecretInfo:
        """Store a secret. Replaces an existing one of the same name."""
        check_name(name)
        if len(value.reveal().encode()) > MAX_SIZE:
            raise InvalidInputError(f"A secret can have at most {MAX_SIZE // 1024} KiB.")
        owner = await self._get_owner_id(caller, project_id, change=True)
        sealed = await asyncio.to_thread(self._vault.seal, value, owner, project_id or "", name)
        try:
            row = await self._store(owner, project_id, name, sealed)
        except IntegrityError:  # another request created one of the same name at the same time, so now it exists
            row = await self._store(owner, project_id, name, sealed)
        return _to_info(row)

    async def _store(self, owner: str, project_id: str | None, name: str, sealed: bytes) -> StoredSecret:
        now = get_time(self._clock)
        async with self._database.transaction() as tx:
            row = await _find(tx.session, owner, project_id, name)
            if row is None:
                row = StoredSecret(
                    id=make_ordered_id("sec_"),
                    owner_id=owner,
                    project_id=project_id,
                    project_key=project_id or "",
                    name=name,
                    created_at=now,
                )
                tx.add(row)
            row.value, row.updated_at = sealed, now
            tx.emit("secret.written", owner_id=owner, project_id=project_id, name=name)
        return row

    async def list(self, caller: Principal, page: PageRequest, project_id: str | None = None) -> Listing[SecretInfo]:
        """List the secrets of the project, or the caller's own, without their values."""
        owner = await self._get_owner_id(caller, project_id, change=False)
        rows = select(StoredSecret).where(
            StoredSecret.owner_id == owner, StoredSecret.project_key == (project_id or "")
        )
        async with self._database.reading() as session:
            found = await list_newest_first(session, rows, StoredSecret.id, page)
        return Listing([_to_info(row) for row in found.items], found.next_cursor)

    async def delete(self, caller: Principal, name: str, project_id: str | None = None) -> None:
        """Delete a secret. Raises NotFoundError if there is none."""
        owner = await self._get_owner_id(caller, project_id, change=True)
        async with self._database.transaction() as tx:
            row = await _find(tx.session, owner, project_id, name)
            if row is None:
                raise NotFoundError(f"There is no secret {name[:60]!r}.")
            await tx.session.execute(delete(StoredSecret).where(StoredSecret.id == row.id))
            tx.emit("secret.deleted", owner_id=owner, project_id=project_id, name=name)

    async def reveal(self, owner_id: str, name: str, project_id: str | None = None) -> Secret | None:
        """Return the value, for the platform's own code only. Raises VaultError if it cannot be decrypted."""
        async with self._database.reading() as session:
            row = await _find(session, owner_id, project_id, name)
        if row is None:
            return None
        return await asyncio.to_thread(self._vault.open, row.value, owner_id, project_id or "", name)

    async def _get_owner_id(self, caller: Principal, project_id: str | None, *, change: bool) -> str:
        if project_id is None:
            return caller.user_id
        get_project = self._projects.get_changeable if change else self._projects.get
        return (await get_project(caller, project_id)).owner_id


def check_name(name: str) -> None:
    if not NAME.fullmatch(name):
        raise InvalidInputError(
            "The name of a secret must have at most 200 letters, digits and underscores, and must not start with a digit."
        )


async def _find(session: AsyncSession, owner: str, project_id: str | None, name: str) -> StoredSecret | None:
    return await session.scalar(
        select(StoredSecret).where(
            StoredSecret.owner_id == owner, StoredSecret.project_key == (project_id or ""), StoredSecret.name == name
        )
    )


def _to_info(row: StoredSecret) -> SecretInfo:
    return SecretInfo(row.id, row.name, row.project_id, row.created_at, row.updated_at)
