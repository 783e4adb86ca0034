"""A platform with users and an API on a real SQLite file, without sandboxes, with a manual clock."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import httpx
from fastapi import APIRouter, FastAPI
from sqlalchemy import select

from sandyard.kit.clock import ManualClock
from sandyard.kit.destinations import Destinations
from sandyard.kit.vault import Vault
from sandyard.platform.api.app import build
from sandyard.platform.api.auth import KEY_HEADER
from sandyard.platform.db.database import Database
from sandyard.platform.db.models import Event
from sandyard.platform.domain.agents.catalogue import AgentCatalogue
from sandyard.platform.domain.audit.service import Audit
from sandyard.platform.domain.events import Feed
from sandyard.platform.domain.forge.access import ForgeAccess
from sandyard.platform.domain.forge.connection_test import ConnectionTests
from sandyard.platform.domain.instance.status import StatusReader
from sandyard.platform.domain.projects.credentials import Credentials
from sandyard.platform.domain.projects.sample import Samples
from sandyard.platform.domain.projects.service import Projects
from sandyard.platform.domain.repositories.git_process import Git
from sandyard.platform.domain.repositories.mirror import Mirrors
from sandyard.platform.domain.sandboxes.e2b import EngineConfig, SandboxEngine
from sandyard.platform.domain.secrets.service import Secrets
from sandyard.platform.domain.users import passwords
from sandyard.platform.domain.users.model import Principal
from sandyard.platform.domain.users.service import Users
from sandyard.platform.settings import PlatformSettings
from tests.harness.databases import sqlite_schema

PASSWORD = "correct horse battery"


@dataclass
class World:
    settings: PlatformSettings
    clock: ManualClock
    database: Database
    users: Users
    audit: Audit
    status: StatusReader
    projects: Projects
    samples: Samples
    secrets: Secrets
    credentials: Credentials
    access: ForgeAccess
    connection_tests: ConnectionTests
    vault: Vault
    engine: SandboxEngine
    events: Feed
    agents: AgentCatalogue

    async def create_person(self, name: str, role: str = "member", password: str | None = None) -> Person:
        """Create a user with a token, as the first administrator."""
        return await create_person(self.users, name, role, password)

    async def list_events(self) -> list[Event]:
        async with self.database.reading() as session:
            return list(await session.scalars(select(Event).order_by(Event.seq)))

    def app(self, *routers: APIRouter) -> FastAPI:
        return build(self, routers)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Person:
    principal: Principal
    token: str

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}


ROOT = Principal("usr_root", "root", "admin", "test")


async def create_person(users: Users, name: str, role: str = "member", password: str | None = None) -> Person:
    """Create a user with a token, as the first administrator."""
    user = await users.create(ROOT, name, role, password)
    issued = await users.create_token(Principal(user.id, name, role, "test"), "test")
    return Person(Principal(user.id, name, role, f"token:{issued.id}"), issued.value.reveal())


@contextlib.asynccontextmanager
async def open_world(folder: Path, **settings: Any) -> AsyncIterator[World]:
    configured = PlatformSettings.load({}, data_dir=folder, **settings)
    clock = ManualClock()
    if "database_url" not in settings and not (path := folder / "platform.db").exists():
        path.write_bytes(sqlite_schema())
    database = Database(configured.database)
    await database.open()
    projects, vault = Projects(database, clock), Vault(folder / "secret.key")
    git, credentials = Git(configured.git_dir, timeout_s=60), Credentials(database, projects, vault, clock)
    mirrors = Mirrors(git, configured)
    engine = SandboxEngine(EngineConfig(configured.e2b_api_key), clock)
    access = ForgeAccess(credentials, projects, mirrors, clock, Destinations())
    world = World(
        settings=configured,
        clock=clock,
        database=database,
        users=Users(configured, database, clock),
        audit=Audit(database, clock),
        status=StatusReader(database, engine, configured, clock),
        projects=projects,
        samples=Samples(database, projects, git, folder / "samples"),
        secrets=Secrets(database, projects, vault, clock),
        credentials=credentials,
        access=access,
        connection_tests=ConnectionTests(access, credentials, projects, mirrors),
        vault=vault,
        engine=engine,
        events=Feed(database, clock=clock),
        agents=AgentCatalogue(database, configured),
    )
    try:
        with mock.patch.object(passwords, "COST", 16):  # the real cost is 50 ms of CPU per password
            yield world
    finally:
        await world.users.close()
        await world.audit.close()
        await world.access.close()
        await database.close()


@contextlib.asynccontextmanager
async def client(
    app: FastAPI, person: Person | None = None, *, peer: str = "127.0.0.1", base: str = "http://localhost:8700"
) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app, client=(peer, 40000))
    headers = person.headers if person else {}
    async with httpx.AsyncClient(transport=transport, base_url=base, headers=headers) as made:
        yield made


async def sign_in(web: httpx.AsyncClient, **credentials: str) -> dict[str, Any]:
    """Sign in like a browser: the client keeps the cookie and sends the key with every request. Returns the response's body."""
    answer = await web.post("/api/v1/login", json=credentials)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    web.headers[KEY_HEADER] = found["key"]
    return found


async def list_all(pages: httpx.AsyncClient, path: str, **query: Any) -> Iterable[dict[str, Any]]:
    """Return all items of a list, page by page."""
    found: list[dict[str, Any]] = []
    cursor = None
    while True:
        answer = await pages.get(path, params={**query, **({"cursor": cursor} if cursor else {})})
        assert answer.status_code == 200, answer.text
        found += answer.json()["items"]
        cursor = answer.json()["nextCursor"]
        if cursor is None:
            return found
