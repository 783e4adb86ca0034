"""Administrators see what uses disk space, and free it."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.responses import JSONResponse

from sandyard.kit.clock import get_time
from sandyard.kit.secret import Secret
from sandyard.platform.api import disk
from sandyard.platform.db.models import Command, Sandbox
from sandyard.platform.domain.instance.disk import DiskKeeper
from sandyard.platform.domain.sandboxes.command_output import OutputFiles
from sandyard.platform.domain.sandboxes.e2b import EngineConfig, SandboxEngine
from sandyard.platform.domain.sandboxes.model import utc_now
from tests.harness.asgi import serve_app
from tests.unit.platform.world import Person, World, client

PATH = "/api/v1/disk"
IMAGES = {"kind": "images", "bytes": 4000, "count": 2, "oldestAt": 1.5, "removable": 1, "removableBytes": 1000}


@pytest.fixture
async def admin(world: World) -> Person:
    return await world.create_person("root", "admin")


@pytest.fixture
async def engine(world: World) -> AsyncIterator[list[str]]:
    """An engine with one kind of files. Yields the requests."""
    requests: list[str] = []
    app = FastAPI()

    async def answer(path: str) -> JSONResponse:
        requests.append(path)
        return JSONResponse({"entries": [IMAGES], "free": 10, "total": 100, "path": "/engine"})

    app.add_api_route("/{path:path}", answer, methods=["GET", "POST"])
    async with serve_app(app) as port:
        world.engine = SandboxEngine(EngineConfig(Secret("e2b_" + "0" * 40), f"http://127.0.0.1:{port}"), world.clock)
        yield requests


def keep_disk(world: World) -> FastAPI:
    """Return an application whose platform removes the commands named `cmd_old…` when it tidies."""
    files = OutputFiles(world.settings.data_dir / "output")

    async def list_unused(older_than: timedelta) -> list[Any]:
        return []

    async def tidy() -> None:
        await files.remove("cmd_old1")

    keeper = DiskKeeper(
        world.database,
        world.engine,
        world.settings,
        files,
        SimpleNamespace(list_unused=list_unused),  # type: ignore[arg-type]
    )
    keeper.tidy = tidy
    world.disk = keeper  # type: ignore[attr-defined]
    return world.app(disk.router)


def add_output(world: World, command_id: str, size: int, age: float = 0) -> Path:
    folder = world.settings.data_dir / "output" / command_id[-2:] / command_id
    folder.mkdir(parents=True)
    (folder / "stdout").write_bytes(os.urandom(size))
    os.utime(folder, (time.time() - age,) * 2)
    return folder


async def add_command(world: World, owner: Person, command_id: str, finished: timedelta) -> None:
    now = utc_now()
    async with world.database.transaction() as tx:
        if await tx.session.get(Sandbox, "sbx_1") is None:
            tx.session.add(
                Sandbox(
                    id="sbx_1",
                    owner_id=owner.principal.user_id,
                    template="base",
                    idempotency_key="sbx_1",
                    status="running",
                    idle_seconds=300,
                    created_at=get_time(world.clock),
                )
            )
            await tx.session.flush()
        tx.session.add(
            Command(
                id=command_id,
                sandbox_id="sbx_1",
                command="true",
                background=False,
                timeout_s=1,
                status="exited",
                started_at=now - finished,
                finished_at=now - finished,
            )
        )


def find(state: dict[str, Any], place: str, kind: str) -> dict[str, Any]:
    (entry,) = (entry for entry in state["entries"] if (entry["place"], entry["kind"]) == (place, kind))
    return entry  # type: ignore[no-any-return]


async def test_output_that_is_old_or_belongs_to_nothing_may_be_removed(
    world: World, admin: Person, engine: list[str]
) -> None:
    await add_command(world, admin, "cmd_old1", timedelta(days=100))
    await add_command(world, admin, "cmd_new1", timedelta(days=1))
    for name in ("cmd_old1", "cmd_new1"):
        add_output(world, name, 1 << 20)
    orphan = add_output(world, "cmd_gone", 2 << 20, age=7200)
    starting = add_output(world, "cmd_soon", 1 << 20)
    async with client(keep_disk(world), admin) as web:
        found = (await web.get(PATH)).json()
        output = find(found, "platform", "output")
        assert (output["count"], output["removable"]) == (4, 2)
        assert 5 << 20 <= output["bytes"] < 5.2 * (1 << 20)
        assert 3 << 20 <= output["removableBytes"] < 3.2 * (1 << 20)
        assert find(found, "engine", "images")["removableBytes"] == 1000
        assert {room["place"]: room["path"] for room in found["rooms"]}["engine"] == "/engine"
        assert orphan.exists()

        answer = await web.post(f"{PATH}/free")
        assert answer.status_code == 200, answer.text
        removed = find(answer.json(), "platform", "output")
        assert removed["removable"] == 2
        assert removed["removableBytes"] == output["removableBytes"]
    assert not orphan.exists() and starting.exists()
    assert engine == ["disk", "disk/free"]


async def test_mirrors_of_deleted_projects_count_as_removable(world: World, admin: Person, engine: list[str]) -> None:
    mirror = world.settings.git_dir / "prj_gone.git"
    mirror.mkdir(parents=True)
    (mirror / "pack").write_bytes(os.urandom(1 << 20))
    async with client(keep_disk(world), admin) as web:
        entry = find((await web.get(PATH)).json(), "platform", "repositories")
    assert (entry["count"], entry["removable"]) == (1, 1)
    assert entry["removableBytes"] >= 1 << 20


async def test_an_engine_that_does_not_report_its_disk_is_not_an_error(world: World, admin: Person) -> None:
    async with client(keep_disk(world), admin) as web:
        found = (await web.get(PATH)).json()
    assert found["engineError"]
    assert find(found, "platform", "database")["bytes"] > 0
    assert [room["place"] for room in found["rooms"]] == ["platform"]


async def test_only_administrators_see_and_free_the_disk(world: World) -> None:
    async with client(keep_disk(world), await world.create_person("maria")) as web:
        assert (await web.get(PATH)).status_code == 403
        assert (await web.post(f"{PATH}/free")).status_code == 403
