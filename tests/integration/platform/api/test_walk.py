"""A walk along every route: no access without a login, and a stranger learns nothing, not even what exists.

Routes are taken from the application, so a new one is covered automatically. Its parameters come from its OpenAPI entry;
a new kind of id must be added to `OwnedIds`.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import iter_route_contexts
from sqlalchemy import text

from sandyard.kit.ids import make_ordered_id
from sandyard.kit.secret import Secret
from sandyard.platform.api.app import build
from sandyard.platform.api.large_responses import is_large
from sandyard.platform.app import ROUTERS, open_services
from sandyard.platform.db.base import Base
from sandyard.platform.db.models import (
    AgentRun,
    Ask,
    Checkout,
    Checkpoint,
    Command,
    GitOperation,
    Preparation,
    PullRequest,
    Sandbox,
    Session,
    Task,
    Terminal,
    Turn,
)
from sandyard.platform.domain.agents.profiles.custom import Definition
from sandyard.platform.domain.mcp_servers.service import McpServerDraft
from sandyard.platform.domain.models.model import ModelApi
from sandyard.platform.domain.services import Services
from sandyard.platform.domain.tasks.schedules import ScheduledTask
from sandyard.platform.domain.users.model import Principal
from sandyard.platform.settings import PlatformSettings
from tests.harness.databases import with_schema
from tests.unit.platform.api.sockets import connect, denial
from tests.unit.platform.world import ROOT, Person, client

OPEN = {"openapi", "service.health", "service.ready", "login.create"}
SIGNED = {"webhook.github"}  # authenticated by its signature; without one the status is 401 too, with another code
LOCAL = {"service.metrics"}  # open to the local machine; called from another one here
OWN_NAMESPACE = {"secret.put", "secret.delete"}  # names are per user; others may use the same name
STREAMED = {"command.stream", "event.stream", "file.download", "audit.export"}  # never held in memory as a whole
SAME = {"openapi"}  # one document for everybody
SMALL = {
    *(
        "login.get",
        "user.get",
        "credential.list",
        "model_preset.list",
        "session.get",
        "session.sandbox",
        "session.remote",
        "host.list",
        "service.disk",
        "encryption_key.list",
        "project.get_quotas",
        "user.get_quotas",
    ),
    *("sandbox.get", "sandbox.metrics", "sandbox.denied", "file.info", "preview.get", "terminal.list", "git.checkout"),
}
"""Their responses are smaller than `large_responses.PIECE`, whatever users and sandboxes have stored."""
SECRET = "very-own-words-of-the-owner"


@dataclass(frozen=True)
class OwnedIds:
    """One id of every kind, by the name of the parameter in a path. All of them belong to the owner."""

    user_id: str
    token_id: str
    project_id: str
    session_id: str
    sandbox_id: str
    command_id: str
    terminal_id: str
    task_id: str
    operation_id: str
    checkpoint_id: str
    preparation_id: str
    schedule_id: str
    agent_name: str
    provider_id: str
    server_id: str
    turn_id: str
    ask_id: str
    pull_request_id: str
    host_id: str
    number: str
    port: str
    kind: str
    name: str


UNKNOWN_VALUES = {"name": "NOBODYS_KEY", "number": "8008", "port": "8008", "kind": "ssh_key"}
"""For parameters that are not ids."""


@dataclass(frozen=True)
class Route:
    name: str
    method: str  # or WS
    path: str
    operation: dict[str, Any]
    schemas: dict[str, Any]

    @property
    def ids(self) -> list[str]:
        return re.findall(r"{(\w+)}", self.path)

    def url(self, ids: dict[str, str]) -> str:
        unknown = set(self.ids) - set(ids)
        assert not unknown, f"{self.name} has an unknown id parameter: add {unknown} to OwnedIds"
        return self.path.format(**ids)

    @property
    def query(self) -> dict[str, str]:
        wanted = [
            candidate
            for candidate in self.operation.get("parameters", [])
            if candidate["in"] == "query" and candidate.get("required")
        ]
        return {item["name"]: str(item["schema"].get("examples", ["/tmp/x"])[0]) for item in wanted}

    @property
    def body(self) -> dict[str, Any]:
        content = self.operation.get("requestBody", {}).get("content", {})
        if "application/json" in content:
            reference = content["application/json"]["schema"]["$ref"].rsplit("/", 1)[1]
            example = dict(self.schemas[reference]["examples"][0])
            # otherwise the request is rejected before the id in the path is checked
            needed = self.schemas[reference].get("required", []) if self.ids else []
            return {"json": {key: value for key, value in example.items() if not key.endswith("Id") or key in needed}}
        return {"content": b"x"} if content else {}

    @property
    def body_and_query_ids(self) -> list[str]:
        """Names of the ids in the body and the query."""
        content = self.operation.get("requestBody", {}).get("content", {}).get("application/json", {})
        fields = self.schemas[content["schema"]["$ref"].rsplit("/", 1)[1]]["properties"] if content else {}
        query = [candidate["name"] for candidate in self.operation.get("parameters", []) if candidate["in"] == "query"]
        return [name for name in (*fields, *query) if name.endswith("Id")]


class RouteWalk:
    document: ClassVar[dict[str, Any]] = {}
    """The same for every application; it takes a second to build."""

    def __init__(self, services: Services, app: FastAPI) -> None:
        self.services, self.app = services, app
        self.owner: Person
        self.stranger: Person
        self.existing_ids: dict[str, str]

    async def prepare(self) -> None:
        self.owner, self.stranger = await self._person("owner"), await self._person("stranger")
        principal, now = self.owner.principal, datetime.now(UTC)
        project = await self.services.projects.create(principal, SECRET)
        await self.services.agents.create(principal, "owners-agent", SECRET, Definition(argv=[SECRET]))
        provider = await self.services.models.providers.create(
            ROOT,
            name="owners",
            kind=ModelApi.OPENAI_CHAT,
            project_id=project.id,
            base_url=f"http://localhost:9/{SECRET}",
        )
        server = await self.services.mcp_servers.create(
            principal, project.id, McpServerDraft(name="owners", command=SECRET, args=[SECRET], env={"WORDS": SECRET})
        )
        schedule = await self.services.schedules.create(
            principal, project.id, name=SECRET, cron="0 0 1 1 *", timezone="UTC", task=ScheduledTask(title=SECRET)
        )
        await self.services.secrets.put(principal, "OWNERS_KEY", Secret(SECRET))
        await self.services.credentials.put(principal, project.id, webhook_secret=Secret(SECRET))
        session_id, sandbox_id, task_id = make_ordered_id("ses_"), make_ordered_id("sbx_"), make_ordered_id("tsk_")
        command_id, terminal_id = make_ordered_id("cmd_"), make_ordered_id("trm_")
        mine: dict[str, Any] = {"owner_id": principal.user_id, "project_id": project.id, "template": "base"}
        async with self.services.database.transaction() as tx:
            tx.add(Session(id=session_id, title=SECRET, sandbox_id=sandbox_id, created_at=now, updated_at=now, **mine))
            await tx.session.flush()
            tx.add(
                Sandbox(
                    id=sandbox_id,
                    session_id=session_id,
                    idempotency_key=sandbox_id,
                    engine_id="engines-own-id",
                    status="paused",
                    error=SECRET,
                    idle_seconds=300,
                    created_at=now,
                    **mine,
                )
            )
            await tx.session.flush()
            command = {"command": SECRET, "background": False, "timeout_s": 5.0, "status": "exited", "exit_code": 0}
            tx.add(Command(id=command_id, sandbox_id=sandbox_id, started_at=now, finished_at=now, **command))
            tx.add(Terminal(id=terminal_id, sandbox_id=sandbox_id, pid=42, created_at=now))
            card = {"description": SECRET, "status": "done", "position": 0, "priority": 0}
            tx.add(Task(id=task_id, project_id=project.id, title=SECRET, created_at=now, updated_at=now, **card))
            await tx.session.flush()
            for row in _git_rows(project.id, session_id, sandbox_id, task_id, now):
                tx.add(row)
            for row in _agent_rows(session_id, sandbox_id, now):
                tx.add(row)
                await tx.session.flush()
            prepared = {"key": "k", "base_branch": "main", "base_commit": "0" * 40, "status": "failed", "error": SECRET}
            tx.add(Preparation(id=PREPARATION, detail={"step": SECRET}, created_at=now, **mine, **prepared))
        owned = OwnedIds(
            user_id=principal.user_id,
            token_id=principal.means.removeprefix("token:"),
            project_id=project.id,
            session_id=session_id,
            sandbox_id=sandbox_id,
            command_id=command_id,
            terminal_id=terminal_id,
            task_id=task_id,
            operation_id=OPERATION,
            checkpoint_id=CHECKPOINT,
            preparation_id=PREPARATION,
            schedule_id=schedule.id,
            agent_name="owners-agent",
            provider_id=provider.id,
            server_id=server.id,
            turn_id=TURN,
            ask_id=ASK,
            pull_request_id=PULL,
            number="7007",
            port="8000",
            host_id="host-0mh3k7a1x2ab",
            kind="webhook_secret",
            name="OWNERS_KEY",
        )
        self.existing_ids = {field.name: getattr(owned, field.name) for field in fields(owned)}

    @property
    def unknown_ids(self) -> dict[str, str]:
        """Ids of the same form that do not exist."""
        return {name: UNKNOWN_VALUES.get(name, value[:-6] + "zzzzzz") for name, value in self.existing_ids.items()}

    def routes(self) -> Iterator[Route]:
        document = RouteWalk.document = RouteWalk.document or self.app.openapi()
        for context in iter_route_contexts(self.app.routes):
            for method in sorted(getattr(context, "methods", None) or {"WS"}):
                operation = document["paths"].get(context.path, {}).get(method.lower(), {})
                yield Route(str(context.name), method, str(context.path), operation, document["components"]["schemas"])

    async def call(
        self,
        route: Route,
        ids: dict[str, str],
        person: Person | None,
        *,
        ids_in_body: bool = False,
        headers: dict[str, str] | None = None,
    ) -> tuple[int, str]:
        """Return status and body, without what differs between calls. `ids_in_body`: also put ids in the body or the query."""
        headers = {**(person.headers if person else {}), **(headers or {})}
        if route.method == "WS":
            messages = await connect(self.app, route.url(ids), headers)
            status, problem = denial(messages)
            return status, _normalize(json.dumps(problem), ids)
        # called from another machine: local callers may do more
        query, body = route.query, route.body
        if ids_in_body:
            named = {name: ids[_snake(name)] for name in route.body_and_query_ids if _snake(name) in ids}
            body = {"json": body["json"] | named} if "json" in body else body
            query |= {} if "json" in body else named
        async with client(self.app, peer="10.0.0.7") as web:
            url = route.url(ids)
            response = await web.request(route.method, url, params=query, headers=headers, timeout=60, **body)
        if response.status_code >= 400:
            assert response.headers["content-type"] == "application/problem+json" or not response.content, route
        return response.status_code, _normalize(response.text, ids)

    async def read_rows(self) -> dict[str, list[Any]]:
        """Read all rows that a stranger must not change."""
        changing = {"audit", "tickets", "logins"}
        async with self.services.database.reading() as session:
            return {
                table.name: [
                    row
                    for row in (await session.execute(table.select())).mappings()
                    if self.stranger.principal.user_id not in [str(value) for value in row.values()]
                ]
                for table in Base.metadata.sorted_tables
                if table.name not in changing
            }

    async def _person(self, name: str) -> Person:
        user = await self.services.users.create(ROOT, name, "member")
        principal = Principal(user.id, name, "member", "test")
        issued = await self.services.users.create_token(principal, "walk")
        return Person(Principal(user.id, name, "member", f"token:{issued.id}"), issued.value.reveal())


TURN, ASK = make_ordered_id("trn_"), make_ordered_id("ask_")
OPERATION, CHECKPOINT, PREPARATION = make_ordered_id("gop_"), make_ordered_id("ckp_"), make_ordered_id("prp_")
PULL = make_ordered_id("pul_")


def _git_rows(project_id: str, session_id: str, sandbox_id: str, task_id: str, now: datetime) -> list[Base]:
    mine: dict[str, Any] = {"project_id": project_id, "session_id": session_id, "sandbox_id": sandbox_id}
    where = {"branch": SECRET, "base_branch": "main", "base_commit": "1" * 40, "head": "2" * 40}
    pull = {
        "forge": "github",
        "url": SECRET,
        "title": SECRET,
        "state": "open",
        "draft": False,
        "review": "none",
        "checks": "none",
    }
    done = {"arguments": {}, "detail": {"branch": SECRET}, "attempts": 1}
    return [
        Checkout(folder="/home/user/workspace", created_at=now, updated_at=now, **mine, **where),
        GitOperation(id=OPERATION, kind="push", status="completed", created_at=now, **done, **mine),
        Checkpoint(id=CHECKPOINT, reason="asked", commit="3" * 40, changed=0, created_at=now, **mine, **where),
        PullRequest(
            id=PULL,
            task_id=task_id,
            number=7007,
            head_branch=SECRET,
            base_branch="main",
            created_at=now,
            updated_at=now,
            **mine,
            **pull,
        ),
    ]


def _agent_rows(session_id: str, sandbox_id: str, now: datetime) -> list[Base]:
    run_id, finished = make_ordered_id("run_"), {"origin": "person", "status": "completed", "error": SECRET}
    permission = {
        "request": "1",
        "kind": "permission",
        "title": SECRET,
        "detail": {"options": []},
        "status": "answered",
    }
    return [
        AgentRun(
            id=run_id,
            session_id=session_id,
            sandbox_id=sandbox_id,
            agent=SECRET,
            status="ended",
            started_at=now,
            ended_at=now,
        ),
        Turn(id=TURN, session_id=session_id, number=1, run_id=run_id, usage={}, queued_at=now, **finished),
        Ask(id=ASK, session_id=session_id, turn_id=TURN, run_id=run_id, created_at=now, **permission),
    ]


def _snake(name: str) -> str:
    return re.sub(r"([A-Z])", lambda found: f"_{found[1].lower()}", name)


def _normalize(body: str, ids: dict[str, str]) -> str:
    for value in ids.values():
        body = body.replace(value, "ID")
    return re.sub(r'"requestId": ?"[^"]*"', "", body)


@pytest.fixture
async def walk(tmp_path: Path) -> AsyncIterator[RouteWalk]:
    settings = PlatformSettings.load({}, data_dir=with_schema(tmp_path), creates_per_minute=10_000)
    async with open_services(settings) as services:
        made = RouteWalk(services, build(services, ROUTERS))
        await made.prepare()
        yield made


def test_routes_with_large_responses_take_a_slot(walk: RouteWalk) -> None:
    """Otherwise a client that does not read its responses could fill the memory with them."""
    large: set[str] = set()
    others: set[str] = set()
    for context in iter_route_contexts(walk.app.routes):
        if "GET" in (getattr(context, "methods", None) or ()) and str(context.path).startswith("/api/"):
            dependant = getattr(context, "dependant", None)
            (large if dependant is not None and is_large(dependant) else others).add(str(context.name))
    assert others <= SMALL | STREAMED | SAME, (
        "a route whose response can be large needs dependencies=[limit_large_responses()]"
    )
    assert others >= SMALL | STREAMED
    assert {"file.list", "git.diff", "project.compare", "mcp_server.list", "task.list"} <= large


async def test_anonymous_callers_are_rejected_on_every_route(walk: RouteWalk) -> None:
    before = await walk.read_rows()
    checked = 0
    for route in walk.routes():
        if route.name in OPEN:
            continue
        if route.name in SIGNED:
            async with client(walk.app) as web:
                response = await web.post(route.path, json={"repository": {"full_name": "a/b"}})
            assert (response.status_code, response.json()["code"]) == (401, "webhook_signature")
            continue
        status, body = await walk.call(route, walk.existing_ids, None)
        assert status == 401, (route.name, status, body)
        assert SECRET not in body and "owner" not in body, route.name
        checked += 1
    assert checked > 25
    assert await walk.read_rows() == before


async def test_a_cookie_without_its_key_is_rejected_on_every_route(walk: RouteWalk) -> None:
    """Browsers send the cookie to every port of the host, also to a program in a sandbox whose port was forwarded."""

    async def log_in() -> tuple[str, str]:
        async with client(walk.app) as web:
            answer = await web.post("/api/v1/login", json={"token": walk.owner.token})
            return web.cookies["sandyard_session"], answer.json()["key"]

    (cookie, _), (_, other_key) = await log_in(), await log_in()
    before = await walk.read_rows()
    for key in (None, "1", other_key):
        headers = {"cookie": f"sandyard_session={cookie}", **({"X-Sandyard-CSRF": key} if key else {})}
        for route in walk.routes():
            if route.name not in OPEN | SIGNED:
                status, body = await walk.call(route, walk.existing_ids, None, headers=headers)
                assert status == 401, (route.name, key, status, body)
                assert SECRET not in body and "owner" not in body, route.name
    assert await walk.read_rows() == before


async def test_a_stranger_cannot_tell_existing_ids_from_unknown_ones(walk: RouteWalk) -> None:
    """Responses for existing ids equal those for unknown ids."""
    before = await walk.read_rows()
    checked = 0
    for route in walk.routes():
        if not route.ids:
            continue
        existing = await walk.call(route, walk.existing_ids, walk.stranger)
        unknown = await walk.call(route, walk.unknown_ids, walk.stranger)
        if route.name in OWN_NAMESPACE:
            assert existing[0] == unknown[0] < 300, route.name
        else:
            admins_only = route.name.startswith(("user.", "host."))
            assert existing[0] == (403 if admins_only else 404), (route.name, existing)
            assert existing == unknown, route.name
        assert SECRET not in existing[1], route.name
        checked += 1
    assert checked > 10
    after = await walk.read_rows()
    for table, rows in before.items():
        assert after[table] == rows, table


async def test_a_stranger_learns_nothing_from_ids_in_the_body_or_query(walk: RouteWalk) -> None:
    """Ids in the body or the query are treated like ids in the path."""
    before = await walk.read_rows()
    checked = 0
    for route in walk.routes():
        if route.method == "WS" or route.name in SIGNED | {"event.stream"} or not route.body_and_query_ids:
            continue
        existing = await walk.call(route, walk.existing_ids, walk.stranger, ids_in_body=True)
        unknown = await walk.call(route, walk.unknown_ids, walk.stranger, ids_in_body=True)
        assert existing == unknown, route.name
        assert SECRET not in existing[1], route.name
        if route.method != "GET":
            assert existing[0] in (400, 403, 404), (route.name, existing)
        checked += 1
    assert checked > 20
    after = await walk.read_rows()
    for table, rows in before.items():
        assert after[table] == rows, table


async def test_lists_show_a_stranger_nothing(walk: RouteWalk) -> None:
    async with client(walk.app, walk.stranger) as web:
        for route in walk.routes():
            if route.method == "GET" and not route.ids and "/api/v1/" in route.path and route.name != "event.stream":
                response = await web.get(route.path, params=route.query)
                assert SECRET not in response.text and walk.owner.principal.user_id not in response.text, route.name


async def test_the_owner_can_read_every_route(walk: RouteWalk) -> None:
    """No engine is configured here: routes that need one report that."""
    for route in walk.routes():
        if route.method == "GET" and route.ids:
            status, body = await walk.call(route, walk.existing_ids, walk.owner)
            assert status not in (401, 403, 404, 500), (route.name, status, body)


async def test_malformed_ids_are_rejected(walk: RouteWalk) -> None:
    async with client(walk.app, walk.owner) as web:
        for route in walk.routes():
            if route.method == "GET" and route.ids and not route.name.startswith("user."):
                for odd in ("%F0%9F%90%99", "x" * 3000, "..%2f..%2fetc", "'; DROP TABLE users; --"):
                    response: httpx.Response = await web.get(
                        re.sub(r"{\w+}", lambda _, odd=odd: odd, route.path), params=route.query
                    )
                    assert response.status_code in (400, 404), (route.name, odd, response.text)
    async with walk.services.database.reading() as session:
        assert await session.scalar(text("SELECT count(*) FROM users")) == 2
