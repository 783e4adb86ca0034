"""A walk along every route there is: nobody comes in without a login, and a stranger learns nothing, not even what exists.

Routes are taken from the application, so that a new one is walked by itself. What it needs to be called with comes from
its OpenAPI entry; a new kind of id has to be added to `Belongings`.
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

from sandyard.kit.ids import ordered_id
from sandyard.kit.secret import Secret
from sandyard.platform.api.app import build
from sandyard.platform.api.large_responses import is_large
from sandyard.platform.app import ROUTERS, opened
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
from tests.databases import with_schema
from tests.unit.platform.api.sockets import connect, denial
from tests.unit.platform.world import ROOT, Person, client

OPEN = {"openapi", "service.health", "service.ready", "login.create"}
SIGNED = {"webhook.github"}  # a delivery's signature is its login; who has none is answered 401 too, in other words
LOCAL = {"service.metrics"}  # open to this machine; walked from another one
OWN_NAMESPACE = {"secret.put", "secret.delete"}  # the name is the caller's own, whoever else uses it
STREAMED = {"command.stream", "event.stream", "file.download", "audit.export"}  # never in memory as a whole
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
    ),
    *("sandbox.get", "sandbox.metrics", "sandbox.denied", "file.info", "preview.get", "terminal.list", "git.checkout"),
}
"""Their answers have less than `answers.PIECE`, whatever people and sandboxes have stored."""
SECRET = "very-own-words-of-the-owner"


@dataclass(frozen=True)
class Belongings:
    """One of everything, by the name of the parameter in a path. All of it is the owner's."""

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
    number: str
    port: str
    kind: str
    name: str


NOWHERE = {"name": "NOBODYS_KEY", "number": "8008", "port": "8008", "kind": "ssh_key"}
"""Of what has no id."""


@dataclass(frozen=True)
class Step:
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
        assert not unknown, f"{self.name} has an id this walk does not know: add {unknown} to Belongings"
        return self.path.format(**ids)

    @property
    def query(self) -> dict[str, str]:
        wanted = [one for one in self.operation.get("parameters", []) if one["in"] == "query" and one.get("required")]
        return {one["name"]: str(one["schema"].get("examples", ["/tmp/x"])[0]) for one in wanted}

    @property
    def body(self) -> dict[str, Any]:
        content = self.operation.get("requestBody", {}).get("content", {})
        if "application/json" in content:
            reference = content["application/json"]["schema"]["$ref"].rsplit("/", 1)[1]
            example = dict(self.schemas[reference]["examples"][0])
            needed = (
                self.schemas[reference].get("required", []) if self.ids else []
            )  # else the id in the path is not looked at
            return {"json": {key: value for key, value in example.items() if not key.endswith("Id") or key in needed}}
        return {"content": b"x"} if content else {}

    @property
    def named(self) -> list[str]:
        """Ids that are asked for in the body or the query, by their names there."""
        content = self.operation.get("requestBody", {}).get("content", {}).get("application/json", {})
        fields = self.schemas[content["schema"]["$ref"].rsplit("/", 1)[1]]["properties"] if content else {}
        query = [one["name"] for one in self.operation.get("parameters", []) if one["in"] == "query"]
        return [name for name in (*fields, *query) if name.endswith("Id")]


class Walk:
    _document: ClassVar[dict[str, Any]] = {}
    """The same for every application; it takes a second to make."""

    def __init__(self, services: Services, app: FastAPI) -> None:
        self.services, self.app = services, app
        self.owner: Person
        self.stranger: Person
        self.there: dict[str, str]

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
        session_id, sandbox_id, task_id = ordered_id("ses_"), ordered_id("sbx_"), ordered_id("tsk_")
        command_id, terminal_id = ordered_id("cmd_"), ordered_id("trm_")
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
        made = Belongings(
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
            kind="webhook_secret",
            name="OWNERS_KEY",
        )
        self.there = {one.name: getattr(made, one.name) for one in fields(made)}

    @property
    def nowhere(self) -> dict[str, str]:
        """Ids of the same form that are nobody's."""
        return {name: NOWHERE.get(name, value[:-6] + "zzzzzz") for name, value in self.there.items()}

    def steps(self) -> Iterator[Step]:
        document = Walk._document = Walk._document or self.app.openapi()
        for route in iter_route_contexts(self.app.routes):
            for method in sorted(getattr(route, "methods", None) or {"WS"}):
                operation = document["paths"].get(route.path, {}).get(method.lower(), {})
                yield Step(str(route.name), method, str(route.path), operation, document["components"]["schemas"])

    async def call(
        self, step: Step, ids: dict[str, str], person: Person | None, *, naming: bool = False
    ) -> tuple[int, str]:
        """Status and body, without what differs from call to call. `naming`: with ids in the body and the query too."""
        if step.method == "WS":
            said = await connect(self.app, step.url(ids), person.headers if person else {})
            status, problem = denial(said)
            return status, _plain(json.dumps(problem), ids)
        # from another machine: this one's may do more
        query, body = step.query, step.body
        if naming:
            named = {name: ids[_snake(name)] for name in step.named if _snake(name) in ids}
            body = {"json": body["json"] | named} if "json" in body else body
            query |= {} if "json" in body else named
        async with client(self.app, person, peer="10.0.0.7") as web:
            answer = await web.request(step.method, step.url(ids), params=query, timeout=60, **body)
        if answer.status_code >= 400:
            assert answer.headers["content-type"] == "application/problem+json" or not answer.content, step
        return answer.status_code, _plain(answer.text, ids)

    async def stored(self) -> dict[str, list[Any]]:
        """All rows that a stranger must not change."""
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


TURN, ASK = ordered_id("trn_"), ordered_id("ask_")
OPERATION, CHECKPOINT, PREPARATION = ordered_id("gop_"), ordered_id("ckp_"), ordered_id("prp_")
PULL = ordered_id("pul_")


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
    run_id, over = ordered_id("run_"), {"origin": "person", "status": "completed", "error": SECRET}
    asked = {"request": "1", "kind": "permission", "title": SECRET, "detail": {"options": []}, "status": "answered"}
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
        Turn(id=TURN, session_id=session_id, number=1, run_id=run_id, usage={}, queued_at=now, **over),
        Ask(id=ASK, session_id=session_id, turn_id=TURN, run_id=run_id, created_at=now, **asked),
    ]


def _snake(name: str) -> str:
    return re.sub(r"([A-Z])", lambda found: f"_{found[1].lower()}", name)


def _plain(body: str, ids: dict[str, str]) -> str:
    for value in ids.values():
        body = body.replace(value, "ID")
    return re.sub(r'"requestId": ?"[^"]*"', "", body)


@pytest.fixture
async def walk(tmp_path: Path) -> AsyncIterator[Walk]:
    settings = PlatformSettings.load({}, data_dir=with_schema(tmp_path), creates_per_minute=10_000)
    async with opened(settings) as services:
        made = Walk(services, build(services, ROUTERS))
        await made.prepare()
        yield made


def test_large_answers_take_a_slot(walk: Walk) -> None:
    """Else somebody who reads none of their answers fills the memory with them."""
    large: set[str] = set()
    others: set[str] = set()
    for route in iter_route_contexts(walk.app.routes):
        if "GET" in (getattr(route, "methods", None) or ()) and str(route.path).startswith("/api/"):
            dependant = getattr(route, "dependant", None)
            (large if dependant is not None and is_large(dependant) else others).add(str(route.name))
    assert others <= SMALL | STREAMED | SAME, "a route whose answer can be large needs dependencies=[large_answer()]"
    assert others >= SMALL | STREAMED
    assert {"file.list", "git.diff", "project.compare", "mcp_server.list", "task.list"} <= large


async def test_anonymous(walk: Walk) -> None:
    before = await walk.stored()
    walked = 0
    for step in walk.steps():
        if step.name in OPEN:
            continue
        if step.name in SIGNED:
            async with client(walk.app) as web:
                answer = await web.post(step.path, json={"repository": {"full_name": "a/b"}})
            assert (answer.status_code, answer.json()["code"]) == (401, "webhook_signature")
            continue
        status, body = await walk.call(step, walk.there, None)
        assert status == 401, (step.name, status, body)
        assert SECRET not in body and "owner" not in body, step.name
        walked += 1
    assert walked > 25
    assert await walk.stored() == before


async def test_stranger(walk: Walk) -> None:
    """What is there is answered exactly like what is not."""
    before = await walk.stored()
    walked = 0
    for step in walk.steps():
        if not step.ids:
            continue
        there = await walk.call(step, walk.there, walk.stranger)
        nowhere = await walk.call(step, walk.nowhere, walk.stranger)
        if step.name in OWN_NAMESPACE:
            assert there[0] == nowhere[0] < 300, step.name
        else:
            admins_only = step.name.startswith("user.")
            assert there[0] == (403 if admins_only else 404), (step.name, there)
            assert there == nowhere, step.name
        assert SECRET not in there[1], step.name
        walked += 1
    assert walked > 10
    after = await walk.stored()
    for table, rows in before.items():
        assert after[table] == rows, table


async def test_stranger_names_what_is_not_theirs(walk: Walk) -> None:
    """In the body or the query instead of the path: no difference."""
    before = await walk.stored()
    walked = 0
    for step in walk.steps():
        if step.method == "WS" or step.name in SIGNED | {"event.stream"} or not step.named:
            continue
        there = await walk.call(step, walk.there, walk.stranger, naming=True)
        nowhere = await walk.call(step, walk.nowhere, walk.stranger, naming=True)
        assert there == nowhere, step.name
        assert SECRET not in there[1], step.name
        if step.method != "GET":
            assert there[0] in (400, 403, 404), (step.name, there)
        walked += 1
    assert walked > 20
    after = await walk.stored()
    for table, rows in before.items():
        assert after[table] == rows, table


async def test_lists_show_a_stranger_nothing(walk: Walk) -> None:
    async with client(walk.app, walk.stranger) as web:
        for step in walk.steps():
            if step.method == "GET" and not step.ids and "/api/v1/" in step.path and step.name != "event.stream":
                answer = await web.get(step.path, params=step.query)
                assert SECRET not in answer.text and walk.owner.principal.user_id not in answer.text, step.name


async def test_owner(walk: Walk) -> None:
    """The owner reads what is theirs. No engine is configured here: what needs one says so."""
    for step in walk.steps():
        if step.method == "GET" and step.ids:
            status, body = await walk.call(step, walk.there, walk.owner)
            assert status not in (401, 403, 404, 500), (step.name, status, body)


async def test_an_id_that_cannot_be_is_not_found(walk: Walk) -> None:
    async with client(walk.app, walk.owner) as web:
        for step in walk.steps():
            if step.method == "GET" and step.ids and not step.name.startswith("user."):
                for odd in ("%F0%9F%90%99", "x" * 3000, "..%2f..%2fetc", "'; DROP TABLE users; --"):
                    answer: httpx.Response = await web.get(
                        re.sub(r"{\w+}", lambda _, odd=odd: odd, step.path), params=step.query
                    )
                    assert answer.status_code in (400, 404), (step.name, odd, answer.text)
    async with walk.services.database.reading() as session:
        assert await session.scalar(text("SELECT count(*) FROM users")) == 2
